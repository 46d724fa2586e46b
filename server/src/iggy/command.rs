//! [`Command`]: the requests that this server answers, decoded.

use iggy_binary_protocol::codes::*;
use iggy_binary_protocol::requests::consumer_groups::*;
use iggy_binary_protocol::requests::consumer_offsets::*;
use iggy_binary_protocol::requests::messages::*;
use iggy_binary_protocol::requests::partitions::*;
use iggy_binary_protocol::requests::streams::*;
use iggy_binary_protocol::requests::system::*;
use iggy_binary_protocol::requests::topics::*;
use iggy_binary_protocol::requests::users::*;
use iggy_binary_protocol::{WireDecode, lookup_command};

use super::Status;
use super::frame::Request;
use super::messages::Batch;

/// A request that this server answers.
#[derive(Debug)]
#[expect(missing_docs, reason = "each is the request of iggy_binary_protocol with its name")]
pub enum Command {
    Ping,
    Login(LoginUserRequest),
    Logout,
    GetStats,
    GetMe,
    GetClient(GetClientRequest),
    GetClients,
    GetClusterMetadata,
    GetStream(GetStreamRequest),
    GetStreams,
    CreateStream(CreateStreamRequest),
    DeleteStream(DeleteStreamRequest),
    UpdateStream(UpdateStreamRequest),
    PurgeStream(PurgeStreamRequest),
    GetTopic(GetTopicRequest),
    GetTopics(GetTopicsRequest),
    CreateTopic(CreateTopicRequest),
    DeleteTopic(DeleteTopicRequest),
    UpdateTopic(UpdateTopicRequest),
    PurgeTopic(PurgeTopicRequest),
    CreatePartitions(CreatePartitionsRequest),
    DeletePartitions(DeletePartitionsRequest),
    SendMessages(SendMessagesHeader, Batch),
    PollMessages(PollMessagesRequest),
    Flush(FlushUnsavedBufferRequest),
    GetOffset(GetConsumerOffsetRequest),
    StoreOffset(StoreConsumerOffsetRequest),
    DeleteOffset(DeleteConsumerOffsetRequest),
    GetGroup(GetConsumerGroupRequest),
    GetGroups(GetConsumerGroupsRequest),
    CreateGroup(CreateConsumerGroupRequest),
    DeleteGroup(DeleteConsumerGroupRequest),
    JoinGroup(JoinConsumerGroupRequest),
    LeaveGroup(LeaveConsumerGroupRequest),
}

impl Command {
    /// Whether it changes what streams, topics, partitions or groups there are.
    pub const fn is_change(&self) -> bool {
        matches!(
            self,
            Self::CreateStream(_)
                | Self::DeleteStream(_)
                | Self::UpdateStream(_)
                | Self::PurgeStream(_)
                | Self::CreateTopic(_)
                | Self::DeleteTopic(_)
                | Self::UpdateTopic(_)
                | Self::PurgeTopic(_)
                | Self::CreatePartitions(_)
                | Self::DeletePartitions(_)
                | Self::CreateGroup(_)
                | Self::DeleteGroup(_)
        )
    }

    /// The same command, to ask again. None if it does more than to ask what streams, topics, groups and clients there
    /// are.
    pub fn repeated(&self) -> Option<Self> {
        Some(match self {
            Self::GetStats => Self::GetStats,
            Self::GetMe => Self::GetMe,
            Self::GetClient(request) => Self::GetClient(request.clone()),
            Self::GetClients => Self::GetClients,
            Self::GetClusterMetadata => Self::GetClusterMetadata,
            Self::GetStream(request) => Self::GetStream(request.clone()),
            Self::GetStreams => Self::GetStreams,
            Self::GetTopic(request) => Self::GetTopic(request.clone()),
            Self::GetTopics(request) => Self::GetTopics(request.clone()),
            Self::GetGroup(request) => Self::GetGroup(request.clone()),
            Self::GetGroups(request) => Self::GetGroups(request.clone()),
            _ => return None,
        })
    }

    /// Decodes a request. Bytes behind its fields are ignored, as by Iggy's server.
    ///
    /// # Errors
    /// [`FeatureUnavailable`](Status::FeatureUnavailable) for a command of Iggy that this server does not have: users
    /// but the one of the configuration, personal access tokens, snapshots of diagnosis, segments.
    /// [`InvalidCommand`](Status::InvalidCommand) for a code that is none, and for a payload that is cut. Others for
    /// fields that contradict each other.
    pub fn decode(Request { code, payload }: Request) -> Result<Self, Status> {
        Ok(match code {
            PING_CODE => Self::Ping,
            LOGIN_USER_CODE => Self::Login(fields(&payload)?),
            LOGOUT_USER_CODE => Self::Logout,
            GET_STATS_CODE => Self::GetStats,
            GET_ME_CODE => Self::GetMe,
            GET_CLIENT_CODE => Self::GetClient(fields(&payload)?),
            GET_CLIENTS_CODE => Self::GetClients,
            GET_CLUSTER_METADATA_CODE => Self::GetClusterMetadata,
            GET_STREAM_CODE => Self::GetStream(fields(&payload)?),
            GET_STREAMS_CODE => Self::GetStreams,
            CREATE_STREAM_CODE => Self::CreateStream(fields(&payload)?),
            DELETE_STREAM_CODE => Self::DeleteStream(fields(&payload)?),
            UPDATE_STREAM_CODE => Self::UpdateStream(fields(&payload)?),
            PURGE_STREAM_CODE => Self::PurgeStream(fields(&payload)?),
            GET_TOPIC_CODE => Self::GetTopic(fields(&payload)?),
            GET_TOPICS_CODE => Self::GetTopics(fields(&payload)?),
            CREATE_TOPIC_CODE => Self::CreateTopic(fields(&payload)?),
            DELETE_TOPIC_CODE => Self::DeleteTopic(fields(&payload)?),
            UPDATE_TOPIC_CODE => Self::UpdateTopic(fields(&payload)?),
            PURGE_TOPIC_CODE => Self::PurgeTopic(fields(&payload)?),
            CREATE_PARTITIONS_CODE => Self::CreatePartitions(fields(&payload)?),
            DELETE_PARTITIONS_CODE => Self::DeletePartitions(fields(&payload)?),
            SEND_MESSAGES_CODE => {
                let (head, batch) = Batch::decode(payload)?;
                Self::SendMessages(head, batch)
            }
            POLL_MESSAGES_CODE => Self::PollMessages(fields(&payload)?),
            FLUSH_UNSAVED_BUFFER_CODE => Self::Flush(fields(&payload)?),
            GET_CONSUMER_OFFSET_CODE => Self::GetOffset(fields(&payload)?),
            STORE_CONSUMER_OFFSET_CODE => Self::StoreOffset(fields(&payload)?),
            DELETE_CONSUMER_OFFSET_CODE => Self::DeleteOffset(fields(&payload)?),
            GET_CONSUMER_GROUP_CODE => Self::GetGroup(fields(&payload)?),
            GET_CONSUMER_GROUPS_CODE => Self::GetGroups(fields(&payload)?),
            CREATE_CONSUMER_GROUP_CODE => Self::CreateGroup(fields(&payload)?),
            DELETE_CONSUMER_GROUP_CODE => Self::DeleteGroup(fields(&payload)?),
            JOIN_CONSUMER_GROUP_CODE => Self::JoinGroup(fields(&payload)?),
            LEAVE_CONSUMER_GROUP_CODE => Self::LeaveGroup(fields(&payload)?),
            _ if lookup_command(code).is_some() => return Err(Status::FeatureUnavailable),
            _ => return Err(Status::InvalidCommand),
        })
    }
}

fn fields<T: WireDecode>(payload: &[u8]) -> Result<T, Status> {
    Ok(T::decode(payload)?.0)
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use iggy_binary_protocol::COMMAND_TABLE;

    use super::*;

    fn decode(code: u32, payload: &[u8]) -> Result<Command, Status> {
        Command::decode(Request { code, payload: BytesMut::from(payload) })
    }

    /// Every code, with payloads that are cut, of nothing but one byte, and of noise.
    #[test]
    fn whatever_the_payload_there_is_an_answer() {
        let mut noise = 1_u64;
        for code in 0..700 {
            let is_known = COMMAND_TABLE.iter().any(|command| command.code == code);
            for len in 0..100 {
                for byte in [0, 1, 2, 4, 255] {
                    let mut payload = vec![byte; len];
                    let uniform = decode(code, &payload);
                    if !is_known {
                        assert_eq!(uniform.unwrap_err(), Status::InvalidCommand, "{code}");
                    }
                    payload.iter_mut().for_each(|byte| {
                        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        *byte = (noise >> 56) as u8 & 7;
                    });
                    let _ = decode(code, &payload);
                }
            }
        }
    }

    #[test]
    fn what_iggy_has_and_this_server_has_not_is_unavailable() {
        let unavailable: Vec<_> = COMMAND_TABLE
            .iter()
            .filter(|command| {
                decode(command.code, &[]).is_err_and(|error| error == Status::FeatureUnavailable)
            })
            .map(|command| command.name)
            .collect();
        assert_eq!(
            unavailable,
            [
                "snapshot",
                "user.get",
                "user.list",
                "user.create",
                "user.delete",
                "user.update",
                "user.permissions",
                "user.password",
                "personal_access_token.list",
                "personal_access_token.create",
                "personal_access_token.delete",
                "personal_access_token.login",
                "segment.delete",
            ]
        );
    }
}
