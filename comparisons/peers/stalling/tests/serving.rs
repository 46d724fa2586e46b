//! The program on each runtime: it serves with each way to echo, and says what happens.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use serde_json::Value;

const RUNTIMES: [&str; 5] = ["tokio", "tokio-uring", "compio", "monoio", "glommio"];

/// How long anything may take. The machine may be busy with other work.
const LIMIT: Duration = Duration::from_secs(60);

/// A running server. Dropping this ends it.
struct Server {
    process: Child,
    addr: SocketAddr,
}

impl Server {
    fn start(options: &str) -> Self {
        let mut server = Command::new(env!("CARGO_BIN_EXE_stalling"));
        server.arg("127.0.0.1:0").args(options.split_whitespace());
        let mut process = server.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.strip_prefix("listening echo ").map(|addr| addr.trim().parse());
        Self { process, addr: addr.unwrap().unwrap() }
    }

    /// Sends more than one buffer, and expects it back.
    fn echo(&self) {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let sent: Vec<u8> = (0..40_000_u32).map(|number| number as u8).collect();
        stream.write_all(&sent).unwrap();
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received).unwrap();
        assert_eq!(received, sent);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn each_runtime_echoes_in_each_way() {
    for runtime in RUNTIMES {
        for fault in ["none", "drop-read", "keep-closed", "ignore-back-pressure", "greedy"] {
            // The fault is not yet there; how the server reads and writes depends on it all the same.
            let server = Server::start(&format!("--runtime {runtime} --fault {fault}"));
            for _ in 0..2 {
                server.echo();
            }
        }
    }
}

#[test]
fn each_way_to_accept_serves() {
    for options in [
        "--runtime tokio --accept many",
        "--runtime tokio --accept drain",
        "--runtime tokio-uring --accept many",
        "--runtime tokio-uring --accept drain",
        "--runtime monoio --accept many",
        "--runtime tokio-multi",
    ] {
        let server = Server::start(options);
        for _ in 0..2 {
            server.echo();
        }
    }
}

#[test]
fn after_a_fault_clients_are_served() {
    let faults = ["accept-spin", "block", "compute", "yield-loop", "drop-accept", "drop-read"];
    let on_tokio = faults.map(|fault| ("tokio", fault));
    for (runtime, fault) in
        on_tokio.into_iter().chain([("tokio-multi", "block"), ("tokio-multi", "compute")])
    {
        let options = format!("--runtime {runtime} --fault {fault} --after-ms 0 --lasts-ms 100");
        let server = Server::start(&options);
        thread::sleep(Duration::from_millis(50));
        server.echo();
    }
}

#[test]
fn a_fault_and_its_verdict_are_recorded() {
    let file = env::temp_dir().join(format!("stalling-{}.jsonl", process::id()));
    // The detector reads the symbols of the program first, which is not optimized here.
    let options = "--runtime monoio --fault block --after-ms 3000 --lasts-ms 5000 --events";
    let server = Server::start(&format!("{options} {}", file.display()));
    let is_meant = |line: &Value| match line["event"].as_str() {
        Some("late") => line["ms"].as_u64() > Some(1_000),
        Some("incident") => line["verdict"]["findings"][0]["class"].is_string(),
        _ => true,
    };
    for event in ["fault_began", "late", "incident", "fault_ended"] {
        wait_for_line(&file, |line| line["event"] == event && is_meant(line));
    }
    drop(server);
    fs::remove_file(&file).unwrap();
}

fn wait_for_line(file: &Path, is_meant: impl Fn(&Value) -> bool) {
    let until = Instant::now() + LIMIT;
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        // The last line may not be whole.
        let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        if lines.any(|line| is_meant(&serde_json::from_str(line).unwrap())) {
            return;
        }
        assert!(Instant::now() < until, "{text}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (options, why) in [
        ("--runtime tokio --entries 8", "--entries is for --runtime tokio-uring"),
        ("--runtime monoio --accept drain", "this runtime does not have that --accept"),
        ("--runtime tokio-multi --fault greedy", "has --fault none, block and compute"),
        ("--runtime tokoi", "invalid value 'tokoi'"),
        ("--runtime tokio --fault sleep", "invalid value 'sleep'"),
    ] {
        let mut server = Command::new(env!("CARGO_BIN_EXE_stalling"));
        let output = server.arg("127.0.0.1:0").args(options.split_whitespace()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(why), "{stderr}");
    }
}
