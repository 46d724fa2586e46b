//! [`Status`]: what is wrong with a request, as the protocol numbers it.

use std::error::Error;
use std::fmt;
use std::num::NonZeroU32;

use iggy_binary_protocol::WireError;

/// Why a request is refused. The number of each is Iggy's, as its clients know it: the discriminants of `IggyError`
/// in `core/common/src/error/iggy_error.rs` of Iggy's repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Status {
    /// The server failed, and it is not the request's fault.
    Error = 1,
    /// There is no such command, or its payload is not what the command's is.
    InvalidCommand = 3,
    /// A field of the payload has a value that it cannot have.
    InvalidFormat = 4,
    /// This server does not have the command.
    FeatureUnavailable = 5,
    /// The server ends, and the command is not executed, or perhaps in part.
    Disconnected = 8,
    /// The command needs a login.
    Unauthenticated = 40,
    /// Wrong user or password.
    InvalidCredentials = 42,
    /// The request is longer than the limit.
    InvalidSizeBytes = 80,
    /// There is no client 0.
    InvalidClientId = 101,
    /// There are as many streams as there may be.
    CannotCreateStream = 1006,
    /// There is no such stream.
    StreamIdNotFound = 1009,
    /// Another stream has the name.
    StreamNameAlreadyExists = 1012,
    /// See [`Name`](super::Name).
    InvalidStreamName = 1013,
    /// There are as many topics as there may be.
    CannotCreateTopic = 2006,
    /// There is no such topic in the stream.
    TopicIdNotFound = 2010,
    /// Another topic of the stream has the name.
    TopicNameAlreadyExists = 2013,
    /// See [`Name`](super::Name).
    InvalidTopicName = 2014,
    /// There are as many partitions as there may be, or as there are descriptors for.
    TooManyPartitions = 2015,
    /// There are not as many servers for the messages.
    InvalidReplicationFactor = 2018,
    /// The topic does not have as many partitions.
    InvalidPartitionsCount = 2019,
    /// There is no such partition in the topic.
    PartitionNotFound = 3007,
    /// The topic has no partition.
    NoPartitions = 3008,
    /// There is no room, in memory or on the disk.
    TopicFull = 3009,
    /// There are as many stored offsets as there may be.
    CannotStoreConsumerOffset = 3012,
    /// The consumer has stored no offset.
    ConsumerOffsetNotFound = 3021,
    /// The member of the group has no such partition.
    NotResolvedConsumer = 3022,
    /// A batch without messages, or with another number of them than it says.
    InvalidMessagesCount = 4009,
    /// The messages could not be stored.
    CannotAppendMessage = 4010,
    /// The messages could not be read, or there is no memory for them.
    CannotReadMessage = 4011,
    /// The user headers of a message are longer than 100,000 bytes.
    TooBigUserHeaders = 4017,
    /// The index of a batch does not fit its messages.
    InvalidIndexesCount = 4035,
    /// The messages of a batch are not as long as it says.
    InvalidMessagesSize = 4036,
    /// There is no message at this offset yet.
    InvalidOffset = 4100,
    /// There is no such consumer group in the topic.
    ConsumerGroupIdNotFound = 5000,
    /// Another consumer group of the topic has the name.
    ConsumerGroupNameAlreadyExists = 5004,
    /// See [`Name`](super::Name).
    InvalidConsumerGroupName = 5005,
    /// The client is no member of the group.
    ConsumerGroupMemberNotFound = 5006,
    /// There are as many consumer groups, or memberships of them, as there may be.
    CannotCreateConsumerGroup = 5007,
    /// The store of messages, or the worker that has it, does not answer or has no room in time. No message is stored.
    TaskTimeout = 12001,
}

impl Status {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 39] = [
        Self::Error,
        Self::InvalidCommand,
        Self::InvalidFormat,
        Self::FeatureUnavailable,
        Self::Disconnected,
        Self::Unauthenticated,
        Self::InvalidCredentials,
        Self::InvalidSizeBytes,
        Self::InvalidClientId,
        Self::CannotCreateStream,
        Self::StreamIdNotFound,
        Self::StreamNameAlreadyExists,
        Self::InvalidStreamName,
        Self::CannotCreateTopic,
        Self::TopicIdNotFound,
        Self::TopicNameAlreadyExists,
        Self::InvalidTopicName,
        Self::TooManyPartitions,
        Self::InvalidReplicationFactor,
        Self::InvalidPartitionsCount,
        Self::PartitionNotFound,
        Self::NoPartitions,
        Self::TopicFull,
        Self::CannotStoreConsumerOffset,
        Self::ConsumerOffsetNotFound,
        Self::NotResolvedConsumer,
        Self::InvalidMessagesCount,
        Self::CannotAppendMessage,
        Self::CannotReadMessage,
        Self::TooBigUserHeaders,
        Self::InvalidIndexesCount,
        Self::InvalidMessagesSize,
        Self::InvalidOffset,
        Self::ConsumerGroupIdNotFound,
        Self::ConsumerGroupNameAlreadyExists,
        Self::InvalidConsumerGroupName,
        Self::ConsumerGroupMemberNotFound,
        Self::CannotCreateConsumerGroup,
        Self::TaskTimeout,
    ];

    /// Its number.
    pub const fn code(self) -> NonZeroU32 {
        NonZeroU32::new(self as u32).expect("no status is 0")
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Iggy status {}: {self:?}", self.code())
    }
}

impl Error for Status {}

/// As Iggy's server answers what it cannot decode.
impl From<WireError> for Status {
    fn from(error: WireError) -> Self {
        match error {
            WireError::PayloadTooLarge { .. } => Self::InvalidSizeBytes,
            WireError::Validation(_) => Self::InvalidFormat,
            _ => Self::InvalidCommand,
        }
    }
}
