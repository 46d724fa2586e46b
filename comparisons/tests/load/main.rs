//! Every command of `load` against small servers on threads, correct ones and faulty ones.

#![cfg(target_os = "linux")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

mod arrivals;
mod churn;
mod hold;
mod iggy;
mod limit;
mod object;
mod post;
mod source;
mod steady;
mod subscribe;
mod tls;
mod websocket;
mod windows;

const RUN_MAX: Duration = Duration::from_secs(30);

/// Runs `serve` on each connection, with its number.
fn server<F>(serve: F) -> SocketAddr
where
    F: Fn(u32, TcpStream) -> io::Result<()> + Send + Sync + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let serve = Arc::clone(&serve);
            // An error ends its connection only.
            thread::spawn(move || stream.and_then(|stream| serve(number as u32, stream)));
        }
    });
    addr
}

fn echo(stream: &mut TcpStream, mut change: impl FnMut(&mut Vec<u8>)) -> io::Result<()> {
    let mut buf = vec![0; 64 * 1024];
    loop {
        let n = stream.read(&mut buf)?;
        if n == 0 {
            return Ok(());
        }
        let mut bytes = buf[..n].to_vec();
        change(&mut bytes);
        stream.write_all(&bytes)?;
    }
}

fn good_echo() -> SocketAddr {
    server(|_, mut stream| echo(&mut stream, |_| ()))
}

struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
    json: Value,
}

fn finish(mut command: Command) -> Output {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let deadline = Instant::now() + RUN_MAX;
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("a child");
            panic!("{command:?} hangs");
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("output")
}

/// `load COMMAND ADDR OPTIONS`, with the report as JSON if there is one.
fn load(command: &str, addr: SocketAddr, options: &str) -> Run {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("load-test-{}-{run}.json", std::process::id()));
    let mut load = Command::new(env!("CARGO_BIN_EXE_load"));
    load.arg(command).arg(addr.to_string()).args(options.split_whitespace());
    load.arg("--json").arg(&file);
    let output = finish(load);
    let text = std::fs::read(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    Run {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
        json: serde_json::from_slice(&text).unwrap_or(Value::Null),
    }
}

impl Run {
    #[track_caller]
    fn number(&self, pointer: &str) -> f64 {
        let number = self.json.pointer(pointer).and_then(Value::as_f64);
        number.unwrap_or_else(|| panic!("no {pointer}: {}{}", self.stdout, self.stderr))
    }

    #[track_caller]
    fn is_clean(&self) {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stderr, "");
        assert_eq!(self.json["wrong"], 0, "{}", self.stdout);
        assert_eq!(self.json["connections"]["errors"], serde_json::json!({}), "{}", self.stdout);
    }

    #[track_caller]
    fn is_wrong(&self, what: &str) {
        assert_eq!(self.code, Some(2), "{}{}", self.stdout, self.stderr);
        assert!(self.stderr.starts_with("load: wrong answers on "), "{}", self.stderr);
        assert!(self.stderr.contains(what), "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        assert!(self.number("/wrong") >= 1.0);
    }

    #[track_caller]
    fn is_refused(&self, what: &str) {
        assert_eq!(self.code, Some(1), "{}{}", self.stdout, self.stderr);
        assert!(self.stderr.contains(what), "{}", self.stderr);
        assert_eq!(self.json, Value::Null);
    }
}

#[test]
fn a_run_that_cannot_start_prints_one_sentence_and_exits_1() {
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address")
    };
    let steady = "--connections 2 --payload 20 --seconds 0.2";
    load("echo", nobody, steady).is_refused("no connection could be opened: connect: ");
    load("hold", nobody, "--connections 2 --seconds 1").is_refused("no connection could be");
    load("burst", nobody, "--connections 2").is_refused("no connection could be opened");
    load("source", nobody, "--messages 1 --bytes 1 --batch 1").is_refused("no connection could");
    load("echo", nobody, &format!("{steady} --core 1000")).is_refused("core 1000");
    let silent = server(|_, _stream| {
        thread::sleep(RUN_MAX);
        Ok(())
    });
    let run = load("echo", silent, &format!("{steady} --patience 0.3"));
    run.is_refused("not open within 0.3 s");
    let run = load("echo", good_echo(), &format!("{steady} --server-pid 4294967295"));
    run.is_refused("cannot read what process 4294967295 uses");
    let run = load("echo", good_echo(), &format!("{steady} --json /nowhere/at/all"));
    run.is_refused("");
}

#[test]
fn usage_is_explained() {
    for (options, what) in [
        ("--connections 0 --payload 1 --seconds 1", "from 1 to"),
        ("--connections 1 --payload 0 --seconds 1", "from 1 to"),
        ("--connections 1 --payload 1 --seconds nan", "expected seconds"),
        ("--connections 1 --payload 1", "--seconds"),
        ("--connections 1 --payload 1 --seconds 1 --rate 0", "--rate"),
        ("--connections 1 --payload 1 --seconds 1 --nothing", "--nothing"),
    ] {
        load("echo", SocketAddr::from(([127, 0, 0, 1], 9)), options).is_refused(what);
    }
}

#[test]
fn too_many_connections_for_the_limit_of_open_files() {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!(
        "ulimit -n 64 && exec {} hold 127.0.0.1:9 --connections 100 --seconds 1",
        env!("CARGO_BIN_EXE_load")
    ));
    let output = finish(shell);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert!(stderr.contains("the limit is 64"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}
