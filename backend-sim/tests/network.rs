//! The network between hosts: how long things take, what fits in, and what is told.

mod common;

use std::io::{self, ErrorKind};
use std::time::Duration;

use common::{PORT, apart, beside_echo, connect, echo, echoed, exactly, listen, millis, timed};
use owned_io::{
    BufResult, ByteStream, Clock, ConnectOptions, Executor, ListenOptions, OwnedRead, OwnedReadExt,
    OwnedWrite, OwnedWriteExt, Tcp, TcpListener, TcpStream, beside, is_exhaustion,
};
use owned_io_sim::{Fault, Link, Plan, Sim, run, seeds};

const ETIMEDOUT: i32 = 110;

#[test]
fn an_exchange_takes_a_round_trip() {
    run(seeds(20), async |world| {
        let (_client, server, mut a, mut b) = apart(world).await?;
        let echoing = server.spawn(async move {
            let bytes = b.read_exact(Vec::with_capacity(4), 4).await.into_result()?.1;
            b.write_all(bytes).await.into_result().map(|_| b)
        });
        let (took, answer) = timed(echoed(&mut a, b"ping")).await;
        assert_eq!(answer?, b"ping");
        assert!(millis(20) <= took && took < millis(22), "{took:?}");
        drop(echoing.await.expect("no panic")?);
        Ok(())
    });
}

#[test]
fn bytes_leave_at_the_bandwidth() {
    run(seeds(20), async |world| {
        beside_echo(world, async move |client, server| {
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

/// Accept queues overflow as on Linux: a place more than the backlog, and then the SYN is dropped, and
/// sent again after a second.
#[test]
fn a_full_backlog_drops_the_syn() {
    run(seeds(20), async |world| {
        let (client, server) = (world.host("client"), world.host("server"));
        world.link(&client, &server, exactly(millis(10)));
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
        world.link(&client, &server, exactly(millis(10)));
        let connecting = client.spawn({
            let server = server.clone();
            async move {
                let (took, refused) = timed(connect(&server)).await;
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
                assert!(millis(20) <= took && took < millis(22), "{took:?}");
            }
        });
        connecting.await.expect("no panic");
        world.strike(Fault::Crash { host: server.clone(), down: Duration::MAX });
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
        world.link(&client, &server, exactly(millis(1))); // so that they come in order
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

/// Who ends first keeps its port for a minute.
#[test]
fn ports_run_out_and_come_back() {
    run(seeds(20), async |world| {
        beside_echo(world, async move |client, server| {
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

/// It is the client that has to keep it: a server that ends first leaves the client's port free.
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

/// What the buffers hold can be written, and no more until it is read; the writer learns of that after
/// the way back.
#[test]
fn a_reader_that_does_not_read_stops_the_writer() {
    run(seeds(20), async |world| {
        let (client, _server, mut a, mut b) = apart(world).await?;
        let writing = client.spawn(async move {
            let mut written = 0;
            loop {
                let write = std::pin::pin!(a.write(vec![1; 10_000]));
                match beside(write, Sim::sleep(millis(1_000))).await.pinned {
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
        let (_client, _server, mut a, mut b) = apart(world).await?;
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
fn unread_bytes_reset_and_so_does_writing_to_who_is_gone() {
    run(seeds(20), async |world| {
        let (_client, _server, mut a, b) = apart(world).await?;
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

/// Half a connection that the other end has forgotten is found by writing to it.
#[test]
fn a_peer_that_lost_its_power_answers_with_a_reset_once_it_is_up() {
    run(seeds(20), async |world| {
        let (_client, server, mut a, b) = apart(world).await?;
        world.strike(Fault::Crash { host: server, down: millis(5_000) });
        drop(b); // which nobody hears of
        a.write_all("anybody?").await.into_result()?;
        let (took, BufResult(result, _)) = timed(a.read(Vec::with_capacity(8))).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(millis(5_000) <= took && took < millis(8_000), "{took:?}");
        Ok(())
    });
}

#[test]
fn what_never_arrives_is_given_up_after_a_quarter_of_an_hour() {
    run(seeds(5), async |world| {
        let (client, server, mut a, b) = apart(world).await?;
        let lasts = Duration::from_secs(3_600);
        world.strike(Fault::Partition { a: client, b: server, lasts });
        a.write_all("anybody?").await.into_result()?;
        let (took, BufResult(result, _)) = timed(a.read(Vec::with_capacity(8))).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(ETIMEDOUT));
        assert!(millis(924_600) <= took && took < millis(924_700), "{took:?}");
        drop(b);
        Ok(())
    });
}

/// What nobody acknowledges stays in the writer's buffers, which are as large as ever.
#[test]
fn who_writes_to_a_peer_that_lost_its_power_has_to_wait() {
    run(seeds(5), async |world| {
        let (client, server, mut a, b) = apart(world).await?;
        let writing = client.spawn(async move {
            a.write_all(vec![1; 1_000]).await.into_result()?;
            world.strike(Fault::Crash { host: server, down: Duration::MAX });
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

/// A host that is up again knows of no connection, and says so to whatever comes: bytes, or the end. If the
/// answer is lost, what it answers is sent again, and so is it.
#[test]
fn an_answer_that_is_lost_comes_again() {
    for is_end in [false, true] {
        run(seeds(20), async |world| {
            let (client, server, mut a, b) = apart(world).await?;
            world.strike(Fault::Crash { host: server.clone(), down: millis(1) });
            Sim::sleep(millis(5)).await;
            let cut = Fault::Partition { a: client, b: server, lasts: millis(100) };
            world.inject(Plan::new().at(millis(15), cut)); // with the answer under way
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
        world.strike(Fault::Crash { host: server.clone(), down: Duration::MAX });
        let mut patient = ConnectOptions::new(server.at(PORT));
        patient.timeout = Duration::MAX;
        let (took, silence) = timed(Sim::connect(patient)).await;
        assert_eq!(silence.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(millis(127_000) <= took && took < millis(127_001), "{took:?}"); // tcp(7)
        assert_eq!(world.trace().matches("connects to port 7").count(), 7);
        Ok(())
    });
}

/// The server's answer to the SYN is lost, and before the next one comes the server has forgotten that it
/// ever answered: because its host was down, or because it does not listen any more.
#[test]
fn a_server_that_forgot_a_client_meets_it_anew() {
    for is_there_again in [true, false] {
        run(seeds(20), async |world| {
            let (client, server) = (world.host("client"), world.host("server"));
            world.link(&client, &server, exactly(millis(10)));
            let listening = server.spawn(async {
                let listener = listen(8);
                Sim::sleep(millis(100)).await;
                drop(listener);
            });
            let (a, b, lasts) = (client.clone(), server.clone(), millis(10));
            let script = Plan::new()
                .at(millis(15), Fault::Partition { a, b, lasts })
                .at(millis(200), Fault::Crash { host: server.clone(), down: millis(10) });
            world.inject(script);
            let connecting = client.spawn({
                let server = server.clone();
                async move { timed(connect(&server)).await }
            });
            listening.await.expect("no panic");
            if is_there_again {
                server.start(echo);
            }
            let (took, stream) = connecting.await.expect("no panic");
            assert!(millis(1_020) <= took && took < millis(1_022), "{took:?}");
            if is_there_again {
                assert_eq!(echoed(&mut stream?, b"anew").await?, b"anew");
            } else {
                assert_eq!(stream.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            }
            Ok(())
        });
    }
}

/// A client that knows it is connected, but is not heard of again, keeps its place in the accept queue for
/// half a minute.
#[test]
fn a_client_that_vanishes_in_the_handshake_is_forgotten() {
    run(seeds(20), async |world| {
        let hosts = ["client", "other", "server"].map(|name| world.host(name));
        let [client, other, server] = hosts.clone();
        for near in [&client, &other] {
            world.link(near, &server, exactly(millis(10)));
        }
        let serving = server.spawn(async {
            let mut listener = listen(0)?; // one place
            listener.accept().await.map(|(stream, _)| (listener, stream))
        });
        let (a, b, lasts) = (client.clone(), server.clone(), millis(60_000));
        world.inject(Plan::new().at(millis(25), Fault::Partition { a, b, lasts }));
        let connected = client.spawn(async move { connect(&hosts[2]).await });
        let mut connected = connected.await.expect("no panic")?;
        let mut patient = ConnectOptions::new(server.at(PORT));
        patient.timeout = millis(100_000);
        let connecting = other.spawn(async move { timed(Sim::connect(patient)).await });
        let (took, second) = connecting.await.expect("no panic");
        drop(second?);
        // Asked for again after 1, 3, 7, 15, 31 and 63 s, and free after 31.
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
        // Both may listen on all of their own.
        one.start(echo);
        other.start(echo);
        for host in [one, other] {
            let mut stream = connect(&host).await?;
            assert_eq!(echoed(&mut stream, b"here").await?, b"here");
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
