//! The Iggy protocol, version 0.10: what its commands mean, without I/O.
//!
//! | module | subject |
//! |---|---|
//! | [`catalogue`] | the streams, topics, partitions, consumer groups and stored offsets, and each change as a record |

pub mod catalogue;
mod name;
mod status;

pub use name::{NAME_BYTES_MAX, Name};
pub use status::Status;
