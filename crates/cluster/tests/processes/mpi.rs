//! Ranks as processes that an MPI library connects, with every mpirun of this machine. Without any, the reason is printed.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::ranks::{Process, as_player, connected, send_signal};

/// The programs of all installed MPI libraries that start processes.
fn launchers() -> Vec<&'static str> {
    let exists = |name: &&str| {
        let found = Command::new(name).arg("--version").output();
        found.is_ok_and(|output| output.status.success())
    };
    let mut launchers: Vec<_> = ["mpirun.openmpi", "mpirun.mpich"].into_iter().filter(exists).collect();
    if launchers.is_empty() {
        launchers.extend(["mpirun", "mpiexec"].iter().find(|name| exists(name)));
    }
    if launchers.is_empty() {
        println!("no mpirun or mpiexec was found: nothing is tested");
    }
    launchers
}

fn start(launcher: &str, role: &str, size: usize, folder: &Path) -> Process {
    let mut command = Command::new(launcher);
    command.args(["-n", &size.to_string()]).arg(std::env::current_exe().unwrap());
    as_player(&mut command, role);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // More ranks than cores, in Open MPI 4 and 5.
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    command.env("VIT_CLUSTER_TIMEOUT", "20").env("VIT_CLUSTER_SILENCE", "2").env("TEST_FOLDER", folder);
    Process::start(command)
}

#[test]
fn processes_add_to_the_same_bits() {
    for launcher in launchers() {
        for size in [2, 4] {
            let folder = tempfile::tempdir().unwrap();
            let (status, errors) = start(launcher, "add", size, folder.path()).end();
            assert_eq!(status, Some(0), "{launcher}, {size} ranks: {errors}");
        }
    }
}

#[test]
fn the_error_of_a_rank_is_that_of_all() {
    for launcher in launchers() {
        let folder = tempfile::tempdir().unwrap();
        let (status, errors) = start(launcher, "fail at 1", 3, folder.path()).end();
        assert_ne!(status, Some(0), "{launcher}");
        assert!(errors.contains("failed: cat.jpg: not an image"), "{launcher}: {errors}");
    }
}

#[test]
fn a_stopped_rank_ends_the_run() {
    for launcher in launchers() {
        let folder = tempfile::tempdir().unwrap();
        let run = start(launcher, "work", 3, folder.path());
        let processes = connected(folder.path(), 3);
        send_signal(processes[2], "-STOP");
        let start = Instant::now();
        let (status, errors) = run.end();
        let _ = Command::new("kill").args(["-KILL", &processes[2].to_string()]).output();
        assert_ne!(status, Some(0), "{launcher}");
        assert!(errors.contains("has been silent for 2 s: it hangs, or its network is down"), "{launcher}: {errors}");
        assert!(start.elapsed() < Duration::from_secs(15));
    }
}

#[test]
fn a_killed_rank_ends_the_run() {
    for launcher in launchers() {
        let folder = tempfile::tempdir().unwrap();
        let run = start(launcher, "work", 3, folder.path());
        send_signal(connected(folder.path(), 3)[1], "-KILL");
        let (status, _) = run.end();
        assert_ne!(status, Some(0), "{launcher}");
    }
}
