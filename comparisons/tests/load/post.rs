//! `post`.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::{RUN_MAX, load, server};

/// Reads a request. None at the end. Its head, without the line ends, and its body.
pub(super) fn request(stream: &mut impl BufRead) -> io::Result<Option<(Vec<String>, String)>> {
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        if let Some(digits) = line.strip_prefix("Content-Length: ") {
            length = digits.parse().expect("a length");
        }
        head.push(line);
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(Some((head, String::from_utf8(body).expect("text"))))
}

/// Acknowledges the events, each at the next offset of one of two partitions. `answer` may give another answer to the
/// event with this number, and get the number of its connection.
fn broker(
    answer: impl Fn(u64, u32) -> Option<String> + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicU64>) {
    let events = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&events);
    let addr = server(move |connection, mut stream: TcpStream| {
        let mut requests = BufReader::new(stream.try_clone()?);
        while let Some((head, body)) = request(&mut requests)? {
            assert_eq!(head[0], "POST /events/shop/orders HTTP/1.1");
            assert_eq!(body.len(), 100);
            assert!(body[..16].bytes().all(|byte| byte.is_ascii_digit()), "{body}");
            let number = events.fetch_add(1, Ordering::SeqCst);
            let answer = answer(number, connection).unwrap_or_else(|| acknowledged(number));
            stream.write_all(answer.as_bytes())?;
            if head.iter().any(|line| line == "Connection: close") || answer.contains("close") {
                stream.shutdown(Shutdown::Write)?;
                // The client closes, too.
                return io::copy(&mut requests, &mut io::sink()).map(drop);
            }
        }
        Ok(())
    });
    (addr, counted)
}

pub(super) fn acknowledged(number: u64) -> String {
    let (partition, offset) = (number % 2, number / 2);
    with_body(&format!("{{\"events\":1,\"partition\":{partition},\"offset\":{offset}}}\n"))
}

fn with_body(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn with_status(status: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: 4\r\n\r\nwhy\n")
}

const OPTIONS: &str =
    "--path /events/shop/orders --payload 100 --connections 4 --seconds 0.3 --warm-up 0.1";

#[test]
fn events_over_connections_that_stay() {
    let (addr, events) = broker(|_, _| None);
    let run = load("post", addr, OPTIONS);
    run.is_clean();
    assert!(run.number("/posts/acknowledged") > 40.0, "{}", run.stdout);
    assert_eq!(run.number("/posts/acknowledged"), events.load(Ordering::SeqCst) as f64);
    assert_eq!(run.number("/connections/opened"), 4.0, "{}", run.stdout);
    assert_eq!(run.number("/posts/connect_us/count"), 4.0, "{}", run.stdout);
    assert!(run.number("/messages/received") < run.number("/posts/acknowledged"));
    let partitions = run.json["posts"]["partitions"].as_array().expect("partitions");
    assert_eq!(partitions.len(), 2);
    for partition in partitions {
        assert_eq!(partition["first_offset"], 0);
        let last = partition["last_offset"].as_u64().expect("an offset");
        assert_eq!(partition["acknowledged"], last + 1, "{partition}");
    }
}

#[test]
fn events_that_have_a_connection_each() {
    let (addr, events) = broker(|_, _| None);
    let run = load("post", addr, &format!("{OPTIONS} --per-connection"));
    run.is_clean();
    let acknowledged = run.number("/posts/acknowledged");
    assert!(acknowledged > 20.0, "{}", run.stdout);
    assert_eq!(acknowledged, events.load(Ordering::SeqCst) as f64);
    assert_eq!(acknowledged, run.number("/connections/opened"), "{}", run.stdout);
    assert_eq!(acknowledged, run.number("/posts/connect_us/count"), "{}", run.stdout);
}

#[test]
fn events_at_a_rate() {
    for more in ["", " --per-connection"] {
        let (addr, events) = broker(|_, _| None);
        let run = load("post", addr, &format!("{OPTIONS} --rate 100{more}"));
        run.is_clean();
        assert_eq!(run.number("/latency_us/count"), 30.0, "{}", run.stdout);
        assert_eq!(run.number("/posts/acknowledged"), 40.0, "{}", run.stdout);
        assert_eq!(events.load(Ordering::SeqCst), 40);
    }
}

#[test]
fn events_without_a_connection_wait_and_are_timed_from_the_intended_moment() {
    let (addr, _) = broker(|_, _| {
        thread::sleep(Duration::from_millis(100));
        None
    });
    let options = "--path /events/shop/orders --payload 100 --connections 1 --seconds 0.5";
    let run = load("post", addr, &format!("{options} --warm-up 0 --rate 20"));
    run.is_clean();
    assert!(run.number("/messages/held_back") >= 3.0, "{}", run.stdout);
    // The last is scheduled at 450 ms and posted at 900 ms, when the window is long over.
    assert!(run.number("/latency_us/max") > 540_000.0, "{}", run.stdout);
    assert_eq!(run.number("/latency_us/count"), 10.0, "{}", run.stdout);
    // A silence of the server, as long as each of its answers takes.
    assert!(run.number("/stalls/longest_ms") > 90.0, "{}", run.stdout);
}

#[test]
fn refusals_and_failures_are_counted_and_the_connection_stays() {
    let (addr, events) = broker(|number, _| match number {
        3 => Some(with_status("503 Service Unavailable\r\nRetry-After: 1")),
        5 | 9 => Some(with_status("500 Internal Server Error")),
        _ => None,
    });
    let run = load("post", addr, &OPTIONS.replace("0.3", "1.5"));
    run.is_clean();
    assert_eq!(run.number("/posts/refused"), 1.0, "{}", run.stdout);
    assert_eq!(run.number("/posts/failed"), 2.0, "{}", run.stdout);
    assert_eq!(run.number("/connections/opened"), 4.0, "{}", run.stdout);
    let answered = events.load(Ordering::SeqCst) as f64;
    assert_eq!(run.number("/posts/acknowledged"), answered - 3.0, "{}", run.stdout);
    // One that is refused waits for a second, also at the end of the window.
    let (addr, events) = broker(|_, _| Some(with_status("503 Busy\r\nRetry-After: 1")));
    let run = load("post", addr, OPTIONS);
    run.is_clean();
    assert_eq!(run.number("/posts/refused"), 4.0, "{}", run.stdout);
    assert_eq!(events.load(Ordering::SeqCst), 4);
    assert_eq!(run.number("/messages/received"), 0.0, "{}", run.stdout);
}

#[test]
fn a_connection_that_the_server_ends_is_replaced() {
    let (addr, _) = broker(|number, _| {
        let closing = |answer: String| answer.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        (number % 10 == 9).then(|| closing(acknowledged(number)))
    });
    let run = load("post", addr, OPTIONS);
    run.is_clean();
    assert!(run.number("/connections/opened") > 5.0, "{}", run.stdout);
    assert_eq!(run.number("/messages/unanswered"), 0.0, "{}", run.stdout);
}

#[test]
fn requests_without_an_answer_are_errors_and_others_go_on() {
    // The second connection ends without an answer, and the third never answers.
    let addr = server(|number, stream| {
        let mut requests = BufReader::new(stream.try_clone()?);
        let mut events = 0;
        while request(&mut requests)?.is_some() {
            match number {
                1 => return Ok(()),
                2 => thread::sleep(RUN_MAX),
                _ => {}
            }
            // Each connection has a partition of its own.
            let body = format!("{{\"events\":1,\"partition\":{number},\"offset\":{events}}}");
            (&stream).write_all(with_body(&body).as_bytes())?;
            events += 1;
        }
        Ok(())
    });
    let options = OPTIONS.replace("0.3", "2");
    let run = load("post", addr, &format!("{options} --patience 1"));
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    let errors = &run.json["connections"]["errors"];
    assert_eq!(errors["closed by the server"], 1, "{}", run.stdout);
    assert_eq!(errors["not answered within 1 s"], 1, "{}", run.stdout);
    assert_eq!(run.number("/messages/unanswered"), 2.0, "{}", run.stdout);
    assert_eq!(run.number("/connections/wanted"), 6.0, "{}", run.stdout);
    assert!(run.number("/posts/acknowledged") > 20.0, "{}", run.stdout);
}

#[test]
fn a_server_that_does_not_end_the_connection_is_found() {
    let addr = server(|_, stream| {
        let mut requests = BufReader::new(stream.try_clone()?);
        request(&mut requests)?;
        (&stream).write_all(acknowledged(0).as_bytes())?;
        thread::sleep(RUN_MAX);
        Ok(())
    });
    let options = OPTIONS.replace("--connections 4", "--connections 1 --per-connection");
    let options = options.replace("0.3", "0.1").replace("warm-up 0.1", "warm-up 0");
    let run = load("post", addr, &format!("{options} --patience 0.3"));
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    let errors = &run.json["connections"]["errors"];
    assert_eq!(errors["not closed by the server within 0.3 s"], 1, "{}", run.stdout);
    assert_eq!(run.number("/posts/acknowledged"), 1.0, "{}", run.stdout);
}

#[test]
fn answers_that_are_wrong() {
    let twice = acknowledged(20) + &acknowledged(21);
    for (wrong, what) in [
        (with_body("{\"events\":2,\"partition\":0,\"offset\":9}"), "where one event is"),
        (with_body(&"x".repeat(2000)), "a body that is too long"),
        (with_status("404 Not Found"), "not 200, 500 or 503"),
        (with_status("503 Busy"), "without Retry-After"),
        (acknowledged(2), "an offset that another event has"),
        (twice, "more came than was asked for"),
        ("HTTP/1.1 200 OK\r\n\r\n".to_owned(), "without a length"),
    ] {
        let (addr, _) = broker(move |number, _| (number == 20).then(|| wrong.clone()));
        load("post", addr, OPTIONS).is_wrong(what);
    }
}

#[test]
fn a_user_has_a_password() {
    let file = std::env::temp_dir().join(format!("load-post-{}", std::process::id()));
    std::fs::write(&file, "open sesame\n").expect("a file");
    let addr = server(|_, stream| {
        let mut requests = BufReader::new(stream.try_clone()?);
        let mut number = 0;
        while let Some((head, _)) = request(&mut requests)? {
            // The example of RFC 7617.
            let expected = "Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==";
            let is_admitted = head.iter().any(|line| line == expected);
            let refused = || with_status("401 Unauthorized");
            let answer = if is_admitted { acknowledged(number) } else { refused() };
            (&stream).write_all(answer.as_bytes())?;
            number += 1;
        }
        Ok(())
    });
    let options = OPTIONS.replace("--connections 4", "--connections 1");
    let with = format!("{options} --iggy-user Aladdin --iggy-password-file {}", file.display());
    load("post", addr, &with).is_clean();
    load("post", addr, &options).is_wrong("not 200, 500 or 503");
    std::fs::remove_file(file).expect("a file");
}

#[test]
fn what_it_does_not_do_is_refused() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    load("post", nobody, &format!("{OPTIONS} --websocket /")).is_refused("without --websocket");
    let relative = OPTIONS.replace("/events", "events");
    load("post", nobody, &relative).is_refused("--path: expected a path");
    load("post", nobody, OPTIONS).is_refused("no connection could be opened: connect: ");
}
