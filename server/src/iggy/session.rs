//! [`Session`]: one connection of a client.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use iggy_binary_protocol::requests::messages::PollMessagesRequest;
use iggy_binary_protocol::responses::users::IdentityResponse;
use owned_io::Clock;

use super::Status;
use super::answer::{Answer, RoomNeeded, error};
use super::broker::USER_ID;
use super::clients::{Registration, Transport};
use super::command::Command;
use super::frame::Request;
use super::workers::Iggy;
use crate::metrics::Flow;

/// One connection of a client, from its first byte to its end. Then the client leaves its consumer groups.
#[derive(Debug)]
pub struct Session {
    iggy: Rc<Iggy>,
    registration: Registration,
    transport: Transport,
    is_logged_in: bool,
}

impl Session {
    /// A session without a login.
    pub fn new(iggy: &Rc<Iggy>, transport: Transport, address: Option<SocketAddr>) -> Self {
        let registration = iggy.clients().register(transport, address);
        Self { iggy: Rc::clone(iggy), registration, transport, is_logged_in: false }
    }

    /// Whether the client has logged in.
    pub const fn is_logged_in(&self) -> bool {
        self.is_logged_in
    }

    /// Executes a request, and returns the bytes of its answer in pieces. Without a login there are ping and login
    /// alone. A poll is answered by as many messages as there is `room` for, which is made for one batch at least. It is
    /// made for a list, too. Other answers are short, and need none.
    ///
    /// # Cancellation
    /// As for [`Iggy::execute`].
    pub async fn answer<C: Clock>(
        &mut self,
        request: Request,
        room: &mut impl AnswerRoom,
    ) -> Vec<Bytes> {
        let (code, bytes) = (request.code, request.payload.len());
        let executed = self.execute::<C>(request, room).await;
        self.iggy.metrics().iggy.answered(code, executed.as_ref().err().copied());
        let pieces = match executed {
            Ok(answer) => answer.into_pieces(),
            Err(status) => {
                tracing::debug!(client = self.registration.id(), %status, "refused a request");
                error(status)
            }
        };
        let flow = self.flow();
        flow.receive(1, REQUEST_HEADER_BYTES + bytes);
        flow.send(1, pieces.iter().map(Bytes::len).sum());
        pieces
    }

    fn flow(&self) -> &Flow {
        let traffic = &self.iggy.metrics().traffic;
        match self.transport {
            Transport::Tcp => &traffic.iggy_tcp,
            Transport::WebSocket => &traffic.iggy_websocket,
        }
    }

    async fn execute<C: Clock>(
        &mut self,
        request: Request,
        room: &mut impl AnswerRoom,
    ) -> Result<Answer, Status> {
        if !self.is_logged_in && !is_for_all(request.code) {
            return Err(Status::Unauthenticated);
        }
        match Command::decode(request)? {
            Command::Ping => Ok(Answer::empty()),
            Command::Login(login) => {
                if !self.iggy.credentials().admit(&login.username, &login.password) {
                    return Err(Status::InvalidCredentials);
                }
                self.set_logged_in(true);
                Ok(Answer::of(&IdentityResponse { user_id: USER_ID }))
            }
            Command::Logout => {
                self.set_logged_in(false);
                Ok(Answer::empty())
            }
            Command::PollMessages(poll) => {
                let began = C::now();
                let answer = self.poll::<C>(poll, room).await?;
                let (messages, bytes) = (answer.messages(), answer.bytes());
                self.iggy.metrics().iggy.polled(messages, bytes, C::now() - began);
                Ok(answer)
            }
            Command::SendMessages(to, batch) => {
                let (messages, bytes) = (batch.count(), batch.bytes());
                let (command, began) = (Command::SendMessages(to, batch), C::now());
                let answer = self.iggy.execute::<C>(self.registration.id(), command, 0).await?;
                self.iggy.metrics().iggy.appended(messages, bytes, C::now() - began);
                Ok(answer)
            }
            command => self.execute_within::<C>(command, room).await,
        }
    }

    /// Executes a command. If it asks for a list, it is executed again once there is room for that.
    async fn execute_within<C: Clock>(
        &self,
        mut command: Command,
        room: &mut impl AnswerRoom,
    ) -> Result<Answer, Status> {
        for _ in 0..ATTEMPTS_MAX {
            let (client, repeated) = (self.registration.id(), command.repeated());
            let answer = self.iggy.execute::<C>(client, command, room.bytes()).await?;
            let (Some(needed), Some(repeated)) = (answer.room_needed(), repeated) else {
                return Ok(answer);
            };
            // The list may grow meanwhile.
            let bytes = needed.bytes.saturating_add(needed.bytes / 8);
            room.grow(bytes).await.map_err(|_| Status::Error)?;
            command = repeated;
        }
        Err(Status::Error)
    }

    async fn poll<C: Clock>(
        &self,
        mut poll: PollMessagesRequest,
        room: &mut impl AnswerRoom,
    ) -> Result<Answer, Status> {
        for _ in 0..ATTEMPTS_MAX {
            let command = Command::PollMessages(poll.clone());
            let (client, bytes_max) = (self.registration.id(), room.bytes());
            let answer = self.iggy.execute::<C>(client, command, bytes_max).await?;
            let Some(RoomNeeded { partition, bytes }) = answer.room_needed() else {
                return Ok(answer);
            };
            room.grow(bytes).await?;
            poll.partition_id = partition;
        }
        Err(Status::CannotReadMessage)
    }

    fn set_logged_in(&mut self, is_logged_in: bool) {
        self.is_logged_in = is_logged_in;
        self.registration.set_logged_in(is_logged_in);
    }
}

/// The length and the code of a request.
const REQUEST_HEADER_BYTES: usize = 8;

/// How often a poll or a question is tried. The second time there is room, unless the first batch was removed meanwhile
/// and the next one is longer, or the list has grown by much.
const ATTEMPTS_MAX: u32 = 4;

/// Memory for the messages of an answer, or for a list.
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait AnswerRoom {
    /// How many bytes there is room for.
    fn bytes(&self) -> usize;

    /// Makes room for `bytes` bytes.
    ///
    /// # Errors
    /// There is none. The client is told.
    async fn grow(&mut self, bytes: usize) -> Result<(), Status>;
}

/// As much as is needed, and so many bytes at first.
impl AnswerRoom for usize {
    fn bytes(&self) -> usize {
        *self
    }

    async fn grow(&mut self, bytes: usize) -> Result<(), Status> {
        *self = bytes;
        Ok(())
    }
}

/// Whether a command needs no login. Others are not even decoded.
const fn is_for_all(code: u32) -> bool {
    use iggy_binary_protocol::codes::{LOGIN_USER_CODE, PING_CODE};
    matches!(code, PING_CODE | LOGIN_USER_CODE)
}
