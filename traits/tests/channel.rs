//! A channel in one thread: what it refuses, and what its ends do. The conformance suite passes values between workers.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Duration;

use owned_io::{Clock, Executor, Receiver, Sender, channel};
use owned_io_sim::Sim;

fn of<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    channel(NonZeroUsize::new(capacity).expect("not zero"))
}

#[test]
fn a_full_channel_gives_the_value_back() {
    let (sender, mut receiver) = of(1);
    sender.try_send("first").unwrap();
    let refused = sender.try_send("second").unwrap_err();
    assert!(refused.is_full());
    assert_eq!(refused.to_string(), "the channel is full");
    assert_eq!(refused.into_value(), "second");
    assert_eq!(receiver.try_receive(), Some("first"));
    assert_eq!(receiver.try_receive(), None);
}

#[test]
fn senders_wait_for_room() {
    owned_io_sim::block_on(async {
        let (sender, mut receiver) = of(1);
        for n in 0..4 {
            let sender = sender.clone();
            drop(Sim::spawn(async move { sender.send::<Sim>(n).await.unwrap() }));
            Sim::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(receiver.len(), 1, "the others wait");
        drop(sender);
        let mut received = Vec::new();
        while let Some(n) = receiver.receive::<Sim>().await {
            received.push(n);
        }
        received.sort_unstable(); // nothing is promised about the order of those who wait
        assert_eq!(received, [0, 1, 2, 3]);
    });
}

#[test]
fn a_dropped_receiver_refuses_and_drops_what_was_sent() {
    owned_io_sim::block_on(async {
        let (sender, receiver) = of(1);
        let value = Rc::new(());
        sender.try_send(Rc::clone(&value)).unwrap();
        let waiting = {
            let (sender, value) = (sender.clone(), Rc::clone(&value));
            Sim::spawn(async move { sender.send::<Sim>(value).await })
        };
        Sim::sleep(Duration::from_millis(1)).await;
        drop(receiver);
        let refused = waiting.await.unwrap().unwrap_err();
        assert!(!refused.is_full());
        assert_eq!(refused.to_string(), "the receiver of the channel was dropped");
        drop(refused);
        assert!(sender.send::<Sim>(Rc::clone(&value)).await.is_err());
        assert_eq!(Rc::strong_count(&value), 1, "nobody else has the value");
    });
}
