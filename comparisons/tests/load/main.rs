//! Every command of `load` against small servers on threads, good ones and bad ones.

#![cfg(target_os = "linux")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

mod tls;
mod websocket;

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
            // A connection that ends in an error has ended.
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

fn good_sink(_: u32, mut stream: TcpStream) -> io::Result<()> {
    loop {
        let mut len = [0; 4];
        stream.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len);
        io::copy(&mut (&mut stream).take(len.into()), &mut io::sink())?;
        stream.write_all(&u64::from(len).to_le_bytes())?;
    }
}

/// A source that shows its answer to `change` before it is sent.
fn source(change: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) -> SocketAddr {
    server(move |_, mut stream| {
        let mut request = [0; 12];
        stream.read_exact(&mut request)?;
        let field = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().expect("four"));
        let (messages, bytes) = (field(0), field(4));
        let mut answer = Vec::new();
        for n in 0..messages {
            answer.extend(bytes.to_le_bytes());
            answer.extend((0..bytes).map(|i| n.wrapping_add(i) as u8));
        }
        change(&mut answer);
        stream.write_all(&answer)?;
        // Open until the client closes it.
        io::copy(&mut stream, &mut io::sink()).map(drop)
    })
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
fn an_echo_in_a_closed_loop() {
    let options = "--connections 3 --payload 200 --in-flight 4 --seconds 0.4 --warm-up 0.1";
    let pid = std::process::id();
    let run = load("echo", good_echo(), &format!("{options} --core 0 --server-pid {pid}"));
    run.is_clean();
    assert_eq!(run.number("/connections/opened"), 3.0);
    assert!(run.number("/messages/received") > 100.0, "{}", run.stdout);
    assert_eq!(run.number("/messages/unanswered"), 0.0);
    assert!(run.number("/latency_us/p50") <= run.number("/latency_us/p99.9"));
    assert!(run.number("/server/per_message/cpu_ns") > 0.0);
    assert!(run.number("/server/rss_kib") > 0.0);
    assert!((run.number("/seconds") - 0.4).abs() < 0.1);
    assert!(run.json["command"].to_string().contains("--in-flight"));
    assert!(run.stdout.contains("latency        p50 "), "{}", run.stdout);
}

#[test]
fn a_perf_is_told_when_the_window_begins_and_ends() {
    let folder = std::env::temp_dir().join(format!("load-perf-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let [control, ack] = ["control", "ack"].map(|name| folder.join(name));
    let made = Command::new("mkfifo").args([&control, &ack]).status();
    assert!(made.expect("it starts").success());
    // As perf does: both ways, so that there is always another end.
    let both = |fifo| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).open(fifo).expect("a FIFO")
    };
    let (mut told, mut answers) = (both(&control), both(&ack));
    let perf = thread::spawn(move || {
        let said = ["enable\n", "disable\n"].map(|word| {
            let mut said = vec![0; word.len()];
            told.read_exact(&mut said).expect("a word");
            let at = Instant::now();
            answers.write_all(b"ack\n\0").expect("room");
            (String::from_utf8(said).expect("text"), at)
        });
        let [(enable, began), (disable, ended)] = said;
        assert_eq!((enable.as_str(), disable.as_str()), ("enable\n", "disable\n"));
        ended - began
    });
    let fifos = format!("{},{}", control.display(), ack.display());
    let options = "--connections 2 --payload 100 --seconds 0.3 --warm-up 0.2";
    let run = load("echo", good_echo(), &format!("{options} --perf {fifos}"));
    run.is_clean();
    let counted = perf.join().expect("it was told").as_secs_f64();
    // It begins before the window is timed, and ends after it.
    assert!(counted >= run.number("/seconds"), "{counted} {}", run.stdout);
    std::fs::remove_dir_all(folder).expect("a folder");
}

#[test]
fn an_echo_of_more_than_any_buffer_holds() {
    let options = "--connections 2 --payload 3000000 --in-flight 3 --seconds 0.5 --warm-up 0";
    let run = load("echo", good_echo(), options);
    run.is_clean();
    assert!(run.number("/messages/received") > 0.0);
    assert_eq!(run.number("/messages/unanswered"), 0.0);
}

#[test]
fn an_echo_of_a_byte() {
    let options = "--connections 2 --payload 1 --in-flight 100 --seconds 0.2 --warm-up 0";
    load("echo", good_echo(), options).is_clean();
}

#[test]
fn an_open_loop_sends_what_it_was_to_send() {
    let options = "--connections 3 --payload 50 --in-flight 8 --seconds 0.5 --warm-up 0.25";
    let run = load("echo", good_echo(), &format!("{options} --rate 2000"));
    run.is_clean();
    assert_eq!(run.number("/latency_us/count"), 1000.0, "{}", run.stdout);
    assert_eq!(run.number("/lateness_us/count"), 1000.0, "{}", run.stdout);
    assert_eq!(run.number("/messages/unsent"), 0.0);
}

#[test]
fn a_stall_is_told_and_stands_in_the_series() {
    // A server that pauses once, in the middle of the second.
    let addr = server(|_, mut stream| {
        let began = Instant::now();
        let mut paused = false;
        echo(&mut stream, |_| {
            if !paused && began.elapsed() > Duration::from_millis(400) {
                paused = true;
                thread::sleep(Duration::from_millis(200));
            }
        })
    });
    let options = "--connections 1 --payload 10 --seconds 1 --warm-up 0";
    let run = load("echo", addr, options);
    run.is_clean();
    assert!(run.number("/stalls/longest_ms") >= 199.0, "{}", run.stdout);
    let at = run.number("/stalls/at_ms/0");
    assert!((350.0..900.0).contains(&at), "{}", run.stdout);
    let slots = |name: &str| -> Vec<f64> {
        let slots = run.json["series"][name].as_array().expect("slots");
        slots.iter().map(|slot| slot.as_f64().expect("a number")).collect()
    };
    let (received, longest) = (slots("received"), slots("longest_us"));
    assert_eq!((run.number("/series/slot_ms"), received.len(), longest.len()), (10.0, 100, 100));
    assert!(received.iter().filter(|count| **count == 0.0).count() >= 18, "{received:?}");
    assert!(longest.iter().any(|us| *us >= 199_000.0), "{longest:?}");
    let curve = run.json["curve"].as_array().expect("a curve");
    assert_eq!(curve.last().expect("its end")[0], 1.0);
    assert_eq!(curve.last().expect("its end")[1], run.number("/latency_us/max"));
}

#[test]
fn an_open_loop_times_from_the_intended_moment() {
    // A server that pauses once, 400 ms of the second: with one message in flight a closed loop
    // would see one slow message; here all that were to be sent meanwhile are slow.
    let addr = server(|_, mut stream| {
        let begin = Instant::now();
        let mut paused = false;
        echo(&mut stream, |_| {
            if !paused && begin.elapsed() > Duration::from_millis(300) {
                paused = true;
                thread::sleep(Duration::from_millis(400));
            }
        })
    });
    let options = "--connections 1 --payload 50 --in-flight 1 --seconds 1 --warm-up 0 --rate 1000";
    let run = load("echo", addr, options);
    run.is_clean();
    assert_eq!(run.number("/latency_us/count"), 1000.0, "{}", run.stdout);
    assert!(run.number("/latency_us/max") > 380_000.0, "{}", run.stdout);
    assert!(run.number("/latency_us/p90") > 200_000.0, "{}", run.stdout);
    assert!(run.number("/messages/held_back") > 300.0, "{}", run.stdout);
}

#[test]
fn a_wrong_byte_is_found_and_the_run_exits_2() {
    let addr = server(|number, mut stream| {
        let mut seen = 0;
        echo(&mut stream, |bytes| {
            let at = 100_000_usize.wrapping_sub(seen);
            seen += bytes.len();
            if let (1, Some(byte)) = (number, bytes.get_mut(at)) {
                *byte ^= 1;
            }
        })
    });
    let options = "--connections 3 --payload 200 --in-flight 4 --seconds 1 --warm-up 0";
    let run = load("echo", addr, options);
    run.is_wrong("message 500 is wrong");
    assert_eq!(run.number("/wrong"), 1.0);
    assert!(run.number("/messages/received") > 500.0);
    assert!(run.stdout.contains("WRONG"), "{}", run.stdout);
}

#[test]
fn more_than_was_sent_is_wrong() {
    let addr = server(|_, mut stream| echo(&mut stream, |bytes| bytes.push(0)));
    let options = "--connections 1 --payload 20 --seconds 0.3 --warm-up 0";
    load("echo", addr, options).is_wrong("more came than");
}

#[test]
fn a_first_answer_that_is_wrong_on_all_connections() {
    let addr = server(|_, mut stream| echo(&mut stream, |bytes| bytes[0] ^= 1));
    for rate in ["", "--rate 1000"] {
        let options = "--connections 3 --payload 20 --seconds 0.3 --warm-up 0.1";
        let run = load("echo", addr, &format!("{options} {rate}"));
        run.is_wrong("message 0 is wrong");
        assert_eq!(run.number("/wrong"), 3.0);
    }
}

#[test]
fn a_connection_that_stalls_is_counted_and_ends_the_run_in_time() {
    let addr = server(|number, mut stream| {
        let mut seen = 0;
        echo(&mut stream, |bytes| {
            seen += bytes.len();
            if number == 2 && seen > 10_000 {
                thread::sleep(RUN_MAX);
            }
        })
    });
    for rate in ["", "--rate 3000"] {
        let options = "--connections 3 --payload 100 --in-flight 2 --seconds 1 --warm-up 0";
        let run = load("echo", addr, &format!("{options} --patience 0.5 {rate}"));
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        if rate.is_empty() {
            let errors = &run.json["connections"]["errors"];
            assert_eq!(errors["not answered within 0.5 s"], 1, "{}", run.stdout);
            assert!((1.0..=2.0).contains(&run.number("/messages/unanswered")), "{}", run.stdout);
        }
        assert!(run.number("/messages/received") > 100.0);
    }
}

#[test]
fn what_an_open_loop_cannot_send_is_counted() {
    let addr = server(|number, mut stream| {
        let mut seen = 0;
        echo(&mut stream, |bytes| {
            seen += bytes.len();
            if number == 1 && seen > 10_000 {
                thread::sleep(RUN_MAX);
            }
        })
    });
    let options = "--connections 2 --payload 100 --in-flight 2 --seconds 0.5 --warm-up 0";
    let run = load("echo", addr, &format!("{options} --rate 2000 --patience 0.3"));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let counted = run.number("/latency_us/count")
        + run.number("/messages/unsent")
        + run.number("/messages/unanswered");
    assert_eq!(counted, 1000.0, "{}", run.stdout);
    assert!(run.number("/messages/unsent") > 300.0, "{}", run.stdout);
}

#[test]
fn connections_that_the_server_ends_are_counted() {
    let addr = server(|number, mut stream| {
        let mut rounds = 0;
        let ended = stream.try_clone()?;
        echo(&mut stream, |_| {
            rounds += 1;
            if number == 1 && rounds == 50 {
                let _ = ended.shutdown(Shutdown::Both);
            }
        })
    });
    for rate in ["", "--rate 2000"] {
        let options = "--connections 2 --payload 100 --seconds 0.5 --warm-up 0 --patience 1";
        let run = load("echo", addr, &format!("{options} {rate}"));
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        if rate.is_empty() {
            let errors = run.json["connections"]["errors"].as_object().expect("errors");
            assert_eq!(errors.len(), 1, "{}", run.stdout);
        }
        assert!(run.number("/seconds") > 0.4);
    }
}

#[test]
fn a_server_that_ends_everything_ends_the_run() {
    let addr = server(|_, stream| {
        let mut buf = [0; 100];
        for _ in 0..20 {
            (&stream).read_exact(&mut buf)?;
            (&stream).write_all(&buf)?;
        }
        Ok(())
    });
    let begin = Instant::now();
    let run = load("echo", addr, "--connections 2 --payload 100 --seconds 20 --warm-up 0");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(begin.elapsed() < Duration::from_secs(10));
    // An echo that crosses the end on its way is answered by a reset: which it is, is chance.
    let errors = run.json["connections"]["errors"].as_object().expect("errors");
    let counted: u64 = errors.values().filter_map(Value::as_u64).sum();
    assert_eq!(counted, 2, "{}", run.stdout);
}

#[test]
fn a_sink() {
    let options = "--connections 3 --payload 70000 --in-flight 4 --seconds 0.4 --warm-up 0.1";
    let run = load("sink", server(good_sink), options);
    run.is_clean();
    assert!(run.number("/messages/received") > 10.0, "{}", run.stdout);
    let run = load("sink", server(good_sink), &format!("{options} --rate 100"));
    run.is_clean();
    assert_eq!(run.number("/latency_us/count"), 40.0, "{}", run.stdout);
}

#[test]
fn a_sink_that_answers_with_another_length() {
    let addr = server(|_, mut stream| {
        let mut buf = [0; 104];
        loop {
            stream.read_exact(&mut buf)?;
            stream.write_all(&101_u64.to_le_bytes())?;
        }
    });
    let run = load("sink", addr, "--connections 1 --payload 100 --seconds 0.3");
    run.is_wrong("message 0 is wrong");
}

/// Answers each request for a message, which `change` sees first, with how many came before.
fn fetched(change: impl Fn(usize, &mut Vec<u8>) + Send + Sync + 'static) -> SocketAddr {
    server(move |_, mut stream| {
        for number in 0.. {
            let mut request = [0; 12];
            stream.read_exact(&mut request)?;
            let bytes = u32::from_le_bytes(request[4..8].try_into().expect("four"));
            assert_eq!(request, *[1, bytes, 1].map(u32::to_le_bytes).as_flattened());
            let mut answer = bytes.to_le_bytes().to_vec();
            answer.extend((0..bytes).map(|i| i as u8));
            change(number, &mut answer);
            stream.write_all(&answer)?;
        }
        Ok(())
    })
}

#[test]
fn a_fetch() {
    let options = "--connections 2 --in-flight 2 --seconds 0.4 --warm-up 0.1";
    for bytes in [1, 300, 1_000_000] {
        let run = load("fetch", fetched(|_, _| ()), &format!("{options} --payload {bytes}"));
        run.is_clean();
        assert!(run.number("/messages/received") > 0.0, "{}", run.stdout);
    }
    let options = format!("{options} --payload 300");
    let wrong = |number, answer: &mut Vec<u8>| answer[200] ^= u8::from(number == 5);
    load("fetch", fetched(wrong), &options).is_wrong("message 5 is wrong");
    let more = |number, answer: &mut Vec<u8>| answer.extend((number == 5).then_some(0));
    load("fetch", fetched(more), &options).is_wrong("wrong");
    let twice = |number, answer: &mut Vec<u8>| {
        if number == 5 {
            answer.extend_from_within(..);
        }
    };
    let run = load("fetch", fetched(twice), &options.replace("--in-flight 2", "--in-flight 1"));
    run.is_wrong("more came than");
    assert_eq!(run.number("/messages/unanswered"), 0.0, "{}", run.stdout);
}

#[test]
fn a_source() {
    for (messages, bytes, connections) in [(1, 1, 1), (1000, 300, 2), (3, 5_000_000, 1)] {
        let options =
            format!("--messages {messages} --bytes {bytes} --batch 10 --connections {connections}");
        let run = load("source", source(|_| ()), &options);
        run.is_clean();
        assert_eq!(run.number("/messages/received"), f64::from(messages * connections));
        assert_eq!(run.number("/messages/unanswered"), 0.0);
    }
}

/// Answers a request without an end by so many messages.
fn endless(stream: &mut TcpStream, messages: u32) -> io::Result<()> {
    let mut request = [0; 12];
    stream.read_exact(&mut request)?;
    assert_eq!(request[..4], u32::MAX.to_le_bytes());
    for n in 0..messages {
        let payload = (0..300).map(|i| n.wrapping_add(i) as u8);
        stream.write_all(&300_u32.to_le_bytes().into_iter().chain(payload).collect::<Vec<_>>())?;
    }
    Ok(())
}

#[test]
fn a_source_for_some_time() {
    let addr = server(|_, mut stream| endless(&mut stream, u32::MAX));
    let options = "--bytes 300 --batch 10 --connections 2 --seconds 0.4 --warm-up 0.1";
    let run = load("source", addr, options);
    run.is_clean();
    assert!((run.number("/seconds") - 0.4).abs() < 0.1, "{}", run.stdout);
    assert!(run.number("/messages/received") > 100.0, "{}", run.stdout);
    load("source", addr, "--bytes 300 --batch 10").is_refused("--messages");
    load("source", addr, &format!("{options} --messages 3")).is_refused("--messages");
}

#[test]
fn who_gets_nothing_from_a_source_is_counted_though_others_do() {
    // One has a few messages, all before the window, one has none, and two have as many as they take.
    let addr = server(|number, mut stream| {
        match number {
            0 => endless(&mut stream, 10)?,
            1 => {}
            _ => endless(&mut stream, u32::MAX)?,
        }
        io::copy(&mut stream, &mut io::sink()).map(drop)
    });
    let options = "--bytes 300 --batch 10 --connections 4 --seconds 0.4 --warm-up 0.5";
    let run = load("source", addr, options);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.number("/messages/received") > 100.0, "{}", run.stdout);
    let errors = &run.json["connections"]["errors"];
    assert_eq!(*errors, serde_json::json!({ "no message came in the window": 2 }));
}

#[test]
fn a_source_that_is_wrong_or_stops() {
    let options = "--messages 1000 --bytes 300 --batch 10 --patience 0.5";
    let run = load("source", source(|answer| answer[304 * 700 + 150] ^= 1), options);
    run.is_wrong("wrong");
    let run = load("source", source(|answer| answer[304 * 999] ^= 1), options);
    run.is_wrong("wrong");
    let run = load("source", source(|answer| answer.push(0)), options);
    run.is_wrong("more came than");
    let run = load("source", source(|answer| answer.truncate(304 * 700 + 150)), options);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.number("/messages/received"), 700.0);
    assert_eq!(run.number("/messages/unanswered"), 300.0);
    assert_eq!(run.json["connections"]["errors"]["nothing came for 0.5 s"], 1);
}

#[test]
fn arrivals_while_others_are_busy() {
    let options = "--busy 4 --payload 200 --rate 100 --seconds 0.5 --warm-up 0.1";
    let run = load("arrivals", good_echo(), options);
    run.is_clean();
    assert_eq!(run.number("/arrivals/came"), 50.0, "{}", run.stdout);
    let answered = run.number("/arrivals/within_1_s") + run.number("/arrivals/over_1_s");
    assert_eq!(answered, 50.0, "{}", run.stdout);
    assert_eq!(run.number("/arrivals/first_echo_us/count"), 50.0);
    assert_eq!(run.number("/arrivals/never") + run.number("/arrivals/failed"), 0.0);
    assert!(run.number("/messages/received") > 50.0, "{}", run.stdout);
    let options = "--busy 0 --payload 200 --rate 200 --seconds 0.25 --warm-up 0";
    let run = load("arrivals", good_echo(), options);
    assert_eq!(run.number("/arrivals/first_echo_us/count"), 50.0, "{}", run.stdout);
}

#[test]
fn arrivals_that_wait_fail_or_never_hear() {
    // After the two busy ones: every fifth is never answered, every fifth closed, every fifth slow.
    let addr = server(|number, mut stream| {
        match number.checked_sub(2).map(|newcomer| newcomer % 5) {
            Some(0) => thread::sleep(RUN_MAX),
            Some(1) => return Ok(()),
            Some(2) => thread::sleep(Duration::from_millis(1200)),
            _ => {}
        }
        echo(&mut stream, |_| ())
    });
    let options = "--busy 2 --payload 20 --rate 100 --seconds 0.5 --warm-up 0 --patience 2";
    let run = load("arrivals", addr, options);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.number("/arrivals/came"), 50.0);
    assert_eq!(run.number("/arrivals/never"), 10.0, "{}", run.stdout);
    assert_eq!(run.number("/arrivals/failed"), 10.0, "{}", run.stdout);
    assert!(run.number("/arrivals/over_1_s") >= 10.0, "{}", run.stdout);
    assert!(run.number("/arrivals/first_echo_us/max") > 1_190_000.0, "{}", run.stdout);
}

#[test]
fn the_busy_that_fail_are_told_apart_from_newcomers_that_do() {
    // Of the busy one fails while it is opened and one later; of the newcomers every fifth.
    let addr = server(|number, mut stream| {
        let ended = stream.try_clone()?;
        let mut rounds = 0;
        match number {
            0 => Ok(()),
            1 => echo(&mut stream, |_| {
                rounds += 1;
                if rounds == 20 {
                    let _ = ended.shutdown(Shutdown::Both);
                }
            }),
            4.. if number % 5 == 0 => Ok(()),
            _ => echo(&mut stream, |_| ()),
        }
    });
    let options = "--busy 4 --payload 20 --rate 100 --seconds 0.5 --warm-up 0";
    let run = load("arrivals", addr, options);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    // Whether an end is a close or a reset is chance.
    let failed = |pointer: &str| -> u64 {
        let errors = run.json.pointer(pointer).and_then(Value::as_object).expect("errors");
        errors.values().filter_map(Value::as_u64).sum()
    };
    assert_eq!(run.number("/connections/wanted"), 4.0, "{}", run.stdout);
    assert_eq!(run.number("/connections/opened"), 3.0, "{}", run.stdout);
    assert_eq!(failed("/connections/errors"), 2, "{}", run.stdout);
    assert_eq!(failed("/arrivals/errors"), 10, "{}", run.stdout);
    assert_eq!(run.number("/arrivals/failed"), 10.0, "{}", run.stdout);
    assert_eq!(run.number("/arrivals/first_echo_us/count"), 40.0, "{}", run.stdout);
}

#[test]
fn an_arrival_with_a_wrong_echo() {
    let addr =
        server(|number, mut stream| echo(&mut stream, |bytes| bytes[0] ^= u8::from(number == 20)));
    let options = "--busy 2 --payload 20 --rate 100 --seconds 0.5 --warm-up 0";
    load("arrivals", addr, options).is_wrong("message 0 is wrong");
}

#[test]
fn a_burst() {
    let run = load("burst", good_echo(), "--connections 60");
    run.is_clean();
    assert_eq!(run.number("/burst/connected"), 60.0, "{}", run.stdout);
    assert_eq!(run.number("/burst/echoed"), 60.0, "{}", run.stdout);
    assert_eq!(run.number("/burst/never") + run.number("/burst/failed"), 0.0);
    assert!(run.number("/burst/connect_us/max") <= run.number("/burst/first_echo_us/max"));
}

#[test]
fn a_burst_that_is_not_echoed() {
    let addr = server(|number, mut stream| {
        match number {
            0..5 => thread::sleep(RUN_MAX),
            5..8 => return Ok(()),
            _ => {}
        }
        echo(&mut stream, |bytes| bytes[0] ^= u8::from(number == 10))
    });
    let run = load("burst", addr, "--connections 20 --patience 0.5");
    run.is_wrong("message 0 is wrong");
    assert_eq!(run.number("/burst/echoed"), 11.0, "{}", run.stdout);
    assert_eq!(run.number("/burst/never"), 5.0, "{}", run.stdout);
    // Three that the server closed, and the one with a wrong echo.
    assert_eq!(run.number("/burst/failed"), 4.0, "{}", run.stdout);
    assert!(run.stdout.contains("5 never, 4 failed"), "{}", run.stdout);
}

#[test]
fn connections_that_come_and_go() {
    let options = "--connections 4 --payload 100 --seconds 0.3 --warm-up 0.05";
    let run = load("churn", good_echo(), options);
    run.is_clean();
    assert!(run.number("/churn/done") > 10.0, "{}", run.stdout);
    assert_eq!(run.number("/churn/whole_us/count"), run.number("/churn/first_echo_us/count"));
    let run = load("churn", good_echo(), &format!("{options} --rate 100"));
    run.is_clean();
    assert_eq!(run.number("/churn/first_echo_us/count"), 30.0, "{}", run.stdout);
    assert_eq!(run.number("/churn/whole_us/count"), 30.0, "{}", run.stdout);
    assert_eq!(run.number("/connections/opened"), 35.0, "{}", run.stdout);
}

#[test]
fn those_for_whom_there_is_no_room_wait_and_are_timed_from_when_they_were_to_come() {
    let addr = server(|_, mut stream| {
        thread::sleep(Duration::from_millis(100));
        echo(&mut stream, |_| ())
    });
    let options = "--connections 1 --rate 20 --seconds 0.5 --warm-up 0";
    let run = load("churn", addr, options);
    run.is_clean();
    assert!(run.number("/messages/held_back") >= 3.0, "{}", run.stdout);
    // The last was to come at 450 ms and comes at 900, when the window is long over.
    assert!(run.number("/churn/first_echo_us/max") > 540_000.0, "{}", run.stdout);
    assert_eq!(run.number("/churn/first_echo_us/count"), 10.0, "{}", run.stdout);
    assert!(run.number("/churn/done") < 10.0, "{}", run.stdout);
}

#[test]
fn those_that_never_find_room_are_errors() {
    // The first is served, and whoever has the place after it keeps it as long as patience lasts.
    let addr = server(|number, mut stream| {
        if number > 0 {
            thread::sleep(RUN_MAX);
        }
        echo(&mut stream, |_| ())
    });
    let options = "--connections 1 --rate 100 --seconds 0.3 --warm-up 0 --patience 0.5";
    let run = load("churn", addr, options);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let errors = &run.json["connections"]["errors"];
    let never_begun = "not begun within 0.5 s after the window: no place was free";
    let never_begun = errors[never_begun].as_u64().expect("some");
    assert!(run.number("/messages/unsent") >= never_begun as f64, "{}", run.stdout);
    let given_up = errors["not gone within 0.5 s"].as_u64().expect("one at least");
    assert_eq!(run.number("/connections/opened"), 1.0, "{}", run.stdout);
    assert_eq!(1 + given_up + never_begun, 30, "{}", run.stdout);
    assert_eq!(run.number("/connections/wanted"), 30.0, "{}", run.stdout);
}

#[test]
fn a_connection_that_does_not_go_is_counted() {
    let addr = server(|_, mut stream| io::copy(&mut stream, &mut io::sink()).map(drop));
    let options = "--connections 2 --seconds 0.3 --warm-up 0 --patience 0.2";
    load("churn", addr, options).is_refused("not gone within 0.2 s (");
}

#[test]
fn connections_are_opened_over_a_ramp() {
    let (opened, when) = mpsc::channel();
    let opened = std::sync::Mutex::new(opened);
    let addr = server(move |_, mut stream| {
        opened.lock().expect("no panic").send(Instant::now()).expect("the test waits");
        echo(&mut stream, |_| ())
    });
    let options = "--connections 4 --payload 10 --ramp 0.4 --seconds 0.1 --warm-up 0";
    load("echo", addr, options).is_clean();
    let times: Vec<Instant> = when.try_iter().collect();
    assert_eq!(times.len(), 4);
    // One each 100 ms; the machine may make any of them late, but none early.
    assert!(times[3] - times[0] > Duration::from_millis(200), "{times:?}");
}

#[test]
fn idle_connections_and_those_that_do_not_stay() {
    let addr = server(|number, mut stream| {
        if number < 3 {
            thread::sleep(Duration::from_millis(200));
            return Ok(());
        }
        echo(&mut stream, |_| ())
    });
    let pid = std::process::id();
    let run = load("hold", addr, &format!("--connections 20 --seconds 0.6 --server-pid {pid}"));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.number("/connections/opened"), 20.0);
    assert_eq!(run.number("/hold/still_open"), 17.0, "{}", run.stdout);
    assert_eq!(run.json["connections"]["errors"]["closed by the server"], 3);
    assert!(run.number("/hold/server_rss_bytes_each") >= 0.0);
}

type Act = fn(&TcpStream);

/// How many connections [`few_places`] serves at once, and how it fails to.
#[derive(Clone, Copy)]
struct Places {
    all: u32,
    /// Places that are given back are given away again.
    again: bool,
    /// What it does at the limit, besides serving, with the connection of this number.
    at_limit: Option<(u32, Act)>,
}

/// An echo that accepts nobody while all its places are taken: those that come wait in the queue.
fn few_places(Places { all, again, at_limit }: Places) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let (give, free) = mpsc::channel();
    (0..all).for_each(|_| give.send(()).expect("a receiver"));
    thread::spawn(move || {
        let mut streams = Vec::new();
        for number in 0.. {
            if number == all
                && let Some((index, act)) = at_limit
            {
                // Later than those that come have waited to see whether they are served.
                thread::sleep(Duration::from_millis(1000));
                act(&streams[index as usize]);
            }
            let Ok(()) = free.recv() else { return };
            let Ok((mut stream, _)) = listener.accept() else { return };
            streams.push(stream.try_clone().expect("a descriptor"));
            let give = again.then(|| give.clone());
            thread::spawn(move || {
                let ended = echo(&mut stream, |_| ());
                give.map(|give| give.send(()));
                ended
            });
        }
    });
    addr
}

const AT_LIMIT: &str = "--busy 3 --payload 100 --seconds 0.5 --speed-seconds 0.3 --warm-up 0.1";

#[test]
fn a_server_at_its_limit() {
    let addr = few_places(Places { all: 10, again: true, at_limit: None });
    let pid = std::process::id();
    let options = format!("{AT_LIMIT} --connections 18 --release 4 --server-pid {pid}");
    let run = load("limit", addr, &options);
    run.is_clean();
    assert_eq!(run.number("/connections/opened"), 18.0, "{}", run.stdout);
    assert_eq!(run.number("/limit/served"), 10.0, "{}", run.stdout);
    assert_eq!(run.number("/limit/waiting"), 8.0);
    assert_eq!(run.number("/limit/lost"), 0.0);
    assert!((run.number("/seconds") - 0.5).abs() < 0.1, "{}", run.stdout);
    assert!(run.number("/limit/idle_cpu_percent") < 1000.0);
    for speed in ["before", "at_limit"] {
        let field = |name: &str| run.number(&format!("/limit/{speed}/{name}"));
        assert!((field("received") / field("received_per_s") / 0.3 - 1.0).abs() < 0.3);
        assert!(field("received") > 50.0, "{}", run.stdout);
        assert!(field("cpu_ns") > 0.0 && field("latency_us/p50") > 0.0);
    }
    assert_eq!(run.number("/limit/released"), 4.0, "{}", run.stdout);
    assert_eq!(run.number("/limit/resumed"), 4.0, "{}", run.stdout);
    assert_eq!(run.number("/limit/never"), 0.0);
    assert_eq!(run.number("/limit/resume_us/count"), 4.0);
    assert!(run.stdout.contains("at the limit   10 served, 8 waiting, 0 lost"), "{}", run.stdout);
}

#[test]
fn no_more_are_released_than_wait() {
    let addr = few_places(Places { all: 10, again: true, at_limit: None });
    let run = load("limit", addr, &format!("{AT_LIMIT} --connections 12"));
    run.is_clean();
    assert_eq!(run.number("/limit/released"), 2.0, "{}", run.stdout);
    assert_eq!(run.number("/limit/resumed"), 2.0);
    assert_eq!(run.json["limit"]["idle_cpu_percent"], Value::Null);
    assert_eq!(run.json["limit"]["before"]["cpu_ns"], Value::Null);
}

#[test]
fn a_server_that_never_accepts_again() {
    let addr = few_places(Places { all: 10, again: false, at_limit: None });
    let options = format!("{AT_LIMIT} --connections 18 --release 4 --patience 0.7");
    let run = load("limit", addr, &options);
    run.is_clean();
    assert_eq!(run.number("/limit/released"), 4.0, "{}", run.stdout);
    assert_eq!(run.number("/limit/resumed"), 0.0);
    assert_eq!(run.number("/limit/never"), 4.0);
}

#[test]
fn a_server_that_ends_connections_at_its_limit() {
    // One of the busy, and one of the others.
    for index in [0, 8] {
        let end: Act = |stream| stream.shutdown(Shutdown::Both).expect("open");
        let addr = few_places(Places { all: 10, again: false, at_limit: Some((index, end)) });
        let options = format!("{AT_LIMIT} --connections 18 --patience 0.7");
        let run = load("limit", addr, &options);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        assert_eq!(run.number("/limit/served"), 10.0, "{}", run.stdout);
        assert_eq!(run.number("/limit/lost"), 1.0, "{}", run.stdout);
        assert_eq!(run.json["connections"]["errors"]["closed by the server"], 1);
    }
}

#[test]
fn a_wrong_answer_at_the_limit() {
    let say_more: Act = |mut stream| stream.write_all(b"unasked").expect("open");
    let addr = few_places(Places { all: 10, again: false, at_limit: Some((8, say_more)) });
    let run = load("limit", addr, &format!("{AT_LIMIT} --connections 18 --patience 0.7"));
    run.is_wrong("more came than");
}

#[test]
fn a_server_that_never_comes_to_its_limit() {
    let run = load("limit", good_echo(), &format!("{AT_LIMIT} --connections 18"));
    run.is_refused("never came to its limit: of 18 connections it served 18, 0 failed");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    let run = load("limit", good_echo(), &format!("{AT_LIMIT} --connections 3"));
    run.is_refused("--busy must be less than --connections");
    let addr = few_places(Places { all: 1, again: false, at_limit: None });
    let run = load("limit", addr, &format!("{AT_LIMIT} --connections 18 --patience 0.7"));
    run.is_refused("the server took 1 of the 3");
    for number in [1, 5] {
        let addr = server(move |this, mut stream| {
            echo(&mut stream, |bytes| bytes[0] ^= u8::from(this == number))
        });
        load("limit", addr, &format!("{AT_LIMIT} --connections 18")).is_wrong("message 0 is wrong");
    }
}

#[test]
fn no_run_is_one_sentence_and_exit_1() {
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
