//! Commands that only ask.

use iggy_binary_protocol::responses::clients::{
    ClientDetailsResponse, ClientResponse, ConsumerGroupInfoResponse,
};
use iggy_binary_protocol::responses::consumer_groups::{
    ConsumerGroupDetailsResponse, ConsumerGroupMemberResponse,
};
use iggy_binary_protocol::responses::streams::GetStreamResponse;
use iggy_binary_protocol::responses::system::{
    ClusterMetadataResponse, ClusterNodeResponse, StatsResponse,
};
use iggy_binary_protocol::responses::topics::GetTopicResponse;
use owned_io::coop;

use super::super::answer::{self, Answer, Totals};
use super::super::catalogue::{GroupId, LogId, Topic, TopicId};
use super::super::clients::Client;
use super::super::command::Command;
use super::super::members::Members;
use super::super::storage::{Offsets, Size};
use super::Broker;
use crate::iggy::Status;
use crate::usage::Usage;

/// The user of the configuration, as Iggy numbers the first one.
pub(in crate::iggy) const USER_ID: u32 = 0;

/// The user of a client that has not logged in.
const NO_USER_ID: u32 = u32::MAX;

/// The work of asking a log for its offsets and its size, in nanoseconds: three cache misses.
const LOG_STATE_NANOS: u64 = 100;

impl Broker {
    /// Answers a question. What is not there is answered by nothing, as by Iggy's server.
    pub(super) fn query(&self, client: u32, command: Command) -> Result<Answer, Status> {
        let catalogue = self.catalogue.borrow();
        Ok(match command {
            Command::GetMe => self.client(client),
            Command::GetClient(request) if request.client_id == 0 => {
                return Err(Status::InvalidClientId);
            }
            Command::GetClient(request) => self.client(request.client_id),
            Command::GetClients => {
                self.update_members();
                let group_counts = self.members.borrow().group_counts();
                Answer::list(self.clients.all().into_iter().map(|(id, client)| {
                    client_response(id, client, group_counts.get(&id).copied().unwrap_or(0))
                }))
            }
            Command::GetClusterMetadata => Answer::of(&self.cluster()),
            Command::GetStreams => Answer::list(
                catalogue
                    .streams()
                    .map(|(id, stream)| answer::stream(id, stream, self.totals(stream.logs()))),
            ),
            Command::GetStream(request) => {
                let Ok((id, found)) = catalogue.stream(&request.stream_id) else {
                    return Ok(Answer::empty());
                };
                let topics = found.topics();
                Answer::of(&GetStreamResponse {
                    stream: answer::stream(id, found, self.totals(found.logs())),
                    topics: topics
                        .map(|(id, topic)| answer::topic(id, topic, self.totals(topic.logs())))
                        .collect(),
                })
            }
            Command::GetTopics(request) => {
                let found = catalogue.stream(&request.stream_id);
                let topics = found.into_iter().flat_map(|(_, stream)| stream.topics());
                Answer::list(
                    topics.map(|(id, topic)| answer::topic(id, topic, self.totals(topic.logs()))),
                )
            }
            Command::GetTopic(request) => {
                match catalogue.topic(&request.stream_id, &request.topic_id) {
                    Ok((at, topic)) => self.topic_answer(at.topic, topic),
                    Err(_) => Answer::empty(),
                }
            }
            Command::GetGroups(request) => {
                self.update_members();
                match catalogue.topic(&request.stream_id, &request.topic_id) {
                    Ok((at, topic)) => self.groups(at, topic),
                    Err(_) => Answer::empty(),
                }
            }
            Command::GetGroup(request) => {
                self.update_members();
                let found =
                    catalogue.group(&request.stream_id, &request.topic_id, &request.group_id);
                let Ok((group, name)) = found else { return Ok(Answer::empty()) };
                let members = self.members.borrow().of(group);
                let topic = catalogue.topic_at(group.at)?;
                Answer::of(&ConsumerGroupDetailsResponse {
                    group: answer::group(group.group, name, topic, members.len()),
                    members: members
                        .into_iter()
                        .map(|member| ConsumerGroupMemberResponse {
                            id: member.client,
                            partitions_count: member.partitions.len() as u32,
                            partitions: member.partitions,
                        })
                        .collect(),
                })
            }
            _ => return Err(Status::InvalidCommand),
        })
    }

    /// A topic with its partitions.
    pub(super) fn topic_answer(&self, id: u32, topic: &Topic) -> Answer {
        let partitions = (0..).zip(topic.partitions()).map(|(id, partition)| {
            let (offsets, size) = self.log_state(partition.log);
            answer::partition(id, partition, offsets, size)
        });
        Answer::of(&GetTopicResponse {
            topic: answer::topic(id, topic, self.totals(topic.logs())),
            partitions: partitions.collect(),
        })
    }

    fn groups(&self, at: TopicId, topic: &Topic) -> Answer {
        let members = self.members.borrow();
        Answer::list(topic.groups().map(|(group, name)| {
            let count = members.count(GroupId { at, group });
            answer::group(group, name, topic, count)
        }))
    }

    /// A client with its groups. Nothing if it is not connected.
    fn client(&self, id: u32) -> Answer {
        self.update_members();
        let Some(client) = self.clients.get(id) else { return Answer::empty() };
        let members = self.members.borrow();
        let consumer_groups = groups_of(&members, id);
        let client = client_response(id, client, consumer_groups.len() as u32);
        Answer::of(&ClientDetailsResponse { client, consumer_groups })
    }

    /// How many partitions there are, and what is stored in them.
    pub fn stored(&self) -> (usize, Totals) {
        let catalogue = self.catalogue.borrow();
        (catalogue.counts().partitions, self.totals(catalogue.logs()))
    }

    /// What this server counts, and what was measured. What nobody measures is 0 or empty:
    /// [the list](crate::iggy#statistics).
    pub(super) fn stats(&self, usage: Usage) -> StatsResponse {
        let catalogue = self.catalogue.borrow();
        let counts = catalogue.counts();
        let totals = self.totals(catalogue.logs());
        let now = (self.environment.now)();
        StatsResponse {
            process_id: std::process::id(),
            cpu_usage: usage.cpu_percent,
            total_cpu_usage: 0.0,
            memory_usage: usage.memory_bytes,
            total_memory: usage.machine_memory_bytes,
            available_memory: usage.machine_memory_available_bytes,
            run_time: now.saturating_sub(self.started_at),
            start_time: self.started_at,
            read_bytes: usage.read_bytes,
            written_bytes: usage.written_bytes,
            messages_size_bytes: totals.bytes,
            streams_count: catalogue.streams().len() as u32,
            topics_count: counts.topics as u32,
            partitions_count: counts.partitions as u32,
            segments_count: totals.segments,
            messages_count: totals.messages,
            clients_count: self.clients.count() as u32,
            consumer_groups_count: counts.groups as u32,
            hostname: usage.hostname,
            os_name: std::env::consts::OS.to_owned(),
            os_version: String::new(),
            kernel_version: usage.kernel_version,
            iggy_server_version: concat!("owned-io ", env!("CARGO_PKG_VERSION")).to_owned(),
            iggy_server_semver: None,
            cache_metrics: Vec::new(),
            threads_count: self.node.workers,
            free_disk_space: usage.disk_free_bytes,
            total_disk_space: usage.disk_bytes,
        }
    }

    /// A cluster of this server alone, which leads it.
    fn cluster(&self) -> ClusterMetadataResponse {
        const LEADER: u8 = 0;
        const HEALTHY: u8 = 0;
        let node = self.node;
        let port = |addr: Option<std::net::SocketAddr>| addr.map_or(0, |addr| addr.port());
        let ip = node.tcp.or(node.websocket).map_or_else(String::new, |addr| addr.ip().to_string());
        ClusterMetadataResponse {
            name: "single-node".to_owned(),
            nodes: vec![ClusterNodeResponse {
                name: "owned-io".to_owned(),
                ip,
                tcp_port: port(node.tcp),
                quic_port: 0,
                http_port: 0,
                websocket_port: port(node.websocket),
                role: LEADER,
                status: HEALTHY,
            }],
        }
    }

    fn log_state(&self, log: LogId) -> (Offsets, Size) {
        let log = self.logs.get(log);
        log.map_or_else(|_| Default::default(), |log| (log.offsets(), log.size()))
    }

    fn totals(&self, logs: impl Iterator<Item = LogId>) -> Totals {
        logs.map(|log| {
            coop::consume(LOG_STATE_NANOS);
            let (offsets, size) = self.log_state(log);
            Totals::new(offsets, size)
        })
        .sum()
    }
}

fn client_response(client_id: u32, client: Client, consumer_groups_count: u32) -> ClientResponse {
    ClientResponse {
        client_id,
        user_id: if client.is_logged_in { USER_ID } else { NO_USER_ID },
        transport: client.transport as u8,
        address: client.address.map_or_else(String::new, |address| address.to_string()),
        consumer_groups_count,
    }
}

fn groups_of(members: &Members, client: u32) -> Vec<ConsumerGroupInfoResponse> {
    let groups = members.groups_of(client);
    groups
        .map(|GroupId { at, group: group_id }| ConsumerGroupInfoResponse {
            stream_id: at.stream,
            topic_id: at.topic,
            group_id,
        })
        .collect()
}
