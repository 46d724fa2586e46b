//! `/stalls` of a server on each runtime that is compiled in, with clients on sockets of the machine. The simulator has no
//! detector.
#![cfg(target_os = "linux")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Parser;
use owned_io::{Files, HandOver, Runtime, StopSignal};
use owned_io_server::config::Flags;
use owned_io_server::server::{self, Outcome};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// A server, and the addresses of its listeners in the order of their names.
struct Server {
    addresses: Vec<SocketAddr>,
    stop: StopSignal,
    running: JoinHandle<io::Result<Outcome>>,
}

impl Server {
    /// `started` runs on the last worker to listen, and may stall it.
    fn start<R: Runtime + Files + HandOver>(
        flags: &[&str],
        is_watching: bool,
        started: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let flags = [&["owned-io-server"], flags].concat();
        let mut config = Flags::parse_from(flags).into_config().unwrap();
        if is_watching {
            config.stalls.start().unwrap();
        }
        let count = config.listeners.len();
        let (sender, receiver) = channel();
        let (stop, sender) = (StopSignal::new(), Mutex::new(sender));
        let left = AtomicUsize::new(count);
        let drain = stop.clone();
        let running = std::thread::spawn(move || {
            server::run::<R>(&config, drain, move |listener| {
                let _ = sender.lock().unwrap().send((listener.name(), listener.addr));
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    started();
                }
            })
        });
        let mut listening: Vec<_> =
            (0..count).map(|_| receiver.recv_timeout(PATIENCE).unwrap()).collect();
        listening.sort_unstable();
        let addresses = listening.into_iter().map(|(_, addr)| addr).collect();
        Self { addresses, stop, running }
    }

    fn end(self) {
        self.stop.stop();
        let _ = self.running.join().unwrap().unwrap();
    }
}

/// The head and the body of an answer. An error if a worker does not answer in time.
fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    accept: &str,
) -> io::Result<(String, String)> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    Ok((head.to_owned(), body.to_owned()))
}

fn snapshot(addr: SocketAddr) -> io::Result<Value> {
    let (head, body) = request(addr, "GET", "/stalls", "*/*")?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("\r\nContent-Type: application/json\r\n"), "{head}");
    Ok(serde_json::from_str(&body).unwrap())
}

fn incidents(addr: SocketAddr) -> io::Result<Vec<Value>> {
    let snapshot = snapshot(addr)?;
    Ok(snapshot["incidents"].as_array().unwrap().clone())
}

/// Asks again until an incident is there that `is_meant`. The kernel brings some connections to the worker that stalls;
/// these are not answered.
fn wait_for(addr: SocketAddr, is_meant: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let incidents = incidents(addr).unwrap_or_default();
        if let Some(incident) = incidents.iter().find(|incident| is_meant(incident)) {
            return incident.clone();
        }
        assert!(Instant::now() < until, "{incidents:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for an answer of a worker that does not stall.
fn answer(addr: SocketAddr, method: &str, accept: &str) -> (String, String) {
    let until = Instant::now() + PATIENCE;
    loop {
        match request(addr, method, "/stalls", accept) {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    }
}

#[inline(never)]
fn waits_for_nobody(receiver: &Mutex<Receiver<()>>) {
    let _ = receiver.lock().unwrap().recv_timeout(PATIENCE);
}

/// A server that is not stopped has a listener for clients.
const FLAGS: [&str; 4] = ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

/// The cases on one runtime.
macro_rules! on {
    ($feature:literal, $name:ident, $runtime:ty) => {
        #[cfg(feature = $feature)]
        mod $name {
            #[test]
            fn a_blocked_worker_is_shown_while_it_lasts() {
                super::a_blocked_worker_is_shown_while_it_lasts::<$runtime>();
            }

            #[test]
            fn a_server_at_its_limit_says_so() {
                super::a_server_at_its_limit_says_so::<$runtime>();
            }

            #[test]
            fn a_healthy_server_has_no_stalls() {
                super::a_healthy_server_has_no_stalls::<$runtime>();
            }

            #[test]
            fn a_server_is_probed_without_a_false_alarm() {
                super::a_server_is_probed_without_a_false_alarm::<$runtime>();
            }

            #[test]
            fn queues_are_shown() {
                super::queues_are_shown::<$runtime>();
            }

            #[test]
            fn clients_see_no_stalls() {
                super::clients_see_no_stalls::<$runtime>();
            }

            #[test]
            fn one_connection_gets_many_answers() {
                super::one_connection_gets_many_answers::<$runtime>();
            }

            #[test]
            fn without_a_detector_there_are_no_stalls() {
                super::without_a_detector_there_are_no_stalls::<$runtime>();
            }
        }
    };
}

on!("tokio", tokio, owned_io_tokio::Tokio);
on!("tokio-uring", tokio_uring, owned_io_tokio_uring::TokioUring);
on!("compio", compio, owned_io_compio::Compio);
on!("monoio", monoio, owned_io_monoio::Monoio);
on!("glommio", glommio, owned_io_glommio::Glommio);

/// A server of two workers, of which one is blocked until the sender is dropped. Each `started` of a type of its own would
/// be a whole server in this program, whose symbols the detector reads within a bound.
fn start_with_a_blocked_worker<R: Runtime + Files + HandOver>(
    flags: &[&str],
) -> (Server, Sender<()>) {
    let (end, ended): (Sender<()>, _) = channel();
    let ended = Arc::new(Mutex::new(ended));
    let flags = [&["--workers", "2"], &FLAGS[..], flags].concat();
    (Server::start::<R>(&flags, true, move || waits_for_nobody(&ended)), end)
}

fn a_blocked_worker_is_shown_while_it_lasts<R: Runtime + Files + HandOver>() {
    let (server, end) = start_with_a_blocked_worker::<R>(&[]);
    let addr = server.addresses[0];

    // A stack may be copied while the function looks again whether it may end: then the next report has a whole one.
    let is_blocked = |incident: &Value| {
        incident["is_ongoing"] == true
            && incident["verdict"]["findings"][0]["class"] == "blocked_loop"
            && incident.to_string().contains("waits_for_nobody")
    };
    let incident = wait_for(addr, is_blocked);
    let text = incident.to_string();
    assert!(text.contains("bytes held by connections"), "{incident:#}");
    assert!(text.contains("messages that wait for an application"), "{incident:#}");
    for addr in &server.addresses {
        assert!(text.contains(&format!("connections of {addr}")), "{incident:#}");
    }

    let (head, page) = answer(addr, "GET", "text/html");
    assert!(head.contains("\r\nContent-Type: text/html; charset=utf-8\r\n"), "{head}");
    assert!(page.contains("blocked event loop") && page.contains("waits_for_nobody"), "{page}");
    let (head, body) = answer(addr, "HEAD", "text/html");
    assert!(head.contains("text/html") && !head.contains("Content-Length: 0"), "{head}");
    assert_eq!(body, "");

    drop(end);
    wait_for(addr, |it| it["id"] == incident["id"] && it["is_ongoing"] == false);
    server.end();
}

/// Clients then wait in the accept queue, which is no accept starvation. What a look saw is shown with a stall.
fn a_server_at_its_limit_says_so<R: Runtime + Files + HandOver>() {
    let (server, end) = start_with_a_blocked_worker::<R>(&["--connections-max", "1"]);
    let [admin, http] = server.addresses[..] else { panic!("two listeners") };
    // The kernel brings about half of them to the worker that does not stall, and it may serve two.
    let clients: Vec<_> = (0..32).map(|_| TcpStream::connect(http).unwrap()).collect();
    let has_paused = |incident: &Value| {
        let looks = incident["evidence"]["looks"].as_array().unwrap();
        looks.iter().any(|look| look["accept_pauses"] == json!([http]))
    };
    wait_for(admin, has_paused);
    drop((clients, end));
    server.end();
}

fn a_healthy_server_has_no_stalls<R: Runtime + Files + HandOver>() {
    let flags = [&FLAGS[..], &["--workers", "1", "--stall-milliseconds-min", "10000"]].concat();
    let server = Server::start::<R>(&flags, true, || {});
    let addr = server.addresses[0];
    assert_eq!(incidents(addr).unwrap(), [] as [Value; 0]);
    let (head, _) = request(addr, "POST", "/stalls", "*/*").unwrap();
    assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("Allow: GET, HEAD"), "{head}");
    let (_, page) = request(addr, "GET", "/stalls", "text/html").unwrap();
    assert!(page.contains("None was seen"), "{page}");
    // The worker is woken, and its heart beats: the page and the JSON say how often.
    let until = Instant::now() + PATIENCE;
    loop {
        let (_, page) = request(addr, "GET", "/stalls", "text/html").unwrap();
        let beats = page.split("<tr><td>0</td><td>").nth(1).and_then(|row| row.split('<').next());
        let snapshot = snapshot(addr).unwrap();
        assert!(snapshot["unseen"].is_array(), "{snapshot}");
        if beats.and_then(|beats| beats.parse::<u64>().ok()).is_some_and(|beats| beats > 10)
            && snapshot["workers"][0]["lateness"]["beats"].as_u64() > Some(10)
        {
            break;
        }
        assert!(Instant::now() < until, "{page}");
        std::thread::sleep(Duration::from_millis(100));
    }
    server.end();
}

fn a_server_is_probed_without_a_false_alarm<R: Runtime + Files + HandOver>() {
    let often = ["--stall-probe-seconds", "1", "--stall-milliseconds-min", "10000"];
    let flags = [&FLAGS[..], &["--workers", "2"], &often].concat();
    let server = Server::start::<R>(&flags, true, || {});
    let addr = server.addresses[0];
    let until = Instant::now() + PATIENCE;
    let mut began = Vec::new();
    while began.len() < 3 {
        let snapshot = snapshot(addr).unwrap();
        let probe = &snapshot["probe"];
        if let Some(at_ms) = probe["at_ms"].as_u64()
            && !began.contains(&at_ms)
        {
            assert_eq!(probe["addr"], json!(addr), "{snapshot}");
            assert_eq!(probe["outcome"], "Answered", "{snapshot}");
            began.push(at_ms);
        }
        assert!(Instant::now() < until, "{snapshot}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let (_, page) = request(addr, "GET", "/stalls", "text/html").unwrap();
    assert!(page.contains(&format!("The last probe, of {addr}, was answered in ")), "{page}");
    // The listeners of other tests are in this process, too.
    let mut incidents = incidents(addr).unwrap();
    incidents.retain(|incident| incident["verdict"].to_string().contains(&addr.to_string()));
    assert_eq!(incidents, [] as [Value; 0]);
    server.end();

    // Nobody asked for it.
    let never = [&FLAGS[..], &["--stall-probe-seconds", "0"]].concat();
    let server = Server::start::<R>(&never, true, || {});
    assert_eq!(snapshot(server.addresses[0]).unwrap()["probe"], Value::Null);
    server.end();
}

fn queues_are_shown<R: Runtime + Files + HandOver>() {
    let name = format!("owned-io-queues-{}-{}", std::process::id(), R::NAME);
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let (password, data) = (dir.join("password"), dir.join("data"));
    std::fs::write(&password, "secret\n").unwrap();
    let password = ["--iggy-password-file", password.to_str().unwrap()];
    let on_disk = ["--data", data.to_str().unwrap()];
    let streams = "commands that wait for the worker with the streams";
    let log = "batches that wait for the log";
    for (flags, there, not_there) in [
        (vec![], vec![], vec![streams, log]),
        (password.to_vec(), vec![streams], vec![log]),
        ([password, on_disk].concat(), vec![streams, log], vec![]),
    ] {
        let flags = [&FLAGS[..], &["--workers", "2"], &flags[..]].concat();
        let server = Server::start::<R>(&flags, true, || {});
        let addr = server.addresses[0];
        let snapshot = snapshot(addr).unwrap();
        let gauges = snapshot["gauges"].as_array().unwrap();
        let value = |name: &str| {
            let gauge = gauges.iter().find(|gauge| gauge["name"] == name)?;
            assert!(gauge["limit"].is_null(), "a long queue is no fault: {gauge}");
            gauge["value"].as_u64()
        };
        let always = ["bytes held by connections", "messages that wait for an application"];
        for name in there.iter().chain(&always) {
            assert!(value(name).is_some(), "{name}: {snapshot}");
        }
        for name in not_there {
            assert_eq!(value(name), None, "{name}: {snapshot}");
        }
        let asking = value(&format!("connections of {addr}"));
        assert!(asking.is_some_and(|connections| connections > 0), "{snapshot}");
        server.end();
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Stacks are for operators.
fn clients_see_no_stalls<R: Runtime + Files + HandOver>() {
    let server = Server::start::<R>(&FLAGS, true, || {});
    let [admin, http] = server.addresses[..] else { panic!("two listeners") };
    incidents(admin).unwrap();
    for (addr, method, path, status) in [
        (http, "GET", "/stalls", 404),
        (http, "GET", "/health", 200),
        (admin, "GET", "/health", 200),
        (admin, "HEAD", "/stalls", 200),
        (admin, "POST", "/stalls", 405),
        (admin, "GET", "/stalls/", 404),
    ] {
        let (head, _) = request(addr, method, path, "*/*").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {head}");
    }
    server.end();
    let server = Server::start::<R>(&FLAGS[..2], true, || {});
    let (head, _) = request(server.addresses[0], "GET", "/stalls", "*/*").unwrap();
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    server.end();
}

/// Its requests arrive together. Few answers are sent at once, and one that waits to be written counts as one of them.
fn one_connection_gets_many_answers<R: Runtime + Files + HandOver>() {
    const REQUESTS: usize = 50;
    // The page has a row for each worker. It is so long that it is sent by reference.
    let flags = [&FLAGS[..], &["--workers", "16"]].concat();
    let server = Server::start::<R>(&flags, true, || {});
    let request = "GET /stalls HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\n";
    let mut requests = format!("{request}\r\n").repeat(REQUESTS - 1);
    requests += &format!("{request}Connection: close\r\n\r\n");
    let mut stream = TcpStream::connect(server.addresses[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(requests.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), REQUESTS, "{answers}");
    server.end();
}

/// A server that was told not to watch, or a library whose user has started no detector.
fn without_a_detector_there_are_no_stalls<R: Runtime + Files + HandOver>() {
    let flags = [&FLAGS[..], &["--stalls", "off"]].concat();
    let server = Server::start::<R>(&flags, false, || {});
    let (head, body) = request(server.addresses[0], "GET", "/stalls", "*/*").unwrap();
    assert!(head.starts_with("HTTP/1.1 404 ") && body.contains("--stalls"), "{head}: {body}");
    server.end();
}
