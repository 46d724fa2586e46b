//! The same seed gives the same run: twice in one process, and in two processes.

mod common;

use std::collections::BTreeSet;
use std::io;

use common::{connect, echo, echo_once, millis};
use owned_io::{Clock, Random};
use owned_io_sim::{Config, FaultPlan, RandomFaults, Sim, Summary, World, simulate};

const SEEDS: u64 = 20;

/// Clients on two hosts, under random faults. Any result of a request will do.
async fn busy(world: World) -> io::Result<()> {
    let server = world.host("server");
    let hosts = [world.host("one"), world.host("other"), server.clone()];
    server.start(echo);
    world.inject(FaultPlan::random(
        &hosts,
        RandomFaults { count_max: 10, ..RandomFaults::default() },
    ));
    let clients: Vec<_> = (0..8).map(|n| hosts[n % 2].spawn(client(server.clone()))).collect();
    for client in clients {
        let _ = client.await; // some of them go down with their hosts
    }
    Ok(())
}

async fn client(server: owned_io_sim::Host) {
    for _ in 0..10 {
        let Ok(mut stream) = connect(&server).await else {
            Sim::sleep(millis(100)).await;
            continue;
        };
        for _ in 0..5 {
            if echo_once(&mut stream, &[5; 3_000]).await.is_err() {
                break;
            }
            let mut byte = [0];
            Sim::fill_random(&mut byte);
            Sim::sleep(millis(byte[0].into())).await;
        }
    }
}

fn summaries() -> Vec<Summary> {
    let summary = |seed| {
        let mut config = Config::with_seed(seed);
        config.dropped_operations_may_complete = true;
        simulate(config, busy)
    };
    (0..SEEDS).map(summary).collect()
}

#[test]
fn the_same_seed_twice_in_one_process() {
    let first = summaries();
    assert_eq!(first, summaries());
    let hashes: BTreeSet<_> = first.iter().map(|summary| summary.trace_hash).collect();
    assert_eq!(hashes.len(), first.len(), "seeds differ");
    assert!(first.iter().all(|summary| summary.events > 1_000), "{first:?}");
}

/// The other process is this test binary again, which prints its summaries. Miri starts no processes.
#[test]
#[cfg(not(miri))]
fn the_same_seed_in_two_processes() {
    const TEST: &str = "the_same_seed_in_two_processes";
    const PRINTS: &str = "OWNED_IO_SIM_PRINTS";
    let mine = format!("{:?}", summaries());
    if std::env::var_os(PRINTS).is_some() {
        println!("\n{mine}");
        return;
    }
    let mut again = std::process::Command::new(std::env::current_exe().expect("our own path"));
    let again = again.args([TEST, "--exact", "--nocapture"]).env(PRINTS, "1");
    let output = again.output().expect("expected to run it");
    let output = String::from_utf8(output.stdout).expect("text");
    assert!(output.lines().any(|line| line == mine), "{mine}\n{output}");
}
