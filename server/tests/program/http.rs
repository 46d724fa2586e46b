//! Answers to HTTP requests, and which pages may open a WebSocket.

use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use super::server::{ENGINES, RUNTIMES, Server};

#[test]
fn http_answers_health_and_names_errors() {
    for runtime in RUNTIMES {
        let server = Server::start(runtime, &["--http", "127.0.0.1:0"]);
        let ask = |request: &str| {
            let mut stream = server.connect(0);
            write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).unwrap();
            response
        };
        let get = |target: &str| ask(&format!("GET {target}"));
        assert!(get("/health").starts_with("HTTP/1.1 200 OK\r\n"), "{}", get("/health"));
        assert!(get("/health?verbose").ends_with("\r\n\r\nok\n"), "{runtime}");
        assert!(get("/").starts_with("HTTP/1.1 404 "), "{runtime}");
        assert!(get("/echo").starts_with("HTTP/1.1 426 "), "{runtime}");
        let posted = ask("POST /health");
        assert!(posted.starts_with("HTTP/1.1 405 ") && posted.contains("\r\nAllow: GET, HEAD\r\n"));
        let refused = get("/source?messages=1&bytes=99999999");
        assert!(refused.starts_with("HTTP/1.1 400 ") && refused.contains("message-bytes-max"));
    }
}

/// RFC 9110 section 9.3.2, RFC 9112 sections 3.2 to 3.2.4.
#[test]
fn http_follows_its_rfcs() {
    for runtime in RUNTIMES {
        let server = Server::start(runtime, &["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        for service in [0, 1] {
            let ask = |head: &str| server.ask(service, &format!("{head}\r\n\r\n"));
            let head = ask("HEAD /health HTTP/1.1\r\nHost: a");
            assert!(
                head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"),
                "{head}"
            );
            assert!(head.contains("\r\nContent-Length: 3\r\n"), "{head}");
            for (status, request) in [
                (404, "HEAD /nothing HTTP/1.1\r\nHost: a"),
                (400, "GET /health HTTP/1.1"),
                (400, "GET /health HTTP/1.1\r\nHost: a\r\nHost: a"),
                (200, "GET /health HTTP/1.0"),
                (200, "GET http://example.com/health HTTP/1.1\r\nHost: example.com"),
                (200, "GET http://example.com/health?verbose HTTP/1.1\r\nHost: example.com"),
                (404, "GET http://example.com HTTP/1.1\r\nHost: example.com"),
                (405, "OPTIONS * HTTP/1.1\r\nHost: a"),
                (405, "CONNECT a:80 HTTP/1.1\r\nHost: a:80"),
                (400, "GET * HTTP/1.1\r\nHost: a"),
                (400, "GET a:80 HTTP/1.1\r\nHost: a"),
            ] {
                let answer = ask(request);
                let expected = format!("HTTP/1.1 {status} ");
                assert!(answer.starts_with(&expected), "{runtime}, {request}: {answer}");
                let is_empty = answer.ends_with("\r\n\r\n");
                assert_eq!(is_empty, request.starts_with("HEAD"), "{request}: {answer}");
            }
        }
        let upgrade = "HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(server.ask(0, upgrade).starts_with("HTTP/1.1 426 "), "{runtime}");
    }
}

/// RFC 9110 section 15.5.9. All runtimes run at once, because it takes ten seconds.
#[test]
fn a_late_request_is_answered_408() {
    thread::scope(|scope| {
        for runtime in RUNTIMES {
            scope.spawn(move || {
                let server = Server::start(runtime, &["--http", "127.0.0.1:0"]);
                let mut slow = server.connect(0);
                let mut silent = server.connect(0);
                let started = Instant::now();
                slow.write_all(b"GET /health HTTP/1.1\r\nHo").unwrap();
                let mut answer = String::new();
                slow.read_to_string(&mut answer).unwrap();
                assert!(
                    answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"),
                    "{runtime}: {answer}"
                );
                assert!(answer.contains("\r\nConnection: close\r\n"), "{runtime}: {answer}");
                let took = started.elapsed();
                assert!(
                    took >= Duration::from_secs(9) && took < Duration::from_secs(15),
                    "{took:?}"
                );
                // A browser opens connections that it may never use, and expects no answer on those.
                assert_eq!(silent.read(&mut [0; 16]).unwrap(), 0, "{runtime}");
            });
        }
    });
}

/// A foreign page cannot open a WebSocket in the name of its user.
#[test]
fn pages_of_other_origins_are_refused() {
    for &engine in ENGINES {
        let allowed = ["--origins", "https://a.example,http://b.example:8080"];
        let options = [&["--http", "127.0.0.1:0"], engine, &allowed].concat();
        let server = Server::start(RUNTIMES[0], &options);
        let upgrade = |origin: &str| {
            let mut stream = server.connect(0);
            write!(
                stream,
                "GET /echo HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{origin}\r\n"
            )
            .unwrap();
            let mut status = [0; 12];
            match stream.read_exact(&mut status) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => "nothing".to_owned(),
                read => read.map(|()| String::from_utf8_lossy(&status[9..]).into_owned()).unwrap(),
            }
        };
        for (status, origin) in [
            ("101", "Origin: https://a.example\r\n"),
            ("101", "Origin: http://b.example:8080\r\n"),
            ("101", ""),
            ("403", "Origin: https://evil.example\r\n"),
            ("403", "Origin: http://a.example\r\n"),
            ("403", "Origin: https://a.example.evil.example\r\n"),
            ("403", "Origin: null\r\n"),
        ] {
            assert_eq!(upgrade(origin), status, "{engine:?}, {origin}");
        }
    }
}
