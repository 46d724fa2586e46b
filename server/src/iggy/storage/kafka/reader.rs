//! [`Reader`]: reads messages from Kafka, on a thread of its own, for all partitions.
//!
//! A partition that is read has a cursor: librdkafka is assigned the partition at an offset, fetches messages ahead into
//! a queue of bounded length, and stops when it is full. A read that goes on where the last one ended takes them from
//! there. One at another offset assigns the partition anew. The thread sleeps until there is a read, or a queue that was
//! empty has messages.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use owned_io::{Clock, channel};
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::super::ReadError;
use super::client::{ConsumerHandle, KafkaLogger};
use super::cursor::{
    Answer, Cursor, Generation, PendingRead, Place, Read, Wanted, assign, unassign,
};
use crate::iggy::Status;

/// The most partitions that are read at once, each with up to 1.5 MB of messages that were fetched ahead. A partition
/// that is read longest ago gives way.
const CURSORS_MAX: usize = 64;

/// The most reads that wait for the thread: about one for each client that polls. Further ones are refused.
const REQUESTS_MAX: usize = 1_024;

/// A partition that nobody has read for as long is not fetched any more.
const IDLE_TIME_MAX: Duration = Duration::from_secs(10);

/// How often the thread looks for reads that nobody waits for any more, if there is nothing else to do.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Reads for the tasks of a worker. The thread ends when it is dropped.
pub(super) struct Reader {
    requests: SyncSender<Request>,
    wake: Arc<WakeFlag>,
}

enum Request {
    Read {
        place: Place,
        wanted: Wanted,
        answer: Answer<Read>,
    },
    Wait {
        place: Place,
        generation: Generation,
        from: u64,
        answer: Answer<u64>,
    },
    /// A queue has messages.
    Wake,
}

impl Reader {
    pub(super) fn start(handle: Arc<ConsumerHandle>) -> io::Result<Self> {
        let (requests, receiver) = sync_channel(REQUESTS_MAX);
        let (is_set, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let wake = Arc::new(WakeFlag { requests: requests.clone(), is_set, has_ended });
        let (cursors, wake_of_thread) = (HashMap::new(), Arc::clone(&wake));
        let (generation, consumer) = handle.current();
        let mut thread =
            ReaderThread { handle, generation, consumer, wake: wake_of_thread, cursors };
        let run = move || thread.run(&receiver);
        thread::Builder::new().name("kafka-reader".to_owned()).spawn(run)?;
        Ok(Self { requests, wake })
    }

    /// Reads messages. None, if there are none although there should be: Kafka has offsets without messages.
    ///
    /// # Cancellation
    /// Safe.
    pub(super) async fn read<C: Clock>(&self, place: Place, wanted: Wanted) -> Read {
        let failed = ReadError::Failed(Status::CannotReadMessage);
        let request = |answer| Request::Read { place, wanted, answer };
        self.ask::<C, _>(request).await.unwrap_or(Err(failed))
    }

    /// Waits until there is a message at or behind `from`, and returns the offset behind it. A result at or below `from`
    /// means that messages arrived below `from`: the topic may have been re-created. `None`: too many partitions are being
    /// read, perhaps since a moment ago.
    ///
    /// # Cancellation
    /// Safe.
    pub(super) async fn wait<C: Clock>(
        &self,
        place: Place,
        generation: Generation,
        from: u64,
    ) -> Option<u64> {
        self.ask::<C, _>(|answer| Request::Wait { place, generation, from, answer }).await
    }

    async fn ask<C: Clock, T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Option<T> {
        let (sender, mut answered) = channel(NonZeroUsize::MIN);
        let waiter = Arc::new(());
        let answer = Answer { sender, waiter: Arc::downgrade(&waiter) };
        self.requests.try_send(request(answer)).ok()?;
        answered.receive::<C>().await
    }
}

impl Drop for Reader {
    /// Ends the thread. Its queues hold senders, so it does not see that this one is gone.
    fn drop(&mut self) {
        self.wake.has_ended.store(true, Ordering::Release);
        self.wake.wake();
    }
}

/// Wakes the thread, at most once until it has woken up: librdkafka calls it, and may not block.
pub(super) struct WakeFlag {
    requests: SyncSender<Request>,
    is_set: AtomicBool,
    /// Whether the reader was dropped.
    has_ended: AtomicBool,
}

impl WakeFlag {
    pub(super) fn wake(&self) {
        if !self.is_set.swap(true, Ordering::AcqRel)
            && self.requests.try_send(Request::Wake).is_err()
        {
            // The thread is awake, because its queue is full. It gets no request that resets the flag.
            self.is_set.store(false, Ordering::Release);
        }
    }
}

struct ReaderThread {
    handle: Arc<ConsumerHandle>,
    /// Of the consumer, in the handle.
    generation: u64,
    consumer: Arc<BaseConsumer<KafkaLogger>>,
    wake: Arc<WakeFlag>,
    cursors: HashMap<Place, Cursor>,
}

impl ReaderThread {
    fn run(&mut self, requests: &Receiver<Request>) {
        // Each round handles what is there, or waits.
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.run_round(requests))) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return,
                // Nothing would start the thread again. Whoever waits is refused, and the next read assigns its
                // partition again.
                Err(_) => self.end_all(),
            }
        }
    }

    fn run_round(&mut self, requests: &Receiver<Request>) -> ControlFlow<()> {
        match requests.recv_timeout(self.next_timeout()) {
            Ok(request) => self.handle(request),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return ControlFlow::Break(()),
        }
        for request in requests.try_iter().take(REQUESTS_MAX) {
            self.handle(request);
        }
        if self.wake.has_ended.load(Ordering::Acquire) {
            return ControlFlow::Break(());
        }
        self.take_new_consumer();
        for (place, cursor) in &mut self.cursors {
            cursor.advance(place, &self.consumer, &self.wake);
        }
        self.end_idle();
        // Errors of the client, which its context logs.
        while self.consumer.poll(Duration::ZERO).is_some() {}
        ControlFlow::Continue(())
    }

    fn end_all(&mut self) {
        for (place, cursor) in self.cursors.drain() {
            drop(cursor);
            unassign(&self.consumer, &place);
        }
    }

    /// Assigns everything again if the consumer was replaced.
    fn take_new_consumer(&mut self) {
        let (generation, consumer) = self.handle.current();
        if generation == self.generation {
            return;
        }
        self.cursors.values_mut().for_each(Cursor::restart);
        (self.generation, self.consumer) = (generation, consumer);
    }

    fn end_idle(&mut self) {
        let now = Instant::now();
        self.cursors.retain(|place, cursor| {
            if !cursor.is_idle() {
                cursor.used_at = now;
            }
            let is_kept = now.saturating_duration_since(cursor.used_at) < IDLE_TIME_MAX;
            if !is_kept {
                cursor.queue = None;
                unassign(&self.consumer, place);
            }
            is_kept
        });
    }

    /// Until the next deadline.
    fn next_timeout(&self) -> Duration {
        let reads = self.cursors.values().filter_map(|cursor| cursor.reads.front());
        let next = reads.map(|read| read.deadline).min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        left.unwrap_or(SWEEP_INTERVAL).min(SWEEP_INTERVAL)
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Wake => self.wake.is_set.store(false, Ordering::Release),
            // It may end waits: without a cursor it fails, and they are only late.
            Request::Read { place, wanted, answer } => {
                let has_no_reads = |cursor: &Cursor| cursor.reads.is_empty();
                match self.cursor(&place, wanted.generation, wanted.from, has_no_reads) {
                    Ok(cursor) => cursor.reads.push_back(PendingRead::new(wanted, answer)),
                    Err(()) => answer.send(Err(ReadError::Failed(Status::CannotReadMessage))),
                }
            }
            // Without a cursor the answer is dropped.
            Request::Wait { place, generation, from, answer } => {
                if let Ok(cursor) = self.cursor(&place, generation, from, Cursor::is_idle) {
                    cursor.waits.push((from, answer));
                }
            }
        }
    }

    /// The cursor of a partition. A new one begins at `from`. If there are too many, it takes the place of one that may
    /// be ended: the one used longest ago, and first of all one that nobody waits for. What one has of another partition of
    /// the same place is forgotten.
    fn cursor(
        &mut self,
        place: &Place,
        generation: Generation,
        from: u64,
        may_end: impl Fn(&Cursor) -> bool,
    ) -> Result<&mut Cursor, ()> {
        if !self.cursors.contains_key(place) {
            if self.cursors.len() >= CURSORS_MAX {
                let ended = self.cursors.iter().filter(|(_, cursor)| may_end(cursor));
                let oldest = ended.min_by_key(|(_, cursor)| (!cursor.is_idle(), cursor.used_at));
                let oldest = oldest.map(|(place, _)| place);
                let oldest = oldest.cloned().ok_or(())?;
                self.cursors.remove(&oldest);
                unassign(&self.consumer, &oldest);
            }
            let queue = assign(&self.consumer, place, from, &self.wake);
            let queue = queue.map_err(|error| {
                self.consumer.context().warn(format_args!("cannot read {}: {error}", place.0));
            })?;
            self.cursors.insert(place.clone(), Cursor::new(generation, queue, from));
        }
        let cursor = self.cursors.get_mut(place).ok_or(())?;
        if std::mem::replace(&mut cursor.generation, generation) != generation {
            let is_assigned = cursor.queue.is_some();
            cursor.restart();
            if is_assigned {
                unassign(&self.consumer, place);
            }
        }
        cursor.used_at = Instant::now();
        Ok(cursor)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A flag, and what waits for at most that time until the thread is woken.
    pub(in super::super) fn wake_flag() -> (Arc<WakeFlag>, impl Fn(Duration)) {
        let (requests, receiver) = sync_channel(1);
        let (is_set, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let wake = Arc::new(WakeFlag { requests, is_set, has_ended });
        let flag = Arc::clone(&wake);
        let woken = move |time_max| {
            drop(receiver.recv_timeout(time_max).expect("the thread is woken"));
            flag.is_set.store(false, Ordering::Release);
        };
        (wake, woken)
    }

    #[test]
    fn a_thread_whose_queue_was_full_can_be_woken_again() {
        let (requests, receiver) = sync_channel(1);
        let (is_set, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let wake = WakeFlag { requests: requests.clone(), is_set, has_ended };
        requests.try_send(Request::Wake).unwrap();
        wake.wake();
        drop(receiver.try_recv().unwrap());
        assert!(receiver.try_recv().is_err(), "the queue was full");
        wake.wake();
        wake.wake();
        assert!(receiver.try_recv().is_ok());
        assert!(receiver.try_recv().is_err(), "it is woken once");
    }
}
