//! [`Room`]: what bounds the messages that wait for Kafka.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use event_listener::Event;
use owned_io::{Clock, select};

use crate::iggy::Status;
use crate::iggy::messages::MESSAGES_MAX;

/// How long a batch may wait for room among the messages that wait for Kafka. Longer than a broker takes to elect a
/// leader in most cases, and shorter than many clients wait for an answer.
pub const ROOM_TIME_MAX: Duration = Duration::from_secs(5);

/// The most messages that wait for Kafka. librdkafka takes about 200 bytes for each besides its bytes: 26 MB.
pub(super) const WAITING_MESSAGES_MAX: usize = 2 * MESSAGES_MAX as usize;

/// The room for messages that wait for Kafka.
pub(super) struct Room {
    bytes_max: usize,
    taken: Mutex<Taken>,
    /// Notified when some is free.
    freed: Event,
    /// Who waits for room holds it, so that small batches do not overtake a large one for ever.
    turn: async_lock::Mutex<()>,
}

#[derive(Default)]
struct Taken {
    bytes: usize,
    messages: usize,
}

impl Room {
    pub(super) fn new(bytes_max: usize) -> Self {
        let turn = async_lock::Mutex::new(());
        Self { bytes_max, taken: Mutex::default(), freed: Event::new(), turn }
    }

    /// Waits for room, [`ROOM_TIME_MAX`] at most.
    ///
    /// # Errors
    /// [`TaskTimeout`](Status::TaskTimeout): there was none in time. [`InvalidSizeBytes`](Status::InvalidSizeBytes): it is
    /// more than all room.
    pub(super) async fn reserve<C: Clock>(
        self: &Arc<Self>,
        bytes: usize,
        messages: usize,
    ) -> Result<Permit, Status> {
        if bytes > self.bytes_max || messages > WAITING_MESSAGES_MAX {
            return Err(Status::InvalidSizeBytes);
        }
        // Most find room, and need no timer.
        if let Some(_turn) = self.turn.try_lock()
            && let Some(permit) = self.try_reserve(bytes, messages)
        {
            return Ok(permit);
        }
        let waiting = pin!(async {
            let _turn = self.turn.lock().await;
            // Each round waits until some room is free.
            loop {
                let freed = self.freed.listen();
                if let Some(permit) = self.try_reserve(bytes, messages) {
                    return permit;
                }
                freed.await;
            }
        });
        select(waiting, C::sleep(ROOM_TIME_MAX)).await.first.ok_or(Status::TaskTimeout)
    }

    pub(super) fn try_reserve(self: &Arc<Self>, bytes: usize, messages: usize) -> Option<Permit> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let after = Taken { bytes: taken.bytes + bytes, messages: taken.messages + messages };
        if after.bytes > self.bytes_max || after.messages > WAITING_MESSAGES_MAX {
            return None;
        }
        *taken = after;
        Some(Permit { room: Arc::clone(self), bytes, messages })
    }

    /// Whether some is taken.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).messages > 0
    }

    /// Waits until none is taken.
    pub(super) async fn all_free(&self) {
        // Each round waits until some room is free.
        loop {
            let freed = self.freed.listen();
            if !self.is_taken() {
                return;
            }
            freed.await;
        }
    }
}

/// Room that is taken until it is dropped.
pub(super) struct Permit {
    room: Arc<Room>,
    bytes: usize,
    messages: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.room.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.bytes -= self.bytes;
        taken.messages -= self.messages;
        drop(taken);
        self.room.freed.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use owned_io::{Clock, Executor};
    use owned_io_sim::Sim;

    use super::*;

    #[test]
    fn a_batch_waits_for_room_in_turn_and_not_for_ever() {
        owned_io_sim::block_on(async {
            let room = Arc::new(Room::new(100));
            let first = room.reserve::<Sim>(80, 1).await.unwrap();
            let reserve = |bytes| {
                let room = Arc::clone(&room);
                Sim::spawn(async move { room.reserve::<Sim>(bytes, 1).await })
            };
            let began = Sim::now();
            let large = reserve(90);
            Sim::sleep(Duration::from_millis(1)).await;
            let small = reserve(10); // there is room for it, but the other one came first
            Sim::sleep(Duration::from_secs(1)).await;
            drop(first);
            let large = large.await.unwrap().unwrap();
            let small = small.await.unwrap().unwrap();
            assert_eq!((Sim::now() - began).as_secs(), 1);
            assert_eq!(reserve(1).await.unwrap().err(), Some(Status::TaskTimeout));
            assert_eq!((Sim::now() - began).as_secs(), 6);
            assert_eq!(reserve(101).await.unwrap().err(), Some(Status::InvalidSizeBytes));
            drop((large, small));
            room.all_free().await;
            assert!(reserve(100).await.unwrap().is_ok());
        });
    }
}
