//! The Iggy protocol, version 0.10: what its commands mean, without I/O.
//!
//! | module | subject |
//! |---|---|
//! | [`catalogue`] | the streams, topics, partitions, consumer groups and stored offsets, and each change as a record |
//! | [`frame`], [`command`] | requests in the bytes that arrive, and their fields, by `iggy_binary_protocol` |
//! | [`messages`] | a batch of messages: checked, stamped in place, cut |
//! | [`storage`] | where messages and records are kept |
//! | [`answer`] | answers and their bytes |

pub mod answer;
pub mod catalogue;
pub mod command;
pub mod frame;
pub mod messages;
mod name;
mod status;
pub mod storage;

pub use name::{NAME_BYTES_MAX, Name};
pub use status::Status;
