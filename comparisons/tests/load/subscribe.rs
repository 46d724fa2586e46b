//! `subscribe`, against a small server that pushes what is published.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use iggy_binary_protocol::codes::SEND_MESSAGES_CODE;

use super::iggy::{Topic, answer, password};
use super::websocket::{BINARY, frame, receive, websocket};
use super::{load, server};

const TEXT: u8 = 0x81;

const OPTIONS: &str =
    "--websocket / --subscribers 5 --bytes 200 --rate 100 --seconds 0.5 --warm-up 0.1";

/// Pushes each message to all subscribers. `push` makes the frames that one is sent: it gets the subscriber's number, the
/// number of the message, and its payload.
fn pushing(push: impl Fn(usize, usize, &[u8]) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    let subscribers: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    websocket(move |_, path, stream| {
        if path == "/subscribe" {
            subscribers.lock().expect("no panic").push(stream.try_clone()?);
            // Until `load` ends the connection.
            return io::copy(stream, &mut io::sink()).map(drop);
        }
        assert_eq!(path, "/publish");
        for number in 0.. {
            let (_, payload) = receive(stream)?;
            for (index, mut subscriber) in subscribers.lock().expect("no panic").iter().enumerate()
            {
                // An error: `load` has ended the connection.
                let _ = subscriber.write_all(&push(index, number, &payload));
            }
        }
        Ok(())
    })
}

fn good(_: usize, _: usize, payload: &[u8]) -> Vec<u8> {
    frame(TEXT, payload)
}

#[test]
fn every_subscriber_gets_every_message() {
    let run = load("subscribe", pushing(good), OPTIONS);
    run.is_clean();
    assert_eq!(run.number("/connections/opened"), 5.0);
    let (sent, received) = (run.number("/messages/sent"), run.number("/messages/received"));
    assert!((40.0..=60.0).contains(&sent), "{}", run.stdout);
    // Some of those in the window were published before it, or are delivered after it.
    assert!((received - 5.0 * sent).abs() <= 25.0, "{}", run.stdout);
    assert_eq!(run.number("/latency_us/count"), 250.0, "{}", run.stdout);
    for times in ["first_us", "last_us", "spread_us"] {
        assert_eq!(run.number(&format!("/fan_out/{times}/count")), 50.0, "{}", run.stdout);
    }
    assert_eq!(run.number("/messages/unanswered"), 0.0);
    assert!(run.json["fan_out"]["slow"].is_null());
    assert!(run.stdout.contains("first to last  p50 "), "{}", run.stdout);
}

#[test]
fn slow_subscribers_catch_up_and_count_for_themselves() {
    let run = load("subscribe", pushing(good), &format!("{OPTIONS} --slow 2"));
    run.is_clean();
    assert_eq!(run.number("/latency_us/count"), 150.0, "{}", run.stdout);
    let slow = |name: &str| run.number(&format!("/fan_out/slow/{name}"));
    assert_eq!((slow("subscribers"), slow("caught_up")), (2.0, 2.0), "{}", run.stdout);
    assert_eq!((slow("lost"), slow("ended"), slow("received")), (0.0, 0.0, 120.0));
}

#[test]
fn only_slow_subscribers_may_miss_messages() {
    let all = |_, number, payload: &[u8]| {
        if number == 30 { Vec::new() } else { frame(TEXT, payload) }
    };
    let options = format!("{OPTIONS} --slow 4");
    let run = load("subscribe", pushing(all), &options);
    run.is_wrong("message 31, in place of message 30");
    assert_eq!(run.number("/wrong"), 1.0, "{}", run.stdout);
    assert_eq!(run.number("/fan_out/slow/lost"), 4.0, "{}", run.stdout);
    assert_eq!(run.number("/fan_out/slow/caught_up"), 4.0, "{}", run.stdout);
}

/// Changes a frame.
type Change = fn(&mut Vec<u8>);

#[test]
fn other_bytes_order_and_kinds_of_messages_are_wrong() {
    let changed = |change: Change| {
        move |index, number, payload: &[u8]| {
            let mut frame = frame(TEXT, payload);
            if (index, number) == (0, 20) {
                change(&mut frame);
            }
            frame
        }
    };
    let cases: [(Change, &str); 5] = [
        (|frame| frame[100] ^= 1, "a message that was not published"),
        (|frame| frame.extend_from_within(..), "message 20, in place of message 21"),
        (|frame| frame[0] = 0x82, "a binary message"),
        (|frame| frame[4..20].copy_from_slice(b"0000000000000019"), "message 19, in place of"),
        (|frame| frame[4] = b'x', "a message without a number"),
    ];
    for (change, what) in cases {
        let run = load("subscribe", pushing(changed(change)), OPTIONS);
        run.is_wrong(what);
        assert_eq!(run.number("/wrong"), 1.0);
    }
}

#[test]
fn messages_that_never_come_are_counted() {
    let silent = |index, number, payload: &[u8]| {
        if index == 0 && number >= 50 { Vec::new() } else { frame(TEXT, payload) }
    };
    let run = load("subscribe", pushing(silent), &format!("{OPTIONS} --patience 0.3"));
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    assert_eq!(run.json["connections"]["errors"]["not all messages came within 0.3 s"], 1);
    assert_eq!(run.number("/messages/unanswered"), 10.0, "{}", run.stdout);
}

/// A server of Iggy with one topic that pushes what is appended, as JSON. `change` may alter what is pushed, and gets the
/// offset.
fn tail(
    topic: Arc<Mutex<Topic>>,
    change: impl Fn(u64, String) -> String + Send + Sync + 'static,
) -> SocketAddr {
    let subscribers: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    websocket(move |_, path, stream| {
        if path != "/" {
            let of_run =
                path.strip_prefix("/tail/load-").and_then(|it| it.strip_suffix("?from=next"));
            assert!(of_run.is_some_and(|it| it.ends_with("/0")), "{path}");
            subscribers.lock().expect("no panic").push(stream.try_clone()?);
            return io::copy(stream, &mut io::sink()).map(drop);
        }
        let (mut is_logged_in, mut offset) = (false, 0);
        loop {
            let (_, request) = receive(stream)?;
            let mut appended = false;
            let answered = answer(&topic, &mut is_logged_in, &request, |code, _| {
                appended = code == SEND_MESSAGES_CODE;
            });
            stream.write_all(&frame(BINARY, &answered))?;
            if appended {
                let payload = str::from_utf8(&request[request.len() - 200..]).expect("text");
                let json = format!(r#"{{"offset":{offset},"timestamp":9,"payload":"{payload}"}}"#);
                let pushed = frame(TEXT, change(offset, json).as_bytes());
                for mut subscriber in subscribers.lock().expect("no panic").iter() {
                    // An error: `load` has ended the connection.
                    let _ = subscriber.write_all(&pushed);
                }
                offset += 1;
            }
        }
    })
}

#[test]
fn what_is_appended_to_a_topic_of_iggy_is_pushed() {
    let options = format!("{OPTIONS} --iggy-password-file {}", password().display());
    let topic: Arc<Mutex<Topic>> = Arc::default();
    let run = load("subscribe", tail(Arc::clone(&topic), |_, json| json), &options);
    run.is_clean();
    assert_eq!(run.number("/latency_us/count"), 250.0, "{}", run.stdout);
    assert_eq!(run.number("/messages/unanswered"), 0.0);
    assert_eq!(topic.lock().expect("no panic").deleted(), 1);
    let wrong = |offset, json: String| {
        if offset == 20 { json.replace("\"offset\":20", "\"offset\":21") } else { json }
    };
    load("subscribe", tail(Arc::default(), wrong), &options).is_wrong("at another offset");
    let lost = |offset, json| {
        if offset == 20 { r#"{"lost":{"from":20,"to":21}}"#.to_owned() } else { json }
    };
    let run = load("subscribe", tail(Arc::default(), lost), &options);
    run.is_wrong("word of lost messages");
    let run = load("subscribe", tail(Arc::default(), lost), &format!("{options} --slow 4"));
    assert_eq!(run.number("/fan_out/slow/lost"), 4.0, "{}", run.stdout);
}

#[test]
fn a_run_that_cannot_be_is_refused() {
    let addr = pushing(good);
    load("subscribe", addr, "--subscribers 5 --bytes 200 --rate 1 --seconds 1")
        .is_refused("needs --websocket /");
    load("subscribe", addr, &format!("{OPTIONS} --slow 5")).is_refused("less than --subscribers");
    let silent = server(|_, mut stream| io::copy(&mut stream, &mut io::sink()).map(drop));
    load("subscribe", silent, &format!("{OPTIONS} --patience 0.3"))
        .is_refused("no connection could be opened: not open within 0.3 s");
}
