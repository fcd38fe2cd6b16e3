//! Waiting for sockets, and the name of this host.

use std::net::TcpStream;
use std::time::Duration;

/// A socket and the operations on it that could not proceed.
#[cfg_attr(not(unix), allow(dead_code))]
pub(crate) struct Pending<'a> {
    pub socket: &'a TcpStream,
    pub read: bool,
    pub write: bool,
}

/// Blocks until one of the sockets can proceed, or for `limit`.
#[cfg(unix)]
pub(crate) fn wait(pending: &[Pending<'_>], limit: Duration) {
    use std::os::fd::AsRawFd;
    let mut polled: Vec<libc::pollfd> = pending
        .iter()
        .map(|Pending { socket, read, write }| libc::pollfd {
            fd: socket.as_raw_fd(),
            events: if *read { libc::POLLIN } else { 0 } | if *write { libc::POLLOUT } else { 0 },
            revents: 0,
        })
        .collect();
    // SAFETY: the pointer and the length are those of a live vector. A failure (EINTR) is a wait that ends early, which
    // callers expect.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, limit.as_millis() as libc::c_int) };
}

/// Sleeps briefly: the standard library cannot wait for several sockets.
#[cfg(not(unix))]
pub(crate) fn wait(_pending: &[Pending<'_>], limit: Duration) {
    std::thread::sleep(limit.min(Duration::from_micros(200)));
}

/// The name of this host.
pub(crate) fn host_name() -> String {
    #[cfg(unix)]
    {
        let mut name = [0u8; 256];
        // SAFETY: the pointer and the length are those of a live array; its last byte stays 0.
        let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } != 0;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        if !failed && end > 0 {
            return String::from_utf8_lossy(&name[..end]).into_owned();
        }
    }
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "an unnamed host".into())
}
