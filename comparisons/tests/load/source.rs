//! `source`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::{load, server};

/// A source. `change` may alter each answer before it is sent.
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

/// Answers an endless request with so many messages.
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
fn a_connection_that_gets_nothing_is_counted_though_others_do() {
    // One connection gets a few messages, all before the window; one gets none; two get as many as they read.
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
