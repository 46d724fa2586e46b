//! `--balance least-connections`: the connections of the workers are even, and none is lost when the server ends.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use tungstenite::Message;

use super::metrics::scrape;
use super::server::{PATIENCE, RUNTIMES, Server, assert_closed, echoed};

const TCP: usize = 60;
const WEBSOCKETS: usize = 25;

#[test]
fn connections_are_even_over_all_listeners() {
    for runtime in RUNTIMES {
        for workers in [2, 4] {
            let listeners = ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
            let server = start(runtime, workers, &listeners);
            let mut streams: Vec<_> = (0..TCP).map(|_| echoing(&server)).collect();
            let mut sockets: Vec<_> = (0..WEBSOCKETS).map(|_| server.upgrade(1, "/echo")).collect();
            assert_even(&server, workers, TCP + WEBSOCKETS);
            for socket in &mut sockets {
                socket.send(Message::text("hello")).unwrap();
                assert_eq!(socket.read().unwrap(), Message::text("hello"), "{runtime}");
            }
            // Whichever worker has lost more gets more of the next ones.
            let mut is_kept = [true, false].into_iter().cycle();
            streams.retain(|_| is_kept.next().unwrap());
            wait_for(&server, workers, TCP / 2 + WEBSOCKETS);
            streams.extend((0..TCP / 2).map(|_| echoing(&server)));
            assert_even(&server, workers, TCP + WEBSOCKETS);
            server.signal("-TERM");
            streams.iter_mut().for_each(assert_closed);
            for socket in &mut sockets {
                let Message::Close(frame) = socket.read().unwrap() else { panic!("{runtime}") };
                assert_eq!(u16::from(frame.unwrap().code), 1001, "{runtime}");
                assert!(matches!(socket.read(), Err(tungstenite::Error::ConnectionClosed)));
            }
            assert_eq!(server.wait(), 0, "{runtime}, {workers} workers");
        }
    }
}

/// Each client is answered, or its connection ends; also that of one who is on the way from one worker to another.
#[test]
fn clients_that_connect_during_a_drain_do_not_wait() {
    for runtime in RUNTIMES {
        for workers in [2, 4] {
            let server = start(runtime, workers, &["--drain-seconds", "15"]);
            let mut idle: Vec<_> = (0..20).map(|_| echoing(&server)).collect();
            let addr = server.addr(0);
            let connecting = [(); 2].map(|()| thread::spawn(move || connect_until_refused(addr)));
            thread::sleep(Duration::from_millis(200));
            let signalled = Instant::now();
            server.signal("-TERM");
            idle.iter_mut().for_each(assert_closed);
            for thread in connecting {
                assert!(thread.join().unwrap() > 0, "{runtime}: nobody was answered");
            }
            assert_eq!(server.wait(), 0, "{runtime}, {workers} workers");
            assert!(signalled.elapsed() < Duration::from_secs(10), "{runtime}");
        }
    }
}

fn start(runtime: &str, workers: usize, options: &[&str]) -> Server {
    let workers = workers.to_string();
    let balanced = ["--runtime", runtime, "--workers", &workers, "--balance", "least-connections"];
    Server::start_with(&[&balanced[..], &["--echo", "127.0.0.1:0"], options].concat())
}

fn echoing(server: &Server) -> TcpStream {
    let mut stream = server.connect(0);
    echoed(&mut stream, b"hello");
    stream
}

fn assert_even(server: &Server, workers: usize, connections: usize) {
    let counts = wait_for(server, workers, connections);
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(most - least <= 1, "{counts:?}");
}

/// Waits until the workers have so many connections together. Returns those of each.
fn wait_for(server: &Server, workers: usize, connections: usize) -> Vec<usize> {
    let until = Instant::now() + PATIENCE;
    loop {
        let values = scrape(server, 2);
        let of = |worker| values[&format!("owned_io_worker_connections{{worker=\"{worker}\"}}")];
        let counts: Vec<_> = (0..workers).map(|worker| of(worker) as usize).collect();
        if counts.iter().sum::<usize>() == connections {
            return counts;
        }
        assert!(Instant::now() < until, "expected {connections}: {counts:?}");
        thread::sleep(Duration::from_millis(100)); // the metrics are made twice a second
    }
}

/// Returns how many clients were answered.
fn connect_until_refused(addr: SocketAddr) -> usize {
    let mut answered = 0;
    // Ends when the server does.
    while let Ok(mut stream) = TcpStream::connect(addr) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // An error: the server has ended the connection.
        let _ = stream.write_all(b"hello");
        match stream.read(&mut [0; 5]) {
            Ok(5) => answered += 1,
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("expected an answer or the end, got {other:?}"),
        }
    }
    answered
}
