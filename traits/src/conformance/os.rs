//! Cases about the operating system: limits, queues, descriptors, other processes. Each runs in its own process,
//! with its peers in another process.

use std::cell::Cell;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{
    PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getpid, getrlimit, pidfd_getfd, pidfd_open,
    setrlimit,
};
use rustix::time::{ClockId, clock_gettime};
use socket2::SockRef;

use super::Declared;
use super::isolate::Peer;
use super::support::{
    A_WHILE, SOON, accept_and_expect_yields, connect, echo, expect_at_least, expect_error, fill,
    first_polled, listener, loopback, pair, run, soon, within,
};
use crate::{
    AddrError, BufResult, ByteStream, ConnectOptions, IoVec, Keepalive, OwnedRead, OwnedWrite,
    OwnedWriteExt, Pool, PoolConfig, Runtime, TcpListener, TcpStream, WorkersConfig, is_exhaustion,
};

/// Ten thousand connections are open at the same time. Each is served, and while they are idle, they hold at most
/// `idle_max` buffers together.
pub fn ten_thousand_connections_are_open<R: Runtime>(config: &R::Config) {
    const CONNECTIONS: usize = 10_000;
    raise_descriptor_limit(CONNECTIONS as u64 + 100);
    run::<R, _>(config, async {
        let (mut listener, addr) = listener::<R>(loopback());
        let pool = Pool::new(PoolConfig::default());
        let accepted = Rc::new(Cell::new(0));
        drop(R::spawn({
            let (pool, accepted) = (pool.clone(), Rc::clone(&accepted));
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    accepted.set(accepted.get() + 1);
                    drop(R::spawn(pooled_echo(stream, pool.clone())));
                }
            }
        }));
        let mut peer = clients(addr);
        peer.request::<R>(&format!("connect {CONNECTIONS}")).await;
        wait_until::<R>("all clients to be accepted", || accepted.get() == CONNECTIONS).await;
        for _ in 0..2 {
            peer.request::<R>(&format!("echo {CONNECTIONS}")).await;
        }
        R::sleep(A_WHILE).await;
        let (held, allowed) = (pool.leased(), PoolConfig::default().idle_max);
        assert!(
            held <= allowed,
            "expected idle connections to hold at most {allowed} buffers (`idle_max`); seen: {held}"
        );
    });
}

/// Each of two thousand simultaneous connects is served.
pub fn a_burst_of_two_thousand_connects_is_served<R: Runtime>(config: &R::Config) {
    raise_descriptor_limit(2_100);
    run::<R, _>(config, async {
        let (listener, addr) = listener::<R>(loopback());
        drop(R::spawn(serve::<R>(listener, Rc::default())));
        clients(addr).request::<R>("burst 2000").await;
    });
}

/// "The listener stays usable after every error." When descriptors are used up, "the client is still in the queue".
/// Open connections continue, no loop spins, and clients are accepted again once descriptors are free.
pub fn accept_recovers_from_exhausted_descriptors<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let (listener, addr) = listener::<R>(loopback());
        let mut peer = clients(addr);
        let exhausted = Rc::new(Cell::new(0));
        peer.request::<R>("connect 1").await;
        drop(R::spawn(serve::<R>(listener, Rc::clone(&exhausted))));
        peer.request::<R>("echo 1").await;

        limit_descriptors(open_descriptors() as u64 + 40);
        peer.request::<R>("connect 100").await;
        wait_until::<R>("an accept to report that descriptors are used up", || exhausted.get() > 0)
            .await;
        peer.request::<R>("echo 30").await; // the open ones

        const CPU_MAX: Duration = Duration::from_millis(300);
        let before = cpu_time();
        R::sleep(Duration::from_secs(1)).await;
        let cpu = cpu_time() - before;
        assert!(
            cpu < CPU_MAX,
            "expected less than {CPU_MAX:?} of CPU in a second without descriptors; seen: {cpu:?}"
        );

        peer.request::<R>("close 66").await;
        peer.request::<R>("echo 35").await; // the ones that had waited
    });
}

/// "It yields to other tasks […] after an error": when descriptors are used up.
pub fn accept_yields_while_descriptors_are_exhausted<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let (mut listener, addr) = listener::<R>(loopback());
        let mut peer = clients(addr);
        peer.request::<R>("connect 40").await;
        limit_descriptors(open_descriptors() as u64 + 10);
        let errors = accept_and_expect_yields::<R>(&mut listener, 60, None).await;
        expect_at_least(40, "failed accepts", errors);
    });
}

/// "... the first read of a connection returns at once what has arrived by then, even if the runtime has not looked
/// for it yet."
pub fn the_first_read_of_a_connection_is_tried_at_once<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let (mut listener, addr) = listener::<R>(loopback());
        let pool = Pool::new(PoolConfig::default());
        for is_pooled in [false, true] {
            let mut client = connect::<R>(addr).await;
            client.write_all("early").await.into_result().unwrap();
            R::sleep(A_WHILE).await; // the bytes arrive
            let (mut server, _) = listener.accept().await.unwrap();
            let read = async {
                if is_pooled {
                    server.read_pooled(&pool).await.map(|buf| buf.to_vec())
                } else {
                    server.read(Vec::with_capacity(16)).await.into_result().map(|(_, buf)| buf)
                }
            };
            let (read, is_at_once) = first_polled(read).await;
            assert!(
                is_at_once,
                "expected the first poll of a read to return (pooled: {is_pooled}); seen: it waits"
            );
            assert!(b"early".starts_with(&read.unwrap()), "expected the bytes that were sent");
        }
    });
}

/// On kernel sockets a drop is clean as soon as everything is read, whether or not the peer has ended its side.
pub fn a_connection_without_unread_bytes_drops_cleanly<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        for has_peer_ended in [false, true] {
            let (mut a, mut b) = pair::<R>().await;
            let handle = b.shutdown_handle();
            assert!(handle.drops_cleanly(), "expected a clean drop of a new connection");
            a.write_all("x").await.into_result().unwrap();
            if has_peer_ended {
                a.shutdown().await.unwrap();
            }
            R::sleep(A_WHILE).await;
            assert!(!handle.drops_cleanly(), "expected no clean drop while a byte is unread");
            let BufResult(read, _) = b.read(Vec::with_capacity(8)).await;
            assert_eq!(read.unwrap(), 1, "the bytes that were sent");
            assert!(handle.drops_cleanly(), "expected a clean drop once the byte is read");
        }
    });
}

/// Idle connections use no CPU time.
pub fn idle_connections_cost_no_cpu<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let (listener, addr) = listener::<R>(loopback());
        drop(R::spawn(serve::<R>(listener, Rc::default())));
        let mut peer = clients(addr);
        peer.request::<R>("connect 100").await;
        peer.request::<R>("echo 100").await;
        R::sleep(A_WHILE).await;
        const CPU_MAX: Duration = Duration::from_millis(100);
        let before = cpu_time();
        R::sleep(Duration::from_secs(2)).await;
        let cpu = cpu_time() - before;
        assert!(
            cpu <= CPU_MAX,
            "expected at most {CPU_MAX:?} of CPU in two idle seconds; seen: {cpu:?}"
        );
    });
}

/// Beside a connection that floods, other tasks run and timers fire within a second.
pub fn a_flood_does_not_delay_timers<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let (mut listener, addr) = listener::<R>(loopback());
        let mut peer = clients(addr);
        peer.request::<R>("connect 1").await;
        let (mut flooded, _) = listener.accept().await.unwrap();
        let received = Rc::new(Cell::new(0));
        drop(R::spawn({
            let received = Rc::clone(&received);
            async move {
                let mut buf = Vec::with_capacity(64); // so small that it never catches up
                loop {
                    let (n, back) = flooded.read(buf).await.into_result().unwrap();
                    received.set(received.get() + n);
                    buf = back;
                }
            }
        }));
        peer.send("flood");
        const BYTES: usize = 1 << 20;
        let flooded = within::<R, _>(2 * SOON, async {
            while received.get() < BYTES {
                R::sleep(Duration::from_millis(2)).await;
            }
        });
        assert!(
            flooded.await.is_some(),
            "expected {BYTES} bytes of the flood to be read within {:?}; seen: {} (is a wake-up lost?)",
            2 * SOON,
            received.get()
        );
        for _ in 0..20 {
            let started = R::now();
            R::sleep(Duration::from_millis(10)).await;
            let took = R::now() - started;
            assert!(
                took < Duration::from_secs(1),
                "expected a sleep of 10ms next to a flood to take less than a second; seen: {took:?}"
            );
        }
    });
}

/// A reset is "`ConnectionReset`" with its OS error code, after the bytes before it are read or lost. The length of
/// the buffer is unchanged.
pub fn a_reset_is_an_error<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let (mut listener, addr) = listener::<R>(loopback());
        let mut peer = clients(addr);
        peer.request::<R>("connect 1").await;
        let (mut stream, _) = listener.accept().await.unwrap();
        peer.request::<R>("reset").await;
        loop {
            let read = soon::<R, _>("the reset", stream.read(b"length 9.".to_vec()));
            let BufResult(result, buf) = read.await;
            match result {
                Ok(n) => assert!(n > 0, "expected a reset; seen: the end of the stream"),
                Err(error) => {
                    let code = error.raw_os_error();
                    assert_eq!(code, Some(libc::ECONNRESET), "the OS error code of {error:?}");
                    assert_eq!(buf, b"length 9.", "the buffer after an error");
                    return;
                }
            }
        }
    });
}

/// "No signal is raised": whether a write fails at once or after a wait, and whether the peer has reset the
/// connection or a handle has shut it down.
pub fn writes_raise_no_signal<R: Runtime>(config: &R::Config) {
    // Rust's `main` ignores SIGPIPE. A handler enables it again.
    let raised = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGPIPE, Arc::clone(&raised))
        .expect("expected to handle a signal");
    run::<R, _>(config, async {
        let (mut listener, addr) = listener::<R>(loopback());
        let mut peer = clients(addr);
        for case in 0..8 {
            let [vectored, waits, reset] = [1, 2, 4].map(|bit| case & bit != 0);
            peer.request::<R>("connect 1").await;
            let (stream, _) = listener.accept().await.unwrap();
            let handle = stream.shutdown_handle();
            let (mut read, write) = stream.into_split();
            // The read consumes the reset, so that the write usually fails with a broken pipe.
            drop(R::spawn(
                async move { while read.read(vec![0; 64]).await.0.is_ok_and(|n| n > 0) {} },
            ));
            let moment = 3 * A_WHILE;
            let (before_writing, before_the_end) =
                if waits { (Duration::ZERO, moment) } else { (moment, Duration::ZERO) };
            let writer = R::spawn(async move {
                R::sleep(before_writing).await;
                write_until_it_fails(write, vectored).await;
            });
            R::sleep(before_the_end).await;
            if reset {
                peer.request::<R>("reset").await;
            } else {
                handle.shutdown(Shutdown::Both);
                peer.request::<R>("close 1").await;
            }
            soon::<R, _>("the writes fail", writer).await.unwrap();
            let raised = raised.load(Ordering::SeqCst);
            assert!(
                !raised,
                "expected no signal; seen: SIGPIPE (vectored: {vectored}, waits: {waits}, reset: \
                 {reset})"
            );
        }
    });
}

/// "`AddrInUse`: another socket listens on the address, even with `SO_REUSEPORT`."
pub fn bind_refuses_a_shared_port_of_another_process<R: Runtime>(_config: &R::Config) {
    let mut peer = Peer::start("listener");
    let mut options = loopback();
    options.addr = peer.receive_blocking().parse().expect("an address");
    let error = expect_error(R::bind(options.clone()), ErrorKind::AddrInUse);
    expect_text(&error.to_string(), &[&options.addr.to_string()]);
}

/// Connections in TIME_WAIT do not prevent a restarted server from binding its address.
pub fn bind_works_right_after_a_restart<R: Runtime>(config: &R::Config) {
    let serve_one = |options| {
        run::<R, _>(config, async {
            let (mut listener, addr) = listener::<R>(options);
            let mut peer = clients(addr);
            peer.request::<R>("connect 1").await;
            let (stream, _) = listener.accept().await.unwrap();
            drop(stream); // the end that closes first enters TIME_WAIT
            R::sleep(A_WHILE).await;
            addr
        })
    };
    let mut again = loopback();
    again.addr = serve_one(loopback());
    assert_eq!(serve_one(again.clone()), again.addr, "the address after the restart");
}

/// "`PermissionDenied`" and "`AddrNotAvailable`": the error names the address and a remedy.
pub fn bind_explains_a_forbidden_port<R: Runtime>(_config: &R::Config) {
    let foreign: SocketAddr = ([192, 0, 2, 1], 0).into(); // RFC 5737: reserved for documentation
    let mut options = loopback();
    options.addr = foreign;
    let error = expect_error(R::bind(options), ErrorKind::AddrNotAvailable);
    expect_text(&error.to_string(), &["192.0.2.1"]);

    let first_free = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let first_free: u16 = first_free.expect("procfs").trim().parse().expect("a port");
    let report = Peer::start_unprivileged("bind 127.0.0.1:79").receive_blocking();
    if first_free > 79 {
        let expected = "PermissionDenied: cannot listen on 127.0.0.1:79";
        assert!(report.starts_with(expected), "expected \"{expected}\" first; seen: \"{report}\"");
        expect_text(&report, &["CAP_NET_BIND_SERVICE"]);
    } else {
        assert_eq!(report, "ok", "the result of a bind of port 79, which is not privileged");
    }
}

/// Each end of a connection has the `TCP_NODELAY` of its own options.
pub fn nodelay_is_set_at_both_ends<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        for nodelay in [true, false] {
            let mut options = loopback();
            options.nodelay = nodelay;
            let (mut listener, addr) = listener::<R>(options);
            let mut options = ConnectOptions::new(addr);
            options.nodelay = !nodelay;
            let connected = R::connect(options).await.unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            assert_eq!(is_nodelay(&accepted), nodelay, "nodelay of the accepted end");
            assert_eq!(is_nodelay(&connected), !nodelay, "nodelay of the connected end");
        }
    });
}

/// "How to detect a vanished peer", and "how long sent bytes may stay unacknowledged": each end of a connection uses
/// its own options, and both are on by default.
pub fn keepalive_is_set_at_both_ends<R: Runtime>(config: &R::Config) {
    let sockets = |stream: &R::TcpStream| {
        with_socket(stream, |socket| {
            let kept = socket.keepalive().expect("a socket").then(|| {
                let seconds = (socket.tcp_keepalive_time(), socket.tcp_keepalive_interval());
                let probes = socket.tcp_keepalive_retries().expect("a socket");
                (seconds.0.expect("a socket"), seconds.1.expect("a socket"), probes)
            });
            (kept, socket.tcp_user_timeout().expect("a socket"))
        })
    };
    let seconds = Duration::from_secs;
    let mut chosen = Keepalive::new();
    (chosen.idle, chosen.interval, chosen.probes) = (Duration::from_millis(6_500), seconds(3), 2);
    run::<R, _>(config, async {
        for is_accepted in [true, false] {
            for (keepalive, limit, expected) in [
                (Some(Keepalive::new()), Some(seconds(120)), Some((seconds(60), seconds(15), 4))),
                (Some(chosen), Some(seconds(9)), Some((seconds(7), seconds(3), 2))),
                (None, None, None),
            ] {
                let (mut listen, mut connect) = (loopback(), ConnectOptions::new(loopback().addr));
                assert_eq!(listen.keepalive, Some(Keepalive::new()), "the default");
                assert_eq!(connect.keepalive, Some(Keepalive::new()), "the default");
                assert_eq!(listen.unacknowledged_max, connect.unacknowledged_max);
                if is_accepted {
                    (listen.keepalive, listen.unacknowledged_max) = (keepalive, limit);
                } else {
                    (connect.keepalive, connect.unacknowledged_max) = (keepalive, limit);
                }
                let (mut listener, addr) = listener::<R>(listen);
                connect.addr = addr;
                let connected = R::connect(connect).await.unwrap();
                let (accepted, _) = listener.accept().await.unwrap();
                let stream = if is_accepted { &accepted } else { &connected };
                assert_eq!(sockets(stream), (expected, limit), "accepted: {is_accepted}");
            }
        }
    });
}

/// "The kernel keeps no state of the connection", however many bytes were queued, and even if an operation holds the
/// descriptor.
pub fn an_aborted_connection_leaves_nothing_behind<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let (mut listener, addr) = listener::<R>(loopback());
        let mut peer = clients(addr);
        peer.request::<R>("connect 1").await; // the peer reads nothing
        let (stream, client) = listener.accept().await.unwrap();
        let handle = stream.shutdown_handle();
        let mut stream = stream;
        fill::<R>(&mut stream).await;
        assert!(has_socket(addr, client), "expected a socket before the abort; seen: none");
        handle.abort();
        wait_until::<R>("the aborted socket to be gone", || !has_socket(addr, client)).await;
        drop(stream);
        R::sleep(A_WHILE).await;
        assert!(!has_socket(addr, client), "expected no socket after the drop; seen: one");
    });
}

/// Whether the kernel has a TCP socket between these addresses, in any state (proc_net_tcp(5)).
fn has_socket(local: SocketAddr, remote: SocketAddr) -> bool {
    let hex = |addr: SocketAddr| match addr {
        SocketAddr::V4(addr) => {
            format!("{:08X}:{:04X}", u32::from_ne_bytes(addr.ip().octets()), addr.port())
        }
        SocketAddr::V6(_) => unreachable!("the cases are on 127.0.0.1"),
    };
    let pair = format!("{} {}", hex(local), hex(remote));
    fs::read_to_string("/proc/net/tcp").expect("procfs").contains(&pair)
}

/// "Whether an accept or a connect failed because descriptors […] are used up […]. Retry after something is closed."
pub fn connect_reports_exhaustion<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let (_listener, addr) = listener::<R>(loopback());
        limit_descriptors(0);
        let connected = R::connect(ConnectOptions::new(addr)).await;
        raise_descriptor_limit(0);
        let Err(error) = connected else {
            panic!("expected an error of `connect` where no descriptor is free; seen: success");
        };
        assert!(
            is_exhaustion(&error),
            "expected an error that `is_exhaustion` recognises; seen: {error:?}"
        );
        expect_text(&error.to_string(), &[&addr.to_string()]);
        connect::<R>(addr).await;
    });
}

/// "Every error has an `AddrError` inside, also the errors of the runtime itself": here the epoll instance of the
/// runtime, if it has one, accepts no more descriptors.
pub fn connect_and_listen_errors_name_the_address<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let (_listener, addr) = listener::<R>(loopback());
        let bound = R::bind(loopback()).expect("a free port");
        // Filters are per thread and permanent.
        refuse(libc::SYS_epoll_ctl, libc::ENOSPC, Some((1, libc::EPOLL_CTL_ADD as u64)));
        let connected = R::connect(ConnectOptions::new(addr)).await.map(drop);
        let listened = R::listen(&bound).map(drop);
        for (outcome, addr) in [(connected, addr), (listened, bound.local_addr())] {
            let Err(error) = outcome else { continue };
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<AddrError>());
            assert_eq!(
                inner.map(AddrError::addr),
                Some(addr),
                "expected an `AddrError` with the address inside of the error; seen: {error:?}"
            );
        }
    });
}

/// "Safe: the attempt ends and its socket is closed."
pub fn a_dropped_connect_closes_its_socket<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let mut options = loopback();
        options.backlog = 1;
        let (_listener, addr) = listener::<R>(options);
        let (mut clients, mut dropped) = (Vec::new(), 0);
        while dropped < 10 {
            let before = open_descriptors();
            match within::<R, _>(A_WHILE, R::connect(ConnectOptions::new(addr))).await {
                Some(client) => clients.push(client.unwrap()),
                None => {
                    wait_until::<R>("the socket of a dropped connect to be closed", || {
                        open_descriptors() <= before
                    })
                    .await;
                    dropped += 1;
                }
            }
            // A queue of one takes two clients, and about two more whose SYN is not answered yet.
            assert!(
                clients.len() < 16,
                "expected connects to wait at a queue of one; seen: sixteen connected"
            );
        }
    });
}

/// Closed connections leave no descriptor behind.
pub fn connections_leave_no_descriptor_behind<R: Runtime>(config: &R::Config) {
    run::<R, _>(config, async {
        let (listener, addr) = listener::<R>(loopback());
        drop(R::spawn(serve::<R>(listener, Rc::default())));
        let mut peer = clients(addr);
        for round in 0..3 {
            peer.request::<R>("connect 1").await;
            peer.request::<R>("echo 1").await;
            peer.request::<R>("close 1").await;
            R::sleep(A_WHILE).await;
            let before = open_descriptors();
            peer.request::<R>("connect 100").await;
            peer.request::<R>("echo 100").await;
            peer.request::<R>("close 100").await;
            let what = format!("as many descriptors as before round {round} ({before})");
            wait_until::<R>(&what, || open_descriptors() <= before).await;
        }
    });
}

/// A runtime that has ended leaves no descriptor behind, whatever its tasks were waiting for.
pub fn block_on_leaves_no_descriptor_behind<R: Runtime>(config: &R::Config) {
    let once = || {
        run::<R, _>(config, async {
            let (mut listener, _) = listener::<R>(loopback());
            drop(R::spawn(async move { listener.accept().await.map(drop) }));
            for _ in 0..10 {
                let (mut a, b) = pair::<R>().await;
                drop(R::spawn(async move { a.read(Vec::with_capacity(8)).await.0 }));
                drop(R::spawn(echo(b)));
            }
            R::sleep(A_WHILE).await;
        });
    };
    once();
    let before = open_descriptors();
    for _ in 0..5 {
        once();
    }
    assert_eq!(open_descriptors(), before, "open descriptors after five more runtimes");
}

/// "Tasks that are still running are dropped before this returns, and their connections are closed": the other ends
/// of accepted and of connected streams see it.
pub fn block_on_closes_the_connections_of_its_tasks<R: Runtime>(config: &R::Config) {
    let elsewhere = std::net::TcpListener::bind(loopback().addr).unwrap();
    let other_ends = run::<R, _>(config, async {
        let (mut listener, addr) = listener::<R>(loopback());
        let mut other_ends = Vec::new();
        for _ in 0..5 {
            other_ends.push(std::net::TcpStream::connect(addr).unwrap());
            let (mut accepted, _) = listener.accept().await.unwrap();
            drop(R::spawn(async move { accepted.read(Vec::with_capacity(8)).await.0 }));

            let connected = connect::<R>(elsewhere.local_addr().unwrap()).await;
            other_ends.push(elsewhere.accept().unwrap().0);
            drop(R::spawn(async move {
                let _connected = connected;
                std::future::pending::<()>().await;
            }));
        }
        R::sleep(A_WHILE).await;
        other_ends
    });
    for mut other_end in other_ends {
        // After `block_on`, no code is left that could close it later.
        other_end.set_read_timeout(Some(SOON)).unwrap();
        let seen = io::Read::read(&mut other_end, &mut [0; 8]);
        assert!(
            matches!(seen, Ok(0)),
            "expected the end of the stream within {SOON:?}; seen: {seen:?}"
        );
    }
}

/// "The runtime could not be set up. No part of `future` has run."
pub fn block_on_runs_nothing_when_it_cannot_be_set_up<R: Runtime>(
    config: &R::Config,
    declared: &Declared,
) {
    let ran = Arc::new(AtomicBool::new(false));
    let block_on = || {
        let (config, ran) = (config.clone(), Arc::clone(&ran));
        move || {
            R::block_on(config, async move {
                ran.store(true, Ordering::SeqCst);
                // A reactor that all threads share may be set up by its first use, which is this one.
                R::sleep(Duration::from_millis(1)).await;
            })
        }
    };
    // This comes first: nothing in this process has set up such a reactor before.
    limit_descriptors(0);
    let without_descriptors = std::panic::catch_unwind(std::panic::AssertUnwindSafe(block_on()));
    raise_descriptor_limit(0);
    let outcome = without_descriptors.unwrap_or_else(|payload| {
        let why = crate::Panicked::new(payload);
        panic!("expected an error of `block_on` where no descriptor is free; seen: it {why}")
    });
    let has_run = ran.swap(false, Ordering::SeqCst);
    assert_eq!(
        outcome.is_ok(),
        has_run,
        "expected an error, or the future to run, where no descriptor is free; seen: {outcome:?}, and \
         that it ran is {has_run}"
    );

    let without_ring = block_on();
    // Filters are per thread and permanent.
    let without_ring = std::thread::spawn(move || {
        refuse_io_uring(libc::EPERM);
        without_ring()
    });
    let without_ring = expect_no_panic(without_ring);
    let has_run = ran.load(Ordering::SeqCst);
    assert_eq!(
        (without_ring.is_ok(), has_run),
        (!declared.io_uring, !declared.io_uring),
        "where io_uring is refused: whether `block_on` succeeded, and whether its future ran; declared \
         is `io_uring: {}`, seen: {without_ring:?}",
        declared.io_uring
    );
}

/// "If io_uring is missing, the error names the cause and a remedy": it is refused by a seccomp policy, as in
/// containers, or the kernel does not have it.
pub fn block_on_explains_missing_io_uring<R: Runtime>(config: &R::Config, declared: &Declared) {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let config = config.clone();
        // Filters are per thread and permanent.
        let outcome = std::thread::spawn(move || {
            refuse_io_uring(errno);
            R::block_on(config, async { pair::<R>().await }).map(drop)
        });
        match expect_no_panic(outcome) {
            Ok(()) => expect_no_need_of_io_uring(declared),
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported),
                    "expected the error PermissionDenied or Unsupported; seen: {error:?}"
                );
                expect_text(&error.to_string(), &["io_uring", "run on tokio"]);
            }
        }
    }
}

/// "The error of a runtime that could not be set up", with the number of the worker.
pub fn workers_explain_missing_io_uring<R: Runtime>(_config: &R::Config, declared: &Declared) {
    let outcome = std::thread::spawn(|| {
        refuse_io_uring(libc::EPERM); // the workers' threads inherit it
        let workers = WorkersConfig::<R>::new(NonZeroUsize::MIN);
        R::run_workers(workers, |_worker| async { Ok(()) })
    });
    match expect_no_panic(outcome) {
        Ok(()) => expect_no_need_of_io_uring(declared),
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.starts_with("worker 0: "),
                "expected the worker's number first; seen: \"{text}\""
            );
            expect_text(&text, &["io_uring"]);
        }
    }
}

/// The result of a thread that may not use io_uring. Panics if the thread did.
fn expect_no_panic<T>(thread: std::thread::JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|payload| {
        let why = crate::Panicked::new(payload);
        panic!("expected an error, or success, where io_uring is refused; seen: it {why}")
    })
}

/// Panics if the backend declares that it needs io_uring. It has just run without.
fn expect_no_need_of_io_uring(declared: &Declared) {
    assert!(
        !declared.io_uring,
        "expected an error where io_uring is refused, as `io_uring: true` declares; seen: it ran"
    );
}

/// Panics unless `text` contains each of `parts`.
#[track_caller]
fn expect_text(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "expected a text with \"{part}\"; seen: \"{text}\"");
    }
}

/// "Or its thread is stuck": `run_workers` does not wait forever.
pub fn a_stuck_worker_is_abandoned<R: Runtime>(config: &R::Config) {
    let mut workers = WorkersConfig::<R>::new(NonZeroUsize::MIN);
    workers.runtime = config.clone();
    workers.drain = Duration::from_millis(100);
    workers.stop.stop();
    let started = Instant::now();
    let outcome = R::run_workers(workers, |_worker| async {
        std::thread::sleep(3 * SOON); // blocks the thread, as no service should
        Ok(())
    });
    let error = expect_error(outcome, ErrorKind::TimedOut);
    assert_eq!(error.to_string(), STUCK);
    let took = started.elapsed();
    assert!(
        took < 2 * SOON,
        "expected `run_workers` to abandon the worker within {:?}; seen: {took:?}",
        2 * SOON
    );
}

const STUCK: &str = "worker 0: its thread is stuck";

/// The error also names a limit on locked memory that is too low for a ring. The runtime starts only if it has no
/// ring, or if the limit does not apply.
pub fn block_on_explains_a_small_memlock_limit<R: Runtime>(
    _config: &R::Config,
    declared: &Declared,
) {
    let report = Peer::start_unprivileged("block_on").receive_blocking();
    let needs_ring = declared.io_uring;
    if !needs_ring || report == "ok, with CAP_IPC_LOCK" {
        assert!(
            report.starts_with("ok"),
            "expected `block_on` to run without locked memory, as `io_uring: {needs_ring}` declares; \
             seen: {report}"
        );
    } else if report != "ok" || rings_are_locked_memory() {
        assert!(
            report.contains("limit on locked memory is too small"),
            "expected the error of `block_on` to name the limit on locked memory, as `io_uring: true` \
             declares; seen: {report}"
        );
    }
}

/// Whether the kernel counts rings against the limit on locked memory. Since Linux 5.12 they do not always count
/// (README of liburing). On Linux 6.18 they were observed to count.
fn rings_are_locked_memory() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs");
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

/// Accepts clients and echoes. Waits when descriptors are used up, and counts these errors in `exhausted`.
async fn serve<R: Runtime>(mut listener: R::TcpListener, exhausted: Rc<Cell<u32>>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(R::spawn(echo(stream))),
            Err(error) if is_exhaustion(&error) => {
                exhausted.set(exhausted.get() + 1);
                R::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}"),
        }
    }
}

async fn pooled_echo(mut stream: impl OwnedRead + OwnedWriteExt, pool: Pool) -> io::Result<()> {
    loop {
        let buf = stream.read_pooled(&pool).await?;
        if buf.is_empty() {
            return Ok(());
        }
        stream.write_all(buf).await.into_result()?;
    }
}

fn clients(addr: SocketAddr) -> Peer {
    Peer::start(&format!("clients {addr}"))
}

/// Writes until three writes have failed. The peer does not read.
async fn write_until_it_fails(mut write: impl OwnedWrite, vectored: bool) {
    let mut failures = 0;
    // Bounded by the capacity of the buffers on the path.
    while failures < 3 {
        let block = vec![0x5a; 64 * 1024];
        let outcome = if vectored {
            let mut bufs = IoVec::new();
            bufs.push(block);
            write.write_vectored(bufs).await.0
        } else {
            write.write(block).await.0
        };
        failures += u32::from(outcome.is_err());
    }
}

async fn wait_until<R: Runtime>(what: &str, condition: impl Fn() -> bool) {
    let waited = within::<R, _>(2 * SOON, async {
        while !condition() {
            R::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(
        waited.await.is_some(),
        "expected {what} within {:?}; seen: it is still waited for",
        2 * SOON
    );
}

fn raise_descriptor_limit(needed: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    assert!(
        maximum.is_none_or(|maximum| maximum >= needed),
        "expected `ulimit -Hn` of at least {needed}; seen: {maximum:?}"
    );
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("up to the maximum");
}

fn limit_descriptors(current: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).expect("below it");
}

/// Whether the socket of this stream has `TCP_NODELAY`.
fn is_nodelay(stream: &impl TcpStream) -> bool {
    with_socket(stream, |socket| socket.tcp_nodelay().expect("a socket"))
}

/// Calls `look` with the socket of this stream. Finds it among the descriptors of this process by its addresses.
fn with_socket<T>(stream: &impl TcpStream, look: impl Fn(SockRef<'_>) -> T) -> T {
    let ends = [stream.local_addr(), stream.peer_addr()].map(|end| Some(end.expect("connected")));
    let this_process = pidfd_open(getpid(), PidfdFlags::empty()).expect("a descriptor is free");
    for entry in fs::read_dir("/proc/self/fd").expect("procfs") {
        let name = entry.expect("procfs").file_name();
        let fd = name.to_string_lossy().parse().expect("a descriptor");
        // Uses a copy, because the backend owns the descriptor.
        let copy = pidfd_getfd(&this_process, fd, PidfdGetfdFlags::empty()).expect("pidfd_getfd");
        let socket = SockRef::from(&copy);
        let here = [socket.local_addr(), socket.peer_addr()];
        if here.map(|end| end.ok().and_then(|end| end.as_socket())) == ends {
            return look(socket);
        }
    }
    panic!("expected a descriptor with the addresses {ends:?}; seen: none");
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// The CPU time of this process, user and system together.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("it is not negative")
}

/// Makes io_uring_setup(2) fail on this thread, permanently.
fn refuse_io_uring(errno: i32) {
    refuse(libc::SYS_io_uring_setup, errno, None);
}

/// Makes a system call fail on this thread, permanently. With `argument`, it fails only if the argument with that
/// number has that value.
fn refuse(syscall: i64, errno: i32, argument: Option<(u8, u64)>) {
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, apply_filter,
    };
    let refused = SeccompAction::Errno(errno.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into().expect("an architecture that seccomp knows");
    let rule = argument.map(|(number, value)| {
        let is_value =
            SeccompCondition::new(number, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value);
        SeccompRule::new(vec![is_value.expect("an argument")]).expect("a condition")
    });
    let rules = [(syscall, rule.into_iter().collect())].into();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
    let program: BpfProgram = filter.expect("a valid filter").try_into().expect("a small filter");
    apply_filter(&program).expect("seccomp");
}
