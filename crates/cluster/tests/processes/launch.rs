//! The launcher of processes on one machine.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::ranks::{Process, connected, send_signal};

/// A process that launches three ranks.
fn launcher(role: &str, folder: &Path) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_a_launcher", "--nocapture"]);
    command.env("TEST_LAUNCH", role).env("TEST_FOLDER", folder).env("VIT_CLUSTER_SILENCE", "1");
    Process::start(command)
}

fn is_running(process: u32) -> bool {
    // A zombie has ended, whatever its new parent does.
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with('Z'))
}

fn all_end(processes: &[u32]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while processes.iter().any(|&process| is_running(process)) {
        assert!(Instant::now() < deadline, "some of {processes:?} still run");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ranks_find_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "role_of_a_launcher", "--nocapture"]).env("TEST_LAUNCH", "meet");
    command.env("TEST_FOLDER", folder.path());
    assert_eq!(Process::start(command).end(), (Some(0), String::new()));
    assert_eq!(connected(folder.path(), 3).len(), 3);
}

#[test]
fn the_status_is_that_of_the_rank_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let (status, errors) = launcher("fail at 1", folder.path()).end();
    assert_ne!(status, Some(0));
    assert!(errors.contains("failed: cat.jpg: not an image"), "the sentence of rank 0: {errors}");
    let (status, errors) = launcher("panic at 1", folder.path()).end();
    assert_ne!(status, Some(0));
    assert!(errors.contains("failed: it panicked"), "{errors}");
}

#[test]
fn a_killed_rank_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let run = launcher("work", folder.path());
    let processes = connected(folder.path(), 3);
    send_signal(processes[2], "-KILL");
    let (status, errors) = run.end();
    assert_ne!(status, Some(0));
    assert!(
        errors.contains("died: its connection was closed") || errors.contains("was killed by signal 9"),
        "{errors}"
    );
    all_end(&processes);
}

#[test]
fn a_stopped_rank_is_killed_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let run = launcher("work", folder.path());
    let processes = connected(folder.path(), 3);
    send_signal(processes[1], "-STOP");
    let (status, errors) = run.end();
    assert_ne!(status, Some(0));
    assert!(errors.contains("has been silent for 1 s"), "{errors}");
    all_end(&processes);
}

#[test]
fn signals_are_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let run = launcher("work", folder.path());
    let processes = connected(folder.path(), 3);
    run.signal("-TERM");
    assert_eq!(run.end().0, Some(128 + 15));
    all_end(&processes);
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_launcher_leaves_no_processes() {
    let folder = tempfile::tempdir().unwrap();
    let run = launcher("work", folder.path());
    let processes = connected(folder.path(), 3);
    run.signal("-KILL");
    all_end(&processes);
}
