//! The program `stalls` with fake servers: this test's own program, beside a link to `stalls` and `load`.

#![cfg(target_os = "linux")]

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, fs, process, thread};

use serde_json::{Value, json};

/// The arguments of the fake server, which this program is if it has them.
const FAKE_ARGS: &str = "STALLS_TEST_ARGS";

/// A fake server ends by itself after so long.
const FAKE_MAX: Duration = Duration::from_secs(60);

/// A folder with `stalls`, `load` and the fake servers, in which nothing has to be built.
struct Programs(PathBuf);

impl Programs {
    /// Without `fakes` there are no servers.
    fn new(name: &str, fakes: bool) -> Self {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", process::id()));
        let programs = folder.join("programs");
        fs::create_dir_all(&programs).unwrap();
        for program in [env!("CARGO_BIN_EXE_stalls"), env!("CARGO_BIN_EXE_load")] {
            let program = Path::new(program);
            fs::hard_link(program, programs.join(program.file_name().unwrap())).unwrap();
        }
        let own = env::current_exe().unwrap();
        let script = format!(
            "#!/bin/sh\n{FAKE_ARGS}=\"$*\" exec '{}' fake_server --exact --nocapture\n",
            own.display()
        );
        for server in ["stalling", "owned-io-server"].iter().filter(|_| fakes) {
            let file = programs.join(server);
            fs::write(&file, &script).unwrap();
            fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        }
        Self(folder)
    }

    /// Runs the long computation on tokio.
    fn run(&self) -> (Output, Value, String) {
        let mut stalls = Command::new(self.0.join("programs/stalls"));
        stalls.args(["--no-build", "--scenario", "computation", "--runtime", "tokio"]);
        let output = stalls.output().unwrap();
        let run = fs::read_dir(self.0.join("stalls")).unwrap().next().unwrap().unwrap().path();
        let results = fs::read(run.join("results.json")).unwrap();
        let page = fs::read_to_string(run.join("report.html")).unwrap();
        (output, serde_json::from_slice(&results).unwrap(), page)
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Not a test of its own: an echo whose detector says what the lab is to hear.
#[test]
fn fake_server() {
    let Ok(args) = env::var(FAKE_ARGS) else { return };
    let words: Vec<_> = args.split(' ').collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // The test harness has begun a line.
    println!("\nlistening echo {}", listener.local_addr().unwrap());
    match words.iter().position(|word| *word == "--events") {
        Some(option) => write_events(Path::new(words[option + 1])),
        None => {
            let admin = TcpListener::bind("127.0.0.1:0").unwrap();
            println!("listening admin {}", admin.local_addr().unwrap());
            thread::spawn(move || serve(&admin, answer));
        }
    }
    thread::spawn(move || serve(&listener, echo));
    thread::sleep(FAKE_MAX);
}

fn serve(listener: &TcpListener, of: fn(TcpStream) -> io::Result<()>) {
    for stream in listener.incoming().flatten() {
        // An error ends its connection only.
        thread::spawn(move || of(stream));
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buf = [0; 4096];
    loop {
        let n = stream.read(&mut buf)?;
        if n == 0 {
            return Ok(());
        }
        stream.write_all(&buf[..n])?;
    }
}

/// A page without incidents.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    let read = stream.read(&mut [0; 4096])?;
    assert!(read > 0);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]")
}

fn write_events(file: &Path) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let finding = json!({
        "class": "blocked_loop", "confidence": "certain", "evidence": ["It computes."], "cure": "Do not.",
    });
    let lines = [
        json!({ "unix_ms": now, "event": "fault_began" }),
        json!({ "unix_ms": now + 50, "event": "late", "ms": 40 }),
        json!({
            "unix_ms": now + 60, "event": "incident", "id": 1, "worker": "worker 0",
            "began_unix_ms": now, "lasted_ms": 60, "is_ongoing": true,
            "verdict": { "findings": [finding] },
        }),
        json!({ "unix_ms": now + 100, "event": "fault_ended" }),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(file, text).unwrap();
}

#[test]
fn a_run_compares_what_the_detector_says_with_the_truth() {
    let programs = Programs::new("told", true);
    let (output, results, page) = programs.run();
    assert!(output.status.success(), "{output:?}");
    let runs: Vec<_> =
        (0..2).map(|cell| results.pointer(&format!("/cells/{cell}/runs/0/Ok"))).collect();
    let [Some(naive), Some(ours)] = *runs else { panic!("{output:?}") };
    assert_eq!((&naive["outcome"], &ours["outcome"]), (&json!("right"), &json!("right")));
    assert_eq!(naive["incidents"][0]["verdict"]["findings"][0]["class"], "blocked_loop");
    assert_eq!(ours["incidents"], json!([]));
    for run in [naive, ours] {
        let came = run["details"]["clients"]["newcomers"]["received"].as_array().unwrap();
        assert!(came.iter().filter_map(Value::as_u64).sum::<u64>() > 0, "{run}");
        assert!(run["details"]["samples"].as_array().unwrap().len() > 1, "{run}");
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("in 1 of 1 runs") && text.contains("right: blocked loop"), "{text}");
    assert!(page.contains("It computes.") && page.contains("class=\"timeline\""));
}

#[test]
fn a_server_that_is_not_there_makes_its_runs_void() {
    let programs = Programs::new("void", false);
    let (output, results, page) = programs.run();
    assert!(output.status.success(), "{output:?}");
    for (cell, program) in ["stalling", "owned-io-server"].iter().enumerate() {
        let why = results.pointer(&format!("/cells/{cell}/runs/0/Err")).and_then(Value::as_str);
        assert!(why.is_some_and(|why| why.contains(program)), "{results}");
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("1/1 void") && text.contains("Void: 2 runs."), "{text}");
    assert!(page.contains("<p>Void: cannot start "));
}

#[test]
fn an_unknown_scenario_is_an_error_that_names_those_there_are() {
    let mut stalls = Command::new(env!("CARGO_BIN_EXE_stalls"));
    let output = stalls.args(["--no-build", "--scenario", "turbo"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("no scenario \"turbo\": it has accept starvation"), "{stderr}");
}
