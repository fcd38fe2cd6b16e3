//! Two hosts as network namespaces with a cable between them, which is pulled. It needs the rights of root; without them the
//! reason is printed.
#![cfg(target_os = "linux")]

use std::process::Command;

use crate::ranks::{Process, as_player, connected};

/// Two namespaces with one address each, which end with this.
struct Hosts([String; 2]);

impl Hosts {
    fn new() -> Option<Hosts> {
        let id = std::process::id();
        let hosts = Hosts([format!("vit-{id}-a"), format!("vit-{id}-b")]);
        let [a, b] = &hosts.0;
        let made = ip(&["netns", "add", a])
            && ip(&["netns", "add", b])
            && ip(&["-n", a, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b])
            && ip(&["-n", a, "address", "add", "10.231.77.1/24", "dev", "cable"])
            && ip(&["-n", b, "address", "add", "10.231.77.2/24", "dev", "cable"])
            && ip(&["-n", a, "link", "set", "cable", "up"])
            && ip(&["-n", b, "link", "set", "cable", "up"])
            && ip(&["-n", a, "link", "set", "lo", "up"]);
        made.then_some(hosts)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            ip(&["netns", "delete", host]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_link_that_goes_down_ends_both_sides() {
    let Some(hosts) = Hosts::new() else {
        println!("network namespaces cannot be made here: nothing is tested");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    // Two ranks on the first host, one on the second.
    let ranks: Vec<Process> = [0, 0, 1]
        .into_iter()
        .enumerate()
        .map(|(rank, host)| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &hosts.0[host]]).arg(std::env::current_exe().unwrap());
            as_player(&mut command, "work");
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3").env("VIT_CLUSTER_SECRET", "a secret");
            command.env("MASTER_ADDR", "10.231.77.1").env("MASTER_PORT", "29500").env("VIT_CLUSTER_TIMEOUT", "20");
            command.env("TEST_FOLDER", folder.path()).env("VIT_CLUSTER_SILENCE", "2");
            Process::start(command)
        })
        .collect();
    connected(folder.path(), 3);
    assert!(ip(&["-n", &hosts.0[0], "link", "set", "cable", "down"]));
    for (rank, process) in ranks.into_iter().enumerate() {
        let (status, errors) = process.end();
        let named = if rank == 2 { ["rank 0 on ", "rank 1 on "] } else { ["rank 2 on ", "rank 2 on "] };
        assert_eq!(status, Some(3), "rank {rank}: {errors}");
        assert!(
            named.iter().any(|name| errors.contains(name)) && errors.contains("has been silent for 2 s"),
            "{errors}"
        );
    }
}
