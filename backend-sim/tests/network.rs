//! The network between hosts: delays, buffer sizes, and the errors that are reported.

mod common;

use std::io::{self, ErrorKind};
use std::time::Duration;

use common::{
    PORT, connect, connected_hosts, echo, echo_once, fixed_latency, listen, millis, timed,
    with_echo_server,
};
use owned_io::{
    BufResult, ByteStream, Clock, ConnectOptions, Executor, ListenOptions, OwnedRead, OwnedReadExt,
    OwnedWrite, OwnedWriteExt, Tcp, TcpListener, TcpStream, is_exhaustion, select,
};
use owned_io_sim::{Fault, FaultPlan, Link, Sim, run, seeds};

const ETIMEDOUT: i32 = 110;

#[test]
fn an_exchange_takes_a_round_trip() {
    run(seeds(20), async |world| {
        let (_client, server, mut a, mut b) = connected_hosts(world).await?;
        let echoing = server.spawn(async move {
            let bytes = b.read_exact(Vec::with_capacity(4), 4).await.into_result()?.1;
            b.write_all(bytes).await.into_result().map(|_| b)
        });
        let (took, answer) = timed(echo_once(&mut a, b"ping")).await;
        assert_eq!(answer?, b"ping");
        assert!(millis(20) <= took && took < millis(22), "{took:?}");
        drop(echoing.await.expect("no panic")?);
        Ok(())
    });
}

#[test]
fn bytes_leave_at_the_bandwidth() {
    run(seeds(20), async |world| {
        with_echo_server(world, async move |client, server| {
            let mut link = Link::default();
            link.bandwidth = 1_000_000;
            world.link(&client, &server, link);
            let (mut read, mut write) = connect(&server).await?.into_split();
            let writing = Sim::spawn(async move {
                write.write_all(vec![7; 500_000]).await.into_result()?;
                write.shutdown().await
            });
            let (took, read) = timed(read.read_exact(Vec::with_capacity(500_000), 500_000)).await;
            writing.await.expect("no panic")?;
            assert!(millis(500) <= took && took < millis(700), "{took:?}");
            read.into_result().map(drop)
        })
        .await
    });
}

/// Accept queues overflow as on Linux: they hold one more than the backlog. Then the SYN is dropped, and sent again
/// after a second.
#[test]
fn a_full_backlog_drops_the_syn() {
    run(seeds(20), async |world| {
        let (client, server) = (world.host("client"), world.host("server"));
        world.link(&client, &server, fixed_latency(millis(10)));
        drop(server.spawn(async {
            let mut listener = listen(1)?;
            Sim::sleep(millis(500)).await;
            loop {
                drop(listener.accept().await?);
            }
            #[expect(unreachable_code, reason = "names the type")]
            Ok::<(), io::Error>(())
        }));
        let connecting = client.spawn(async move {
            Sim::sleep(millis(1)).await;
            for expected in [20, 20, 1_020] {
                let (took, stream) = timed(connect(&server)).await;
                stream?;
                let expected = millis(expected);
                assert!(expected <= took && took < expected + millis(2), "{took:?}");
            }
            Ok(())
        });
        connecting.await.expect("no panic")
    });
}

#[test]
fn a_refusal_takes_a_round_trip_and_silence_takes_the_timeout() {
    run(seeds(20), async |world| {
        let (client, server) = (world.host("client"), world.host("server"));
        world.link(&client, &server, fixed_latency(millis(10)));
        let connecting = client.spawn({
            let server = server.clone();
            async move {
                let (took, refused) = timed(connect(&server)).await;
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
                assert!(millis(20) <= took && took < millis(22), "{took:?}");
            }
        });
        connecting.await.expect("no panic");
        world.apply(Fault::Crash { host: server.clone(), down: Duration::MAX });
        let connecting = client.spawn(async move {
            let (took, silence) = timed(connect(&server)).await;
            assert_eq!(silence.unwrap_err().kind(), ErrorKind::TimedOut);
            assert!(millis(30_000) <= took && took < millis(30_002), "{took:?}");
            assert_eq!(world.host("other").descriptors(), 0);
        });
        connecting.await.expect("no panic");
        assert_eq!(client.descriptors(), 0, "given up");
        Ok(())
    });
}

#[test]
fn descriptors_run_out_and_come_back() {
    run(seeds(20), async |world| {
        let (client, server) = (world.host("client"), world.host("server"));
        world.link(&client, &server, fixed_latency(millis(1))); // so that connections arrive in order
        server.limit_descriptors(2); // a listener, and one connection
        client.limit_descriptors(2);
        let accepting = server.spawn(async {
            let mut listener = listen(1024)?;
            let (first, _) = listener.accept().await?;
            let error = listener.accept().await.expect_err("no descriptor is left");
            assert!(is_exhaustion(&error), "{error}");
            drop(first);
            listener.accept().await.map(|(mut second, _)| async move {
                second.write_all("second").await.into_result().map(drop)
            })
        });
        let connecting = client.spawn(async move {
            let _first = connect(&server).await?;
            let mut second = connect(&server).await?;
            let error = connect(&server).await.expect_err("no descriptor is left");
            assert!(is_exhaustion(&error), "{error}");
            let read = second.read_exact(Vec::with_capacity(6), 6).await.into_result()?;
            assert_eq!(read.1, b"second");
            Ok::<_, io::Error>(())
        });
        accepting.await.expect("no panic")?.await?;
        connecting.await.expect("no panic")?;
        assert_eq!((client.descriptors(), world.main_host().descriptors()), (0, 0));
        Ok(())
    });
}

/// The end that ends a connection first keeps its port for a minute.
#[test]
fn ports_run_out_and_come_back() {
    run(seeds(20), async |world| {
        with_echo_server(world, async move |client, server| {
            client.limit_ports(3);
            let mut streams = Vec::new();
            for _ in 0..3 {
                streams.push(connect(&server).await?);
            }
            let error = connect(&server).await.expect_err("no port is left");
            assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
            drop(streams);
            Sim::sleep(millis(59_000)).await;
            assert!(connect(&server).await.is_err(), "still kept");
            Sim::sleep(millis(2_000)).await;
            connect(&server).await.map(drop)
        })
        .await
    });
}

/// A server that ends a connection first leaves the client's port free.
#[test]
fn a_port_is_free_at_once_when_the_other_end_ended_first() {
    run(seeds(20), async |world| {
        let (client, server) = (world.host("client"), world.host("server"));
        client.limit_ports(1);
        server.start(async || {
            let mut listener = listen(8)?;
            loop {
                drop(listener.accept().await?);
            }
        });
        let connecting = client.spawn(async move {
            for _ in 0..3 {
                let mut stream = connect(&server).await?;
                assert_eq!(stream.read(Vec::with_capacity(1)).await.0?, 0);
            }
            Ok(())
        });
        connecting.await.expect("no panic")
    });
}

/// A writer can fill the buffers, and then waits for a read. It learns of the read after the latency of the link.
#[test]
fn a_reader_that_does_not_read_stops_the_writer() {
    run(seeds(20), async |world| {
        let (client, _server, mut a, mut b) = connected_hosts(world).await?;
        let writing = client.spawn(async move {
            let mut written = 0;
            loop {
                let write = std::pin::pin!(a.write(vec![1; 10_000]));
                match select(write, Sim::sleep(millis(1_000))).await.first {
                    Some(BufResult(n, _)) => written += n?,
                    None => break,
                }
            }
            assert!((64 * 1024..2 * 64 * 1024).contains(&written), "{written}");
            Ok::<_, io::Error>(a)
        });
        let a = writing.await.expect("no panic")?;
        let mut read = 0;
        while let BufResult(Ok(n @ 1..), _) = b.read(Vec::with_capacity(1 << 20)).await {
            read += n;
            if read >= 64 * 1024 {
                break;
            }
        }
        drop(a);
        Ok(())
    });
}

#[test]
fn each_direction_ends_alone() {
    run(seeds(20), async |world| {
        let (_client, _server, mut a, mut b) = connected_hosts(world).await?;
        a.write_all("question").await.into_result()?;
        a.shutdown().await?;
        let question = b.read_exact(Vec::with_capacity(8), 8).await.into_result()?.1;
        assert_eq!((b.read(Vec::with_capacity(8)).await.0?, &question[..]), (0, &b"question"[..]));
        b.write_all("answer").await.into_result()?;
        drop(b);
        assert_eq!(a.read_exact(Vec::with_capacity(6), 6).await.into_result()?.1, b"answer");
        assert_eq!(a.read(Vec::with_capacity(8)).await.0?, 0);
        assert_eq!(a.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
        Ok(())
    });
}

#[test]
fn unread_bytes_reset_and_so_does_writing_to_a_closed_end() {
    run(seeds(20), async |world| {
        let (_client, _server, mut a, b) = connected_hosts(world).await?;
        a.write_all("never read").await.into_result()?;
        Sim::sleep(millis(15)).await;
        drop(b);
        let (took, BufResult(result, _)) = timed(a.read(Vec::with_capacity(8))).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(millis(9) <= took && took < millis(11), "{took:?}");
        assert_eq!(a.read(Vec::with_capacity(8)).await.0?, 0, "told once");

        let server = world.host("second server");
        let accepted = server.spawn(async { listen(8)?.accept().await });
        let mut a = connect(&server).await?;
        drop(accepted.await.expect("no panic")?);
        Sim::sleep(millis(5)).await;
        a.write_all("into the void").await.into_result()?;
        Sim::sleep(millis(5)).await;
        assert_eq!(a.write("again").await.0.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(a.read(Vec::with_capacity(8)).await.0?, 0, "it had ended before");
        Ok(())
    });
}

/// Writing on a half-open connection finds out that the other end has forgotten it.
#[test]
fn a_peer_that_lost_its_power_answers_with_a_reset_once_it_is_up() {
    run(seeds(20), async |world| {
        let (_client, server, mut a, b) = connected_hosts(world).await?;
        world.apply(Fault::Crash { host: server, down: millis(5_000) });
        drop(b); // its host is down, so nobody is told
        a.write_all("anybody?").await.into_result()?;
        let (took, BufResult(result, _)) = timed(a.read(Vec::with_capacity(8))).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(millis(5_000) <= took && took < millis(8_000), "{took:?}");
        Ok(())
    });
}

#[test]
fn a_connection_fails_when_nothing_arrives_for_a_quarter_of_an_hour() {
    run(seeds(5), async |world| {
        let (client, server, mut a, b) = connected_hosts(world).await?;
        let lasts = Duration::from_secs(3_600);
        world.apply(Fault::Partition { a: client, b: server, lasts });
        a.write_all("anybody?").await.into_result()?;
        let (took, BufResult(result, _)) = timed(a.read(Vec::with_capacity(8))).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(ETIMEDOUT));
        assert!(millis(924_600) <= took && took < millis(924_700), "{took:?}");
        drop(b);
        Ok(())
    });
}

/// Bytes that nobody acknowledges stay in the writer's buffers, which do not grow.
#[test]
fn writing_to_a_peer_that_lost_its_power_waits() {
    run(seeds(5), async |world| {
        let (client, server, mut a, b) = connected_hosts(world).await?;
        let writing = client.spawn(async move {
            a.write_all(vec![1; 1_000]).await.into_result()?;
            world.apply(Fault::Crash { host: server, down: Duration::MAX });
            let mut written = 1_000;
            let started = Sim::now();
            loop {
                match a.write(vec![1; 10_000]).await.0 {
                    Ok(n) => written += n,
                    Err(error) => break io::Result::Ok((Sim::now() - started, written, error)),
                }
                assert!(written <= 64 * 1024, "{written}");
            }
        });
        let (took, written, error) = writing.await.expect("no panic")?;
        assert_eq!((written, error.raw_os_error()), (64 * 1024, Some(ETIMEDOUT)));
        assert!(millis(924_600) <= took && took < millis(924_700), "{took:?}");
        drop(b);
        Ok(())
    });
}

/// A host that is up again knows of no connection, and answers each segment, bytes or end, with a reset. If the reset
/// is lost, the segment is sent again, and so is the reset.
#[test]
fn a_lost_reset_is_sent_again() {
    for is_end in [false, true] {
        run(seeds(20), async |world| {
            let (client, server, mut a, b) = connected_hosts(world).await?;
            world.apply(Fault::Crash { host: server.clone(), down: millis(1) });
            Sim::sleep(millis(5)).await;
            let cut = Fault::Partition { a: client, b: server, lasts: millis(100) };
            world.inject(FaultPlan::new().at(millis(15), cut)); // while the answer is in flight
            if is_end {
                a.shutdown().await?;
            } else {
                a.write_all("anybody?").await.into_result()?;
            }
            let (took, BufResult(result, _)) = timed(a.read(Vec::with_capacity(8))).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(millis(229) <= took && took < millis(231), "{took:?}");
            drop(b);
            Ok(())
        });
    }
}

#[test]
fn a_syn_without_answer_is_sent_seven_times() {
    run(seeds(5), async |world| {
        let server = world.host("server");
        world.apply(Fault::Crash { host: server.clone(), down: Duration::MAX });
        let mut patient = ConnectOptions::new(server.at(PORT));
        patient.timeout = Duration::MAX;
        let (took, silence) = timed(Sim::connect(patient)).await;
        assert_eq!(silence.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(millis(127_000) <= took && took < millis(127_001), "{took:?}"); // tcp(7)
        assert_eq!(world.trace().matches("connects to port 7").count(), 7);
        Ok(())
    });
}

/// The server's answer to the SYN is lost. Before the next SYN arrives the server has forgotten its answer: its host
/// was down, or its listener is gone.
#[test]
fn a_server_that_forgot_a_client_answers_it_again() {
    for listens_again in [true, false] {
        run(seeds(20), async |world| {
            let (client, server) = (world.host("client"), world.host("server"));
            world.link(&client, &server, fixed_latency(millis(10)));
            let listening = server.spawn(async {
                let listener = listen(8);
                Sim::sleep(millis(100)).await;
                drop(listener);
            });
            let (a, b, lasts) = (client.clone(), server.clone(), millis(10));
            let script = FaultPlan::new()
                .at(millis(15), Fault::Partition { a, b, lasts })
                .at(millis(200), Fault::Crash { host: server.clone(), down: millis(10) });
            world.inject(script);
            let connecting = client.spawn({
                let server = server.clone();
                async move { timed(connect(&server)).await }
            });
            listening.await.expect("no panic");
            if listens_again {
                server.start(echo);
            }
            let (took, stream) = connecting.await.expect("no panic");
            assert!(millis(1_020) <= took && took < millis(1_022), "{took:?}");
            if listens_again {
                assert_eq!(echo_once(&mut stream?, b"anew").await?, b"anew");
            } else {
                assert_eq!(stream.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            }
            Ok(())
        });
    }
}

/// A client that is connected but then vanishes keeps its slot in the accept queue for half a minute.
#[test]
fn a_client_that_vanishes_in_the_handshake_is_forgotten() {
    run(seeds(20), async |world| {
        let hosts = ["client", "other", "server"].map(|name| world.host(name));
        let [client, other, server] = hosts.clone();
        for near in [&client, &other] {
            world.link(near, &server, fixed_latency(millis(10)));
        }
        let serving = server.spawn(async {
            let mut listener = listen(0)?; // one slot
            listener.accept().await.map(|(stream, _)| (listener, stream))
        });
        let (a, b, lasts) = (client.clone(), server.clone(), millis(60_000));
        world.inject(FaultPlan::new().at(millis(25), Fault::Partition { a, b, lasts }));
        let connected = client.spawn(async move { connect(&hosts[2]).await });
        let mut connected = connected.await.expect("no panic")?;
        let mut patient = ConnectOptions::new(server.at(PORT));
        patient.timeout = millis(100_000);
        let connecting = other.spawn(async move { timed(Sim::connect(patient)).await });
        let (took, second) = connecting.await.expect("no panic");
        drop(second?);
        // The SYN comes again after 1, 3, 7, 15, 31 and 63 s; the slot is free after 31.
        assert!(millis(31_000) <= took && took < millis(64_000), "{took:?}");
        drop(serving.await.expect("no panic")?);
        Sim::sleep(millis(60_000)).await;
        connected.write_all("still there").await.into_result()?;
        let told = connected.read(Vec::with_capacity(8)).await.0;
        assert_eq!(told.unwrap_err().kind(), ErrorKind::ConnectionReset);
        Ok(())
    });
}

#[test]
fn addresses_are_those_of_hosts() {
    run(seeds(3), async |world| {
        let (one, other) = (world.host("one"), world.host("other"));
        let bind = |addr| one.spawn(async move { Sim::bind(ListenOptions::new(addr)) });
        let (own, foreign) = (bind(one.at(PORT)).await, bind(other.at(PORT)).await);
        assert!(own.expect("no panic").is_ok());
        let foreign = foreign.expect("no panic");
        assert_eq!(foreign.unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        let mut foreign = ConnectOptions::new(one.at(PORT));
        foreign.local_addr = Some(other.at(0));
        let foreign = one.spawn(Sim::connect(foreign)).await.expect("no panic");
        assert_eq!(foreign.unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        // Both may listen on all of their own addresses.
        one.start(echo);
        other.start(echo);
        for host in [one, other] {
            let mut stream = connect(&host).await?;
            assert_eq!(echo_once(&mut stream, b"here").await?, b"here");
            assert_eq!(stream.peer_addr()?.ip(), host.ip());
        }
        let every = Sim::bind(ListenOptions::new(([0, 0, 0, 0], PORT).into()))?;
        for taken in [[127, 0, 0, 1], [0, 0, 0, 0]] {
            let again = Sim::bind(ListenOptions::new((taken, PORT).into()));
            assert_eq!(again.unwrap_err().kind(), ErrorKind::AddrInUse);
        }
        drop(every);
        assert!(Sim::bind(ListenOptions::new(([127, 0, 0, 1], PORT).into())).is_ok());
        let nobody = Sim::connect(ConnectOptions::new(([192, 0, 2, 1], PORT).into())).await;
        assert_eq!(nobody.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        Ok(())
    });
}
