//! Two hosts and a web server as network namespaces around a switch: a run whose samples and gradients cross the network, and
//! a link that goes down. This needs the rights of root; without them the reason is printed.

#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "each test uses a part of the server")]
#[path = "../../storage/tests/support/s3_server.rs"]
mod s3_server;
mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use s3_server::S3Server;
use support::images;

const ADDRESSES: [&str; 3] = ["10.231.78.1", "10.231.78.2", "10.231.78.3"];
const WEB_SERVER: usize = 2;

/// Three network namespaces, the last with the switch and the web server. They are deleted with this.
struct Network([String; 3]);

impl Network {
    fn new() -> Option<Network> {
        let id = std::process::id();
        let network = Network(["one", "two", "web"].map(|name| format!("vit-{id}-{name}")));
        let [_, _, web] = &network.0;
        let made =
            network.0.iter().all(|name| ip(&["netns", "add", name]) && ip(&["-n", name, "link", "set", "lo", "up"]))
                && ip(&["-n", web, "link", "add", "switch", "type", "bridge"])
                && ip(&["-n", web, "address", "add", &format!("{}/24", ADDRESSES[WEB_SERVER]), "dev", "switch"])
                && ip(&["-n", web, "link", "set", "switch", "up"])
                && (0..WEB_SERVER).all(|host| network.plug_in(host));
        made.then_some(network)
    }

    fn plug_in(&self, host: usize) -> bool {
        let (name, web, port) = (&self.0[host], &self.0[WEB_SERVER], format!("port{host}"));
        ip(&["-n", name, "link", "add", "cable", "type", "veth", "peer", "name", &port, "netns", web])
            && ip(&["-n", name, "address", "add", &format!("{}/24", ADDRESSES[host]), "dev", "cable"])
            && ip(&["-n", web, "link", "set", "dev", &port, "master", "switch", "up"])
            && self.set_link(host, "up")
    }

    fn set_link(&self, host: usize, state: &str) -> bool {
        ip(&["-n", &self.0[host], "link", "set", "cable", state])
    }

    /// A command on a host, which has a name of its own.
    fn on(&self, host: usize, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[host], "unshare", "--uts", "sh", "-c"]);
        command.args(["hostname $0 && exec \"$@\"", &format!("host-{host}")]).arg(program.as_ref());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `vit` on both hosts with torchrun's variables.
    fn start_ranks(&self, arguments: &[String]) -> [Process; 2] {
        [0, 1].map(|rank| {
            let mut command = self.on(rank, env!("CARGO_BIN_EXE_vit"));
            command.args(arguments).env("RANK", rank.to_string()).env("VIT_CLUSTER_SILENCE", "4").envs([
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", "0"),
                ("LOCAL_WORLD_SIZE", "1"),
                ("MASTER_ADDR", ADDRESSES[0]),
                ("MASTER_PORT", "29500"),
                ("VIT_CLUSTER_SECRET", "between us"),
            ]);
            Process(command.spawn().unwrap())
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&["netns", "delete", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).output().is_ok_and(|output| output.status.success())
}

/// A process that is killed when it is dropped.
struct Process(Child);

impl Process {
    /// Waits for a line with this text on standard output.
    fn wait_for(&mut self, text: &str) {
        let mut lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(text)), "it ended without a line with {text}");
    }

    /// Whether it succeeded, and its errors, within a limit in seconds.
    fn end(mut self, limit: u64) -> (bool, String) {
        let (mut stdout, mut stderr) = (self.0.stdout.take().unwrap(), self.0.stderr.take().unwrap());
        // A full pipe would block the process.
        let drain = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).map(|_| text)
        });
        let deadline = Instant::now() + Duration::from_secs(limit);
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "process {} did not end", self.0.id());
            std::thread::sleep(Duration::from_millis(10));
        };
        drain.join().unwrap().unwrap();
        (status.success(), errors.join().unwrap().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The role of the web server: this executable, with only this test.
#[test]
fn role_of_the_web_server() {
    let Some(shards) = std::env::var_os("TEST_SHARDS") else { return };
    let server = S3Server::start_at(&format!("{}:80", ADDRESSES[WEB_SERVER]), &["data"]);
    server.put_folder("data", shards.as_ref());
    println!("\nserving");
    loop {
        std::thread::park();
    }
}

/// Weights, optimiser and metrics without times.
fn result(run: &Path) -> (Vec<Vec<u8>>, Vec<serde_json::Value>) {
    let read = |name: &str| std::fs::read(run.join(name)).unwrap();
    let state = ["model", "optimiser"].map(|name| read(&format!("checkpoints/last/{name}.safetensors")));
    let rows = String::from_utf8(read("metrics.jsonl")).unwrap();
    let rows = rows.lines().map(|line| {
        let mut row: serde_json::Value = serde_json::from_str(line).unwrap();
        for time in ["time", "train/images_per_second", "train/waiting"] {
            row.as_object_mut().unwrap().remove(time);
        }
        row
    });
    (state.into(), rows.collect())
}

#[test]
fn a_run_whose_link_goes_down_ends_on_both_hosts_and_continues_to_the_same_bytes() {
    let Some(network) = Network::new() else {
        println!("network namespaces cannot be made here: nothing is tested");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (data, shards) = (folder.path().join("data"), folder.path().join("shards"));
    let classes = [("a", 30), ("b", 120), ("c", 220)];
    images(&data, &classes, 16);
    std::fs::create_dir(&shards).unwrap();
    for (number, (class, _)) in classes.iter().enumerate() {
        let tar = shards.join(format!("train-{number}.tar"));
        assert!(Command::new("tar").arg("-cf").arg(tar).arg("-C").arg(&data).arg(class).status().unwrap().success());
    }
    let mut web_server = network.on(WEB_SERVER, std::env::current_exe().unwrap());
    web_server.args(["--exact", "role_of_the_web_server", "--nocapture"]).env("TEST_SHARDS", &shards);
    let mut web_server = Process(web_server.spawn().unwrap());
    web_server.wait_for("serving");

    let train = |out: &str| -> Vec<String> {
        let out = folder.path().join(out).display().to_string();
        let data = format!("http://{}/data/train-{{0..2}}.tar", ADDRESSES[WEB_SERVER]);
        let arguments = format!(
            "train --data {data} --out {out} --model P/4@12 --batch 16 --device cpu --threads 1 --cache 0 --json \
             --save-every 0.001 --set evaluate_every=10=steps --set length=40=steps --set parts=4 --set data.mixup=0.8"
        );
        arguments.split(' ').map(|argument| argument.replace("=steps", " steps")).collect()
    };
    let whole = Process(network.on(0, env!("CARGO_BIN_EXE_vit")).args(train("whole")).spawn().unwrap()).end(120);
    assert!(whole.0, "{}", whole.1);

    let [mut first, second] = network.start_ranks(&train("cut"));
    first.wait_for("\"event\":\"step\"");
    assert!(network.set_link(0, "down"));
    for (process, other) in [(first, "rank 1 on host-1"), (second, "rank 0 on host-0")] {
        let (succeeded, errors) = process.end(30);
        let sentence = format!("error: {other} has been silent for 4 s: it hangs, or its network is down");
        assert!(!succeeded && errors.matches("error:").count() == 1 && errors.contains(&sentence), "{errors}");
    }
    assert!(network.set_link(0, "up"));
    let run = folder.path().join("cut").display().to_string();
    for process in network.start_ranks(&["resume".into(), run, "--json".into()]) {
        let (succeeded, errors) = process.end(120);
        assert!(succeeded, "{errors}");
    }
    assert!(result(&folder.path().join("cut")) == result(&folder.path().join("whole")));
}
