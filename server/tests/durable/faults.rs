//! What clients are told of a disk that is full or fails, and what goes on meanwhile.

use std::path::Path;
use std::time::Duration;

use owned_io::Clock;
use owned_io_log::PartitionConfig;
use owned_io_server::iggy::Status;
use owned_io_server::iggy::storage::{DurableStorage, Storage};
use owned_io_sim::{Fault, Sim, World, block_on, run, seeds};

use super::client::{Client, DIR};
use super::restart::{UNLIMITED, end, payload, start};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_full_disk_is_told_to_the_client_and_the_server_goes_on() {
    run(seeds(20), async |world: World| {
        world.main_host().limit_disk(60_000);
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("full", 1, UNLIMITED).await.unwrap();
        client.create_topic("other", 1, UNLIMITED).await.unwrap();
        let mut sent = Vec::new();
        let refused = loop {
            let payload = payload(sent.len() as u64);
            match client.send("full", 0, std::slice::from_ref(&payload)).await {
                Ok(()) => sent.push(payload),
                Err(status) => break status,
            }
            assert!(sent.len() < 1_000, "the disk is never full");
        };
        assert_eq!(refused, Status::TopicFull.code().get());
        let sent_count = sent.len() as u64;
        let polled = client.poll_all("full", 0, 10).await.unwrap();
        assert!(polled.into_iter().map(|(_, payload)| payload).eq(sent));
        // An offset that could not be stored has not changed.
        let mut stored = None;
        for offset in (0..sent_count).cycle() {
            match client.store_offset("full", 0, offset).await {
                Ok(()) => stored = Some(offset),
                Err(status) => {
                    assert_eq!(status, refused);
                    break;
                }
            }
        }
        assert_eq!(client.offset("full", 0).await, stored);
        if world.random(2) == 0 {
            client.purge_topic("full").await.unwrap();
            assert_eq!(client.poll_all("full", 0, 10).await, Ok(vec![]));
        } else {
            client.delete_topic("full").await.unwrap();
        }
        for n in 0..10 {
            client.send("other", 0, &[payload(n)]).await.unwrap();
        }
        assert_eq!(client.poll_all("other", 0, 3).await.unwrap().len(), 10);
        Ok(())
    });
}

#[test]
fn a_failed_sync_is_told_and_ends_the_writes_to_that_partition() {
    run(seeds(20), async |world: World| {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 2, UNLIMITED).await.unwrap();
        for partition in 0..2 {
            client.send("t", partition, &[payload(1)]).await.unwrap();
        }
        world.apply(Fault::SyncErrors { host: world.main_host(), lasts: SECOND });
        let refused = Err(Status::CannotAppendMessage.code().get());
        assert_eq!(client.send("t", 0, &[payload(2)]).await, refused);
        Sim::sleep(2 * SECOND).await;
        assert_eq!(client.send("t", 0, &[payload(3)]).await, refused, "the disk may have lost it");
        assert_eq!(client.poll_all("t", 0, 9).await, Ok(vec![(0, payload(1))]));
        client.send("t", 1, &[payload(4)]).await.unwrap();
        client.create_topic("new", 1, UNLIMITED).await.unwrap();
        iggy.close().await.expect_err("a partition may have lost something");
        drop((iggy, client));
        Sim::sleep(SECOND).await;

        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        let found = client.poll_all("t", 0, 9).await.unwrap();
        // The message that was refused may be there.
        assert!(found == [(0, payload(1))] || found == [(0, payload(1)), (1, payload(2))]);
        client.send("t", 0, &[payload(5)]).await.unwrap();
        let all = client.poll_all("t", 1, 9).await;
        assert_eq!(all, Ok(vec![(0, payload(1)), (1, payload(4))]));
        Ok(())
    });
}

#[test]
fn a_read_error_is_that_of_the_poll() {
    run(seeds(20), async |world: World| {
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        client.create_stream().await.unwrap();
        client.create_topic("t", 1, UNLIMITED).await.unwrap();
        let sent: Vec<_> = (0..50).map(payload).collect();
        for payload in &sent {
            client.send("t", 0, std::slice::from_ref(payload)).await.unwrap();
        }
        end(iggy, client).await; // so that nothing is in memory
        let iggy = start().await;
        let mut client = Client::login(&iggy).await;
        world.apply(Fault::ReadErrors { host: world.main_host(), lasts: SECOND });
        let refused = Err(Status::CannotReadMessage.code().get());
        assert_eq!(client.poll_all("t", 0, 9).await, refused);
        client.send("t", 0, &[payload(50)]).await.unwrap();
        Sim::sleep(2 * SECOND).await;
        let polled = client.poll_all("t", 0, 9).await.unwrap();
        assert!(polled.into_iter().map(|(_, payload)| payload).eq((0..51).map(payload)));
        Ok(())
    });
}

/// The next one is made after as many bytes of records again. Records that are refused do not count.
#[test]
fn a_snapshot_that_fails_is_not_made_again_with_each_record() {
    const STATE_BYTES: usize = 3_000_000;
    block_on(async {
        let host = World::current().main_host();
        let config = PartitionConfig::default();
        let opened = DurableStorage::<Sim>::open(Path::new(DIR), config, 0).await;
        let (storage, _) = opened.expect("the directory opens");
        let record = async || storage.record(vec![7; 1_000]).await;
        // There is room for some more records, and not for a snapshot beside those that are there.
        host.limit_disk(4_000_000);
        let mut attempts = Vec::new();
        for n in 1..4_500 {
            if n == 3_300 {
                host.limit_disk(u64::MAX);
            }
            record().await.unwrap_or_else(|status| panic!("record {n}: {status:?}"));
            if storage.is_snapshot_due() {
                attempts.push((n, storage.snapshot(vec![7; STATE_BYTES]).await.is_ok()));
            }
        }
        // After more than 1 MiB, and after more than 3,000,000 bytes again.
        assert_eq!(attempts, [(1_049, false), (4_050, true)]);
        host.limit_disk(0);
        for _ in 0..3_100 {
            assert_eq!(record().await, Err(Status::TopicFull));
        }
        assert!(!storage.is_snapshot_due());
    });
}
