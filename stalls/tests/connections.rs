//! Connections that the program counts, beside those that are open. This program has no other test, whose stalls would
//! make the detector forget the connections.

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{wait_for, wait_for_end};
use owned_io_stalls::{Class, Config, Detector};

/// As many as it takes for a verdict, and some more.
const CONNECTIONS: usize = 20;

/// The program has dropped its connections, and their descriptors stay open: so does tokio-uring with a read that was
/// dropped. Before that it has as many connections, which come and go, and more clients wait to be accepted.
#[test]
fn connections_that_stay_open_after_the_program_has_dropped_them() {
    let mut config = Config::default();
    config.connections_interval = Duration::from_secs(1);
    let detector = Detector::start(config).unwrap();
    let (listener, others) = (listen(), listen());
    let gauge = detector.connections(addr(&listener));
    let counted: Vec<_> = (0..CONNECTIONS).map(|_| gauge.count()).collect();
    let kept: Vec<_> = (0..CONNECTIONS).map(|_| accept(&listener)).collect();
    // Of a listener whose connections are not counted, and not accepted.
    let _others: Vec<_> = (0..CONNECTIONS).map(|_| accept(&others)).collect();
    let _waiting: Vec<_> =
        (0..CONNECTIONS).map(|_| TcpStream::connect(addr(&others)).unwrap()).collect();

    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        let guards: Vec<_> = (0..CONNECTIONS).map(|_| gauge.count()).collect();
        let open: Vec<_> = (0..CONNECTIONS).map(|_| accept(&listener)).collect();
        sleep(Duration::from_millis(300));
        drop(guards); // before the connections
        drop(open);
    }
    let early = detector.incidents().into_iter().find(|it| it.verdict.has(CLASS));
    assert!(early.is_none(), "{early:#?}");

    drop(counted);
    let incident = wait_for(&detector, "dropped", |it| it.verdict.class() == CLASS);
    let expected = format!("20 connections to {} were open", addr(&listener));
    assert!(incident.to_string().contains(&expected), "{incident}");
    assert!(incident.to_string().contains("counted at most 0"), "{incident}");
    drop(kept);
    wait_for_end(&detector, CLASS);
}

const CLASS: Class = Class::ConnectionNeverCloses;

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn addr(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().unwrap()
}

/// Both ends.
fn accept(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(addr(listener)).unwrap();
    (client, listener.accept().unwrap().0)
}
