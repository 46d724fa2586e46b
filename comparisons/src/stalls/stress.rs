//! What happens to a server besides the load: clients that never read, and processes on its core.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Failure;
use super::plan::Deaf;
use crate::matrix::program::on_core;

/// How long a connect or a write may take, until the client looks whether it is to end.
const WAIT: Duration = Duration::from_millis(100);

/// So much is written at once.
const BLOCK_BYTES: usize = 64 << 10;

/// Clients that send and never read. Dropping this closes their connections.
pub(crate) struct DeafClients {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl DeafClients {
    /// Connects and sends, a thread for each client.
    pub(crate) fn start(addr: SocketAddr, deaf: Deaf) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let client = |_| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || send(addr, (deaf.mib as usize) << 20, &is_over))
        };
        let threads = (0..deaf.connections.count()).map(client).collect();
        Self { is_over, threads }
    }
}

impl Drop for DeafClients {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sends at most so many bytes, and keeps the connection until it is to end. A server that ends it is right.
fn send(addr: SocketAddr, bytes_max: usize, is_over: &AtomicBool) {
    let Ok(mut stream) = TcpStream::connect_timeout(&addr, WAIT) else { return };
    if stream.set_write_timeout(Some(WAIT)).is_err() {
        return;
    }
    let block = vec![0; BLOCK_BYTES];
    let mut sent = 0;
    while !is_over.load(Relaxed) {
        if sent >= bytes_max {
            thread::sleep(WAIT);
            continue;
        }
        match stream.write(&block) {
            Ok(n) => sent += n,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}

/// Uses a core for a minute or so. A fault lasts some seconds; if the lab is killed (SIGKILL), this ends by itself.
const NEIGHBOUR: &str = "i=0; while [ $i -lt 60000000 ]; do i=$((i+1)); done";

/// Processes that do nothing but use a core. Dropping this ends them.
pub(crate) struct Neighbours(Vec<Child>);

impl Neighbours {
    /// Starts them on `core`.
    ///
    /// # Errors
    /// When one cannot be started.
    pub(crate) fn start(count: u32, core: usize) -> Result<Self, Failure> {
        let mut neighbours = Self(Vec::new());
        for _ in 0..count {
            let mut shell = Command::new("sh");
            shell.args(["-c", NEIGHBOUR]).stdin(Stdio::null());
            let started = on_core(core, || shell.spawn())
                .map_err(|error| Failure::new(format!("cannot start a neighbour: {error}")))?;
            neighbours.0.push(started);
        }
        Ok(neighbours)
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn deaf_clients_send_so_much_and_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connections = 2.try_into().unwrap();
        let deaf = Deaf { connections, mib: 1 };
        let clients = DeafClients::start(listener.local_addr().unwrap(), deaf);
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = vec![0; 1 << 20];
            stream.read_exact(&mut all).unwrap();
        }
        drop(clients);
    }

    #[test]
    fn neighbours_end_with_their_owner() {
        let neighbours = Neighbours::start(2, 0).unwrap();
        let processes: Vec<_> = neighbours.0.iter().map(Child::id).collect();
        let is_there = |pid: &u32| fs::exists(format!("/proc/{pid}")).unwrap();
        assert!(processes.len() == 2 && processes.iter().all(is_there));
        drop(neighbours);
        assert!(!processes.iter().any(is_there));
    }
}
