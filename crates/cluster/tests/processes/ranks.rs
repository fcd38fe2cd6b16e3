//! Ranks as processes: the test's own executable, which runs a role instead of its tests.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vit_cluster::{ClusterError, Communicator, Limits, Membership, Reduce, tree_sum};

/// Sums depend on the number of parts, not on the number of processes that share them.
const PARTS: usize = 8;

/// What a rank does; the exit status of one whose calls fail is 3.
pub fn play(role: &str) -> ! {
    let result = Membership::from_environment().and_then(|membership| {
        let mut communicator = Communicator::connect(&membership, Limits::from_environment()?)?;
        assert_eq!((communicator.rank(), communicator.size()), (membership.rank, membership.size));
        act(role, &mut communicator)
    });
    if let Err(error) = result {
        eprintln!("{error}");
        std::process::exit(3);
    }
    std::process::exit(0);
}

fn act(role: &str, communicator: &mut Communicator) -> Result<(), ClusterError> {
    let rank = communicator.rank();
    communicator.barrier()?;
    if let Ok(folder) = std::env::var("TEST_FOLDER") {
        std::fs::write(Path::new(&folder).join(format!("{rank}")), std::process::id().to_string()).unwrap();
    }
    match role {
        "meet" => Ok(()),
        "add" => add(communicator),
        "work" => work(communicator),
        "fail at 1" if rank == 1 => {
            communicator.fail("cat.jpg: not an image");
            Err(ClusterError::Environment("cat.jpg: not an image".into()))
        }
        "panic at 1" if rank == 1 => panic!("an index out of bounds"),
        "fail at 1" | "panic at 1" => work(communicator),
        _ => panic!("no role {role}"),
    }
}

/// Calls collectives until one fails.
fn work(communicator: &mut Communicator) -> Result<(), ClusterError> {
    let mut values = vec![1f32; 100_000];
    loop {
        communicator.all_reduce(&mut values, Reduce::Tree)?;
        communicator.barrier()?;
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A part's gradient: values of many magnitudes, so that their sum depends on the order of the additions.
fn part(part: usize, len: usize) -> Vec<f32> {
    let bits = |i: usize| (i as u32 + 1).wrapping_mul(0x9e37_79b9).wrapping_mul(part as u32 * 2 + 3);
    (0..len).map(|i| f32::from_bits(0x3c00_0000 | bits(i) & 0x87ff_ffff)).collect()
}

fn sum_of_parts(parts: std::ops::Range<usize>, len: usize) -> Vec<f32> {
    let mut rows: Vec<_> = parts.map(|i| part(i, len)).collect();
    tree_sum(&mut rows.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    rows.swap_remove(0)
}

/// Compares every collective with what it should give, sums to the bit.
fn add(communicator: &mut Communicator) -> Result<(), ClusterError> {
    let (rank, size) = (communicator.rank(), communicator.size());
    for len in [1, 3, 1001, 600_011] {
        let owned = PARTS / size;
        let own = sum_of_parts(rank * owned..(rank + 1) * owned, len);
        let expected = sum_of_parts(0..PARTS, len);
        let (mut tree, mut fast) = (own.clone(), own);
        communicator.all_reduce(&mut tree, Reduce::Tree)?;
        assert!(tree == expected, "{len} elements at rank {rank} of {size}");
        communicator.all_reduce(&mut fast, Reduce::Fast)?;
        let worst = fast.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{len} elements at rank {rank} of {size}: {worst}");
    }
    let mut doubles = vec![rank as f64; 1000];
    communicator.all_reduce(&mut doubles, Reduce::Fast)?;
    assert_eq!(doubles, vec![(size * (size - 1) / 2) as f64; 1000]);
    let mut text = if rank == size - 1 { *b"hello" } else { *b"....." };
    communicator.broadcast(size - 1, &mut text)?;
    assert_eq!(&text, b"hello");
    let gathered = communicator.all_gather_bytes("x".repeat(rank).as_bytes())?;
    assert!(gathered.iter().enumerate().all(|(rank, text)| text.len() == rank));
    Ok(())
}

/// A command that plays a role, without the variables of whatever started this test.
pub fn player(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    as_player(&mut command, role);
    command
}

/// Arguments and variables of a player.
pub fn as_player(command: &mut Command, role: &str) {
    command.args(["--exact", "role_of_a_rank", "--nocapture"]).env("TEST_ROLE", role);
    for name in ["RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"] {
        command.env_remove(name);
    }
}

/// A process that is killed when it is dropped.
pub struct Process(pub Child);

impl Process {
    pub fn start(mut command: Command) -> Process {
        Process(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub fn signal(&self, signal: &str) {
        send_signal(self.0.id(), signal);
    }

    /// The exit status and what the process wrote as errors, within 30 s.
    pub fn end(mut self) -> (Option<i32>, String) {
        // Read beside: a full pipe would keep the process from ending.
        let mut stderr = self.0.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = std::io::Read::read_to_string(&mut stderr, &mut text);
            text
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "process {} did not end", self.0.id());
            std::thread::sleep(Duration::from_millis(10));
        };
        (status.code(), errors.join().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn send_signal(process: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

/// Waits until every rank has written its process's number, and returns them.
pub fn connected(folder: &Path, size: usize) -> Vec<u32> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let number = |rank: usize| {
        let path: PathBuf = folder.join(rank.to_string());
        loop {
            match std::fs::read_to_string(&path).unwrap_or_default().parse() {
                Ok(number) => return number,
                Err(_) => assert!(Instant::now() < deadline, "rank {rank} did not connect"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    (0..size).map(number).collect()
}
