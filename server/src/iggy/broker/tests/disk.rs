//! Stored offsets when the disk is slow or full, and commands while the storage is closed.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::super::super::catalogue::LogId;
use super::super::super::messages::Batch;
use super::super::super::storage::*;
use super::*;

/// A storage whose disk can be slow or full.
struct DiskStorage {
    memory: MemoryStorage,
    disk: Rc<Disk>,
}

#[derive(Default)]
struct Disk {
    /// Reads do not return.
    is_slow: Cell<bool>,
    /// No record can be stored.
    is_full: Cell<bool>,
    /// No record is stored yet, and the storage is not closed yet.
    is_held: Cell<bool>,
    /// The next log that is purged keeps its messages.
    fails_purge: Cell<bool>,
    /// A purge takes a millisecond.
    is_purge_slow: Cell<bool>,
    /// How many records were to be stored.
    records: Cell<u32>,
    /// A snapshot is due.
    is_journal_long: Cell<bool>,
    /// No snapshot can be made.
    refuses_snapshots: Cell<bool>,
    /// The logs that were opened, and not removed.
    open: RefCell<BTreeSet<LogId>>,
    /// The snapshots that were begun.
    snapshots: RefCell<Vec<Vec<u8>>>,
}

impl Storage for DiskStorage {
    fn open<'a>(
        &'a self,
        logs: &'a [LogId],
    ) -> LocalFuture<'a, Result<Vec<Rc<dyn MessageLog>>, Status>> {
        Box::pin(async move {
            self.disk.open.borrow_mut().extend(logs);
            let opened = self.memory.open(logs).await?.into_iter();
            let log = |log| Rc::new(DiskLog { log, disk: Rc::clone(&self.disk) }) as _;
            Ok(opened.map(log).collect())
        })
    }

    fn remove<'a>(&'a self, logs: &'a [LogId]) -> LocalFuture<'a, Result<(), Status>> {
        self.disk.open.borrow_mut().retain(|log| !logs.contains(log));
        self.memory.remove(logs)
    }

    fn record(&self, _: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async {
            self.disk.records.set(self.disk.records.get() + 1);
            pause().await;
            wait_while(&self.disk.is_held).await;
            if self.disk.is_full.get() { Err(Status::TopicFull) } else { Ok(()) }
        })
    }

    fn is_snapshot_due(&self) -> bool {
        self.disk.is_journal_long.get()
    }

    fn snapshot(&self, state: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async {
            self.disk.snapshots.borrow_mut().push(state);
            pause().await;
            if self.disk.refuses_snapshots.get() { Err(Status::Error) } else { Ok(()) }
        })
    }

    fn close(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async {
            wait_while(&self.disk.is_held).await;
            Ok(())
        })
    }
}

struct DiskLog {
    log: Rc<dyn MessageLog>,
    disk: Rc<Disk>,
}

impl MessageLog for DiskLog {
    fn append(&self, batch: Batch, id: u128) -> LocalFuture<'_, Result<Appended, Status>> {
        self.log.append(batch, id)
    }

    fn read(
        &self,
        from: ReadFrom,
        count: u32,
        bytes_max: usize,
    ) -> LocalFuture<'_, Result<Vec<StoredBatch>, ReadError>> {
        Box::pin(async move {
            let read = self.log.read(from, count, bytes_max).await;
            wait_while(&self.disk.is_slow).await;
            read
        })
    }

    fn offsets(&self) -> Offsets {
        self.log.offsets()
    }

    fn size(&self) -> Size {
        self.log.size()
    }

    fn flush(&self) -> LocalFuture<'_, Result<(), Status>> {
        self.log.flush()
    }

    fn purge(&self) -> LocalFuture<'_, Result<(), Status>> {
        Box::pin(async {
            if self.disk.is_purge_slow.get() {
                pause().await;
            }
            match self.disk.fails_purge.take() {
                true => Err(Status::CannotAppendMessage),
                false => self.log.purge().await,
            }
        })
    }
}

/// Until the test lets it end.
async fn wait_while(is_stuck: &Cell<bool>) {
    while is_stuck.get() {
        pause().await;
    }
}

async fn pause() {
    Sim::sleep(Duration::from_millis(1)).await;
}

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn run_on_disk(case: impl AsyncFnOnce(Server, Rc<Disk>)) {
    owned_io_sim::block_on(async {
        let memory = MemoryStorage::new(1 << 20, || 1_000);
        let disk = Rc::<Disk>::default();
        let storage = DiskStorage { memory, disk: Rc::clone(&disk) };
        NOW.set(1_000);
        case(Server::with_clock(Box::new(storage), || NOW.get()), disk).await;
    });
}

fn next() -> PollMessagesRequest {
    let poll = poll(consumer(), WirePollingStrategy::next(), 1);
    PollMessagesRequest { auto_commit: true, ..poll }
}

fn store_offset(partition: u32, offset: u64) -> StoreConsumerOffsetRequest {
    StoreConsumerOffsetRequest {
        consumer: consumer(),
        stream_id: zero(),
        topic_id: zero(),
        partition_id: Some(partition),
        offset,
    }
}

fn get_offset() -> GetConsumerOffsetRequest {
    GetConsumerOffsetRequest {
        consumer: consumer(),
        stream_id: zero(),
        topic_id: zero(),
        partition_id: Some(0),
    }
}

/// Otherwise the consumer would miss the first messages that come after the purge.
#[test]
fn a_poll_that_has_read_what_is_purged_stores_no_offset() {
    run_on_disk(async |server: Server, disk| {
        let mut client = server.login().await;
        client.create(1).await;
        for is_replaced in [false, true] {
            client.produce(&[b"0", b"1", b"2"], WirePartitioning::Balanced).await.unwrap();
            disk.is_slow.set(true);
            let mut another = server.login().await;
            let polled = Sim::spawn(async move { another.poll(&next()).await });
            pause().await;
            if is_replaced {
                let (stream_id, topic_id, partitions_count) = (zero(), zero(), 1);
                let fewer = DeletePartitionsRequest { stream_id, topic_id, partitions_count };
                client.send(DELETE_PARTITIONS_CODE, &fewer).await.unwrap();
                let (stream_id, topic_id) = (zero(), zero());
                let more = CreatePartitionsRequest { stream_id, topic_id, partitions_count };
                client.send(CREATE_PARTITIONS_CODE, &more).await.unwrap();
            } else {
                let purge = PurgeTopicRequest { stream_id: zero(), topic_id: zero() };
                client.send(PURGE_TOPIC_CODE, &purge).await.unwrap();
            }
            disk.is_slow.set(false);
            assert_eq!(polled.await.unwrap().unwrap().offsets(), [0_u64; 0]);
            let stored = client.send(GET_CONSUMER_OFFSET_CODE, &get_offset()).await;
            assert_eq!(stored, Ok(Bytes::new()));
        }
        client.produce(&[b"0", b"1", b"2"], WirePartitioning::Balanced).await.unwrap();
        assert_eq!(client.poll(&next()).await.unwrap().offsets(), [0]);
    });
}

#[test]
fn an_offset_that_comes_while_its_messages_are_purged_is_refused() {
    run_on_disk(async |server: Server, _| {
        let mut client = server.login().await;
        client.create(1).await;
        client.produce(&[b"0", b"1", b"2"], WirePartitioning::Balanced).await.unwrap();
        let mut another = server.login().await;
        let purge = PurgeTopicRequest { stream_id: zero(), topic_id: zero() };
        let purged = Sim::spawn(async move { another.send(PURGE_TOPIC_CODE, &purge).await });
        Sim::sleep(Duration::from_micros(500)).await; // its record is being stored
        let refused = client.send(STORE_CONSUMER_OFFSET_CODE, &store_offset(0, 1)).await;
        assert_eq!(refused, Err(status(Status::InvalidOffset)));
        assert_eq!(client.poll(&next()).await.unwrap().offsets(), [0_u64; 0]);
        purged.await.unwrap().unwrap();
        let stored = client.send(GET_CONSUMER_OFFSET_CODE, &get_offset()).await;
        assert_eq!(stored, Ok(Bytes::new()));
    });
}

/// Nothing would ever remove the offset of a group that there is not.
#[test]
fn a_poll_that_has_read_for_a_deleted_group_is_refused() {
    run_on_disk(async |server: Server, disk| {
        let mut client = server.login().await;
        client.create(1).await;
        client.produce(&[b"0"], WirePartitioning::Balanced).await.unwrap();
        let create =
            CreateConsumerGroupRequest { stream_id: zero(), topic_id: zero(), name: name("g") };
        client.send(CREATE_CONSUMER_GROUP_CODE, &create).await.unwrap();
        let mut member = server.login().await;
        member.send(JOIN_CONSUMER_GROUP_CODE, &join()).await.unwrap();
        disk.is_slow.set(true);
        let next = PollMessagesRequest { consumer: group(), ..next() };
        let polled = Sim::spawn(async move { member.poll(&next).await });
        pause().await;
        let (stream_id, topic_id, group_id) = (zero(), zero(), zero());
        let delete = DeleteConsumerGroupRequest { stream_id, topic_id, group_id };
        client.send(DELETE_CONSUMER_GROUP_CODE, &delete).await.unwrap();
        disk.is_slow.set(false);
        let refused = polled.await.unwrap();
        assert_eq!(refused, Err(status(Status::ConsumerGroupIdNotFound)));
    });
}

#[test]
fn polls_at_once_whose_offsets_cannot_be_stored_take_no_message() {
    run_on_disk(async |server: Server, disk| {
        let mut client = server.login().await;
        client.create(1).await;
        client.produce(&[b"0", b"1", b"2", b"3"], WirePartitioning::Balanced).await.unwrap();
        assert_eq!(client.poll(&next()).await.unwrap().offsets(), [0]);
        disk.is_full.set(true);
        let mut polls = Vec::new();
        for _ in 0..3 {
            let mut another = server.login().await;
            polls.push(Sim::spawn(async move { another.poll(&next()).await }));
        }
        for polled in polls {
            assert_eq!(polled.await.unwrap(), Err(status(Status::TopicFull)));
        }
        disk.is_full.set(false);
        assert_eq!(client.poll(&next()).await.unwrap().offsets(), [1]);
    });
}

#[test]
fn a_purge_that_fails_in_one_partition_goes_on_in_the_others() {
    run_on_disk(async |server: Server, disk| {
        let mut client = server.login().await;
        client.create(3).await;
        for partition in 0..3 {
            client.produce(&[b"0"], WirePartitioning::PartitionId(partition)).await.unwrap();
        }
        disk.fails_purge.set(true);
        let purge = PurgeTopicRequest { stream_id: zero(), topic_id: zero() };
        let refused = client.send(PURGE_TOPIC_CODE, &purge).await;
        assert_eq!(refused, Err(status(Status::CannotAppendMessage)));
        let counts = |topic: GetTopicResponse| -> Vec<u64> {
            topic.partitions.iter().map(|partition| partition.messages_count).collect()
        };
        assert_eq!(counts(client.topic().await), [1, 0, 0]);
        client.send(PURGE_TOPIC_CODE, &purge).await.unwrap();
        assert_eq!(counts(client.topic().await), [0, 0, 0]);
    });
}

/// A client waits for all of them.
#[test]
fn many_partitions_are_purged_at_once() {
    run_on_disk(async |server: Server, disk| {
        let mut client = server.login().await;
        client.create(128).await;
        disk.is_purge_slow.set(true);
        let began = Sim::now();
        let purge = PurgeTopicRequest { stream_id: zero(), topic_id: zero() };
        client.send(PURGE_TOPIC_CODE, &purge).await.unwrap();
        let took = Sim::now() - began;
        assert!(took < Duration::from_millis(30), "{took:?}");
    });
}

/// There is no room for the record, not even when the messages are removed.
#[test]
fn a_topic_that_was_emptied_in_vain_has_no_stored_offsets() {
    run_on_disk(async |server: Server, disk| {
        let mut client = server.login().await;
        client.create(1).await;
        client.produce(&[b"0", b"1"], WirePartitioning::Balanced).await.unwrap();
        assert_eq!(client.poll(&next()).await.unwrap().offsets(), [0]);
        disk.is_full.set(true);
        let delete = DeleteTopicRequest { stream_id: zero(), topic_id: zero() };
        let refused = client.send(DELETE_TOPIC_CODE, &delete).await;
        assert_eq!(refused, Err(status(Status::TopicFull)));
        disk.is_full.set(false);
        assert_eq!(client.topic().await.topic.messages_count, 0);
        client.produce(&[b"2"], WirePartitioning::Balanced).await.unwrap();
        assert_eq!(client.poll(&next()).await.unwrap().offsets(), [0]);
    });
}

/// They would keep descriptors until the next start.
#[test]
fn partitions_whose_record_is_refused_are_removed() {
    run_on_disk(async |server: Server, disk| {
        let mut client = server.login().await;
        client.create(2).await;
        disk.is_full.set(true);
        let refused = client.send(CREATE_TOPIC_CODE, &create_topic("another", 5)).await;
        assert_eq!(refused, Err(status(Status::TopicFull)));
        let (stream_id, topic_id, partitions_count) = (zero(), zero(), 3);
        let more = CreatePartitionsRequest { stream_id, topic_id, partitions_count };
        let refused = client.send(CREATE_PARTITIONS_CODE, &more).await;
        assert_eq!(refused, Err(status(Status::TopicFull)));
        assert_eq!(disk.open.borrow().len(), 2);
        disk.is_full.set(false);
        client.send(CREATE_PARTITIONS_CODE, &more).await.unwrap();
        client.produce(&[b"0"], WirePartitioning::PartitionId(4)).await.unwrap();
        assert_eq!(disk.open.borrow().len(), 5);
    });
}

/// A snapshot that has it would bring it back after a restart, and the consumer would miss messages.
#[test]
fn an_offset_that_was_refused_is_not_in_the_next_snapshot() {
    run_on_disk(async |server: Server, disk| {
        let (mut client, mut other, mut refused) =
            (server.login().await, server.login().await, server.login().await);
        client.create(2).await;
        for partition in 0..2 {
            client.produce(&[b"0"], WirePartitioning::PartitionId(partition)).await.unwrap();
        }
        let store = store_offset(1, 0);
        client.send(STORE_CONSUMER_OFFSET_CODE, &store).await.unwrap();
        disk.is_journal_long.set(true);
        client.send(STORE_CONSUMER_OFFSET_CODE, &store).await.unwrap();
        let other = Sim::spawn(async move { other.send(STORE_CONSUMER_OFFSET_CODE, &store).await });
        Sim::sleep(Duration::from_micros(500)).await; // its record is being stored
        let store = store_offset(0, 0);
        let refused =
            Sim::spawn(async move { refused.send(STORE_CONSUMER_OFFSET_CODE, &store).await });
        while disk.snapshots.borrow().len() < 2 {
            Sim::sleep(Duration::from_micros(100)).await;
        }
        disk.is_full.set(true);
        assert_eq!(refused.await.unwrap(), Err(status(Status::TopicFull)));
        other.await.unwrap().unwrap();
        disk.is_full.set(false);
        disk.is_journal_long.set(false);
        let store = store_offset(1, 0);
        client.send(STORE_CONSUMER_OFFSET_CODE, &store).await.unwrap();
        let snapshots = disk.snapshots.borrow();
        assert_eq!(snapshots.len(), 3);
        assert!(snapshots[0] != snapshots[1], "the second was made while it was stored");
        assert!(snapshots[0] == snapshots[2]);
    });
}

/// The disk is full, or has failed, and each attempt would write the whole catalogue.
#[test]
fn an_owed_snapshot_that_fails_is_made_again_after_a_time() {
    run_on_disk(async |server: Server, disk| {
        let mut client = server.login().await;
        client.create(1).await;
        client.produce(&[b"0"], WirePartitioning::Balanced).await.unwrap();
        disk.is_full.set(true);
        let purge = PurgeTopicRequest { stream_id: zero(), topic_id: zero() };
        let refused = client.send(PURGE_TOPIC_CODE, &purge).await;
        assert_eq!(refused, Err(status(Status::TopicFull)));
        disk.is_full.set(false);
        client.produce(&[b"1"], WirePartitioning::Balanced).await.unwrap();
        for (seconds, is_refused, attempts) in
            [(0, true, 1), (9, true, 1), (1, true, 2), (10, false, 3), (10, false, 3)]
        {
            NOW.set(NOW.get() + seconds * 1_000_000);
            disk.refuses_snapshots.set(is_refused);
            for _ in 0..20 {
                client.send(STORE_CONSUMER_OFFSET_CODE, &store_offset(0, 0)).await.unwrap();
            }
            assert_eq!(disk.snapshots.borrow().len(), attempts);
        }
    });
}

/// What is left of a change of many records is not made: its client is told so.
#[test]
fn a_purge_of_many_topics_ends_when_the_storage_is_closed() {
    run_on_disk(async |server: Server, disk| {
        let mut client = server.login().await;
        client.create(1).await;
        client.send(CREATE_TOPIC_CODE, &create_topic("another", 1)).await.unwrap();
        let records = disk.records.get();
        disk.is_held.set(true);
        let purge = PurgeStreamRequest { stream_id: zero() };
        let purged = Sim::spawn(async move { client.send(PURGE_STREAM_CODE, &purge).await });
        while disk.records.get() == records {
            pause().await;
        }
        let iggy = Rc::clone(&server.iggy);
        let closed = Sim::spawn(async move { iggy.close().await });
        pause().await;
        disk.is_held.set(false);
        assert_eq!(purged.await.unwrap(), Err(status(Status::Disconnected)));
        assert_eq!(closed.await.unwrap(), Ok(()));
        assert_eq!(disk.records.get(), records + 1);
    });
}

/// The change in progress is stored. Those that wait for it are not, and do not wait for ever.
#[test]
fn what_comes_while_the_storage_is_closed_is_refused() {
    run_on_disk(async |server: Server, disk| {
        let mut client = server.login().await;
        client.create(1).await;
        let records = disk.records.get();
        disk.is_held.set(true);
        let mut changes = Vec::new();
        for stream in ["a", "b", "c"] {
            let (mut another, request) =
                (server.login().await, CreateStreamRequest { name: name(stream) });
            let change = async move { another.send(CREATE_STREAM_CODE, &request).await.map(drop) };
            changes.push(Sim::spawn(change));
        }
        while disk.records.get() == records {
            pause().await;
        }
        let iggy = Rc::clone(&server.iggy);
        let closed = Sim::spawn(async move { iggy.close().await });
        pause().await;
        let refused = Err(status(Status::Disconnected));
        let produced = client.produce(&[b"0"], WirePartitioning::Balanced).await;
        assert_eq!(produced.map(drop), refused);
        disk.is_held.set(false);
        let mut results = Vec::new();
        for change in changes {
            results.push(change.await.unwrap());
        }
        let stored = results.iter().position(Result::is_ok).expect("the one in progress");
        results.swap_remove(stored).unwrap();
        assert_eq!(results, [refused; 2]);
        assert_eq!(disk.records.get(), records + 1);
        assert_eq!(closed.await.unwrap(), Ok(()));
        let produced = client.produce(&[b"0"], WirePartitioning::Balanced).await;
        assert_eq!(produced.map(drop), refused);
    });
}
