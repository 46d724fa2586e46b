//! How a topic delivers: its writes, the tasks that it wakes and the memory that it takes, on connections that accept
//! each write at once.

mod common;
mod counting;
mod ends;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;
use std::{io, mem};

use common::{FIN, PING, Role, frame};
use counting::{allocations, live_bytes};
use ends::{buffers, request, simulate};
use owned_io::backend::{Duplex, Endpoint};
use owned_io::{
    BufResult, ByteStream, Clock, Executor, IoBuf, IoBufExt, IoVec, OwnedWrite, OwnedWriteExt,
    ShutdownHandle, coop,
};
use owned_io_sim::{Sim, SimReadHalf, SimStream, SimWriteHalf, pipe};
use owned_io_websocket::stream::Buffers;
use owned_io_websocket::{Config, Message, OnLag, Topic, WebSocket, accept};

const MS: Duration = Duration::from_millis(1);

/// A write half that records what it is given. It accepts all of it at once, unless it is blocked.
struct Recorder {
    record: Rc<Record>,
    inner: SimWriteHalf,
}

#[derive(Default)]
struct Record {
    /// The address and the length of each write.
    writes: RefCell<Vec<(usize, usize)>>,
    bytes: RefCell<Vec<u8>>,
    is_blocked: Cell<bool>,
    /// Each write completes one turn later, as on a runtime that completes writes.
    is_late: Cell<bool>,
    /// How many bytes the next write that does not wait takes. Without, such writes are refused.
    takes: Cell<Option<usize>>,
    /// Writes that do not wait take everything, and use up the budget of the poll.
    takes_all: Cell<bool>,
    /// How many writes that do not wait have taken something.
    taken: Cell<usize>,
    waker: RefCell<Option<Waker>>,
}

impl Record {
    fn unblock(&self) {
        self.is_blocked.set(false);
        self.waker.take().unwrap().wake();
    }

    fn clear(&self) {
        self.writes.take();
        self.bytes.take();
    }
}

impl OwnedWrite for Recorder {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        let Record { writes, bytes, is_blocked, is_late, waker, .. } = &*self.record;
        let mut is_begun = !is_late.get();
        poll_fn(|cx| {
            if !mem::replace(&mut is_begun, true) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !is_blocked.get() {
                return Poll::Ready(());
            }
            waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
        writes.borrow_mut().push((buf.buf_ptr().addr(), buf.buf_len()));
        bytes.borrow_mut().extend_from_slice(buf.buf_bytes());
        BufResult(Ok(buf.buf_len()), buf)
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        BufResult(Err(io::ErrorKind::Unsupported.into()), bufs)
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let takes = match self.record.takes_all.get() {
            true => bytes.len(),
            false => self.record.takes.take().ok_or(io::ErrorKind::WouldBlock)?,
        };
        if self.record.takes_all.get() {
            coop::consume(coop::POLL_BUDGET_NANOS.into());
        }
        self.record.taken.set(self.record.taken.get() + 1);
        let taken = &bytes[..takes.min(bytes.len())];
        self.record.writes.borrow_mut().push((taken.as_ptr().addr(), taken.len()));
        self.record.bytes.borrow_mut().extend_from_slice(taken);
        Ok(taken.len())
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.inner.shutdown().await
    }
}

impl Endpoint for Recorder {
    fn shutdown_handle(&self) -> ShutdownHandle {
        self.inner.shutdown_handle()
    }
}

/// A server whose writes are recorded, and the peer, whose writes it receives.
async fn recorded() -> (WebSocket<Duplex<SimReadHalf, Recorder>>, Rc<Record>, SimStream) {
    recorded_with(&buffers()).await
}

/// The same, with buffers that connections may share.
async fn recorded_with(
    buffers: &Buffers,
) -> (WebSocket<Duplex<SimReadHalf, Recorder>>, Rc<Record>, SimStream) {
    let (near, mut far) = pipe();
    far.write_all(request()).await.into_result().unwrap();
    let (read, inner) = near.into_split();
    let record = Rc::<Record>::default();
    let stream = Duplex::new(read, Recorder { record: Rc::clone(&record), inner });
    let server = accept::<Sim, _>(stream, buffers, Config::default()).await.unwrap();
    record.clear();
    (server, record, far)
}

fn topic() -> Topic {
    Topic::new::<Sim>(&buffers(), 64 * 1024)
}

fn publish(topic: &Topic, payload: &[u8]) {
    topic.publish(Message::Binary(payload)).unwrap();
}

/// What a write that does not wait has taken is not written again, also on a runtime that completes writes.
#[test]
fn a_write_goes_on_where_the_one_that_does_not_wait_ended() {
    simulate(|| async {
        for takes in [None, Some(1), Some(100), Some(204)] {
            let topic = topic();
            let (WebSocket { mut incoming, outgoing }, record, _peer) = recorded().await;
            let _subscriber = topic.subscribe(&outgoing, OnLag::Close).unwrap();
            drop(Sim::spawn(async move { drop(incoming.receive().await) }));
            record.is_late.set(true);
            record.takes.set(takes);
            publish(&topic, &[7; 200]);
            Sim::sleep(MS).await;
            assert_eq!(
                *record.bytes.borrow(),
                frame(Role::Client, FIN | common::BINARY, &[7; 200]),
                "{takes:?}"
            );
            let rest = usize::from(takes != Some(204));
            let writes = rest + usize::from(takes.is_some());
            assert_eq!(record.writes.borrow().len(), writes, "{takes:?}");
        }
    });
}

/// "A write that is done at once wakes no task of the subscriber."
#[test]
fn a_turn_is_one_write_for_each_idle_subscriber_and_wakes_none() {
    simulate(|| async {
        let (topic, polls) = (topic(), Rc::new(Cell::new(0)));
        let mut records = Vec::new();
        let mut peers = Vec::new();
        for _ in 0..10 {
            let (server, record, peer) = recorded().await;
            let subscriber = topic.subscribe(&server.outgoing, OnLag::Close).unwrap();
            let polls = Rc::clone(&polls);
            drop(Sim::spawn(async move {
                let WebSocket { mut incoming, outgoing } = server;
                let _kept = (outgoing, subscriber);
                let mut receiving = pin!(incoming.receive());
                poll_fn(|cx| {
                    polls.set(polls.get() + 1);
                    receiving.as_mut().poll(cx).map(drop)
                })
                .await;
            }));
            records.push(record);
            peers.push(peer);
        }
        Sim::sleep(MS).await;
        polls.set(0);
        for turn in 1..=20 {
            (0..5).for_each(|_| publish(&topic, &[7; 200]));
            Sim::sleep(MS).await;
            let shared = *records[0].writes.borrow().last().unwrap();
            assert_eq!(shared.1, 5 * 204);
            for record in &records {
                assert_eq!(record.writes.borrow().len(), turn);
                assert_eq!(record.writes.borrow().last(), Some(&shared));
            }
        }
        assert_eq!((polls.get(), topic.kept_bytes()), (0, 0));
    });
}

#[test]
fn a_subscriber_that_is_behind_gets_many_short_messages_in_one_write() {
    simulate(|| async {
        let topic = topic();
        let (server, record, mut peer) = recorded().await;
        let WebSocket { mut incoming, outgoing } = server;
        let _subscriber = topic.subscribe(&outgoing, OnLag::Close).unwrap();
        drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
        record.is_blocked.set(true);
        let mut expected = Vec::new();
        for n in 0..100 {
            let payload = [n; 100];
            let large = [n; 5_000];
            let payload = if n == 50 { &large[..] } else { &payload };
            publish(&topic, payload);
            expected.extend(frame(Role::Client, FIN | common::BINARY, payload));
            topic.flush().await;
        }
        peer.write_all(frame(Role::Server, FIN | PING, b"ping")).await.into_result().unwrap();
        Sim::sleep(MS).await;
        assert!(record.writes.borrow().is_empty());
        record.unblock();
        Sim::sleep(MS).await;
        let lengths: Vec<_> = record.writes.borrow().iter().map(|(_, len)| *len).collect();
        // The write that was in progress, the pong, the messages up to the large one, that one, and the rest.
        assert_eq!(lengths, [102, 6, 49 * 102, 5_004, 49 * 102]);
        let pong = record.bytes.borrow_mut().drain(102..108).collect::<Vec<_>>();
        assert_eq!(pong, frame(Role::Client, FIN | common::PONG, b"ping"));
        assert!(*record.bytes.borrow() == expected, "in order");
        assert_eq!(topic.kept_bytes(), 0);
    });
}

#[test]
fn a_pong_waits_for_64_kib_of_a_topic_at_most() {
    simulate(|| async {
        let topic = Topic::new::<Sim>(&buffers(), 512 * 1024);
        let (server, record, mut peer) = recorded().await;
        let WebSocket { mut incoming, outgoing } = server;
        let _subscriber = topic.subscribe(&outgoing, OnLag::Close).unwrap();
        drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
        record.is_blocked.set(true);
        for n in 0..200 {
            publish(&topic, &[n; 1_000]);
        }
        Sim::sleep(MS).await;
        peer.write_all(frame(Role::Server, FIN | PING, b"ping")).await.into_result().unwrap();
        Sim::sleep(MS).await;
        record.unblock();
        Sim::sleep(MS).await;
        let lengths: Vec<_> = record.writes.borrow().iter().map(|(_, len)| *len).collect();
        assert_eq!(lengths, [65 * 1_004, 6, 65 * 1_004, 65 * 1_004, 5 * 1_004]);
    });
}

/// A write that waits also lets other tasks run. One that does not would send a whole backlog in one poll.
#[test]
fn writes_that_do_not_wait_end_with_the_budget_of_a_poll() {
    simulate(|| async {
        let topic = Topic::new::<Sim>(&buffers(), 512 * 1024);
        let (server, record, _peer) = recorded().await;
        let WebSocket { mut incoming, outgoing } = server;
        let _subscriber = topic.subscribe(&outgoing, OnLag::Close).unwrap();
        drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
        record.is_blocked.set(true);
        for n in 0..200 {
            publish(&topic, &[n; 1_000]);
        }
        Sim::sleep(MS).await;
        record.takes_all.set(true);
        record.unblock();
        Sim::sleep(MS).await;
        let lengths: Vec<_> = record.writes.borrow().iter().map(|(_, len)| *len).collect();
        assert_eq!(lengths, [65 * 1_004, 65 * 1_004, 65 * 1_004, 5 * 1_004]);
        assert_eq!(record.taken.get(), 1, "one used up the budget");
    });
}

/// Other tasks and I/O run during a flush, so that writes can complete.
#[test]
fn a_flush_slows_the_publisher_down_to_writes_that_complete_later() {
    simulate(|| async {
        let topic = topic();
        let (server, record, _peer) = recorded().await;
        let WebSocket { mut incoming, outgoing } = server;
        let _subscriber = topic.subscribe(&outgoing, OnLag::Close).unwrap();
        drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
        Sim::sleep(MS).await;
        record.is_late.set(true);
        let mut expected = Vec::new();
        for n in 0..40 {
            let payload = [n; 25_000];
            publish(&topic, &payload);
            expected.extend(frame(Role::Client, FIN | common::BINARY, &payload));
            topic.flush().await;
        }
        Sim::sleep(MS).await;
        assert!(*record.bytes.borrow() == expected, "all messages, in order");
    });
}

#[test]
fn the_topics_of_a_connection_take_turns() {
    simulate(|| async {
        let topics = [topic(), topic()];
        let (server, record, _peer) = recorded().await;
        let WebSocket { mut incoming, outgoing } = server;
        let _subscribers =
            topics.each_ref().map(|topic| topic.subscribe(&outgoing, OnLag::Close).unwrap());
        drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
        record.is_blocked.set(true);
        for _ in 0..3 {
            for (topic, len) in topics.iter().zip([2_000, 3_000]) {
                publish(topic, &vec![7; len]);
                topic.flush().await;
            }
        }
        Sim::sleep(MS).await;
        record.unblock();
        Sim::sleep(MS).await;
        let lengths: Vec<_> = record.writes.borrow().iter().map(|(_, len)| *len).collect();
        assert_eq!(lengths, [2_004, 3_004, 2_004, 3_004, 2_004, 3_004]);
    });
}

#[test]
fn an_idle_subscriber_is_small_and_a_delivery_allocates_for_all_at_once() {
    const SUBSCRIBERS: isize = 500;
    owned_io_sim::block_on(async {
        let topic = topic();
        let buffers = buffers();
        let (mut outgoings, mut rest) = (Vec::new(), Vec::new());
        for _ in 0..SUBSCRIBERS {
            let (server, record, peer) = recorded_with(&buffers).await;
            let WebSocket { mut incoming, outgoing } = server;
            drop(Sim::spawn(async move { while let Ok(Some(_)) = incoming.receive().await {} }));
            record.writes.borrow_mut().reserve(100);
            record.bytes.borrow_mut().reserve(100 * 204);
            outgoings.push(outgoing);
            rest.push((record, peer));
        }
        Sim::sleep(MS).await;
        let before = live_bytes();
        let subscribe = |outgoing| topic.subscribe(outgoing, OnLag::Close).unwrap();
        let subscribers: Vec<_> = outgoings.iter().map(subscribe).collect();
        let mut allocated = 0;
        for round in 0..20 {
            if round == 10 {
                allocated = allocations(); // warm
            }
            publish(&topic, &[7; 200]);
            topic.flush().await;
        }
        let allocated = allocations() - allocated;
        let each = (live_bytes() - before) / SUBSCRIBERS;
        println!("{each} bytes each, {allocated} allocations in 10 deliveries");
        assert!(each <= 512, "{each} bytes each");
        // A few for each message, and one for each yield to other tasks.
        assert!(allocated < 10 * (SUBSCRIBERS as usize / 5), "{allocated} allocations");
        assert!(rest.iter().all(|(record, _)| record.writes.borrow().len() == 20));
        drop(subscribers);
        assert_eq!(topic.subscriber_count(), 0);
    });
}
