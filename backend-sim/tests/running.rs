//! `run`: its report when a scenario fails, and the example `lost_bytes`.

#[path = "../examples/lost_bytes.rs"]
#[expect(dead_code, unreachable_pub, reason = "it is an example, with a main function")]
mod lost_bytes;

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use owned_io::{Clock, ConnectOptions, Executor, Panicked, Tcp};
use owned_io_sim::{Config, Fault, FaultPlan, Link, Sim, World, pipe, run, seeds, simulate};

fn message_of(running: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(running)).expect_err("it fails");
    Panicked::new(payload).message().to_owned()
}

/// As a newcomer does it: `run` finds the bug and prints a seed, and the seed gives the same failure again. That runs
/// in its own process, which Miri does not start.
#[test]
#[cfg(not(miri))]
fn the_example_is_found_printed_and_replayed() {
    const ALONE: &str = "OWNED_IO_SIM_ALONE";
    let found = message_of(|| run(seeds(100), async |world| buggy(world).await));
    if std::env::var_os(ALONE).is_some() {
        println!("\n{found}");
        return;
    }
    for part in ["the simulation has failed under seed", "client", "server", "SIM_SEED="] {
        assert!(found.contains(part), "{part}: {found}");
    }
    assert!(found.contains("no answer to"), "{found}");
    assert!(found.contains("a dropped operation takes 1 bytes"), "{found}");
    let (_, seed) = found.split_once("SIM_SEED=").expect("the seed");
    let seed: String = seed.chars().take_while(char::is_ascii_digit).collect();
    let mut again = std::process::Command::new(std::env::current_exe().expect("our own path"));
    let again = again
        .args(["the_example_is_found_printed_and_replayed", "--exact", "--nocapture"])
        .envs([(ALONE, "1"), ("SIM_SEED", &seed)]);
    let replayed = again.output().expect("expected to run it");
    let replayed = String::from_utf8(replayed.stdout).expect("text");
    let hash = |text: &str| {
        let (_, hash) = text.split_once("(their hash is ").expect("a hash");
        hash[..16].to_owned()
    };
    assert_eq!(hash(&found), hash(&replayed), "{replayed}");
    let lines = |text: &str| text.lines().count();
    assert!(lines(&replayed) > lines(&found), "more of the trace");
}

#[cfg(not(miri))]
async fn buggy(world: World) -> io::Result<()> {
    lost_bytes::every_digit_is_answered(world, false).await
}

#[test]
fn the_fixed_example_passes_under_every_seed() {
    run(seeds(100), async |world| lost_bytes::every_digit_is_answered(world, true).await);
}

#[test]
fn a_failure_reports_seed_faults_and_trace() {
    let scenario = async |world: World| {
        let host = world.host("host");
        let fault = Fault::Pause { host: host.clone(), lasts: Duration::from_secs(2) };
        world.inject(FaultPlan::new().at(Duration::from_secs(1), fault));
        Sim::sleep(Duration::from_secs(1)).await;
        world.note("so far, so good");
        Err(io::Error::other("on purpose"))
    };
    let message = message_of(|| run([41], scenario));
    for part in [
        "under seed 41: it returned an error: on purpose",
        "1.000001 s  0: pause of host for 2s",
        "host       fault 0 of the plan",
        "main       \"so far, so good\"",
        "SIM_SEED=41 cargo test a_failure_reports_seed_faults_and_trace",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
}

/// The last lines of a report are about what the scenario did last, not about what was dropped afterwards.
#[test]
fn a_trace_ends_where_the_scenario_does() {
    let opened = |world: World| {
        for (a, b) in (0..100).map(|_| pipe()) {
            drop(Sim::spawn(async move {
                pending::<()>().await;
                drop((a, b));
            }));
        }
        world.note("all is open");
    };
    let fails = async |world: World| {
        opened(world);
        Err(io::Error::other("on purpose"))
    };
    let panics = async |world: World| -> io::Result<()> {
        opened(world);
        panic!("on purpose");
    };
    let waits = async |world: World| {
        opened(world);
        pending().await
    };
    for message in [
        message_of(|| run([0], fails)),
        message_of(|| run([0], panics)),
        message_of(|| run([0], waits)),
    ] {
        assert!(message.contains("all is open"), "{message}");
        assert!(!message.contains("is closed"), "{message}");
    }
}

/// A deadlock is reported at once, although a host restarts and a partition ends at the end of time.
#[test]
fn waiting_for_an_event_that_never_comes_is_a_deadlock() {
    let message = message_of(|| run([0], async |_| pending().await));
    assert!(message.contains("deadlock: no task is ready"), "{message}");
    let for_ever = async |world: World| {
        let (lasts, down) = (Duration::MAX, Duration::MAX);
        let [a, b, c] = ["a", "b", "c"].map(|name| world.host(name));
        world.apply(Fault::Partition { a: a.clone(), b: b.clone(), lasts });
        world.apply(Fault::Stall { from: a.clone(), to: c.clone(), lasts });
        world.apply(Fault::Latency { a: c.clone(), b: b.clone(), by: Duration::MAX, lasts });
        world.apply(Fault::Loss { a: c.clone(), b: b.clone(), per_million: 1_000_000, lasts });
        world.apply(Fault::Pause { host: b.clone(), lasts });
        world.apply(Fault::SlowReader { host: c.clone(), lasts });
        world.apply(Fault::Descriptors { host: c.clone(), lasts });
        world.apply(Fault::Clock { host: a.clone(), ahead_millis: i64::MAX });
        let mut link = Link::default();
        (link.latency, link.jitter, link.bandwidth) = (lasts, lasts, 0);
        world.link(&a, &b, link);
        world.apply(Fault::Crash { host: c.clone(), down });
        for to in [b, c] {
            let connecting = a.spawn(Sim::connect(ConnectOptions::new(to.at(7))));
            let silence = connecting.await.expect("no panic").expect_err("nobody answers");
            assert_eq!(silence.kind(), io::ErrorKind::TimedOut);
        }
        pending().await
    };
    let message = message_of(|| run([0], for_ever));
    assert!(message.contains("deadlock: no task is ready"), "{message}");
}

#[test]
fn an_endless_loop_is_ended() {
    let mut config = Config::with_seed(0);
    config.events_max = 10_000;
    let circles = async |_: World| loop {
        Sim::sleep(Duration::ZERO).await;
    };
    let message = message_of(|| {
        let _ = simulate(config, circles);
    });
    assert!(message.contains("not done after 10001 events"), "{message}");
}

#[test]
fn a_service_that_ends_fails_the_run() {
    let fails = async |world: World| {
        world.host("server").start(|| async { Err(io::Error::other("no disk")) });
        pending().await
    };
    let message = message_of(|| run([0], fails));
    assert!(message.contains("the service of server has ended: no disk"), "{message}");
    let panics = async |world: World| {
        world.host("server").start(|| async { panic!("on purpose") });
        pending().await
    };
    let message = message_of(|| run([0], panics));
    assert!(message.contains("the service of server has ended: panicked: on purpose"), "{message}");
}

#[test]
fn a_run_that_does_not_repeat_is_noticed() {
    let runs = Cell::new(0);
    let scenario = async |_: World| {
        runs.set(runs.get() + 1);
        Sim::sleep(Duration::from_millis(runs.get())).await;
        Ok(())
    };
    let message = message_of(|| run([0], scenario));
    assert!(message.contains("seed 0 does not repeat"), "{message}");
}
