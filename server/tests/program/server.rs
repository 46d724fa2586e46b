//! The program as a process, and helpers for its clients.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use tungstenite::WebSocket;

/// The runtimes that this test was built with.
pub(super) const RUNTIMES: &[&str] = &[
    #[cfg(feature = "tokio")]
    "tokio",
    #[cfg(feature = "tokio-uring")]
    "tokio-uring",
    #[cfg(feature = "compio")]
    "compio",
    #[cfg(feature = "monoio")]
    "monoio",
    #[cfg(feature = "glommio")]
    "glommio",
];

const SERVICES: [&str; 11] = [
    "--echo",
    "--sink",
    "--source",
    "--tcp",
    "--http",
    "--echo-tls",
    "--sink-tls",
    "--source-tls",
    "--tcp-tls",
    "--https",
    "--admin",
];

/// The options that choose each compiled-in WebSocket engine; none for the default.
pub(super) const ENGINES: &[&[&str]] = &[
    &[],
    #[cfg(feature = "tungstenite")]
    &["--engine", "tungstenite-fixed"],
    #[cfg(feature = "tungstenite")]
    &["--engine", "tungstenite-linear"],
    #[cfg(feature = "tungstenite")]
    &["--engine", "tungstenite-exponential"],
];

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Server {
    process: Child,
    addrs: Vec<SocketAddr>,
}

impl Server {
    pub(super) fn start(runtime: &str, options: &[&str]) -> Self {
        Self::start_with(&[&["--runtime", runtime, "--workers", "2"], options].concat())
    }

    pub(super) fn start_with(options: &[&str]) -> Self {
        Self::start_as(program(options), options)
    }

    /// Starts `command`, which has these options.
    pub(super) fn start_as(command: Command, options: &[&str]) -> Self {
        Self::start_logging_to(Stdio::null(), command, options)
    }

    pub(super) fn start_logging_to(log: Stdio, mut command: Command, options: &[&str]) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let services = options.iter().filter(|option| SERVICES.contains(option));
        let addrs = services.map(|option| {
            let line = lines.next().unwrap().unwrap();
            let said = line.strip_prefix("listening ").unwrap();
            let (service, addr) = said.split_once(' ').unwrap();
            assert_eq!(service, &option[2..]);
            addr.parse().unwrap()
        });
        let addrs = addrs.collect();
        Self { process, addrs }
    }

    pub(super) fn connect(&self, service: usize) -> TcpStream {
        let stream = TcpStream::connect(self.addrs[service]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The answers to requests, the last of which the client sends: then it ends its side.
    pub(super) fn ask(&self, service: usize, requests: &str) -> String {
        let mut stream = self.connect(service);
        stream.write_all(requests.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    /// The status of `/health`.
    pub(super) fn health(&self, service: usize) -> String {
        let response = self.ask(service, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
        response.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    pub(super) fn addr(&self, service: usize) -> SocketAddr {
        self.addrs[service]
    }

    /// The pipe of its logs, if they are piped.
    pub(super) fn stderr(&mut self) -> ChildStderr {
        self.process.stderr.take().unwrap()
    }

    /// A WebSocket to a path of the service `http`.
    pub(super) fn upgrade(&self, service: usize, path: &str) -> WebSocket<TcpStream> {
        let uri = format!("ws://{}{path}", self.addrs[service]);
        tungstenite::client(uri, self.connect(service)).unwrap().0
    }

    pub(super) fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Its memory in bytes: resident, and allocated.
    pub(super) fn memory(&self) -> (u64, u64) {
        let bytes = |name: &str| {
            let kib: u64 = self.status(name).strip_suffix(" kB").unwrap().parse().unwrap();
            kib * 1024
        };
        (bytes("VmRSS:"), bytes("VmData:"))
    }

    /// The CPUs that the thread of each worker may use.
    pub(super) fn cpus_of_workers(&self) -> BTreeMap<usize, Vec<usize>> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let mut threads: Vec<_> = threads.map(|thread| thread.unwrap().path()).collect();
        threads.sort_by_key(|path| {
            path.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap()
        });
        let mut workers = BTreeMap::new();
        for path in threads {
            let Ok(name) = fs::read_to_string(path.join("comm")) else {
                continue; // it has ended meanwhile
            };
            let Some(worker) = name.trim_end().strip_prefix("worker-") else { continue };
            let status = fs::read_to_string(path.join("status")).unwrap();
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            let ranges = list.unwrap().trim().split(',').map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                first.parse::<usize>().unwrap()..=last.parse().unwrap()
            });
            // glommio's threads for blocking calls have the name too. The worker started them, so they come behind it.
            workers.entry(worker.parse().unwrap()).or_insert_with(|| ranges.flatten().collect());
        }
        workers
    }

    /// A field of the status of its process (proc_pid_status(5)).
    pub(super) fn status(&self, name: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().to_owned()
    }

    /// Waits until it ends by itself. Returns the exit code.
    pub(super) fn wait(mut self) -> i32 {
        wait(&mut self.process).unwrap_or(-1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until a process ends by itself. Returns the exit code, if it has one, and what it wrote to stderr.
pub(super) fn ended(process: Child) -> (Option<i32>, String) {
    let mut server = Server { process, addrs: Vec::new() };
    let code = wait(&mut server.process);
    let stderr = server.process.stderr.take().unwrap();
    (code, io::read_to_string(stderr).unwrap())
}

fn wait(process: &mut Child) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(status) = process.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("the server did not end");
}

pub(super) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_owned-io-server"));
    command.args(args);
    command
}

pub(super) fn echoed(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut answer = vec![0; bytes.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, bytes);
}

/// Sends a message with the length `len` in one write. A second write would wait for the acknowledgement of the
/// first.
pub(super) fn announce(stream: &mut TcpStream, len: u32, bytes: &[u8]) {
    stream.write_all(&[&len.to_le_bytes(), bytes].concat()).unwrap();
}

/// Asserts that the server has closed the connection, cleanly or by a reset, with nothing more to read.
pub(super) fn assert_closed(stream: &mut TcpStream) {
    match stream.read(&mut [0; 16]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        // The kernel does not restart a read with a timeout after a signal (signal(7)).
        Err(error) if error.kind() == ErrorKind::Interrupted => assert_closed(stream),
        other => panic!("expected the end, got {other:?}"),
    }
}
