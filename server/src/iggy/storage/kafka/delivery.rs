//! [`Delivery`]: a batch that was passed to librdkafka, and what its client is told.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use owned_io::Sender;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::super::Appended;
use super::room::Permit;
use crate::iggy::Status;

/// A batch whose messages wait for their reports.
pub(super) struct Delivery {
    count: u32,
    /// How many reports are missing.
    left: AtomicU32,
    /// The offset of the first message, in ms its time, and how many were delivered.
    base_offset: AtomicI64,
    millis: AtomicI64,
    delivered: AtomicU32,
    outcome: Mutex<Outcome>,
}

/// What is needed at the end alone.
struct Outcome {
    /// The first failure, or [`CannotAppendMessage`](Status::CannotAppendMessage) if that is among them.
    failure: Option<Status>,
    answer: Sender<Result<Appended, Status>>,
    permit: Option<Permit>,
}

impl Delivery {
    pub(super) fn new(
        answer: Sender<Result<Appended, Status>>,
        count: u32,
        permit: Permit,
    ) -> Self {
        Self {
            count,
            left: AtomicU32::new(count),
            base_offset: AtomicI64::new(i64::MAX),
            millis: AtomicI64::new(0),
            delivered: AtomicU32::new(0),
            outcome: Mutex::new(Outcome { failure: None, answer, permit: Some(permit) }),
        }
    }

    /// A message was delivered. `offset` is negative if unknown: the broker stored the first attempt, the connection was
    /// lost, and the retry is only reported as a duplicate.
    pub(super) fn succeed(&self, offset: i64, millis: i64) {
        match offset {
            0.. => drop(self.base_offset.fetch_min(offset, Ordering::AcqRel)),
            _ => self.fail(Status::CannotAppendMessage),
        }
        self.millis.fetch_max(millis, Ordering::AcqRel);
        self.delivered.fetch_add(1, Ordering::AcqRel);
    }

    /// A message was not delivered. If one of the batch may be stored all the same, the answer says so.
    pub(super) fn fail(&self, status: Status) {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.failure.is_none() || status == Status::CannotAppendMessage {
            outcome.failure = Some(status);
        }
    }

    /// `count` more messages have come to their end.
    pub(super) fn end(&self, count: u32) {
        if self.left.fetch_sub(count, Ordering::AcqRel) != count {
            return;
        }
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let delivered = self.delivered.load(Ordering::Acquire);
        let result = match outcome.failure {
            None => Ok(Appended {
                base_offset: self.base_offset.load(Ordering::Acquire).max(0) as u64,
                count: self.count,
                timestamp: self.millis.load(Ordering::Acquire).max(0) as u64 * 1_000,
            }),
            Some(status) if delivered == 0 => Err(status),
            // Some of the messages are there.
            Some(_) => Err(Status::CannotAppendMessage),
        };
        outcome.permit = None;
        let _ = outcome.answer.try_send(result); // nobody may wait any more
    }
}

/// The messages of a batch that are not passed to librdkafka yet. Those that are left when it is dropped have failed, also
/// if the task is dropped in between.
pub(super) struct UnsentMessages<'a> {
    delivery: &'a Delivery,
    count: u32,
    /// Why messages are left.
    failure: Status,
}

impl<'a> UnsentMessages<'a> {
    pub(super) const fn new(delivery: &'a Delivery) -> Self {
        Self { delivery, count: delivery.count, failure: Status::CannotAppendMessage }
    }

    /// librdkafka has taken the next message.
    pub(super) const fn pass(&mut self) {
        self.count -= 1;
    }

    /// librdkafka has not taken the next message. If it is the first one, nothing of the batch is stored, and the client is
    /// told the reason. Else those before it may be. Returns whether it is the first one.
    pub(super) fn refuse(&mut self, error: &KafkaError) -> bool {
        let is_first = self.count == self.delivery.count;
        if is_first {
            self.failure = status_of_refusal(error);
        }
        is_first
    }
}

impl Drop for UnsentMessages<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.delivery.fail(self.failure);
            self.delivery.end(self.count);
        }
    }
}

/// Of a message that librdkafka has not taken: nothing is stored.
fn status_of_refusal(error: &KafkaError) -> Status {
    match error.rdkafka_error_code() {
        // Of a client that has failed meanwhile: the next batch gets a new one.
        Some(RDKafkaErrorCode::QueueFull | RDKafkaErrorCode::Fatal) => Status::TaskTimeout,
        _ => status_of_failure(error),
    }
}

/// Of a message that was not delivered.
pub(super) fn status_of_failure(error: &KafkaError) -> Status {
    use RDKafkaErrorCode as Code;
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge) => Status::InvalidSizeBytes,
        Some(Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownTopicId) => {
            Status::TopicIdNotFound
        }
        Some(Code::UnknownPartition) => Status::PartitionNotFound,
        // A message that has timed out may be on its way, or stored without an answer.
        _ => Status::CannotAppendMessage,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use owned_io::channel;

    use super::super::room::Room;
    use super::*;

    pub(in super::super) fn delivery(
        count: u32,
    ) -> (Delivery, owned_io::Receiver<Result<Appended, Status>>) {
        let (answer, answered) = channel(std::num::NonZeroUsize::MIN);
        let permit = Arc::new(Room::new(1)).try_reserve(1, 1).unwrap();
        (Delivery::new(answer, count, permit), answered)
    }

    #[test]
    fn an_offset_that_is_unknown_is_not_made_up() {
        for (offsets, expected) in [
            ([7, 8], Ok(7)),
            ([-1001, -1001], Err(Status::CannotAppendMessage)),
            ([-1001, 8], Err(Status::CannotAppendMessage)),
        ] {
            let (delivery, mut answered) = delivery(2);
            for offset in offsets {
                delivery.succeed(offset, 1);
                delivery.end(1);
            }
            let answer = answered.try_receive().unwrap();
            assert_eq!(answer.map(|appended| appended.base_offset), expected, "{offsets:?}");
        }
    }

    #[test]
    fn a_refusal_is_told_unless_messages_before_it_may_be_stored() {
        use RDKafkaErrorCode as Code;
        for (code, expected) in [
            (Code::QueueFull, Status::TaskTimeout),
            (Code::Fatal, Status::TaskTimeout),
            (Code::UnknownTopic, Status::TopicIdNotFound),
            (Code::UnknownPartition, Status::PartitionNotFound),
            (Code::MessageSizeTooLarge, Status::InvalidSizeBytes),
        ] {
            for passed in 0..3 {
                let (delivery, mut answered) = delivery(3);
                let mut unsent = UnsentMessages::new(&delivery);
                (0..passed).for_each(|_| unsent.pass());
                assert_eq!(unsent.refuse(&KafkaError::MessageProduction(code)), passed == 0);
                drop(unsent);
                for offset in 0..passed {
                    assert!(answered.try_receive().is_none(), "reports are missing");
                    delivery.succeed(offset.into(), 1);
                    delivery.end(1);
                }
                let expected = if passed == 0 { expected } else { Status::CannotAppendMessage };
                let answer = answered.try_receive().unwrap();
                assert_eq!(answer.map(drop), Err(expected), "{code:?} after {passed}");
            }
        }
    }

    /// It may be stored even if no report says so, as that of a message that has timed out.
    #[test]
    fn a_batch_that_is_passed_in_part_may_be_stored() {
        let (delivery, mut answered) = delivery(2);
        let mut unsent = UnsentMessages::new(&delivery);
        unsent.pass(); // the task is dropped then
        drop(unsent);
        delivery.end(1);
        assert_eq!(answered.try_receive().unwrap().map(drop), Err(Status::CannotAppendMessage));
    }

    #[test]
    fn a_batch_of_which_a_message_may_be_stored_is_told_so() {
        for order in [[0, 1], [1, 0]] {
            let (delivery, mut answered) = delivery(2);
            for n in order {
                delivery.fail([Status::InvalidSizeBytes, Status::CannotAppendMessage][n]);
                delivery.end(1);
            }
            let answer = answered.try_receive().unwrap();
            assert_eq!(answer.map(drop), Err(Status::CannotAppendMessage), "{order:?}");
        }
    }
}
