//! Events over HTTP by raw bytes, on each runtime and each engine. `server/attack` sends bad ones.

use std::io::{Read, Write};

use iggy_binary_protocol::codes::LOGIN_USER_CODE;

use super::iggy::{BASIC, Client, LOGIN, password_file};
use super::server::{ENGINES, RUNTIMES, Server};

/// A request to append events to topic `t` of stream `s`.
pub(super) fn events(headers: &str, authorization: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST /events/s/t HTTP/1.1\r\nHost: a\r\nAuthorization: {authorization}\r\n{headers}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Several workers, so that some connections are not at the worker with the streams.
#[test]
fn events_are_appended() {
    let password = password_file("events");
    for (runtime, engine) in
        RUNTIMES.iter().flat_map(|runtime| ENGINES.iter().map(move |engine| (runtime, engine)))
    {
        println!("{runtime}, {engine:?}"); // shown when it fails
        let options = [
            ["--iggy-password-file", password.0.to_str().unwrap()],
            ["--tcp", "127.0.0.1:0"],
            ["--http", "127.0.0.1:0"],
        ];
        let server = Server::start(runtime, &[&options.concat()[..], engine].concat());
        let mut client = Client::Tcp(server.connect(0));
        assert_eq!(client.ask(LOGIN_USER_CODE, LOGIN), (0, vec![0; 4]));
        client.create();
        let mut sent = Vec::new();
        for n in 0..12_usize {
            let event = "e".repeat(1 + n * 30_000);
            let answer = server.ask(1, &events("X: y", BASIC, &event));
            let expected = format!("{{\"events\":1,\"partition\":0,\"offset\":{}}}\n", sent.len());
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&expected), "{answer}");
            sent.push(event.into_bytes());
            let lines = format!("{{\"n\":{n}}}\r\n\n{{\"of\":12}}");
            let answer =
                server.ask(1, &events("Content-Type: application/x-ndjson", BASIC, &lines));
            let expected = format!("{{\"events\":2,\"partition\":0,\"offset\":{}}}\n", sent.len());
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&expected), "{answer}");
            sent.extend([format!("{{\"n\":{n}}}").into_bytes(), b"{\"of\":12}".to_vec()]);
        }
        let answer = server.ask(1, &events("X: y", "Basic aWdneTp3cm9uZw==", "event"));
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(client.poll_all(sent.len()) == sent, "{runtime}, {engine:?}");

        // The body arrives while the server drains.
        let mut slow = server.connect(1);
        let request = events("Expect: 100-continue", BASIC, "event");
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        write!(slow, "{head}\r\n\r\n").unwrap();
        let mut told = [0; 25];
        slow.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
        server.signal("-TERM");
        slow.write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        slow.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{runtime}, {engine:?}: {answer}");
        drop((client, slow));
        assert_eq!(server.wait(), 0, "{runtime}, {engine:?}");
    }
}
