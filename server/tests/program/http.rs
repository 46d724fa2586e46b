//! Answers to HTTP requests, and which pages may open a WebSocket.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use super::server::{ENGINES, RUNTIMES, Server};

#[test]
fn http_answers_health_and_names_errors() {
    for runtime in RUNTIMES {
        let server = Server::start(runtime, &["--http", "127.0.0.1:0"]);
        let ask = |request: &str| {
            server.ask(0, &format!("{request} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
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
            assert!(
                head.contains("\r\nDate: ") && head.contains("\r\nServer: owned-io\r\n"),
                "{head}"
            );
            for (status, request) in [
                (404, "HEAD /nothing HTTP/1.1\r\nHost: a"),
                (400, "GET /health HTTP/1.1"),
                (400, "GET /health HTTP/1.1\r\nHost: a\r\nHost: a"),
                (200, "GET /health HTTP/1.0"),
                (200, "GET /health HTTP/1.0\r\nConnection: keep-alive"),
                (505, "GET /health HTTP/1.2\r\nHost: a"),
                (200, "GET http://example.com/health HTTP/1.1\r\nHost: example.com"),
                (200, "GET http://example.com/health?verbose HTTP/1.1\r\nHost: example.com"),
                // The path is `/`, and admins have a page there.
                ([404, 200][service], "GET http://example.com HTTP/1.1\r\nHost: example.com"),
                (405, "OPTIONS /health HTTP/1.1\r\nHost: a"),
                (501, "OPTIONS * HTTP/1.1\r\nHost: a"),
                (501, "CONNECT a:80 HTTP/1.1\r\nHost: a:80"),
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

/// RFC 9112 section 9.3. Requests that arrive together, some of which are refused by the service, and one by the engine.
#[test]
fn a_connection_serves_requests_until_one_is_the_last() {
    for runtime in RUNTIMES {
        let server = Server::start(runtime, &["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let health = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n";
        let post = "POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nGET ";
        let chunked = "POST /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nGET \r\n0\r\n\r\n";
        let head = "HEAD /nothing HTTP/1.1\r\nHost: a\r\n\r\n";
        let bad = "GET /health HTTP/1.1\r\n\r\n";
        let old = "GET /health HTTP/1.0\r\n\r\n";
        let close = "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let expecting =
            "POST /health HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
        let no_upgrade = "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n";
        for service in [0, 1] {
            for (last, status) in [
                (bad, "400"),
                (old, "200"),
                (close, "200"),
                (expecting, "405"),
                (no_upgrade, "426"),
            ] {
                let status = if service == 1 && last == no_upgrade { "404" } else { status };
                let requests = [health, post, chunked, head, last, health].concat();
                let answers = server.ask(service, &requests);
                let statuses: Vec<_> =
                    answers.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
                let mut expected = vec!["200", "405", "405", "404", status];
                if status == "404" {
                    expected.push("200"); // a path that is not there ends nothing
                }
                assert_eq!(statuses, expected, "{runtime}, {last}: {answers}");
                let closes = answers.matches("\r\nConnection: close").count();
                assert_eq!(closes, usize::from(status != "404"), "{runtime}, {last}: {answers}");
            }
        }
        let mut kept = server.connect(1);
        for _ in 0..3 {
            kept.write_all(health.as_bytes()).unwrap();
            read_until(&mut kept, b"\r\n\r\nok\n");
        }
    }
}

/// It must not (RFC 6455 section 5.5.1). It reads the server's close frame all the same, whether the server has read its
/// bytes, has closed before they came, or closes in between.
#[test]
fn a_websocket_that_sends_behind_its_close_frame_reads_the_servers() {
    const CLOSE: &[u8] = b"\x88\x82\0\0\0\0\x03\xe8";
    for runtime in RUNTIMES {
        let server = Server::start(runtime, &["--http", "127.0.0.1:0", "--linger-seconds", "1"]);
        for round in 0..40 {
            let mut stream = server.connect(0);
            let request = "GET /echo HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\
                Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            read_until(&mut stream, b"\r\n\r\n");
            stream.write_all(CLOSE).unwrap();
            let begun = Instant::now();
            for _ in 0..50 {
                // A reset, once the server has closed.
                if stream.write_all(b"x").is_err() {
                    break;
                }
                thread::sleep(Duration::from_micros(round * 5));
            }
            let _ = stream.shutdown(Shutdown::Write); // the server may read to the end
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"\x88\x02\x03\xe8", "{runtime}");
            let rest = stream.read(&mut answer);
            let is_over = match &rest {
                Ok(n) => *n == 0,
                Err(error) => error.kind() == ErrorKind::ConnectionReset,
            };
            assert!(is_over, "{runtime}: {rest:?} behind the close frame");
            assert!(begun.elapsed() < Duration::from_secs(10), "{runtime}: a late end");
        }
    }
}

/// An upgrade behind other requests, with frames behind it, in one segment.
#[test]
fn a_websocket_may_follow_other_requests() {
    for runtime in RUNTIMES {
        for &engine in ENGINES {
            let server = Server::start(runtime, &[&["--http", "127.0.0.1:0"], engine].concat());
            let mut stream = server.connect(0);
            let requests = "GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\
                Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
            // A text frame whose mask is zero, and a close frame.
            let frames = b"\x81\x85\0\0\0\0early\x88\x80\0\0\0\0";
            stream.write_all(&[requests.as_bytes(), frames].concat()).unwrap();
            let mut answers = Vec::new();
            stream.read_to_end(&mut answers).unwrap();
            let printed = answers.escape_ascii();
            assert!(answers.starts_with(b"HTTP/1.1 200 "), "{runtime}, {engine:?}: {printed}");
            assert!(
                answers.ends_with(b"\r\n\r\n\x81\x05early\x88\0"),
                "{runtime}, {engine:?}: {printed}"
            );
        }
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

/// Regular files of a directory, and nothing else of the machine.
#[test]
fn objects_come_from_a_directory() {
    let dir = std::env::temp_dir().join(format!("owned-io-objects-{}", std::process::id()));
    fs::create_dir_all(dir.join("subdirectory")).unwrap();
    let whole: String = (0..300_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    fs::write(dir.join("a.txt"), &whole).unwrap();
    symlink("a.txt", dir.join("link")).unwrap();
    symlink("/etc/passwd", dir.join("passwd")).unwrap();
    symlink("/dev/zero", dir.join("zero")).unwrap();
    for runtime in RUNTIMES {
        let options = ["--http", "127.0.0.1:0", "--origin", dir.to_str().unwrap()];
        let server = Server::start(runtime, &options);
        let get = |target: &str, headers: &str| {
            server.ask(0, &format!("GET {target} HTTP/1.1\r\nHost: a\r\n{headers}\r\n"))
        };
        for name in ["a.txt", "link", "a.txt"] {
            let answer = get(&format!("/object/{name}"), "");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{runtime}, {name}: {}", &answer[..100]);
            assert!(answer.ends_with(&format!("\r\n\r\n{whole}")), "{runtime}, {name}");
        }
        let part = get("/object/a.txt", "Range: bytes=26-28\r\n");
        assert!(part.starts_with("HTTP/1.1 206 ") && part.ends_with("\r\n\r\nabc"), "{part}");
        for (name, status) in [
            ("absent", 404),
            ("passwd", 404),
            ("zero", 404),
            ("subdirectory", 404),
            ("..", 400),
            ("%2e%2e%2fetc%2fpasswd", 400),
            ("/etc/passwd", 400),
        ] {
            let answer = get(&format!("/object/{name}"), "");
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{runtime}, {name}: {answer}"
            );
        }
    }
    fs::remove_dir_all(&dir).unwrap();
}

/// Two workers, and an origin that takes its time: it is asked once.
#[test]
fn objects_come_from_a_server_once() {
    const CLIENTS: usize = 50;
    let body = "b".repeat(500_000);
    for runtime in RUNTIMES {
        let origin = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/p", origin.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let (counted, sent) = (Arc::clone(&asked), body.clone());
        thread::spawn(move || {
            for stream in origin.incoming() {
                let mut stream = stream.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let request = read_until(&mut stream, b"\r\n\r\n");
                assert!(request.starts_with(b"GET /p/a HTTP/1.1\r\n"));
                thread::sleep(Duration::from_millis(300));
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len())
                    .unwrap();
                let (first, rest) = sent.split_at(100_000);
                stream.write_all(first.as_bytes()).unwrap();
                thread::sleep(Duration::from_millis(300));
                stream.write_all(rest.as_bytes()).unwrap();
                let _ = stream.shutdown(Shutdown::Write);
            }
        });
        for chunk in ["0", "4096"] {
            asked.store(0, Ordering::SeqCst);
            let options = ["--http", "127.0.0.1:0", "--origin", &url, "--chunk", chunk];
            let server = Server::start(runtime, &options);
            let request = "GET /object/a HTTP/1.1\r\nHost: a\r\n\r\n";
            thread::scope(|scope| {
                for _ in 0..CLIENTS {
                    scope.spawn(|| {
                        let answer = server.ask(0, request);
                        assert!(answer.starts_with("HTTP/1.1 200 "), "{runtime}");
                        let count = answer.bytes().filter(|byte| *byte == b'b').count();
                        // Some digits of chunks and of the entity tag are letters too.
                        assert!(
                            (body.len()..body.len() + 500).contains(&count),
                            "{runtime}: {count}"
                        );
                    });
                }
            });
            assert_eq!(asked.load(Ordering::SeqCst), 1, "{runtime}");
        }
    }
}

/// Reads byte by byte, so that nothing behind `end` is taken.
fn read_until(stream: &mut impl Read, end: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while !all.ends_with(end) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        all.extend(byte);
    }
    all
}
