use std::pin::{Pin, pin};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::thread;

use owned_io::Clock as _;
use owned_io_sim::Sim;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::super::{KafkaConfig, KafkaStorage, client};
use super::*;

fn log(brokers: &str) -> KafkaLog<Sim> {
    let config = KafkaConfig {
        brokers: brokers.to_owned(),
        message_time_max: Duration::from_secs(1),
        waiting_bytes_max: 1 << 20,
    };
    let storage = KafkaStorage::<Sim>::new(config).unwrap();
    KafkaLog::new(Rc::clone(&storage.clients), ("s.t".into(), 0))
}

#[test]
fn a_partition_whose_end_is_before_what_was_read_is_another_one() {
    let log = log("127.0.0.1:1"); // nobody listens there
    log.extend(100); // appended by this server
    assert!(!log.notice_restart(0, 7), "an open transaction is before it");
    log.read_end.set(10);
    let generation = log.generation.get();
    assert!(!log.notice_restart(10, 10) && !log.notice_restart(10, 11));
    assert_eq!((log.restarts(), log.offsets().next), (0, 100));
    assert!(log.notice_restart(10, 9));
    assert_eq!((log.restarts(), log.offsets().next), (1, 9));
    assert_eq!(log.learned_end.get(), 9);
    assert_ne!(log.generation.get(), generation);
    assert!(!log.notice_restart(10, 3), "an answer to a question of before");
    assert_eq!(log.restarts(), 1);
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits for an answer of a thread, which the simulator does not know.
async fn wait<F: Future>(mut future: Pin<&mut F>) -> F::Output {
    for _ in 0..60_000 {
        if let Poll::Ready(output) = poll(future.as_mut()) {
            return output;
        }
        thread::sleep(Duration::from_millis(1));
        Sim::sleep(Duration::from_millis(1)).await;
    }
    panic!("no answer within a minute");
}

#[test]
fn an_answer_that_was_on_its_way_when_the_partition_was_created_again_does_not_count() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("s.t", 1, 1).unwrap();
    let producer: BaseProducer = client::common(&cluster.bootstrap_servers()).create().unwrap();
    let send = |messages| {
        for _ in 0..messages {
            let record = BaseRecord::<(), _>::to("s.t").partition(0).payload("message");
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(Duration::from_secs(60)).unwrap();
    };
    let log = log(&cluster.bootstrap_servers());
    let restart = || {
        log.read_end.set(10);
        assert!(log.notice_restart(10, 0));
    };
    send(3);
    owned_io_sim::block_on(async {
        let (release, is_released) = channel();
        let mut held = pin!(log.clients.questions.hold_for_test::<Sim>(is_released));
        assert!(poll(held.as_mut()).is_pending());
        let mut asking = pin!(log.ask_offsets());
        assert!(poll(asking.as_mut()).is_pending());
        release.send(()).unwrap();
        // The thread answers one question after the other.
        let next_question = pin!(log.clients.questions.offsets::<Sim>(&log.place.0, 0));
        assert_eq!(wait(next_question).await.unwrap(), (0, 3));
        restart();
        send(2);
        wait(asking).await.unwrap();
        assert_eq!(log.offsets().next, 5, "it asks again");

        let mut waiting = pin!(log.wait_for(5));
        assert!(poll(waiting.as_mut()).is_pending());
        restart();
        send(1);
        wait(waiting).await;
        assert_eq!(log.offsets().next, 0, "the message does not count");
    });
}
