//! What clients are told while a server closes, and what is there afterwards.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use owned_io::{Clock, Executor};
use owned_io_log::SyncPolicy;
use owned_io_server::iggy::Status;
use owned_io_sim::{Fault, Sim, World, run, seeds};

use super::client::{Client, open};
use super::restart::{UNLIMITED, payload, start};

const PARTITIONS: u32 = 3;

/// What a server has acknowledged for one partition.
#[derive(Clone, Copy, Default)]
struct Acknowledged {
    messages: u64,
    /// How many messages the stored offset counts.
    consumed: u64,
}

/// Sends messages and stores their offsets until one is refused. Returns the status.
async fn use_partition(
    mut client: Client,
    partition: u32,
    acknowledged: Rc<Cell<Acknowledged>>,
) -> u32 {
    let mut consumed = 0;
    loop {
        if let Err(status) = client.send("t", partition, &[payload(consumed)]).await {
            return status;
        }
        acknowledged.set(Acknowledged { messages: consumed + 1, consumed });
        if let Err(status) = client.store_offset("t", partition, consumed).await {
            return status;
        }
        consumed += 1;
        acknowledged.set(Acknowledged { messages: consumed, consumed });
    }
}

/// With a policy that syncs nothing before: the close does. Each client is told that the server ends.
#[test]
fn what_is_acknowledged_until_the_end_survives_a_loss_of_power() {
    let total = Cell::new(0);
    run(seeds(40), async |world| {
        let host = world.host("disk");
        let acknowledged: [Rc<Cell<Acknowledged>>; PARTITIONS as usize] = Default::default();
        let closed = host.spawn({
            let acknowledged = acknowledged.clone();
            async move {
                let iggy = open(SyncPolicy::Never).await?;
                let mut client = Client::login(&iggy).await;
                client.create_stream().await.unwrap();
                client.create_topic("t", PARTITIONS, UNLIMITED).await.unwrap();
                let mut clients = Vec::new();
                for (partition, acknowledged) in (0..).zip(acknowledged) {
                    let client = Client::login(&iggy).await;
                    clients.push(Sim::spawn(use_partition(client, partition, acknowledged)));
                }
                Sim::sleep(Duration::from_micros(World::current().random(30_000))).await;
                iggy.close().await.map_err(io::Error::other)?;
                for client in clients {
                    let refused = client.await.expect("no panic");
                    assert_eq!(refused, Status::Disconnected.code().get());
                }
                io::Result::Ok(())
            }
        });
        closed.await.expect("no panic")?;
        let down = Duration::from_millis(10);
        world.apply(Fault::Crash { host: host.clone(), down });
        Sim::sleep(2 * down).await;
        let again = acknowledged.clone();
        let checked = host.spawn(async move {
            let mut client = Client::login(&start().await).await;
            for (partition, acknowledged) in (0..).zip(again) {
                let Acknowledged { messages, consumed } = acknowledged.get();
                let polled = client.poll_all("t", partition, 10).await.unwrap();
                let found = polled.len() as u64;
                assert!(polled.into_iter().map(|(_, payload)| payload).eq((0..found).map(payload)));
                assert!((messages..=messages + 1).contains(&found), "{found} of {messages}");
                let stored = client.offset("t", partition).await.map_or(0, |offset| offset + 1);
                assert!((consumed..=consumed + 1).contains(&stored), "{stored} of {consumed}");
            }
        });
        checked.await.expect("no panic");
        let consumed = acknowledged.iter().map(|acknowledged| acknowledged.get().consumed);
        total.set(total.get() + consumed.sum::<u64>());
        Ok(())
    });
    assert!(total.get() > 100, "the clients have done little: {}", total.get());
}
