//! Reads that wait for messages, at the worker with the broker and at another one.

use owned_io::{Executor, JoinHandle};

use super::super::Epoch;
use super::super::tail::{TailError, TailPlace, TailStart, Tailed};
use super::*;

impl Server {
    /// The worker with the broker, and another one.
    fn workers(&self) -> [Rc<Iggy>; 2] {
        [Rc::clone(&self.iggy), Rc::new(Iggy::without_broker(self.iggy.hub()))]
    }
}

fn place(stream: WireIdentifier, partition: u32) -> TailPlace {
    TailPlace { stream, topic: WireIdentifier::named("t").unwrap(), partition }
}

async fn found(iggy: &Iggy) -> TailStart {
    iggy.find_tail::<Sim>(place(zero(), 0)).await.unwrap()
}

/// A read in a task of its own.
fn tail(iggy: &Rc<Iggy>, epoch: Epoch, from: u64) -> JoinHandle<Result<Tailed, TailError>> {
    let iggy = Rc::clone(iggy);
    Sim::spawn(async move { iggy.tail::<Sim>(epoch, from, usize::MAX).await })
}

/// The offsets of the first messages of all batches, and the end.
fn offsets(tailed: &Tailed) -> (Vec<u64>, u64) {
    (tailed.batches.iter().map(|batch| batch.base_offset).collect(), tailed.end)
}

#[test]
fn a_partition_is_found_by_names_and_numbers_or_is_not_there() {
    run(async |server| {
        let mut client = server.login().await;
        client.create(2).await;
        for iggy in server.workers() {
            let named = place(WireIdentifier::named("s").unwrap(), 1);
            let start = iggy.find_tail::<Sim>(named).await.unwrap();
            assert_eq!((start.offsets.first, start.offsets.next), (0, 0));
            assert_ne!(start.epoch, found(&iggy).await.epoch, "another partition");
            for (place, status) in [
                (place(WireIdentifier::numeric(1), 0), Status::StreamIdNotFound),
                (TailPlace { topic: zero(), ..place(zero(), 2) }, Status::PartitionNotFound),
                (
                    TailPlace { topic: WireIdentifier::numeric(1), ..place(zero(), 0) },
                    Status::TopicIdNotFound,
                ),
            ] {
                assert_eq!(iggy.find_tail::<Sim>(place).await.unwrap_err(), status);
            }
        }
    });
}

#[test]
fn a_tail_waits_until_there_are_messages_from_its_offset_on() {
    run(async |server| {
        let mut client = server.login().await;
        client.create(2).await;
        let to = WirePartitioning::PartitionId;
        let (mut end, [here, there]) = (0, server.workers());
        let epoch = found(&here).await.epoch;
        for _ in 0..3 {
            let mut waiting = [tail(&here, epoch, end), tail(&there, epoch, end + 1)];
            client.produce(&[b"other"], to(1)).await.unwrap();
            client.produce(&[b"one"], to(0)).await.unwrap();
            let tailed = (&mut waiting[0]).await.unwrap().unwrap();
            assert_eq!(offsets(&tailed), (vec![end], end + 1));
            client.produce(&[b"two", b"three"], to(0)).await.unwrap();
            let tailed = (&mut waiting[1]).await.unwrap().unwrap();
            assert_eq!(offsets(&tailed), (vec![end + 1], end + 3));
            end += 3;
        }
        // What is there is read at once.
        let tailed = there.tail::<Sim>(epoch, 2, usize::MAX).await.unwrap();
        assert_eq!(offsets(&tailed), (vec![1, 3, 4, 6, 7], 9));
        assert_eq!(
            offsets(&there.tail::<Sim>(epoch, 4, 0).await.unwrap()),
            (vec![4], 9),
            "at least one"
        );
    });
}

#[test]
fn a_tail_ends_when_its_messages_are_removed() {
    run(async |server| {
        let mut client = server.login().await;
        client.create(1).await;
        client.produce(&[b"one"], WirePartitioning::Balanced).await.unwrap();
        let (stream_id, topic_id) = (zero(), zero());
        let [here, there] = server.workers();
        let before = found(&here).await;
        assert_eq!(before.offsets.next, 1);
        let waiting = [tail(&here, before.epoch, 1), tail(&there, before.epoch, 1)];
        let purge = PurgeTopicRequest { stream_id, topic_id };
        client.send(PURGE_TOPIC_CODE, &purge).await.unwrap();
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap().unwrap_err(), TailError::Purged);
        }
        assert_eq!(there.tail::<Sim>(before.epoch, 0, 100).await.unwrap_err(), TailError::Purged);

        let after = found(&there).await;
        assert_eq!(after.offsets.next, 0);
        let waiting = [tail(&here, after.epoch, 0), tail(&there, after.epoch, 0)];
        let delete = DeleteTopicRequest { stream_id: zero(), topic_id: zero() };
        client.send(DELETE_TOPIC_CODE, &delete).await.unwrap();
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap().unwrap_err(), TailError::Deleted);
        }
    });
}
