//! Windows on command.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::{echo, good_echo, server};

/// A `load --windows`.
pub(super) struct Windows {
    load: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Windows {
    pub(super) fn start(command: &str, addr: SocketAddr, options: &str) -> Self {
        let mut load = Command::new(env!("CARGO_BIN_EXE_load"))
            .args([command, &addr.to_string(), "--windows"])
            .args(options.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let stdin = load.stdin.take();
        let stdout = BufReader::new(load.stdout.take().expect("it is piped"));
        Self { load, stdin, stdout }
    }

    pub(super) fn ask(&mut self, line: &str) -> Value {
        let stdin = self.stdin.as_mut().expect("it is not over");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("it reads");
        self.answer()
    }

    fn answer(&mut self) -> Value {
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).expect("it answers");
        serde_json::from_str(&answer).unwrap_or(Value::Null)
    }

    /// The exit code and what it printed on stderr.
    pub(super) fn finish(mut self) -> (Option<i32>, String) {
        drop(self.stdin.take());
        let mut stderr = String::new();
        self.load.stderr.take().expect("it is piped").read_to_string(&mut stderr).expect("text");
        (self.load.wait().expect("a child").code(), stderr)
    }
}

const OPTIONS: &str = "--connections 3 --payload 200 --in-flight 4 --seconds 1";

#[test]
fn windows_are_measured_when_they_are_asked_for_and_summed_at_the_end() {
    let pid = std::process::id();
    let mut load = Windows::start("echo", good_echo(), &format!("{OPTIONS} --server-pid {pid}"));
    let warm_up = load.ask("warm-up 20");
    assert_eq!((&warm_up["report"], &warm_up["idle_percent"]), (&Value::Null, &Value::Null));
    let mut received = 0;
    for _ in 0..3 {
        let line = load.ask("window 30");
        let report = &line["report"];
        assert!(line["idle_percent"].as_f64().is_some(), "{line}");
        assert_eq!(report["connections"]["errors"], serde_json::json!({}), "{line}");
        // Nothing is outstanding at either end.
        assert_eq!(report["messages"]["sent"], report["messages"]["received"], "{line}");
        assert_eq!(report["latency_us"]["count"], report["messages"]["received"], "{line}");
        assert!(report["seconds"].as_f64().unwrap() >= 0.03, "{line}");
        assert!(report["server"]["per_message"]["cpu_ns"].as_f64().unwrap() > 0.0, "{line}");
        received += report["messages"]["received"].as_u64().unwrap();
    }
    let report = load.ask("end");
    assert_eq!(report["messages"]["received"].as_u64(), Some(received), "{report}");
    assert_eq!(report["connections"]["opened"], 3, "{report}");
    assert_eq!(load.finish(), (Some(0), String::new()));
}

#[test]
fn a_source_answers_whole_requests() {
    let addr = server(|_, mut stream| {
        loop {
            let mut request = [0; 12];
            stream.read_exact(&mut request)?;
            let fields = request.as_chunks::<4>().0;
            let [messages, bytes] = [fields[0], fields[1]].map(u32::from_le_bytes);
            let mut answer = Vec::new();
            for message in 0..messages {
                answer.extend(bytes.to_le_bytes());
                answer.extend((0..bytes).map(|i| (message + i) as u8));
            }
            stream.write_all(&answer)?;
        }
    });
    let options = "--connections 2 --bytes 10 --batch 1000 --seconds 1";
    let mut load = Windows::start("source", addr, options);
    load.ask("warm-up 10");
    let report = load.ask("window 20")["report"].take();
    let received = report["messages"]["received"].as_u64().unwrap();
    assert!(received > 0 && received.is_multiple_of(17_000), "{received}");
    drop(load.stdin.take());
    assert_eq!(load.answer()["messages"]["received"].as_u64(), Some(received));
    assert_eq!(load.finish(), (Some(0), String::new()));
}

#[test]
fn a_wrong_answer_is_in_its_window_and_in_the_last_report() {
    let is_wrong = Arc::new(AtomicBool::new(false));
    let wrong = Arc::clone(&is_wrong);
    let addr = server(move |_, mut stream| {
        echo(&mut stream, |bytes| {
            if wrong.swap(false, Ordering::Relaxed) {
                bytes[20] ^= 1;
            }
        })
    });
    let mut load = Windows::start("echo", addr, OPTIONS);
    assert_eq!(load.ask("window 20")["report"]["wrong"], 0);
    is_wrong.store(true, Ordering::Relaxed);
    assert_eq!(load.ask("window 20")["report"]["wrong"], 1);
    assert_eq!(load.ask("end")["wrong"], 1);
    let (code, stderr) = load.finish();
    assert!(code == Some(2) && stderr.contains("wrong answers on 1 connections"), "{stderr}");
}

#[test]
fn a_missing_answer_ends_a_window_after_patience() {
    let addr = server(|number, mut stream| {
        if number > 0 {
            return echo(&mut stream, |_| ());
        }
        let mut first = [0; 200];
        stream.read_exact(&mut first)?;
        stream.write_all(&first)?;
        io::copy(&mut stream, &mut io::sink()).map(drop)
    });
    let mut load = Windows::start("echo", addr, &format!("{OPTIONS} --patience 0.3"));
    let report = load.ask("window 20")["report"].take();
    assert_eq!(report["connections"]["errors"]["not answered within 0.3 s"], 1, "{report}");
    assert!(report["messages"]["received"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn bad_lines_and_loads_without_windows_are_refused() {
    for (line, why) in [("window", "not one of warm-up MS"), ("end", "no window was asked for")] {
        let mut load = Windows::start("echo", good_echo(), OPTIONS);
        assert_eq!(load.ask(line), Value::Null);
        let (code, stderr) = load.finish();
        assert!(code == Some(1) && stderr.contains(why), "{stderr}");
    }
    let load = Windows::start("echo", good_echo(), &format!("{OPTIONS} --rate 100"));
    let (code, stderr) = load.finish();
    assert!(code == Some(1) && stderr.contains("a closed loop"), "{stderr}");
}

#[test]
fn a_server_that_goes_away_between_windows_is_an_error() {
    let addr = server(|_, mut stream| {
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        echo(&mut stream, |_| ())
    });
    let mut load = Windows::start("echo", addr, OPTIONS);
    load.ask("window 10");
    thread::sleep(Duration::from_millis(500));
    let report = load.ask("window 10")["report"].take();
    assert_eq!(report["connections"]["errors"]["closed by the server"], 3, "{report}");
}
