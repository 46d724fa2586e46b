//! `echo`, `sink` and `fetch`.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{RUN_MAX, echo, good_echo, load, server};

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
fn perf_is_enabled_and_disabled_with_the_window() {
    let folder = std::env::temp_dir().join(format!("load-perf-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let [control, ack] = ["control", "ack"].map(|name| folder.join(name));
    let made = Command::new("mkfifo").args([&control, &ack]).status();
    assert!(made.expect("it starts").success());
    // As perf does: opened for reading and writing, so that the FIFO always has another end.
    let both = |fifo| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).open(fifo).expect("a FIFO")
    };
    let (mut told, mut answers) = (both(&control), both(&ack));
    let perf = thread::spawn(move || {
        let words = ["enable\n", "disable\n"].map(|word| {
            let mut words = vec![0; word.len()];
            told.read_exact(&mut words).expect("a word");
            let at = Instant::now();
            answers.write_all(b"ack\n\0").expect("room");
            (String::from_utf8(words).expect("text"), at)
        });
        let [(enable, began), (disable, ended)] = words;
        assert_eq!((enable.as_str(), disable.as_str()), ("enable\n", "disable\n"));
        ended - began
    });
    let fifos = format!("{},{}", control.display(), ack.display());
    let options = "--connections 2 --payload 100 --seconds 0.3 --warm-up 0.2";
    let run = load("echo", good_echo(), &format!("{options} --perf {fifos}"));
    run.is_clean();
    let counted = perf.join().expect("it was told").as_secs_f64();
    // Counting begins before the window is timed, and ends after it.
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
fn a_stall_is_reported_and_stands_in_the_series() {
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
    let numbers = |of: &str, name: &str| -> Vec<f64> {
        let numbers = run.json[of][name].as_array().expect("a list");
        numbers.iter().map(|it| it.as_f64().expect("a number")).collect()
    };
    // The machine may add stalls of its own; this one is long.
    let (at, lasted) = (numbers("stalls", "at_ms"), numbers("stalls", "lasted_ms"));
    let stall = at.iter().zip(&lasted).find(|(_, lasted)| **lasted >= 199.0);
    let (at, lasted) = stall.expect("it is told");
    assert!(run.number("/stalls/longest_ms") >= *lasted, "{}", run.stdout);
    let (received, longest) = (numbers("series", "received"), numbers("series", "longest_us"));
    assert_eq!((run.number("/series/slot_ms"), received.len(), longest.len()), (10.0, 100, 100));
    let slots = (at / 10.0).ceil() as usize..((at + lasted) / 10.0).floor() as usize;
    let mut silent = received.iter().take(slots.end).skip(slots.start);
    assert!(!slots.is_empty() && silent.all(|count| *count == 0.0), "{at} {received:?}");
    assert!(longest.iter().any(|us| *us >= 199_000.0), "{longest:?}");
    let curve = run.json["curve"].as_array().expect("a curve");
    assert_eq!(curve.last().expect("its end")[0], 1.0);
    assert_eq!(curve.last().expect("its end")[1], run.number("/latency_us/max"));
}

#[test]
fn an_open_loop_times_from_the_intended_moment() {
    // A server that pauses once for 400 ms of the second. In a closed loop with one message in flight, one message
    // would be slow; here all messages that are due meanwhile are slow.
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
fn messages_an_open_loop_cannot_send_are_counted() {
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
    // An echo that crosses the close is answered by a reset: either may arrive.
    let errors = run.json["connections"]["errors"].as_object().expect("errors");
    let counted: u64 = errors.values().filter_map(Value::as_u64).sum();
    assert_eq!(counted, 2, "{}", run.stdout);
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

/// Answers each request with a message. `change` may alter it, and gets the number of earlier requests.
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
