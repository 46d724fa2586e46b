//! Cases about addresses, listeners and connections.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::support::{
    A_WHILE, SOON, accept_and_expect_yields, connect, count_runs, echo, echoed, expect_closed,
    expect_error, expect_pending, listener, loopback, pair, read_to_end, reset_stream, soon,
    within,
};
use crate::{
    ACCEPT_BATCH_MAX, AddrError, ByteStream, ConnectOptions, OwnedRead, OwnedReadExt, OwnedWrite,
    OwnedWriteExt, Runtime, TcpListener, TcpStream,
};

/// "The address, with the real port."
pub async fn bind_reports_the_real_port<R: Runtime>() {
    let bound = R::bind(loopback()).unwrap();
    assert_ne!(bound.local_addr().port(), 0, "expected a real port");
    let mut listener = R::listen(&bound).unwrap();
    assert_eq!(listener.local_addr().unwrap(), bound.local_addr());
    let client = connect::<R>(bound.local_addr()).await;
    let (server, _) = listener.accept().await.unwrap();
    assert_eq!(client.peer_addr().unwrap(), bound.local_addr());
    assert_eq!(server.local_addr().unwrap(), bound.local_addr());
}

/// "`AddrInUse`: another socket listens on the address, or holds it by a `bind` like this", with or without a
/// listener.
pub async fn bind_refuses_an_address_in_use<R: Runtime>() {
    let first = R::bind(loopback()).unwrap();
    let mut again = loopback();
    again.addr = first.local_addr();
    let refused = |what: &str| {
        let Err(error) = R::bind(again.clone()) else {
            panic!("expected the error AddrInUse for an address that is {what}; seen: success");
        };
        assert_eq!(error.kind(), ErrorKind::AddrInUse, "the address is {what}");
        expect_named(&error, again.addr);
    };
    refused("bound");
    let _listener = R::listen(&first).unwrap();
    refused("bound and listened on");
    drop(first);
    refused("listened on");
}

/// "The address is held until the last clone is dropped", and also while a listener exists.
pub async fn bind_holds_the_address_until_dropped<R: Runtime>() {
    let first = R::bind(loopback()).unwrap();
    let mut again = loopback();
    again.addr = first.local_addr();
    let (clone, listener) = (first.clone(), R::listen(&first).unwrap());
    for held in [Box::new(first) as Box<dyn std::any::Any>, Box::new(listener)] {
        drop(held);
        R::sleep(A_WHILE).await;
        expect_error(R::bind(again.clone()), ErrorKind::AddrInUse);
    }
    drop(clone);
    let bound = soon::<R, _>("the address is free", async {
        loop {
            match R::bind(again.clone()) {
                Ok(bound) => return bound,
                Err(error) => assert_eq!(error.kind(), ErrorKind::AddrInUse),
            }
            R::sleep(A_WHILE).await;
        }
    });
    assert_eq!(bound.await.local_addr(), again.addr);
}

/// "Connections are refused until a worker listens on it."
pub async fn bound_but_not_listening_refuses<R: Runtime>() {
    let bound = R::bind(loopback()).unwrap();
    let connect = soon::<R, _>("the refusal", R::connect(ConnectOptions::new(bound.local_addr())));
    expect_error(connect.await, ErrorKind::ConnectionRefused);
}

/// "Each worker has its own listener, and the kernel distributes clients over the listeners": every client
/// reaches one of them.
pub async fn listeners_share_an_address<R: Runtime>() {
    const CLIENTS: usize = 64;
    let bound = R::bind(loopback()).unwrap();
    let accepted = Rc::new(Cell::new(0));
    for _ in 0..2 {
        let mut listener = R::listen(&bound).unwrap();
        let accepted = Rc::clone(&accepted);
        drop(R::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                accepted.set(accepted.get() + 1);
                drop(R::spawn(echo(stream)));
            }
        }));
    }
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = connect::<R>(bound.local_addr()).await;
        let answer = soon::<R, _>("an echo", echoed(&mut client, b"who is there?"));
        assert_eq!(answer.await, b"who is there?");
        clients.push(client);
    }
    assert_eq!(accepted.get(), CLIENTS, "the number of clients that were accepted");
}

/// A dropped listener no longer listens, even if an accept was dropped before.
pub async fn a_dropped_listener_refuses<R: Runtime>() {
    let (mut listener, addr) = listener::<R>(loopback());
    expect_pending::<R>("an accept", listener.accept()).await;
    drop(listener);
    let refused = soon::<R, _>("the refusal", async {
        // Until the runtime has closed the socket, connections may still succeed, and are then reset.
        loop {
            match R::connect(ConnectOptions::new(addr)).await {
                Ok(mut stream) => expect_closed::<R>(&mut stream).await,
                Err(error) => return error,
            }
        }
    });
    assert_eq!(refused.await.kind(), ErrorKind::ConnectionRefused);
}

/// `accept` returns the connection and the peer's address.
pub async fn accept_reports_the_peer<R: Runtime>() {
    let (mut listener, addr) = listener::<R>(loopback());
    let client = connect::<R>(addr).await;
    let (server, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(peer, server.peer_addr().unwrap());
}

/// "Safe: a dropped accept has taken no client."
pub async fn dropped_accept_loses_no_client<R: Runtime>() {
    const CLIENTS: usize = 20;
    let (mut listener, addr) = listener::<R>(loopback());
    for _ in 0..CLIENTS {
        expect_pending::<R>("an accept", listener.accept()).await;
    }
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(connect::<R>(addr).await);
    }
    // Each accept is polled once and dropped: it returned a client, or left it in the queue.
    let mut accepted = 0;
    for _ in 0..CLIENTS {
        let mut accept = pin!(listener.accept());
        let polled = poll_fn(|cx| Poll::Ready(accept.as_mut().poll(cx))).await;
        if let Poll::Ready(outcome) = polled {
            outcome.unwrap();
            accepted += 1;
        }
    }
    for _ in accepted..CLIENTS {
        soon::<R, _>("a client", listener.accept()).await.unwrap();
    }
    expect_pending::<R>("a further accept", listener.accept()).await;
}

/// "It yields to other tasks after at most `ACCEPT_BATCH_MAX` clients": it returns at most that many in a row,
/// and then waits while other tasks run.
pub async fn accept_lets_others_run<R: Runtime>() {
    const CLIENTS: u32 = 3 * ACCEPT_BATCH_MAX;
    let (mut listener, addr) = listener::<R>(loopback());
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(connect::<R>(addr).await);
    }
    let runs = count_runs::<R>();
    let (mut streams, mut in_a_row) = (Vec::new(), 0);
    let mut last_run = (0, 0);
    for client in 0..CLIENTS {
        let mut accept = pin!(listener.accept());
        let accepted = poll_fn(|cx| {
            let polled = accept.as_mut().poll(cx);
            if polled.is_pending() {
                in_a_row = 0;
            }
            polled
        });
        streams.push(accepted.await.unwrap());
        in_a_row += 1;
        assert!(
            in_a_row <= ACCEPT_BATCH_MAX,
            "expected at most {ACCEPT_BATCH_MAX} clients in a row, each without a wait; seen: \
             {in_a_row}"
        );
        if runs.get() != last_run.1 {
            last_run = (client, runs.get());
        }
        // Other tasks may run at the end of one wait and at the start of the one after the next.
        let without_a_run = client - last_run.0;
        assert!(
            without_a_run <= 2 * ACCEPT_BATCH_MAX,
            "expected another task to run within {} accepts; seen: it did not in {without_a_run}",
            2 * ACCEPT_BATCH_MAX
        );
    }
}

/// "It yields to other tasks […] after an error": the next accept waits. Linux accepts clients that are gone, so a case
/// of `os` has its errors there.
pub async fn accept_yields_after_an_error<R: Runtime>() {
    const CLIENTS: u32 = ACCEPT_BATCH_MAX / 2;
    let (mut listener, addr) = listener::<R>(loopback());
    for _ in 0..CLIENTS {
        connect::<R>(addr).await.shutdown_handle().abort();
    }
    R::sleep(A_WHILE).await;
    let last = connect::<R>(addr).await; // a listener that performs a handshake may return no other
    let addr = last.local_addr().unwrap();
    accept_and_expect_yields::<R>(&mut listener, CLIENTS + 1, Some(addr)).await;
}

/// "Busy connections do not starve it."
pub async fn accept_is_fair_while_connections_are_busy<R: Runtime>() {
    const BUSY: usize = if cfg!(miri) { 5 } else { 100 };
    const CLIENTS: usize = BUSY;
    let (mut listener, addr) = listener::<R>(loopback());
    drop(R::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            drop(R::spawn(echo(stream)));
        }
    }));
    for _ in 0..BUSY {
        let mut client = connect::<R>(addr).await;
        drop(R::spawn(async move {
            loop {
                echoed(&mut client, &[7; 200]).await;
            }
        }));
    }
    // Under the address sanitizer they take three seconds.
    let all = within::<R, _>(3 * SOON, async {
        for _ in 0..CLIENTS {
            let mut client = connect::<R>(addr).await;
            assert_eq!(echoed(&mut client, b"new").await, b"new");
        }
    });
    assert!(
        all.await.is_some(),
        "expected {CLIENTS} new connections next to as many busy ones within {:?}; seen: fewer",
        3 * SOON
    );
}

/// "`ConnectionRefused`", with an `AddrError` inside that names the address and keeps the OS error code.
pub async fn connect_refused_names_the_address<R: Runtime>() {
    let bound = R::bind(loopback()).unwrap(); // held, so that no other socket listens there
    let addr = bound.local_addr();
    let connected = R::connect(ConnectOptions::new(addr)).await;
    let error = expect_error(connected, ErrorKind::ConnectionRefused);
    expect_named(&error, addr);
    let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<AddrError>()) else {
        panic!("expected an `AddrError` inside of the error; seen: {error:?}");
    };
    assert_eq!((inner.addr(), inner.cause().kind()), (addr, ErrorKind::ConnectionRefused));
    assert_eq!(inner.cause().raw_os_error(), Some(111));
    let (text, cause) = (error.to_string(), inner.cause().to_string());
    assert!(text.contains(&cause), "expected a text with \"{cause}\"; seen: \"{text}\"");
}

/// "`TimedOut` after `ConnectOptions::timeout`."
pub async fn connect_times_out<R: Runtime>() {
    let mut options = loopback();
    options.backlog = 1;
    let (_listener, addr) = listener::<R>(options);
    let mut connect = ConnectOptions::new(addr);
    connect.timeout = Duration::from_millis(200);
    let mut clients = Vec::new();
    // Bounded: a queue of one takes two clients, and about two more whose SYN is not answered yet.
    for _ in 0..16 {
        let started = R::now();
        match soon::<R, _>("the end of the attempt", R::connect(connect.clone())).await {
            Ok(client) => clients.push(client),
            Err(error) => {
                expect_named(&error, addr);
                expect_error::<()>(Err(error), ErrorKind::TimedOut);
                let took = R::now() - started;
                assert!(
                    (connect.timeout..SOON).contains(&took),
                    "expected the attempt to end after {:?}; seen: it took {took:?}",
                    connect.timeout
                );
                return;
            }
        }
    }
    panic!("expected a connect to time out at a queue of one; seen: sixteen clients connected");
}

/// "Safe: the attempt ends": other attempts, earlier or later, are not affected.
pub async fn connect_may_be_dropped<R: Runtime>() {
    let (mut listener, addr) = listener::<R>(loopback());
    for _ in 0..20 {
        let mut connect = pin!(R::connect(ConnectOptions::new(addr)));
        let polled = poll_fn(|cx| Poll::Ready(connect.as_mut().poll(cx))).await;
        drop(polled.map(|connected| connected.expect("expected to connect")));
    }
    let mut client = connect::<R>(addr).await;
    let peer = client.local_addr().unwrap();
    // Dropped attempts may already be in the accept queue.
    let served = soon::<R, _>("the client", async {
        loop {
            let (stream, from) = listener.accept().await.unwrap();
            if from == peer {
                return stream;
            }
        }
    });
    drop(R::spawn(echo(served.await)));
    assert_eq!(echoed(&mut client, b"still here").await, b"still here");
}

/// A connect accepts the longest possible time limits.
pub async fn connect_timeout_may_be_endless<R: Runtime>() {
    let (_listener, addr) = listener::<R>(loopback());
    for timeout in [Duration::MAX, Duration::from_millis(u64::MAX)] {
        let mut options = ConnectOptions::new(addr);
        options.timeout = timeout;
        soon::<R, _>("to connect", R::connect(options)).await.unwrap();
    }
}

/// "The local address, which selects an interface."
pub async fn connect_uses_the_requested_local_address<R: Runtime>() {
    let (mut listener, addr) = listener::<R>(loopback());
    let mut options = ConnectOptions::new(addr);
    options.local_addr = Some(([127, 0, 0, 2], 0).into());
    let client = R::connect(options).await.unwrap();
    let (_server, peer) = listener.accept().await.unwrap();
    assert_eq!(peer.ip().to_string(), "127.0.0.2", "the address of the client");
    assert_eq!(client.local_addr().unwrap(), peer);
}

/// "`NotConnected` once the connection is closed: reset, or ended by both sides."
pub async fn peer_addr_reports_a_closed_connection<R: Runtime>() {
    let (mut a, mut b) = pair::<R>().await;
    a.shutdown().await.unwrap();
    R::sleep(A_WHILE).await;
    assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap(), "one side is still open");
    assert_eq!(b.peer_addr().unwrap(), a.local_addr().unwrap(), "one side is still open");
    b.shutdown().await.unwrap();
    R::sleep(A_WHILE).await;
    for gone in [a, b, reset_stream::<R>().await] {
        let error = expect_error(gone.peer_addr(), ErrorKind::NotConnected);
        assert_eq!(error.raw_os_error(), Some(107), "the OS error code of {error:?}");
    }
}

/// "Dropping it closes the connection."
pub async fn a_dropped_stream_closes<R: Runtime>() {
    let (a, mut b) = pair::<R>().await;
    drop(a);
    expect_closed::<R>(&mut b).await;
}

/// "Dropping both halves does the same. Dropping one half does nothing."
pub async fn dropping_both_halves_closes<R: Runtime>() {
    let (a, mut b) = pair::<R>().await;
    let (mut read, write) = a.into_split();
    drop(write);
    let peers_read = b.read(Vec::with_capacity(1));
    expect_pending::<R>("a read of the peer, while the read half lives,", peers_read).await;
    drop(b);
    expect_closed::<R>(&mut read).await;

    let (a, b) = pair::<R>().await;
    let (read, mut write) = a.into_split();
    drop(read);
    R::sleep(A_WHILE).await;
    write.write_all("still open").await.into_result().unwrap();
    let (mut b_read, b_write) = b.into_split();
    let received = OwnedReadExt::read_exact(&mut b_read, Vec::with_capacity(10), 10).await;
    assert_eq!(received.into_result().unwrap().1, b"still open");
    drop((write, b_write));
    expect_closed::<R>(&mut b_read).await;
}

/// "If received bytes were not read, the peer sees a reset", so it learns that they were not (RFC 2525 2.17).
pub async fn a_peer_that_drops_unread_bytes_resets<R: Runtime>() {
    let (mut a, b) = pair::<R>().await;
    a.write_all("never read").await.into_result().unwrap();
    R::sleep(A_WHILE).await;
    drop(b);
    let read = soon::<R, _>("the reset", a.read(Vec::with_capacity(8)));
    expect_error(read.await.0, ErrorKind::ConnectionReset);
}

/// `drops_cleanly`: "The peer reads what was written, and then the end of the stream. False while received bytes are
/// unread." It may always be false.
pub async fn a_drop_is_clean_if_it_is_said_to_be<R: Runtime>() {
    for is_unread in [false, true] {
        let (mut a, mut b) = pair::<R>().await;
        a.write_all("to be read").await.into_result().unwrap();
        R::sleep(A_WHILE).await;
        if !is_unread {
            b.read_exact(Vec::with_capacity(10), 10).await.into_result().unwrap();
        }
        b.write_all("last").await.into_result().unwrap();
        let handle = b.shutdown_handle();
        let is_clean = handle.drops_cleanly();
        assert!(
            !(is_clean && is_unread),
            "expected no clean drop while bytes are unread; seen: it is said to be one"
        );
        drop(b);
        assert!(!handle.drops_cleanly(), "expected false after the drop; seen: true");
        if is_clean {
            let read = soon::<R, _>("the end of the stream", read_to_end(&mut a)).await;
            assert_eq!(read, b"last", "the bytes that were written before the drop");
        }
    }
}

/// Panics unless the text of `error` contains `addr`.
#[track_caller]
fn expect_named(error: &std::io::Error, addr: std::net::SocketAddr) {
    let text = error.to_string();
    assert!(text.contains(&addr.to_string()), "expected an error that names {addr}; seen: {text}");
}
