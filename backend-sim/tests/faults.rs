//! Each kind of fault, and plans of faults.

mod common;

use std::cell::Cell;
use std::future::pending;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use common::{connect, connected_hosts, echo_once, millis, timed, with_echo_server};
use owned_io::{
    BufResult, Clock, OwnedRead, OwnedReadExt, OwnedWrite, OwnedWriteExt, is_exhaustion,
};
use owned_io_sim::{Fault, FaultKind, FaultPlan, RandomFaults, Sim, run, seeds, simulate};

#[test]
fn a_partition_delays_until_it_is_over() {
    run(seeds(20), async |world| {
        let (client, server, mut a, mut b) = connected_hosts(world).await?;
        world.apply(Fault::Partition { a: client, b: server, lasts: millis(3_000) });
        a.write_all("late").await.into_result()?;
        let (took, read) = timed(b.read_exact(Vec::with_capacity(4), 4)).await;
        assert_eq!(read.into_result()?.1, b"late");
        // Sent again after 0.2, 0.4, 0.8, 1.6 and 3.2 s, so it may arrive twice as late as the partition lasts.
        assert!(millis(3_000) <= took && took < millis(7_000), "{took:?}");
        Ok(())
    });
}

#[test]
fn a_stall_holds_one_direction_and_lets_all_go_at_once() {
    run(seeds(20), async |world| {
        let (client, server, mut a, mut b) = connected_hosts(world).await?;
        world.apply(Fault::Stall { from: client, to: server, lasts: millis(1_000) });
        b.write_all("not this one").await.into_result()?;
        let (took, read) = timed(a.read_exact(Vec::with_capacity(12), 12)).await;
        read.into_result()?;
        assert!(took < millis(12), "{took:?}");
        for word in ["one", "two"] {
            a.write_all(word).await.into_result()?;
            Sim::sleep(millis(100)).await;
        }
        let (took, read) = timed(b.read_exact(Vec::with_capacity(6), 6)).await;
        assert_eq!(read.into_result()?.1, b"onetwo");
        assert!(millis(750) <= took && took < millis(800), "{took:?}");
        Ok(())
    });
}

#[test]
fn a_latency_spike_delays_and_loses_nothing() {
    run(seeds(20), async |world| {
        let (client, server, mut a, mut b) = connected_hosts(world).await?;
        let (by, lasts) = (millis(300), millis(1_000));
        world.apply(Fault::Latency { a: client, b: server, by, lasts });
        for expected in [310, 10] {
            a.write_all("x").await.into_result()?;
            let (took, read) = timed(b.read_exact(Vec::with_capacity(1), 1)).await;
            read.into_result()?;
            let expected = millis(expected);
            assert!(expected <= took && took < expected + millis(2), "{took:?}");
            Sim::sleep(lasts).await;
        }
        Ok(())
    });
}

#[test]
fn lost_segments_are_sent_again() {
    run(seeds(20), async |world| {
        let (client, server, mut a, mut b) = connected_hosts(world).await?;
        let lasts = Duration::from_secs(3_600);
        let loss = Fault::Loss { a: client.clone(), b: server, per_million: 200_000, lasts };
        world.apply(loss);
        let sent: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        let writing = client.spawn({
            let sent = sent.clone();
            async move {
                for part in sent.chunks(1_000) {
                    a.write_all(part.to_vec()).await.into_result()?;
                }
                a.shutdown().await.map(|()| a)
            }
        });
        let (took, read) = timed(b.read_exact(Vec::with_capacity(sent.len()), sent.len())).await;
        assert!(read.into_result()?.1 == sent);
        assert!(took > millis(200), "nothing was lost: {took:?}");
        assert_eq!(b.read(Vec::with_capacity(1)).await.0?, 0);
        drop(writing.await.expect("no panic")?);
        Ok(())
    });
}

/// A crash drops the tasks of a host and tells nobody. Its service starts again.
#[test]
fn a_crash_takes_the_tasks_and_the_service_starts_again() {
    run(seeds(20), async |world| {
        let (starts, ends) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let counting = {
            let (starts, ends) = (Rc::clone(&starts), Rc::clone(&ends));
            move || {
                starts.set(starts.get() + 1);
                let ended = OnDrop(Rc::clone(&ends));
                async move {
                    let _ended = ended;
                    pending().await
                }
            }
        };
        with_echo_server(world, async move |_, server| {
            server.start(counting);
            let down = millis(2_000);
            world.inject(
                FaultPlan::new().at(millis(1_000), Fault::Crash { host: server.clone(), down }),
            );
            let mut stream = connect(&server).await?;
            assert_eq!(echo_once(&mut stream, b"before").await?, b"before");
            Sim::sleep(millis(1_500)).await;
            assert!(server.spawn(async {}).await.is_err(), "it is down");
            assert_eq!(server.descriptors(), 0);
            let (took, error) = timed(echo_once(&mut stream, b"meanwhile")).await;
            assert_eq!(error.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(took >= millis(1_400), "once it was up: {took:?}");
            let mut stream = connect(&server).await?;
            assert_eq!(echo_once(&mut stream, b"after").await?, b"after");
            Ok(())
        })
        .await?;
        assert_eq!((starts.get(), ends.get()), (2, 1));
        Ok(())
    });
}

/// After a kill, the kernel tells every peer.
#[test]
fn a_kill_closes_the_connections_at_once() {
    run(seeds(20), async |world| {
        with_echo_server(world, async move |_, server| {
            let mut stream = connect(&server).await?;
            assert_eq!(echo_once(&mut stream, b"before").await?, b"before");
            world.apply(Fault::Kill { host: server.clone(), down: millis(2_000) });
            let (took, BufResult(result, _)) = timed(stream.read(Vec::with_capacity(1))).await;
            assert!(matches!(result, Ok(0) | Err(_)));
            assert!(took < millis(2), "{took:?}");
            let refused = connect(&server).await.expect_err("nobody listens");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            Sim::sleep(millis(2_000)).await;
            let mut stream = connect(&server).await?;
            assert_eq!(echo_once(&mut stream, b"after").await?, b"after");
            Ok(())
        })
        .await
    });
}

#[test]
fn a_pause_stops_only_the_tasks_of_its_host() {
    run(seeds(20), async |world| {
        with_echo_server(world, async move |_, server| {
            let mut stream = connect(&server).await?;
            assert_eq!(echo_once(&mut stream, b"before").await?, b"before");
            world.apply(Fault::Pause { host: server, lasts: millis(700) });
            let (took, answer) = timed(echo_once(&mut stream, b"meanwhile")).await;
            assert_eq!(answer?, b"meanwhile");
            assert!(millis(700) <= took && took < millis(710), "{took:?}");
            Ok(())
        })
        .await
    });
}

#[test]
fn a_slow_reader_reads_little_at_a_time() {
    run(seeds(20), async |world| {
        let (_client, server, mut a, mut b) = connected_hosts(world).await?;
        world.apply(Fault::SlowReader { host: server, lasts: millis(100) });
        a.write_all(vec![1; 10_000]).await.into_result()?;
        let mut reads = Vec::new();
        for _ in 0..5 {
            let (took, BufResult(n, _)) = timed(b.read(Vec::with_capacity(100))).await;
            reads.push((took, n?));
        }
        assert!(reads.iter().all(|(took, n)| *took >= millis(10) && *n <= 16), "{reads:?}");
        Sim::sleep(millis(100)).await;
        let (took, _) = timed(b.read(Vec::with_capacity(100))).await;
        assert!(took < millis(1), "{took:?}");
        Ok(())
    });
}

#[test]
fn descriptors_are_gone_for_a_while() {
    run(seeds(20), async |world| {
        with_echo_server(world, async move |_, server| {
            let mut first = connect(&server).await?;
            assert_eq!(echo_once(&mut first, b"before").await?, b"before");
            world.apply(Fault::Descriptors { host: server.clone(), lasts: millis(500) });
            let (took, stream) = timed(connect(&server)).await;
            let mut second = stream?;
            assert!(took < millis(2), "the kernel answers: {took:?}");
            assert_eq!(echo_once(&mut first, b"open").await?, b"open");
            let (took, answer) = timed(echo_once(&mut second, b"waits")).await;
            assert_eq!(answer?, b"waits");
            assert!(millis(490) <= took && took < millis(560), "{took:?}");
            Ok(())
        })
        .await?;
        world.apply(Fault::Descriptors { host: world.main_host(), lasts: millis(500) });
        assert!(is_exhaustion(&connect(&world.host("nobody")).await.expect_err("none left")));
        Ok(())
    });
}

#[test]
fn a_clock_jumps_and_timers_do_not() {
    run(seeds(3), async |world| {
        let host = world.host("host");
        world.apply(Fault::Clock { host: host.clone(), ahead_millis: -60_000 });
        let there = host.spawn(async { (Sim::wall_clock(), Sim::now()) }).await;
        let (time_of_day, now) = there.expect("no panic");
        let behind = Sim::wall_clock().duration_since(time_of_day).expect("it is behind");
        assert!(millis(60_000) <= behind && behind < millis(60_001), "{behind:?}");
        assert!(Sim::now() - now < millis(1));
        Ok(())
    });
}

/// Faults that break no connection lose no bytes of an echo.
#[test]
fn bytes_survive_random_faults() {
    run(seeds(100), async |world| {
        with_echo_server(world, async move |client, server| {
            let random = RandomFaults { kinds: &FaultKind::HARMLESS, ..RandomFaults::default() };
            world.inject(FaultPlan::random(&[client, server.clone()], random));
            let mut stream = loop {
                match connect(&server).await {
                    Ok(stream) => break stream,
                    Err(_) => Sim::sleep(millis(100)).await,
                }
            };
            for _ in 0..50 {
                assert_eq!(echo_once(&mut stream, &[3; 1_000]).await?, [3; 1_000]);
                Sim::sleep(millis(200)).await;
            }
            Ok(())
        })
        .await
    });
}

/// The seed determines the plan. Different seeds give different plans, and all kinds of fault occur.
#[test]
fn plans_differ_by_seed() {
    let text = |seed| {
        let text = Rc::new(Cell::new(String::new()));
        simulate(owned_io_sim::Config::with_seed(seed), async |world| {
            let hosts = [world.host("one"), world.host("two"), world.main_host()];
            text.set(FaultPlan::random(&hosts, RandomFaults::default()).to_string());
            Ok(())
        });
        text.take()
    };
    let texts: Vec<_> = (0..100).map(text).collect();
    assert_eq!(texts[7], text(7));
    assert_ne!(texts[7], texts[8]);
    let all = texts.concat();
    for word in [
        "partition of",
        "stall from",
        "more between",
        "lost between",
        "crash of",
        "kill of",
        "pause of",
        "slow reads",
        "no descriptors",
        "jumps by",
    ] {
        assert!(all.contains(word), "{word}");
    }
    assert!(!all.contains("crash of main"));
}

struct OnDrop(Rc<Cell<u32>>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}
