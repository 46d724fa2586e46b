//! `limit`.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::{echo, good_echo, load, server};

type Act = fn(&TcpStream);

/// How many connections [`few_slots`] serves at once, and how it fails.
#[derive(Clone, Copy)]
struct Slots {
    all: u32,
    /// Whether free slots are used again.
    again: bool,
    /// What it does at the limit with the connection of this number, besides serving it.
    at_limit: Option<(u32, Act)>,
}

/// An echo that accepts no connection while all slots are taken: new ones wait in the queue.
fn few_slots(Slots { all, again, at_limit }: Slots) -> SocketAddr {
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
                // After the time that new connections wait for an answer.
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
    let addr = few_slots(Slots { all: 10, again: true, at_limit: None });
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
    let addr = few_slots(Slots { all: 10, again: true, at_limit: None });
    let run = load("limit", addr, &format!("{AT_LIMIT} --connections 12"));
    run.is_clean();
    assert_eq!(run.number("/limit/released"), 2.0, "{}", run.stdout);
    assert_eq!(run.number("/limit/resumed"), 2.0);
    assert_eq!(run.json["limit"]["idle_cpu_percent"], Value::Null);
    assert_eq!(run.json["limit"]["before"]["cpu_ns"], Value::Null);
}

#[test]
fn a_server_that_never_accepts_again() {
    let addr = few_slots(Slots { all: 10, again: false, at_limit: None });
    let options = format!("{AT_LIMIT} --connections 18 --release 4 --patience 0.7");
    let run = load("limit", addr, &options);
    run.is_clean();
    assert_eq!(run.number("/limit/released"), 4.0, "{}", run.stdout);
    assert_eq!(run.number("/limit/resumed"), 0.0);
    assert_eq!(run.number("/limit/never"), 4.0);
}

#[test]
fn a_server_that_ends_connections_at_its_limit() {
    // One busy connection, and one of the others.
    for index in [0, 8] {
        let end: Act = |stream| stream.shutdown(Shutdown::Both).expect("open");
        let addr = few_slots(Slots { all: 10, again: false, at_limit: Some((index, end)) });
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
    let addr = few_slots(Slots { all: 10, again: false, at_limit: Some((8, say_more)) });
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
    let addr = few_slots(Slots { all: 1, again: false, at_limit: None });
    let run = load("limit", addr, &format!("{AT_LIMIT} --connections 18 --patience 0.7"));
    run.is_refused("the server took 1 of the 3");
    for number in [1, 5] {
        let addr = server(move |this, mut stream| {
            echo(&mut stream, |bytes| bytes[0] ^= u8::from(this == number))
        });
        load("limit", addr, &format!("{AT_LIMIT} --connections 18")).is_wrong("message 0 is wrong");
    }
}
