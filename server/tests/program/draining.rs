//! The drain: idle clients are closed at once, the others in order, and all by the deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::ptr;
use std::time::{Duration, Instant};

use tungstenite::Message;

use super::each_engine;
use super::server::{RUNTIMES, Server, assert_closed, echoed, program};

/// The exit code if the drain had to cut connections off.
const CUT_OFF: i32 = 3;

#[test]
fn a_signal_drains_and_ends_cleanly() {
    for runtime in RUNTIMES {
        for signal in ["-TERM", "-INT"] {
            let server = Server::start(runtime, &["--echo", "127.0.0.1:0"]);
            let mut client = server.connect(0);
            echoed(&mut client, b"before");
            server.signal(signal);
            assert_closed(&mut client);
            assert_eq!(server.wait(), 0, "{runtime} {signal}");
        }
    }
}

/// A parent that waits for its own signals has them blocked, and a child inherits that.
#[test]
fn a_signal_that_the_parent_had_blocked_still_drains() {
    let options = ["--echo", "127.0.0.1:0", "--runtime", RUNTIMES[0]];
    let mut command = program(&options);
    let block_all = || {
        let mut all = MaybeUninit::uninit();
        // SAFETY: `all` has room for a set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: sigfillset(3) has initialised the set. The old mask is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut()) };
        Ok(())
    };
    // SAFETY: the closure allocates nothing, takes no lock, and calls only what may be called between fork and exec.
    unsafe { command.pre_exec(block_all) };
    let server = Server::start_as(command, &options);
    let mut client = server.connect(0);
    echoed(&mut client, b"before");
    server.signal("-HUP");
    echoed(&mut client, b"goes on");
    server.signal("-TERM");
    assert_closed(&mut client);
    assert_eq!(server.wait(), 0);
}

#[test]
fn draining_tells_websockets_that_the_server_goes_away() {
    for (runtime, engine) in each_engine() {
        let options = [&["--http", "127.0.0.1:0"], engine].concat();
        let server = Server::start(runtime, &options);
        let mut idle = server.upgrade(0, "/echo");
        let mut busy = server.upgrade(0, "/source?bytes=100000");
        idle.send(Message::text("first")).unwrap();
        assert_eq!(idle.read().unwrap(), Message::text("first"));
        assert_eq!(busy.read().unwrap().len(), 100_000);
        server.signal("-TERM");
        for mut socket in [idle, busy] {
            let frame = loop {
                match socket.read().unwrap() {
                    Message::Binary(_) => {}
                    Message::Close(frame) => break frame.expect("a code"),
                    other => panic!("{runtime}, {engine:?}: {other:?}"),
                }
            };
            assert_eq!(u16::from(frame.code), 1001, "{runtime}, {engine:?}");
            // The rest of the closing handshake.
            assert!(matches!(socket.read(), Err(tungstenite::Error::ConnectionClosed)));
        }
        assert_eq!(server.wait(), 0, "{runtime}, {engine:?}");
    }
}

/// Connections that have not ended by the deadline are reset, so that their peers know, and the exit code says so.
#[test]
fn draining_ends_at_its_deadline() {
    for runtime in RUNTIMES {
        let options = ["--source", "127.0.0.1:0", "--drain-seconds", "1", "--ring", "default"];
        let server = Server::start(runtime, &options);
        let mut greedy = server.connect(0);
        // Asks for a gigabyte, and reads none of it.
        for number in [1_000_u32, 1_000_000, 1] {
            greedy.write_all(&number.to_le_bytes()).unwrap();
        }
        greedy.read_exact(&mut [0; 4]).unwrap();
        let signalled = Instant::now();
        server.signal("-TERM");
        assert_eq!(server.wait(), CUT_OFF, "{runtime}");
        let cut_off = io::copy(&mut greedy, &mut io::sink()).unwrap_err();
        assert_eq!(cut_off.kind(), ErrorKind::ConnectionReset, "{runtime}");
        let took = signalled.elapsed();
        assert!(took >= Duration::from_millis(900), "{runtime} ended after {took:?}");
    }
}

/// A client that has sent nothing is closed at once, not at the deadline of the drain.
#[test]
fn a_signal_closes_clients_that_have_sent_nothing() {
    for runtime in RUNTIMES {
        let services =
            ["--echo", "127.0.0.1:0", "--source", "127.0.0.1:0", "--http", "127.0.0.1:0"];
        let server = Server::start(runtime, &[&services[..], &["--drain-seconds", "15"]].concat());
        let mut clients: Vec<_> = (0..3).map(|service| server.connect(service)).collect();
        let mut begun = server.connect(2);
        begun.write_all(b"GET /heal").unwrap();
        assert_eq!(server.health(2), "200"); // the clients before this one were accepted
        let signalled = Instant::now();
        server.signal("-TERM");
        clients.push(begun);
        clients.iter_mut().for_each(assert_closed);
        assert_eq!(server.wait(), 0, "{runtime}");
        let took = signalled.elapsed();
        assert!(took < Duration::from_secs(5), "{runtime} ended after {took:?}");
    }
}

/// `/health` answers 503 before clients are refused.
#[test]
fn a_signal_gives_notice_first() {
    for runtime in RUNTIMES {
        let services = ["--echo", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let notice = ["--drain-notice-seconds", "2"];
        let server = Server::start(runtime, &[&services[..], &notice[..]].concat());
        assert_eq!((server.health(1), server.health(2)), ("200".into(), "200".into()));
        let mut before = server.connect(0);
        echoed(&mut before, b"before");
        let signalled = Instant::now();
        server.signal("-TERM");
        while server.health(1) != "503" {
            assert!(signalled.elapsed() < Duration::from_secs(1), "{runtime}: no notice");
        }
        assert_eq!(server.health(2), "503", "{runtime}");
        echoed(&mut before, b"as ever");
        echoed(&mut server.connect(0), b"accepted as ever");
        assert_eq!(server.upgrade(1, "/echo").send(Message::text("too")).ok(), Some(()));
        assert!(signalled.elapsed() < Duration::from_millis(1_900), "this machine is too slow");
        assert_closed(&mut before);
        assert!(signalled.elapsed() >= Duration::from_millis(1_900), "{runtime}");
        assert_eq!(server.wait(), 0, "{runtime}");
    }
}

/// As long as any connection is being drained.
#[test]
fn admins_are_answered_until_the_drain_is_over() {
    for runtime in RUNTIMES {
        let services = ["--source", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let server = Server::start(runtime, &[&services[..], &["--drain-seconds", "2"]].concat());
        let mut greedy = server.connect(0);
        for number in [1_000_u32, 1_000_000, 1] {
            greedy.write_all(&number.to_le_bytes()).unwrap();
        }
        greedy.read_exact(&mut [0; 4]).unwrap();
        let signalled = Instant::now();
        server.signal("-TERM");
        while signalled.elapsed() < Duration::from_millis(1_500) {
            let health = server.health(1);
            assert!(
                health == "503" || signalled.elapsed() < Duration::from_millis(300),
                "{health}"
            );
        }
        assert_eq!(server.wait(), CUT_OFF, "{runtime}");
    }
}

/// A load balancer that keeps its connection. It does not delay the end.
#[test]
fn admins_that_ask_for_nothing_are_closed_at_the_end() {
    for runtime in RUNTIMES {
        let services = ["--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let server = Server::start(runtime, &[&services[..], &["--drain-seconds", "15"]].concat());
        let mut admin = server.connect(1);
        admin.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nok\n") {
            let mut byte = [0];
            admin.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        let signalled = Instant::now();
        server.signal("-TERM");
        assert_eq!(admin.read(&mut [0; 16]).unwrap(), 0, "{runtime}: an end, and no reset");
        assert_eq!(server.wait(), 0, "{runtime}");
        let took = signalled.elapsed();
        assert!(took < Duration::from_secs(5), "{runtime} ended after {took:?}");
    }
}

/// Without TLS there are no certificates to read again.
#[test]
fn a_hangup_ends_nothing() {
    let server = Server::start(RUNTIMES[0], &["--echo", "127.0.0.1:0"]);
    let mut client = server.connect(0);
    echoed(&mut client, b"before");
    server.signal("-HUP");
    echoed(&mut client, b"after");
    echoed(&mut server.connect(0), b"as ever");
    server.signal("-TERM");
    assert_eq!(server.wait(), 0);
}
