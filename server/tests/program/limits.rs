//! The limits on connections, and on the time that a connection may be idle or blocked.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::server::{PATIENCE, RUNTIMES, Server, announce, assert_closed, echoed};

#[test]
fn connections_over_the_limit_wait_for_a_permit() {
    for runtime in RUNTIMES {
        // One worker, so that it accepts all three.
        let one_worker = ["--runtime", runtime, "--workers", "1", "--connections-max", "2"];
        let server = Server::start_with(&[&one_worker[..], &["--echo", "127.0.0.1:0"]].concat());
        let (mut first, mut second, mut third) =
            (server.connect(0), server.connect(0), server.connect(0));
        echoed(&mut first, b"1");
        echoed(&mut second, b"2");
        third.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        third.write_all(b"3").unwrap();
        assert!(third.read(&mut [0]).is_err(), "served over the limit");
        drop(first);
        third.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = [0];
        third.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"3");
    }
}

/// However the kernel spreads the clients over the workers. By chance, both get to the same worker.
#[test]
fn workers_share_the_connection_limit() {
    let balanced = RUNTIMES.iter().map(|runtime| (runtime, "least-connections"));
    for (runtime, balance) in RUNTIMES.iter().map(|runtime| (runtime, "hash")).chain(balanced) {
        let options = ["--echo", "127.0.0.1:0", "--connections-max", "1", "--balance", balance];
        let server = Server::start(runtime, &options);
        for _ in 0..12 {
            let (mut first, mut second) = (server.connect(0), server.connect(0));
            echoed(&mut first, b"1");
            echoed(&mut second, b"2");
            let mut third = server.connect(0);
            third.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            third.write_all(b"3").unwrap();
            assert!(third.read(&mut [0]).is_err(), "{runtime}: served over the limit");
            drop(first);
            third.set_read_timeout(Some(PATIENCE)).unwrap();
            third.read_exact(&mut [0]).unwrap();
        }
    }
}

#[test]
fn admins_are_served_while_all_client_connections_are_taken() {
    for runtime in RUNTIMES {
        let options = ["--echo", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--connections-max", "1"];
        let server = Server::start(runtime, &options);
        let mut clients = [server.connect(0), server.connect(0)];
        clients.iter_mut().for_each(|client| echoed(client, b"taken"));
        let _waiting: Vec<_> = (0..50).map(|_| server.connect(0)).collect();
        for _ in 0..10 {
            assert_eq!(server.health(1), "200", "{runtime}");
        }
        clients.iter_mut().for_each(|client| echoed(client, b"still"));
    }
}

#[test]
fn connections_over_the_limit_of_an_address_are_reset() {
    for runtime in RUNTIMES {
        let limit = ["--echo", "127.0.0.1:0", "--connections-per-address-max", "3"];
        let server = Server::start(runtime, &limit);
        let mut clients: Vec<_> = (0..3).map(|_| server.connect(0)).collect();
        clients.iter_mut().for_each(|client| echoed(client, b"one of three"));
        for _ in 0..5 {
            assert_closed(&mut server.connect(0));
        }
        drop(clients.pop());
        // A permit is free once the server has noticed the end.
        let until = Instant::now() + PATIENCE;
        loop {
            let mut again = server.connect(0);
            if again.write_all(b"?").and_then(|()| again.read_exact(&mut [0])).is_ok() {
                break;
            }
            assert!(Instant::now() < until, "{runtime}: no permit was released");
        }
        clients.iter_mut().for_each(|client| echoed(client, b"as ever"));
    }
}

/// Over TCP there are no pings for silent clients.
#[test]
fn silent_clients_are_closed() {
    thread::scope(|scope| {
        for runtime in RUNTIMES {
            scope.spawn(move || {
                let services =
                    ["--echo", "127.0.0.1:0", "--sink", "127.0.0.1:0", "--source", "127.0.0.1:0"];
                let limit = ["--idle-seconds-max", "2"];
                let server = Server::start(runtime, &[&services[..], &limit[..]].concat());
                let mut busy = server.connect(0);
                let mut silent: Vec<_> = (0..3).map(|service| server.connect(service)).collect();
                let mut answered = server.connect(1);
                announce(&mut answered, 1, b"x");
                answered.read_exact(&mut [0; 8]).unwrap();
                silent.push(answered);
                let started = Instant::now();
                while started.elapsed() < Duration::from_secs(4) {
                    echoed(&mut busy, b"busy");
                    thread::sleep(Duration::from_millis(100));
                    if started.elapsed() < Duration::from_millis(1_500) {
                        for client in &mut silent {
                            client.set_nonblocking(true).unwrap();
                            let error = client.read(&mut [0]).unwrap_err();
                            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{runtime}");
                            client.set_nonblocking(false).unwrap();
                        }
                    }
                }
                for client in &mut silent {
                    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                    assert_closed(client);
                }
            });
        }
    });
}

/// The kernel keeps nothing for a client that reads nothing.
#[test]
fn clients_that_read_nothing_are_reset() {
    thread::scope(|scope| {
        for runtime in RUNTIMES {
            scope.spawn(move || {
                let services =
                    ["--echo", "127.0.0.1:0", "--source", "127.0.0.1:0", "--http", "127.0.0.1:0"];
                let limit = ["--message-seconds-max", "1"];
                let server = Server::start(runtime, &[&services[..], &limit[..]].concat());
                let mut echo = server.connect(0);
                echo.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
                while echo.write_all(&[7; 64 * 1024]).is_ok() {}
                let mut source = server.connect(1);
                for number in [1_000_u32, 1_000_000, 1] {
                    source.write_all(&number.to_le_bytes()).unwrap();
                }
                let socket = server.upgrade(2, "/source?bytes=1000000");
                let clients = [(0, echo), (1, source), (2, socket.get_ref().try_clone().unwrap())];
                // The limit of 1 s is over by then.
                thread::sleep(Duration::from_secs(4));
                for (service, mut client) in clients {
                    let local = client.local_addr().unwrap();
                    let known = state(server.addr(service), local);
                    assert_eq!(known, None, "{runtime}, {service}: the server's end");
                    let error = io::copy(&mut client, &mut io::sink()).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{runtime}, {service}");
                }
            });
        }
    });
}

/// The state of the TCP socket between these addresses, if there is one (proc_net_tcp): 01 is
/// established, 04 is FIN-WAIT-1.
fn state(local: SocketAddr, remote: SocketAddr) -> Option<String> {
    let hex = |addr: SocketAddr| match addr {
        SocketAddr::V4(addr) => {
            format!("{:08X}:{:04X}", u32::from_ne_bytes(addr.ip().octets()), addr.port())
        }
        SocketAddr::V6(_) => unreachable!("the tests are on 127.0.0.1"),
    };
    let ends = format!("{} {} ", hex(local), hex(remote));
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    let line = sockets.lines().find_map(|line| line.split_once(&ends));
    line.map(|(_, rest)| rest[..2].to_owned())
}

/// The kernel lists a connection that is open, so the test before this one can fail.
#[test]
fn the_state_of_an_open_connection_is_found() {
    let server = Server::start(RUNTIMES[0], &["--echo", "127.0.0.1:0"]);
    let mut client: TcpStream = server.connect(0);
    echoed(&mut client, b"here");
    assert_eq!(state(server.addr(0), client.local_addr().unwrap()).as_deref(), Some("01"));
}
