use std::num::NonZeroUsize;

use owned_io::{Receiver, channel};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer as _};

use super::super::client::{self, ConsumerHandle};
use super::super::reader::tests::wake_flag;
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn cluster(messages: u32) -> MockCluster<'static, DefaultProducerContext> {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("s.t", 1, 1).unwrap();
    let config = client::common(&cluster.bootstrap_servers());
    let producer: BaseProducer = config.create().unwrap();
    for _ in 0..messages {
        let record = BaseRecord::<(), _>::to("s.t").partition(0).payload("message");
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    cluster
}

fn read_from(from: u64) -> (PendingRead, Receiver<Read>, Arc<()>) {
    let wanted = Wanted { generation: 0, from, until: from + 1, count: 1, bytes_max: usize::MAX };
    let (sender, answered) = channel(NonZeroUsize::MIN);
    let waiter = Arc::new(());
    let answer = Answer { sender, waiter: Arc::downgrade(&waiter) };
    (PendingRead::new(wanted, answer), answered, waiter)
}

/// As after a partition was created again: the read goes on at an offset, and the messages begin at the first one.
#[test]
fn messages_below_the_offset_of_a_read_are_skipped_within_limits() {
    let from = u64::from(SKIPPED_MAX) * 2 + 5;
    let cluster = cluster(SKIPPED_MAX * 2 + 10);
    let consumer = ConsumerHandle::new(&cluster.bootstrap_servers()).unwrap().current().1;
    let (wake, woken) = wake_flag();
    let place = ("s.t".into(), 0);
    let queue = assign(&consumer, &place, 0, &wake).unwrap();
    let mut cursor = Cursor::new(0, queue, from);

    // At its deadline a read ends though there are messages. Before, the queue may call back without any.
    let skipped = loop {
        woken(PATIENCE);
        let (mut read, mut answered, _waiter) = read_from(from);
        read.deadline = Instant::now();
        cursor.reads.push_back(read);
        cursor.advance(&place, &consumer, &wake);
        let result = answered.try_receive().unwrap();
        assert!(matches!(result, Err(ReadError::Failed(Status::CannotReadMessage))));
        if let Some(skipped) = cursor.behind_earlier {
            break skipped;
        }
    };
    assert_eq!(skipped, 1);

    // Other partitions get their turn, and the thread is woken for the rest.
    let (mut read, mut answered, _waiter) = read_from(from);
    read.deadline = Instant::now() + PATIENCE;
    cursor.reads.push_back(read);
    let mut skipped_before = skipped;
    let result = loop {
        cursor.advance(&place, &consumer, &wake);
        let skipped = cursor.behind_earlier.unwrap_or(0);
        assert!(skipped - skipped_before <= u64::from(SKIPPED_MAX));
        skipped_before = skipped;
        if let Some(result) = answered.try_receive() {
            break result;
        }
        woken(PATIENCE);
    };
    assert_eq!(result.unwrap()[0].base_offset, from);
}
