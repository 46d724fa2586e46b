//! Topics that other servers change too.

use std::cell::RefCell;

use iggy_binary_protocol::requests::streams::{CreateStreamRequest, DeleteStreamRequest};
use iggy_binary_protocol::requests::topics::{CreateTopicRequest, DeleteTopicRequest};
use iggy_binary_protocol::{WireIdentifier, WireName};

use super::super::super::catalogue::{Catalogue, LogId, Record};
use super::super::super::storage::*;
use super::*;
use crate::iggy::answer::Answer;
use crate::iggy::broker::tail::{TailError, TailPlace};
use crate::iggy::join::join_all;
use crate::iggy::messages::Batch;

/// What all servers share.
#[derive(Default)]
struct World {
    topics: RefCell<Vec<SharedTopic>>,
    is_down: Cell<bool>,
    /// How long a list takes.
    list_seconds: Cell<u64>,
    lists: Cell<u32>,
    changes: RefCell<Vec<Record>>,
    named: RefCell<Vec<LogId>>,
    /// How often all topics were replaced.
    restarts: Cell<u64>,
}

/// A log that others may replace.
struct SharedLog {
    log: Rc<dyn MessageLog>,
    world: Rc<World>,
}

impl MessageLog for SharedLog {
    fn append(&self, batch: Batch, id: u128) -> LocalFuture<'_, Result<Appended, Status>> {
        self.log.append(batch, id)
    }

    fn read(
        &self,
        from: ReadFrom,
        count: u32,
        bytes_max: usize,
    ) -> LocalFuture<'_, Result<Vec<StoredBatch>, ReadError>> {
        self.log.read(from, count, bytes_max)
    }

    fn offsets(&self) -> Offsets {
        self.log.offsets()
    }

    fn restarts(&self) -> u64 {
        self.world.restarts.get()
    }

    fn size(&self) -> Size {
        self.log.size()
    }

    fn flush(&self) -> LocalFuture<'_, Result<(), Status>> {
        self.log.flush()
    }

    fn purge(&self) -> LocalFuture<'_, Result<(), Status>> {
        self.log.purge()
    }
}

struct SharedStorage {
    memory: MemoryStorage,
    world: Rc<World>,
}

impl Storage for SharedStorage {
    fn open<'a>(
        &'a self,
        logs: &'a [LogId],
    ) -> LocalFuture<'a, Result<Vec<Rc<dyn MessageLog>>, Status>> {
        assert!(logs.iter().all(|log| self.world.named.borrow().contains(log)), "named before");
        Box::pin(async {
            let shared = |log| Rc::new(SharedLog { log, world: Rc::clone(&self.world) }) as Rc<_>;
            Ok(self.memory.open(logs).await?.into_iter().map(shared).collect())
        })
    }

    fn remove<'a>(&'a self, logs: &'a [LogId]) -> LocalFuture<'a, Result<(), Status>> {
        self.memory.remove(logs)
    }

    fn record(&self, record: Vec<u8>) -> LocalFuture<'_, Result<(), Status>> {
        self.memory.record(record)
    }

    fn shared(&self) -> Option<&dyn SharedTopics> {
        Some(self)
    }
}

impl SharedTopics for SharedStorage {
    fn list(&self) -> LocalFuture<'_, Result<Vec<SharedTopic>, Status>> {
        Box::pin(async {
            self.world.lists.set(self.world.lists.get() + 1);
            later(self.world.list_seconds.get()).await;
            match self.world.is_down.get() {
                true => Err(Status::TaskTimeout),
                false => Ok(self.world.topics.borrow().clone()),
            }
        })
    }

    fn change(&self, _: &Catalogue, record: &Record) -> LocalFuture<'_, Result<(), Status>> {
        let record = record.clone();
        Box::pin(async move {
            if self.world.is_down.get() {
                return Err(Status::TaskTimeout);
            }
            self.world.changes.borrow_mut().push(record);
            Ok(())
        })
    }

    fn name_logs(&self, _: &Catalogue, record: &Record) {
        let logs = super::super::changes::new_logs(record);
        self.world.named.borrow_mut().extend(logs);
    }
}

fn topic(stream: &str, topic: &str, partitions: u32) -> SharedTopic {
    SharedTopic { stream: stream.into(), topic: topic.into(), partitions }
}

async fn server(world: &Rc<World>) -> Broker {
    let environment = Environment::of::<Sim>();
    let memory = MemoryStorage::new(1 << 20, environment.now);
    let storage = Box::new(SharedStorage { memory, world: Rc::clone(world) });
    let (catalogue, clients) = (Catalogue::numbered_by_name(), Clients::default());
    Broker::restore(storage, catalogue, clients, environment, Node::default()).await.unwrap()
}

/// The names of streams and topics, and the numbers of partitions. A stream without topics is there too.
fn listed(broker: &Broker) -> Vec<String> {
    let catalogue = broker.catalogue.borrow();
    let mut all: Vec<_> = catalogue
        .streams()
        .flat_map(|(_, stream)| {
            let topics = stream.topics().map(|(_, topic)| {
                let partitions = topic.partitions().len();
                format!("{}/{} {partitions}", stream.name.as_str(), topic.name.as_str())
            });
            topics.chain((stream.topics().len() == 0).then(|| stream.name.as_str().to_owned()))
        })
        .collect();
    all.sort();
    all
}

fn id(name: &str) -> WireIdentifier {
    WireIdentifier::named(name).unwrap()
}

fn create_stream(name: &str) -> Command {
    Command::CreateStream(CreateStreamRequest { name: WireName::new(name).unwrap() })
}

fn create_topic(stream: &str, name: &str) -> Command {
    Command::CreateTopic(CreateTopicRequest {
        stream_id: id(stream),
        partitions_count: 1,
        compression_algorithm: 1,
        message_expiry: 0,
        max_topic_size: 0,
        replication_factor: 1,
        name: WireName::new(name).unwrap(),
    })
}

/// Whether there is more than a status and a length.
fn says_something(answer: Answer) -> bool {
    answer.into_pieces().iter().map(Bytes::len).sum::<usize>() > 8
}

async fn later(seconds: u64) {
    Sim::sleep(Duration::from_secs(seconds)).await;
}

#[test]
fn the_catalogue_follows_what_others_do() {
    owned_io_sim::block_on(async {
        let world = Rc::new(World::default());
        let broker = server(&world).await;
        let refreshed = async |topics: &[SharedTopic]| {
            world.topics.replace(topics.to_vec());
            later(10).await;
            broker.refresh().await.unwrap();
            listed(&broker)
        };
        assert_eq!(refreshed(&[]).await, [""; 0]);
        let both = [topic("s", "t", 2), topic("r", "t", 1)];
        assert_eq!(refreshed(&both).await, ["r/t 1", "s/t 2"]);
        assert_eq!(refreshed(&[topic("s", "t", 3)]).await, ["s/t 3"], "the other stream is gone");
        assert_eq!(refreshed(&[topic("s", "t", 1)]).await, ["s/t 1"], "another topic of the name");
        let unfit = topic(&"n".repeat(300), "t", 1);
        assert_eq!(refreshed(&[topic("s", "t", 1), unfit]).await, ["s/t 1"]);
        // What is not known leaves everything as it is.
        world.is_down.set(true);
        assert_eq!(broker.refresh().await, Err(Status::TaskTimeout));
        assert_eq!(listed(&broker), ["s/t 1"]);
        assert!(world.changes.borrow().is_empty(), "nothing was changed by this server");
    });
}

/// Others have deleted a topic and created it again, between two lists.
#[test]
fn a_topic_that_was_replaced_ends_its_tails_and_has_no_stored_offsets() {
    owned_io_sim::block_on(async {
        let world = Rc::new(World::default());
        world.topics.replace(vec![topic("s", "t", 1)]);
        let broker = Rc::new(server(&world).await);
        broker.refresh().await.unwrap();
        let sent = send_request(&[b"one", b"two"], &WirePartitioning::Balanced);
        let (header, batch) = Batch::decode(sent).unwrap();
        let to = SendMessagesHeader { stream_id: id("s"), topic_id: id("t"), ..header };
        broker.append(&to, batch).await.unwrap();
        let execute =
            async |command| says_something(broker.execute(1, command, usize::MAX).await.unwrap());
        let place = TailPlace { stream: id("s"), topic: id("t"), partition: 0 };
        for restarts in 1..3 {
            let store = StoreConsumerOffsetRequest {
                consumer: consumer(),
                stream_id: id("s"),
                topic_id: id("t"),
                partition_id: Some(0),
                offset: 1,
            };
            execute(Command::StoreOffset(store)).await;
            let is_stored = async || {
                let get = GetConsumerOffsetRequest {
                    consumer: consumer(),
                    stream_id: id("s"),
                    topic_id: id("t"),
                    partition_id: Some(0),
                };
                execute(Command::GetOffset(get)).await
            };
            let epoch = broker.find_tail(&place).await.unwrap().epoch;
            let tail = |from| {
                let broker = Rc::clone(&broker);
                Sim::spawn(async move { broker.tail(epoch, from, usize::MAX).await.map(drop) })
            };
            assert_eq!(tail(0).await.unwrap(), Ok(()));
            let waiting = tail(2);
            broker.refresh().await.unwrap();
            assert!(is_stored().await, "nothing has happened");
            world.restarts.set(restarts);
            assert_eq!(tail(0).await.unwrap(), Err(TailError::Purged), "it is another topic's");
            broker.refresh().await.unwrap();
            assert_eq!(waiting.await.unwrap(), Err(TailError::Purged));
            assert!(!is_stored().await);
        }
    });
}

#[test]
fn what_a_server_has_done_itself_counts_until_others_know_it() {
    owned_io_sim::block_on(async {
        let world = Rc::new(World::default());
        let broker = server(&world).await;
        let execute = async |command| broker.execute(1, command, usize::MAX).await.map(drop);
        execute(create_stream("s")).await.unwrap();
        later(10).await;
        broker.refresh().await.unwrap();
        assert_eq!(listed(&broker), ["s"], "a stream without topics is its own");
        execute(create_topic("s", "t")).await.unwrap();
        broker.refresh().await.unwrap();
        assert_eq!(listed(&broker), ["s/t 1"], "it may not be listed yet");
        world.topics.replace(vec![topic("s", "t", 1)]);
        later(10).await;
        let delete = DeleteTopicRequest { stream_id: id("s"), topic_id: id("t") };
        execute(Command::DeleteTopic(delete)).await.unwrap();
        broker.refresh().await.unwrap();
        assert_eq!(listed(&broker), ["s"], "it may still be listed");
        later(10).await;
        broker.refresh().await.unwrap();
        assert_eq!(listed(&broker), ["s/t 1"], "somebody has made it again");
        let delete = DeleteStreamRequest { stream_id: id("s") };
        execute(Command::DeleteStream(delete)).await.unwrap();
        broker.refresh().await.unwrap();
        assert_eq!(listed(&broker), [""; 0]);
        assert_eq!(world.changes.borrow().len(), 4);
        world.is_down.set(true);
        assert_eq!(execute(create_stream("u")).await, Err(Status::TaskTimeout));
        assert_eq!(listed(&broker), [""; 0], "a change that is not made is not seen");
    });
}

#[test]
fn an_unknown_name_is_looked_for_but_not_all_the_time() {
    owned_io_sim::block_on(async {
        let world = Rc::new(World::default());
        world.is_down.set(true);
        let broker = server(&world).await;
        let find = async || {
            let place = TailPlace { stream: id("s"), topic: id("t"), partition: 0 };
            broker.find_tail(&place).await.map(drop)
        };
        for _ in 0..100 {
            assert_eq!(find().await, Err(Status::TaskTimeout), "nobody knows whether it is there");
        }
        assert_eq!(world.lists.get(), 1);
        world.is_down.set(false);
        later(1).await;
        assert_eq!(find().await, Err(Status::StreamIdNotFound));
        world.topics.replace(vec![topic("s", "t", 1)]);
        let lists = world.lists.get();
        for _ in 0..100 {
            assert_eq!(find().await, Err(Status::StreamIdNotFound));
        }
        assert_eq!(world.lists.get(), lists);
        later(1).await;
        assert_eq!(find().await, Ok(()));
        assert_eq!(find().await, Ok(()));
        assert_eq!(world.lists.get(), lists + 1);
    });
}

#[test]
fn those_who_wait_for_a_list_share_its_outcome() {
    owned_io_sim::block_on(async {
        let world = Rc::new(World::default());
        world.list_seconds.set(4);
        let broker = server(&world).await;
        let find_all = async || {
            let place = TailPlace { stream: id("s"), topic: id("t"), partition: 0 };
            let began = Sim::now();
            let all = join_all((0..20).map(|_| broker.find_tail(&place))).await;
            assert!(Sim::now() - began < Duration::from_secs(5), "{:?}", Sim::now() - began);
            all.into_iter().map(|found| found.map(drop)).collect::<Vec<_>>()
        };
        for (is_down, expected) in [(true, Status::TaskTimeout), (false, Status::StreamIdNotFound)]
        {
            later(1).await;
            world.is_down.set(is_down);
            assert_eq!(find_all().await, [Err(expected); 20]);
        }
        assert_eq!(world.lists.get(), 2);
    });
}

/// Else a client would take an empty answer for a server without streams.
#[test]
fn questions_are_refused_until_the_topics_are_known() {
    owned_io_sim::block_on(async {
        let world = Rc::new(World::default());
        world.is_down.set(true);
        let broker = server(&world).await;
        let (stream_id, topic_id, group_id) = (id("s"), id("t"), id("g"));
        let ask = async |command| {
            later(1).await;
            broker.execute(1, command, usize::MAX).await.map(says_something)
        };
        let at = (stream_id.clone(), topic_id.clone());
        let questions = || {
            let (stream_id, topic_id) = at.clone();
            [
                Command::GetStreams,
                Command::GetStream(GetStreamRequest { stream_id: stream_id.clone() }),
                Command::GetTopics(GetTopicsRequest { stream_id: stream_id.clone() }),
                Command::GetTopic(GetTopicRequest { stream_id, topic_id }),
            ]
        };
        for question in questions() {
            assert_eq!(ask(question).await, Err(Status::TaskTimeout));
        }
        let join = JoinConsumerGroupRequest { stream_id, topic_id, group_id };
        assert_eq!(ask(Command::JoinGroup(join.clone())).await, Err(Status::TaskTimeout));
        world.is_down.set(false);
        assert_eq!(ask(Command::JoinGroup(join)).await, Err(Status::StreamIdNotFound));
        // What is unknown is looked for.
        for question in questions().into_iter().skip(1) {
            world.topics.replace(Vec::new());
            later(10).await;
            broker.refresh().await.unwrap();
            assert_eq!(listed(&broker), [""; 0]);
            world.topics.replace(vec![topic("s", "t", 1)]);
            assert_eq!(ask(question).await, Ok(true));
        }
    });
}
