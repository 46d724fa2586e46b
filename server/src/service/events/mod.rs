//! Events: appends the body of a request to a topic of Iggy's streams.
//!
//! ```text
//! POST /events/STREAM/TOPIC?partition=N      or ?key=KEY, or neither
//! Authorization: Basic …                     Iggy's user and password (RFC 7617)
//! Content-Type: application/x-ndjson         if each line is an event
//! ```
//!
//! STREAM and TOPIC are named as for a [tail](super::tail). The body is one event of any bytes. With the media type
//! `application/x-ndjson`, or one of [`LINES_TYPES`], each line is an event. A line ends with LF or CRLF; the last one may
//! have no end. Empty lines are skipped. Nobody checks whether a line is JSON.
//!
//! An event is the payload of a message, which Iggy's clients poll, and which a tail pushes. Its id is chosen by the
//! server. It has no user headers. Its origin timestamp is the time at which the server began to read the body.
//!
//! | query | the partition of the events, as Iggy's clients choose it |
//! |---|---|
//! | none | balanced: the next one with each request |
//! | `partition=N` | this one, from 0 on |
//! | `key=KEY` | the same for each request with this key: 1 to 255 bytes, percent-encoded; `+` is no space |
//!
//! All events of a request are one batch in one partition, one behind the other. All of them are appended, or none. With
//! `--store kafka` they are in order, but those of another server or another producer may come in between, and if the
//! request fails, some of them may be there: a batch of this server may be several of Kafka's.
//!
//! # Answers
//!
//! The answer comes when the batch is acknowledged: with `--data`, when it is as durable as `--fsync` says; with
//! `--store kafka`, when all replicas in sync have it.
//!
//! ```text
//! {"events":3,"partition":0,"offset":7}      the offset of the first event
//! ```
//!
//! | request | answer |
//! |---|---|
//! | appended | 200, with JSON as above |
//! | no event, more than [`MESSAGES_MAX`](crate::iggy::messages::MESSAGES_MAX), a bad query, two `Content-Type`s | 400 |
//! | no user and password, or wrong ones | 401 |
//! | an `Origin` that `--origins` does not allow | 403 |
//! | another path below `/events`; no such stream, topic or partition; a server without Iggy | 404 |
//! | another method | 405 |
//! | the body does not arrive in time | 408 |
//! | the body, or the batch with 64 bytes more for each event, is longer than `--message-bytes-max` | 413 |
//! | a `Content-Encoding` | 415 |
//! | the events could not be stored, as after a failed sync, or Kafka has not acknowledged them; they may be there all the same | 500 |
//! | no memory for the events, no room on the way to the worker with the streams or to Kafka, or the server ends | 503 |
//! | no room for the events, in memory or on the disk | 507 |
//!
//! The body of the answer names the culprit. With 503, nothing was appended, unless the server ends; `Retry-After` says when
//! to try again. Events whose answer does not arrive may be there or not: a client that sends them again may send them
//! twice.
//!
//! What can be refused before the body has arrived is refused then. Only after that, a client that waits for
//! `100 Continue` gets it. Streams, topics and partitions are looked up when the body is there.
//!
//! # Pages
//!
//! A browser lets any page send a request to any server, with the password that it remembers for it. So a page that a user
//! happens to visit could append events in the user's name. `--origins` limits that, as for WebSockets. There is no more
//! for pages of other origins: preflight requests are answered 405, so they can send neither `application/x-ndjson` nor a
//! password of their own, and the answers have no header that lets them read these.
//!
//! # How it works
//!
//! The connection decodes the body into a [`Batch`], which is the same as that of a client of Iggy, and
//! [appends](crate::iggy::workers::Iggy::append) it by the broker, here or at the worker that has it. That call is all
//! that a store of events has to offer. There is no trait for it, because there is one store.
//!
//! # Memory and time
//!
//! A body is copied once, from the receive buffer into the batch that is stored. What has arrived of it is reserved in the
//! account of its connection until the answer. If others need that memory, and the client sends nothing, the connection
//! is reset. A body may take [`message_time_max`](crate::config::Limits::message_time_max), and behind that as long as it
//! arrives at the rate at which the longest one takes as long.

mod body;
mod request;

use body::Progress;
use iggy_binary_protocol::WirePartitioning;
use iggy_binary_protocol::requests::messages::SendMessagesHeader;
use owned_io::{ByteStream, Reservation, Runtime, coop};
use owned_io_http::{self as engine, Connection, Error, Response};
use request::EMPTY;
pub(super) use request::EventsRequest;
pub use request::LINES_TYPES;

use super::http::{PLAIN_TEXT, respond};
use super::iggy::reserve;
use super::streams::{Refusal, failed, not_there};
use crate::config::Limits;
use crate::context::Context;
use crate::iggy::broker::AppendedAt;
use crate::iggy::messages::Batch;
use crate::iggy::{Environment, Status};

/// After how many seconds a client that was answered 503 may try again.
const RETRY_SECONDS: &str = "1";

/// The same limits for a connection whose requests may have events.
pub(super) fn with_bodies(mut config: engine::Config, limits: Limits) -> engine::Config {
    let (bytes_max, time_max) = (limits.message_bytes_max as u64, limits.message_time_max);
    config.limits.body_bytes_max = bytes_max;
    config.timeouts.body = time_max;
    let rate_min = bytes_max / time_max.as_secs().max(1);
    config.timeouts.body_rate_min = u32::try_from(rate_min).unwrap_or(u32::MAX).max(1);
    config
}

/// Reads the body of a request, appends its events, and answers. A request that was refused before is answered.
///
/// # Errors
/// Errors of the connection.
pub(super) async fn serve<R: Runtime>(
    connection: &mut Connection<R, impl ByteStream>,
    request: Result<EventsRequest, Refusal>,
    ctx: &Context,
) -> Result<(), Error> {
    let metrics = &ctx.worker.metrics;
    let answered = match request {
        Ok(request) => append::<R>(connection, &request, ctx).await.inspect_err(|error| {
            if let Error::Refused(refusal) = error {
                metrics.events.answered(refusal.status()); // by the connection
            }
        })?,
        Err(refusal) => Err(refusal),
    };
    if ctx.connection.account().is_evicted() {
        connection.end_handle().end(); // others wait for memory, so this answer is the last
    }
    let (status, body) = match answered {
        Ok(AppendedAt { partition, base_offset, count }) => {
            let body = format!(
                "{{\"events\":{count},\"partition\":{partition},\"offset\":{base_offset}}}\n"
            );
            (200, body.into())
        }
        Err(refusal) => refusal,
    };
    metrics.events.answered(status);
    let headers: &[_] = match status {
        200 => &[("Content-Type", "application/json")],
        405 => &[PLAIN_TEXT, ("Allow", "POST")],
        503 => &[PLAIN_TEXT, ("Retry-After", RETRY_SECONDS)],
        _ => return respond(connection, status, body).await,
    };
    connection.respond(&Response::new(status).with_headers(headers), body.into_owned()).await
}

/// Reads the body, and appends its events. What they take is reserved until then. The outer error is that of the
/// connection.
async fn append<R: Runtime>(
    connection: &mut Connection<R, impl ByteStream>,
    request: &EventsRequest,
    ctx: &Context,
) -> Result<Result<AppendedAt, Refusal>, Error> {
    let metrics = &ctx.worker.metrics;
    let mut room = ctx.connection.account().reservation();
    let batch = match read_batch::<R>(connection, request, &mut room, ctx).await? {
        Ok(batch) => batch,
        Err(refusal) => return Ok(Err(refusal)),
    };
    room.force(batch.memory_bytes());
    let (count, bytes, payload_bytes) = (batch.count(), batch.bytes(), batch.payload_bytes());
    connection.flush().await?; // the log may take a while
    let to = SendMessagesHeader { messages_count: count, ..request.to.clone() };
    let began = R::now();
    let appended = request.iggy.append::<R>(to, batch).await;
    if appended.is_ok() {
        metrics.iggy.appended(count, bytes, R::now() - began);
        metrics.events.appended(count, payload_bytes);
    }
    Ok(appended.map_err(|error| refusal(error, request)))
}

async fn read_batch<R: Runtime>(
    connection: &mut Connection<R, impl ByteStream>,
    request: &EventsRequest,
    room: &mut Reservation,
    ctx: &Context,
) -> Result<Result<Batch, Refusal>, Error> {
    let time_max = ctx.worker.limits.message_time_max;
    let mut decoder = request.decoder((Environment::of::<R>().now)());
    while let Some(piece) = connection.read_body().await? {
        let mut rest = piece;
        // Each iteration but the last takes some of the piece, or makes room for it.
        loop {
            coop::yield_if_exhausted::<R>().await;
            match decoder.decode(&mut rest) {
                Ok(Progress::NeedsBytes) => break,
                Ok(Progress::NeedsRoom(bytes)) => {
                    let is_reserved = reserve::<R>(room, bytes, time_max).await.is_ok();
                    if !is_reserved || decoder.make_room(bytes).is_err() {
                        return Ok(Err((503, "there is no memory for the events\n".into())));
                    }
                }
                Ok(Progress::Taken) => {}
                Err(too_much) => return Ok(Err(request.too_much(too_much))),
            }
        }
    }
    Ok(decoder.finish().ok_or_else(|| (400, EMPTY.into())))
}

/// The answer for a batch that is not acknowledged.
fn refusal(status: Status, request: &EventsRequest) -> Refusal {
    let SendMessagesHeader { stream_id, topic_id, partitioning, .. } = &request.to;
    match (status, partitioning) {
        (Status::PartitionNotFound, WirePartitioning::PartitionId(partition)) => {
            not_there("partition", &partition.to_string())
        }
        (Status::PartitionNotFound, _) => (503, "the partition was deleted meanwhile\n".into()),
        (Status::NoPartitions, _) => (404, "the topic has no partition\n".into()),
        (Status::TopicFull, _) => (507, "there is no room for the events\n".into()),
        (Status::InvalidSizeBytes, _) => {
            (413, "the events are longer than the log allows\n".into())
        }
        _ => {
            let other = "the events could not be stored, but may be there\n";
            failed(status, stream_id, topic_id, other)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_longest_body_may_take_twice_the_time_of_a_message() {
        for (bytes, seconds, rate) in
            [(16 << 20, 30, 559_240), (1, 30, 1), (usize::MAX, 1, u32::MAX)]
        {
            let message_time_max = Duration::from_secs(seconds);
            let limits = Limits { message_bytes_max: bytes, message_time_max, ..Limits::default() };
            let config = with_bodies(engine::Config::default(), limits);
            assert_eq!(config.limits.body_bytes_max, bytes as u64);
            assert_eq!(
                (config.timeouts.body, config.timeouts.body_rate_min),
                (message_time_max, rate)
            );
        }
    }
}
