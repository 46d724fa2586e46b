//! `load produce` and `load consume`: the client's side of Iggy's protocol, by `iggy_binary_protocol`.
//!
//! | module | subject |
//! |---|---|
//! | `produce`, `consume` | the two commands |
//! | `batch` | the messages of a batch, and the bytes of its request and of the answer to a poll |
//! | `template` | requests of one length that differ in some fields |
//! | `access` | who logs in |
//! | `control`, `topic` | the stream and topic of a run, over a connection of their own |
//! | `drive` | opens connections, and sends one request after the other on each |

pub(super) mod access;
mod batch;
pub mod consume;
pub(super) mod control;
mod drive;
pub mod produce;
pub(super) mod template;
pub(super) mod topic;

use super::bounds::Bounded;

/// How many producers or consumers, each with a partition of its own: a topic is created with as many.
type Clients = Bounded<1, 1000>;

/// Messages of a batch.
type Messages = Bounded<1, 65_536>;

/// The length of a message in bytes. It begins with a number of 8.
type MessageBytes = Bounded<8, 10_000_000>;

/// Batches of a producer or consumer.
type Batches = Bounded<1, 0xffff_ffff>;

/// The longest batch, in bytes: it is held in memory several times.
const BATCH_BYTES_MAX: u64 = 64 << 20;

/// The most bytes that a run writes to a topic. The benchmark that Iggy has published writes 40 GB.
const TOPIC_BYTES_MAX: u64 = 64 << 30;

/// Whether a batch is short enough.
fn check_batch(messages: Messages, bytes: MessageBytes) -> Result<(), String> {
    let batch_bytes = batch_bytes(messages, bytes);
    if batch_bytes <= BATCH_BYTES_MAX {
        return Ok(());
    }
    Err(format!("a batch would have {batch_bytes} bytes: {BATCH_BYTES_MAX} is the most"))
}

/// Whether a topic with so many batches is small enough.
fn check_topic(batches: u64, messages: Messages, bytes: MessageBytes) -> Result<(), String> {
    let topic_bytes = batches.saturating_mul(batch_bytes(messages, bytes));
    if topic_bytes <= TOPIC_BYTES_MAX {
        return Ok(());
    }
    Err(format!("the topic would have {topic_bytes} bytes: {TOPIC_BYTES_MAX} is the most"))
}

/// The bytes of a batch, with the header of each message.
fn batch_bytes(messages: Messages, bytes: MessageBytes) -> u64 {
    messages.get() * (bytes.get() + batch::HEADER_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_and_topics_are_bounded() {
        let (messages, bytes) = (Messages::of::<1000>(), MessageBytes::of::<1000>());
        assert_eq!(batch_bytes(messages, bytes), 1_064_000);
        assert!(check_batch(messages, bytes).is_ok());
        assert!(check_topic(40_000, messages, bytes).is_ok());
        assert!(check_topic(70_000, messages, bytes).unwrap_err().contains("74480000000 bytes"));
        assert!(check_topic(u64::MAX, messages, bytes).is_err());
        let long = check_batch(Messages::of::<65_536>(), bytes).unwrap_err();
        assert!(long.contains("67108864 is the most"), "{long}");
    }
}
