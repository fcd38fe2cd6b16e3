//! Ranks as processes that are connected by TCP: sums, and every way in which a run can end badly.

use std::io::Write;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::ranks::{Process, connected, player};

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Rank `rank` of `size` with torchrun's variables.
fn rank(role: &str, rank: usize, size: usize, port: u16) -> Command {
    let mut command = player(role);
    let numbers = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", size), ("MASTER_PORT", port.into())];
    command.envs(numbers.map(|(name, number)| (name, number.to_string())));
    command.envs([("MASTER_ADDR", "127.0.0.1"), ("VIT_CLUSTER_SECRET", "a secret"), ("VIT_CLUSTER_TIMEOUT", "20")]);
    command
}

/// Ranks that have connected and work.
fn working(role: &str, size: usize, silence: &str) -> Vec<Process> {
    let (port, folder) = (free_port(), tempfile::tempdir().unwrap());
    let start = |i| {
        let mut command = rank(role, i, size, port);
        command.env("TEST_FOLDER", folder.path()).env("VIT_CLUSTER_SILENCE", silence);
        Process::start(command)
    };
    let ranks = (0..size).map(start).collect();
    connected(folder.path(), size);
    ranks
}

fn ends_with(ranks: Vec<Process>, sentence: &str) {
    for rank in ranks {
        let (status, errors) = rank.end();
        assert!(status == Some(3) && errors.contains(sentence), "{status:?}: {errors}, not: {sentence}");
    }
}

fn host() -> String {
    let name = Command::new("uname").arg("-n").output().unwrap().stdout;
    String::from_utf8(name).unwrap().trim().to_owned()
}

#[test]
fn processes_add_to_the_same_bits() {
    for size in [1, 2, 4, 8] {
        let port = free_port();
        // In the wrong order: all but rank 0 have to wait for it.
        let ranks: Vec<_> = (0..size).rev().map(|i| Process::start(rank("add", i, size, port))).collect();
        for rank in ranks {
            assert_eq!(rank.end(), (Some(0), String::new()), "{size} ranks");
        }
    }
}

#[test]
fn tasks_of_slurm_without_mpi_meet_at_the_first_host() {
    let host = host();
    if (&host[..], 0).to_socket_addrs().is_err() {
        println!("{host} has no address: nothing is tested");
        return;
    }
    let port = free_port().to_string();
    let task = |rank: usize| {
        let mut command = player("add");
        command.env("SLURM_PROCID", rank.to_string()).env("SLURM_LOCALID", rank.to_string());
        command.envs([("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0")]);
        command.env("SLURM_STEP_NODELIST", format!("{host},another[1-3]")).env("MASTER_PORT", &port);
        command.env("VIT_CLUSTER_SECRET", "a secret").env("VIT_CLUSTER_TIMEOUT", "20");
        Process::start(command)
    };
    for task in [0, 1].map(task) {
        assert_eq!(task.end(), (Some(0), String::new()));
    }
}

#[test]
fn a_killed_rank_ends_all_others() {
    let mut ranks = working("work", 3, "15");
    let killed = ranks.remove(1);
    killed.signal("-KILL");
    let start = Instant::now();
    ends_with(ranks, &format!("rank 1 on {} died: its connection was closed", host()));
    assert!(start.elapsed() < Duration::from_secs(15), "noticed by the closed connection, not by silence");
}

#[test]
fn a_stopped_rank_ends_all_others() {
    let mut ranks = working("work", 3, "1");
    let stopped = ranks.remove(2);
    stopped.signal("-STOP");
    ends_with(ranks, &format!("rank 2 on {} has been silent for 1 s: it hangs, or its network is down", host()));
    // It comes back to a run that is over.
    stopped.signal("-CONT");
    assert_eq!(stopped.end().0, Some(3));
}

#[test]
fn rank_0_is_watched_as_well() {
    let mut ranks = working("work", 3, "1");
    let stopped = ranks.remove(0);
    stopped.signal("-STOP");
    ends_with(ranks, &format!("rank 0 on {} has been silent for 1 s", host()));
}

#[test]
fn the_error_of_a_rank_is_that_of_all() {
    let mut ranks = working("fail at 1", 4, "15");
    assert_eq!(ranks.remove(1).end(), (Some(3), "cat.jpg: not an image\n".into()));
    ends_with(ranks, &format!("rank 1 on {} failed: cat.jpg: not an image", host()));
}

#[test]
fn a_panic_ends_all_ranks() {
    let mut ranks = working("panic at 1", 2, "15");
    assert_eq!(ranks.remove(1).end().0, Some(101));
    ends_with(ranks, &format!("rank 1 on {} failed: it panicked", host()));
}

#[test]
fn another_secret_is_refused() {
    let port = free_port();
    let mut host = rank("add", 0, 2, port);
    host.env("VIT_CLUSTER_TIMEOUT", "2");
    let host = Process::start(host);
    let mut stranger = rank("add", 1, 2, port);
    stranger.env("VIT_CLUSTER_SECRET", "another secret");
    let (status, errors) = Process::start(stranger).end();
    assert_eq!(status, Some(3));
    let address = format!("127.0.0.1:{port}");
    let sentence = format!("the process at {address} does not have the secret of this run (VIT_CLUSTER_SECRET)");
    assert_eq!(errors.trim(), sentence);
    let (status, errors) = host.end();
    let sentence =
        format!("rank 1 of 2 did not arrive at {address} within 2 s; one connection did not know the secret");
    assert_eq!((status, errors.trim()), (Some(3), &sentence[..]));
}

#[test]
fn no_secret_is_an_error() {
    let mut command = rank("add", 1, 2, free_port());
    command.env_remove("VIT_CLUSTER_SECRET");
    let (status, errors) = Process::start(command).end();
    assert!(status == Some(3) && errors.starts_with("VIT_CLUSTER_SECRET is not set; set it to the same"), "{errors}");
}

#[test]
fn garbage_at_the_rendezvous_does_no_harm() {
    let port = free_port();
    let host = Process::start(rank("add", 0, 2, port));
    let address = format!("127.0.0.1:{port}");
    let mut scanners = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while scanners.len() < 4 {
        assert!(Instant::now() < deadline);
        scanners.extend(TcpStream::connect(&address));
    }
    scanners[0].write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
    scanners[1].write_all(&[0xff; 1000]).unwrap();
    scanners[2].write_all(b"vitrank1").unwrap();
    // The last sends nothing.
    let joining = Process::start(rank("add", 1, 2, port));
    assert_eq!(joining.end(), (Some(0), String::new()));
    assert_eq!(host.end(), (Some(0), String::new()));
}

#[test]
fn something_else_at_the_port_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let _ = socket.write_all(&b"HTTP/1.1 400 Bad Request\r\n".repeat(4));
        }
    });
    let (status, errors) = Process::start(rank("add", 1, 2, port)).end();
    let sentence = format!(
        "the program that listens at 127.0.0.1:{port} is no process of a run; choose another port for the rendezvous"
    );
    assert_eq!((status, errors.trim()), (Some(3), &sentence[..]));
    let (status, errors) = Process::start(rank("add", 0, 2, port)).end();
    let sentence = format!("rank 0 cannot listen at 127.0.0.1:{port}: ");
    assert!(status == Some(3) && errors.starts_with(&sentence), "{errors}");
}

#[test]
fn a_rank_that_never_arrives_is_named_by_all() {
    let port = free_port();
    let start = |i| {
        let mut command = rank("add", i, 4, port);
        command.env("VIT_CLUSTER_TIMEOUT", "2");
        Process::start(command)
    };
    let present: Vec<_> = [0, 2].into_iter().map(start).collect();
    for rank in present {
        let (status, errors) = rank.end();
        let sentence = format!("ranks 1, 3 of 4 did not arrive at 127.0.0.1:{port} within 2 s");
        assert!(status == Some(3) && errors.contains(&sentence), "{errors}");
    }
    let mut lonely = rank("add", 1, 2, free_port());
    lonely.env("VIT_CLUSTER_TIMEOUT", "1");
    let (_, errors) = Process::start(lonely).end();
    assert!(errors.contains("rank 0 did not answer at 127.0.0.1:"), "{errors}");
}

#[test]
fn two_processes_with_one_rank_are_told() {
    let port = free_port();
    let mut ranks: Vec<_> = [0, 1].map(|i| Process::start(rank("add", i, 3, port))).into();
    std::thread::sleep(Duration::from_secs(1));
    let (status, errors) = Process::start(rank("add", 1, 3, port)).end();
    assert!(status == Some(3) && errors.contains("two processes claim rank 1"), "{errors}");
    let (_, errors) = Process::start(rank("add", 2, 5, port)).end();
    assert!(errors.contains("it counts 5 processes, and rank 0 counts 3"), "{errors}");
    // The run is not disturbed.
    ranks.push(Process::start(rank("add", 2, 3, port)));
    drop(ranks);
}
