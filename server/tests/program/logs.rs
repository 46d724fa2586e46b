//! Logs that nobody reads, logs that would repeat, and levels.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::server::{RUNTIMES, Server, announce, assert_closed, echoed, program};

/// More than the lines that are queued. Each failure is a line at level debug.
const FAILURES: usize = 4096 + 1000;

/// If nobody reads the pipe of the logs, workers and signals go on. A later reader learns how many lines were
/// dropped.
#[test]
fn logs_that_nobody_reads_block_nothing() {
    let services = ["--echo", "127.0.0.1:0", "--sink", "127.0.0.1:0", "--log-level", "debug"];
    let options = [&["--runtime", RUNTIMES[0], "--workers", "2"], &services[..]].concat();
    for is_read_later in [false, true] {
        let mut server = Server::start_logging_to(Stdio::piped(), program(&options), &options);
        let mut log = server.stderr();
        // SAFETY: it sets the size of a pipe that is open, and looks at no memory.
        let size = unsafe { libc::fcntl(log.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
        assert_eq!(size, 4096);
        let mut client = server.connect(0);
        for _ in 0..FAILURES {
            let mut failing = server.connect(1);
            announce(&mut failing, u32::MAX, b"");
            assert_closed(&mut failing);
        }
        echoed(&mut client, b"as ever");
        let signalled = Instant::now();
        if is_read_later {
            let reading = thread::spawn(move || io::read_to_string(&mut log).unwrap());
            thread::sleep(Duration::from_millis(500));
            // Lines that are logged from now on are written.
            server.signal("-TERM");
            assert_eq!(server.wait(), 0);
            let said = reading.join().unwrap();
            assert!(said.contains("lines of the log were dropped"), "{}", said.len());
            assert!(said.contains(" drained"), "{}", said.len());
        } else {
            server.signal("-TERM");
            assert_eq!(server.wait(), 0);
            drop(log);
        }
        let took = signalled.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}

/// A client that keeps the server at the limit of its descriptors cannot fill a disk. It once caused forty lines a
/// second.
#[test]
fn lines_that_clients_cause_are_rare() {
    let options = ["--echo", "127.0.0.1:0", "--workers", "1", "--runtime", RUNTIMES[0]];
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -n 60 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_owned-io-server")]);
    few.args(options);
    let mut server = Server::start_logging_to(Stdio::piped(), few, &options);
    let mut log = server.stderr();
    let mut clients: VecDeque<_> = (0..100).map(|_| server.connect(0)).collect();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        clients.pop_front();
        thread::sleep(Duration::from_millis(10));
        clients.push_back(server.connect(0));
    }
    drop(clients);
    echoed(&mut server.connect(0), b"as ever");
    server.signal("-TERM");
    assert_eq!(server.wait(), 0);
    let said = io::read_to_string(&mut log).unwrap();
    let count = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    assert!((1..=5).contains(&count("cannot accept")), "{said}");
    assert!(count("accepting again") <= 5, "{said}");
    assert!(
        said.lines().any(|line| line.contains("suppressed=") && !line.contains("suppressed=0")),
        "{said}"
    );
}

#[test]
fn only_lines_of_the_level_are_logged() {
    for (level, is_said) in [("warn", false), ("info", true)] {
        let runtime = ["--runtime", RUNTIMES[0]];
        // A busy machine may stall a worker, and that is logged as a warning.
        let quiet = ["--echo", "127.0.0.1:0", "--stalls", "off"];
        let options = [&quiet[..], &["--log-level", level], &runtime].concat();
        let mut server = Server::start_logging_to(Stdio::piped(), program(&options), &options);
        let mut log = server.stderr();
        server.signal("-TERM");
        assert_eq!(server.wait(), 0);
        let mut said = String::new();
        log.read_to_string(&mut said).unwrap();
        assert_eq!(said.contains("starting"), is_said, "{said}");
        assert_eq!(said.is_empty(), !is_said, "{said}");
    }
}
