//! What does not stop a heart: listeners, connections and queues. The detector sees them from outside.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use common::{wait_for, wait_for_end};
use owned_io_stalls::{Class, Config, Detector, Probe};

/// A listener with room for so many clients, and one more.
fn listener(backlog: i32) -> TcpListener {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddrV4::new([127, 0, 0, 1].into(), 0)).unwrap();
    rustix::net::listen(&socket, backlog).unwrap();
    TcpListener::from(socket)
}

/// The queue is full for a moment, between two looks, and empty at each look.
#[test]
fn an_accept_queue_that_was_full_for_a_moment() {
    let listener = listener(1);
    let addr = listener.local_addr().unwrap();
    let mut config = Config::default();
    config.look_interval = Duration::from_secs(2);
    let detector = Detector::start(config).unwrap();
    std::thread::sleep(Duration::from_millis(600)); // the counter before
    let clients = [TcpStream::connect(addr).unwrap(), TcpStream::connect(addr).unwrap()];
    TcpStream::connect_timeout(&addr, Duration::from_millis(50)).unwrap_err();
    let accepted = clients.each_ref().map(|_| listener.accept().unwrap());
    let incident = wait_for(&detector, "moment", |it| it.verdict.has(Class::AcceptQueueOverflow));
    let dropped = format!("{addr} dropped ");
    assert!(incident.to_string().contains(&dropped), "{incident}");
    drop(accepted);
}

/// A listener with a short queue that nobody accepts from. Clients send their requests in vain.
#[test]
fn a_full_accept_queue_that_nobody_empties() {
    let detector = Detector::start(Config::default()).unwrap();
    let listener = listener(4);
    let addr = listener.local_addr().unwrap();
    std::thread::sleep(Duration::from_millis(600)); // the counter before
    let clients: Vec<_> = (0..12)
        .map(|_| {
            std::thread::spawn(move || TcpStream::connect_timeout(&addr, Duration::from_secs(2)))
        })
        .collect();
    let incident = wait_for(&detector, "short", |it| it.verdict.has(Class::AcceptQueueOverflow));
    assert!(incident.to_string().contains(&addr.to_string()), "{incident}");
    wait_for(&detector, "nobody", |it| it.verdict.has(Class::AcceptStarvation));
    for client in clients {
        drop(client.join().unwrap());
    }
    drop(listener);
    wait_for_end(&detector, Class::AcceptStarvation);
}

/// A connection is accepted, and nobody serves it.
#[test]
fn a_lost_accept() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = Config::default();
    config.probe = Some(Probe::new(listener.local_addr().unwrap(), "ping"));
    let detector = Detector::start(config).unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            kept.push(stream);
        }
    });
    wait_for(&detector, "kept", |it| it.verdict.class() == Class::LostAccept);
}

/// Connections are accepted, and their requests are never read. No probe is needed to see that.
#[test]
fn requests_that_nobody_reads() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let mut config = Config::default();
    config.connections_interval = Duration::from_secs(1);
    let detector = Detector::start(config).unwrap();
    let connect = || {
        let mut client = TcpStream::connect(addr).unwrap();
        client.write_all(b"request").unwrap();
        (client, listener.accept().unwrap().0)
    };
    let mut served: Vec<_> = (0..4).map(|_| connect()).collect();
    for (_, stream) in &mut served {
        stream.read_exact(&mut [0]).unwrap(); // the rest stays unread, and somebody has the connection
    }
    let _kept: Vec<_> = (0..3).map(|_| connect()).collect();
    wait_for(&detector, "unread", |it| {
        it.verdict.class() == Class::LostAccept
            && it.to_string().contains("3 connections were accepted")
            && it.to_string().contains("7 connections had bytes that nobody had read")
    });
}

/// A probe that is answered is no stall.
#[test]
fn a_probe_that_is_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = Config::default();
    config.probe = Some(Probe::new(listener.local_addr().unwrap(), ""));
    let detector = Detector::start(config).unwrap();
    for _ in 0..3 {
        listener.accept().unwrap().0.write_all(b"x").unwrap();
    }
    let lost = detector.incidents().into_iter().find(|it| it.verdict.has(Class::LostAccept));
    assert!(lost.is_none(), "{lost:#?}");
}

/// The peers have closed, and the connections stay open.
#[test]
fn connections_that_never_close() {
    let detector = Detector::start(Config::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut kept = Vec::new();
    for _ in 0..20 {
        drop(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        kept.push(listener.accept().unwrap());
    }
    wait_for(&detector, "kept", |it| it.verdict.class() == Class::ConnectionNeverCloses);
}

#[test]
fn a_gauge_over_its_limit() {
    let detector = Detector::start(Config::default()).unwrap();
    let gauge = detector.gauge("queued bytes", Some(1_000));
    gauge.set(900);
    gauge.add(200);
    let incident =
        wait_for(&detector, "gauge", |it| it.verdict.class() == Class::BackPressureIgnored);
    assert!(incident.to_string().contains("queued bytes is 1100"), "{incident}");
    gauge.sub(200);
    wait_for_end(&detector, Class::BackPressureIgnored);
}
