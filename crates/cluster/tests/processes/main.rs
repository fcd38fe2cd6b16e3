//! Processes of one run: their sums, and every way in which a run can end badly.
#![cfg(unix)]

mod launch;
mod mpi;
mod namespaces;
mod ranks;
mod tcp;

/// What a process does that a test started as a rank: this executable, with only this test.
#[test]
fn role_of_a_rank() {
    if let Ok(role) = std::env::var("TEST_ROLE") {
        ranks::play(&role);
    }
}

/// The same as the launcher of three ranks.
#[test]
fn role_of_a_launcher() {
    let Ok(role) = std::env::var("TEST_LAUNCH") else { return };
    let launched = vit_cluster::launch(3, |_| ranks::player(&role)).unwrap();
    if let Some(failure) = launched.unreported {
        eprintln!("{failure}");
    }
    std::process::exit(launched.status);
}
