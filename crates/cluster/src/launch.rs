//! Starting the processes of a run on this machine.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::ClusterError;
use crate::membership::SECRET;
use crate::sockets::host_name;
use crate::transport::random;

/// When one process has failed, the others notice it and report it; after this time they are killed.
const GRACE: Duration = Duration::from_secs(5);

/// How much of the errors of a process is kept.
const TAIL: usize = 16 * 1024;

/// How the processes of a run ended.
#[derive(Debug)]
pub struct Launched {
    /// 0 if all ended well, otherwise the status of the first that did not; 128 plus its number for a signal, as in shells.
    pub status: i32,
    /// How the first process that failed ended, and what it said last, if a signal ended rank 0, which otherwise reports
    /// the failures of all.
    pub unreported: Option<String>,
}

/// Starts `size` processes, each with the command of its rank, and waits for all of them. They get the variables of
/// torchrun and a secret. The output of rank 0 is that of this process; of the others only errors are kept. Signals that
/// request the end are forwarded. When one process fails all end; on Linux also when this process is killed.
pub fn launch(size: usize, command: impl Fn(usize) -> Command) -> Result<Launched, ClusterError> {
    let failed = |doing: &'static str| ClusterError::system(doing);
    let port = free_port().map_err(failed("cannot find a free port"))?;
    let secret: [u8; 16] = random().map_err(failed("cannot make a secret"))?;
    let secret = format!("{:032x}", u128::from_be_bytes(secret));
    let mut signals = Signals::listen().map_err(failed("cannot listen for signals"))?;

    let mut processes = Processes(Vec::new());
    for rank in 0..size {
        let mut command = command(rank);
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", size.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("LOCAL_WORLD_SIZE", size.to_string()),
            ("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string()),
            ("MASTER_PORT", port.to_string()),
            (SECRET, secret.clone()),
        ];
        command.envs(variables).env_remove("TORCHELASTIC_USE_AGENT_STORE").stdin(Stdio::null());
        if rank > 0 {
            command.stdout(Stdio::null()).stderr(Stdio::piped());
        }
        end_with_this_process(&mut command);
        processes.0.push(Process::spawn(command).map_err(failed("cannot start a process"))?);
    }
    Ok(processes.wait(&mut signals))
}

/// The processes, which are killed if this is dropped before they end.
struct Processes(Vec<Process>);

struct Process {
    child: Child,
    errors: Option<JoinHandle<Vec<u8>>>,
    status: Option<ExitStatus>,
}

impl Process {
    fn spawn(mut command: Command) -> std::io::Result<Process> {
        let mut child = command.spawn()?;
        let errors = child.stderr.take().map(|stderr| std::thread::spawn(move || tail(stderr)));
        Ok(Process { child, errors, status: None })
    }
}

impl Processes {
    fn wait(mut self, signals: &mut Signals) -> Launched {
        let mut failure: Option<(usize, Instant)> = None;
        loop {
            for signal in signals.arrived() {
                self.0.iter().filter(|process| process.status.is_none()).for_each(|process| pass_on(signal, process));
            }
            let mut ended = Vec::new();
            for (rank, process) in self.0.iter_mut().enumerate().filter(|(_, process)| process.status.is_none()) {
                process.status = process.child.try_wait().ok().flatten();
                ended.extend(process.status.filter(|status| !status.success()).map(|status| (rank, status)));
            }
            if failure.is_none() {
                // Of several that ended since the last look, the others follow one that a signal or a panic ended.
                let first = ended.iter().min_by_key(|(_, status)| status.code() == Some(1));
                failure = first.map(|(rank, _)| (*rank, Instant::now()));
            }
            if self.0.iter().all(|process| process.status.is_some()) {
                break;
            }
            if failure.is_some_and(|(_, since)| since.elapsed() > GRACE) {
                self.kill();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let Some((rank, _)) = failure else { return Launched { status: 0, unreported: None } };
        let is_reported = self.0[0].status.is_some_and(|status| killed_by(status).is_none());
        let process = &mut self.0[rank];
        let status = process.status.expect("it ended");
        let said = process.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        let how = match killed_by(status) {
            Some(signal) => format!("was killed by signal {signal}"),
            None => "failed".into(),
        };
        let said = if said.is_empty() { said } else { format!(": {said}") };
        let unreported = (!is_reported).then(|| format!("rank {rank} on {} {how}{said}", host_name()));
        let status = killed_by(status).map_or(status.code().unwrap_or(1), |signal| 128 + signal);
        Launched { status, unreported }
    }

    fn kill(&mut self) {
        for process in self.0.iter_mut().filter(|process| process.status.is_none()) {
            let _ = process.child.kill();
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.kill();
        for process in self.0.iter_mut().filter(|process| process.status.is_none()) {
            let _ = process.child.wait();
        }
    }
}

/// The last bytes that a process writes.
fn tail(mut from: impl Read) -> Vec<u8> {
    let (mut kept, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(count) = from.read(&mut bytes)
        && count > 0
    {
        kept.extend(&bytes[..count]);
        kept.drain(..kept.len().saturating_sub(TAIL));
    }
    kept
}

/// A port that nothing listens at. Another program could take it before rank 0 does, which rank 0 then reports.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

#[cfg(unix)]
fn killed_by(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn killed_by(_: ExitStatus) -> Option<i32> {
    None
}

/// Signals that request the end of this process.
#[cfg(unix)]
struct Signals(signal_hook::iterator::Signals);

#[cfg(unix)]
impl Signals {
    fn listen() -> std::io::Result<Signals> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]).map(Signals)
    }

    fn arrived(&mut self) -> Vec<i32> {
        self.0.pending().collect()
    }
}

#[cfg(unix)]
fn pass_on(signal: i32, process: &Process) {
    // SAFETY: a signal to a child that was not waited for, so its number is still its own.
    unsafe { libc::kill(process.child.id() as libc::pid_t, signal) };
}

/// A separate process group keeps the terminal's Ctrl-C from arriving twice. The kernel kills the process when this one ends.
#[cfg(unix)]
fn end_with_this_process(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let parent = std::process::id() as libc::pid_t;
        let attach = move || {
            // SAFETY: both calls have no effect but on this process, and may be made between fork and exec.
            let attached =
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 && libc::getppid() == parent };
            if attached { Ok(()) } else { Err(std::io::Error::other("the process that started it has ended")) }
        };
        // SAFETY: the closure makes two system calls and allocates nothing unless one fails.
        unsafe { command.pre_exec(attach) };
    }
}

/// The console sends Ctrl-C to all its processes.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals)
    }

    fn arrived(&mut self) -> Vec<i32> {
        Vec::new()
    }
}

#[cfg(not(unix))]
fn pass_on(_: i32, _: &Process) {}

#[cfg(not(unix))]
fn end_with_this_process(_: &mut Command) {}
