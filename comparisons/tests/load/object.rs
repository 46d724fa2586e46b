//! `object`.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use owned_io_comparisons::load::object::content;

use super::windows::Windows;
use super::{load, server};

/// A server ends a connection that is idle for so long. `load` sends a request every 4 s.
const IDLE_MAX: Duration = Duration::from_secs(7);

/// Answers each request for an object, in chunks of so many bytes if that is given. `change` may alter the answer, and
/// gets the number of earlier requests.
fn objects(
    chunk_bytes: Option<usize>,
    change: impl Fn(usize, &mut Vec<u8>) + Send + Sync + 'static,
) -> SocketAddr {
    server(move |_, mut stream| {
        stream.set_read_timeout(Some(IDLE_MAX))?;
        let mut requests = BufReader::new(stream.try_clone()?).lines();
        let mut number = 0;
        while let Some(line) = requests.next() {
            let line = line?;
            let target = line.strip_prefix("GET /object/").expect("a request");
            let bytes: u64 = target.trim_end_matches(" HTTP/1.1").parse().expect("a length");
            // The headers.
            while !requests.next().expect("an empty line")?.is_empty() {}
            let mut answer = answer(&content(bytes), chunk_bytes);
            change(number, &mut answer);
            number += 1;
            stream.write_all(&answer)?;
        }
        Ok(())
    })
}

fn answer(object: &[u8], chunk_bytes: Option<usize>) -> Vec<u8> {
    let Some(chunk_bytes) = chunk_bytes else {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", object.len());
        return [head.as_bytes(), object].concat();
    };
    let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in object.chunks(chunk_bytes) {
        answer.extend(format!("{:X}\r\n", chunk.len()).into_bytes());
        answer.extend_from_slice(chunk);
        answer.extend_from_slice(b"\r\n");
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}

#[test]
fn an_object_whole_and_in_chunks() {
    let options = "--connections 2 --in-flight 3 --seconds 0.4 --warm-up 0.1";
    for chunk_bytes in [None, Some(7), Some(16_384)] {
        for payload in [1, 1_024, 300_000] {
            let options = format!("{options} --payload {payload}");
            let run = load("object", objects(chunk_bytes, |_, _| ()), &options);
            run.is_clean();
            assert!(run.number("/messages/received") > 0.0, "{}", run.stdout);
            assert_eq!(run.number("/messages/unanswered"), 0.0);
        }
    }
}

#[test]
fn an_object_at_a_rate() {
    let options = "--connections 2 --payload 1024 --seconds 0.4 --warm-up 0.1 --rate 100";
    let run = load("object", objects(None, |_, _| ()), options);
    run.is_clean();
    assert_eq!(run.number("/latency_us/count"), 40.0, "{}", run.stdout);
}

#[test]
fn an_object_in_windows() {
    let options = "--connections 2 --payload 1024 --in-flight 4 --seconds 1";
    let mut load = Windows::start("object", objects(Some(100), |_, _| ()), options);
    let line = load.ask("window 100");
    let messages = &line["report"]["messages"];
    assert!(messages["received"].as_u64() > Some(0), "{line}");
    assert_eq!(messages["sent"], messages["received"], "{line}");
    assert_eq!(load.ask("end")["connections"]["opened"], 2);
    assert_eq!(load.finish(), (Some(0), String::new()));
}

#[test]
fn connections_are_kept_between_windows() {
    let options = "--connections 2 --payload 1024 --seconds 1";
    let mut load = Windows::start("object", objects(None, |_, _| ()), options);
    load.ask("window 10");
    thread::sleep(IDLE_MAX + Duration::from_secs(1));
    let line = load.ask("window 10");
    let report = &line["report"];
    assert_eq!(report["connections"]["errors"], serde_json::json!({}), "{line}");
    assert_eq!(report["messages"]["sent"], report["messages"]["received"], "{line}");
}

#[test]
fn answers_that_are_wrong() {
    let options = "--connections 2 --payload 100000 --seconds 0.4 --warm-up 0.1";
    for chunk_bytes in [None, Some(4_096)] {
        let wrong = |number, answer: &mut Vec<u8>| answer[70_000] ^= u8::from(number == 5);
        load("object", objects(chunk_bytes, wrong), options).is_wrong("message 5 is wrong");
    }
    let replaced = |number, answer: &mut Vec<u8>, by: Vec<u8>| {
        if number == 5 {
            *answer = by;
        }
    };
    for (by, what) in [
        (answer(&content(99_999), None), "message 5 is wrong"),
        (answer(&content(99_999), Some(4_096)), "message 5 is wrong"),
        (answer(&content(100_001), None), "message 5 is wrong"),
        (answer(&content(100_001), Some(4_096)), "message 5 is wrong"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(), "status is not 200"),
        (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), "without a length"),
    ] {
        let change = move |number, answer: &mut Vec<u8>| replaced(number, answer, by.clone());
        load("object", objects(None, change), options).is_wrong(what);
    }
    let twice = |number, answer: &mut Vec<u8>| {
        if number == 5 {
            answer.extend_from_within(..);
        }
    };
    // Both come at once.
    let options = options.replace("100000", "100");
    load("object", objects(None, twice), &options).is_wrong("more came than");
    // The first byte of a head is too much already.
    let more = |number, answer: &mut Vec<u8>| answer.extend((number == 5).then_some(b'H'));
    load("object", objects(Some(7), more), &options).is_wrong("more came than");
}

#[test]
fn it_does_not_speak_websocket() {
    let addr = SocketAddr::from(([127, 0, 0, 1], 9));
    let options = "--websocket / --connections 1 --payload 1 --seconds 1";
    load("object", addr, options).is_refused("without --websocket");
}
