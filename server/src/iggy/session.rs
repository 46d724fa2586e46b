//! [`Session`]: one connection of a client.

use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use iggy_binary_protocol::responses::users::IdentityResponse;

use super::Status;
use super::answer::{Answer, error};
use super::broker::USER_ID;
use super::clients::{Registration, Transport};
use super::command::Command;
use super::frame::Request;
use super::workers::Iggy;

/// One connection of a client, from its first byte to its end. Then the client leaves its consumer groups.
#[derive(Debug)]
pub struct Session {
    iggy: Rc<Iggy>,
    registration: Registration,
    is_logged_in: bool,
}

impl Session {
    /// A session without a login.
    pub fn new(iggy: &Rc<Iggy>, transport: Transport, address: Option<SocketAddr>) -> Self {
        let registration = iggy.clients().register(transport, address);
        Self { iggy: Rc::clone(iggy), registration, is_logged_in: false }
    }

    /// Whether the client has logged in.
    pub const fn is_logged_in(&self) -> bool {
        self.is_logged_in
    }

    /// Executes a request, and returns the bytes of its answer in pieces. Without a login there are ping and login
    /// alone. A poll is answered by at most `bytes_max` bytes of messages, but by one batch at least if there is one.
    ///
    /// # Cancellation
    /// The request may be executed or not.
    pub async fn answer(&mut self, request: Request, bytes_max: usize) -> Vec<Bytes> {
        match self.execute(request, bytes_max).await {
            Ok(answer) => answer.into_pieces(),
            Err(status) => {
                tracing::debug!(client = self.registration.id(), %status, "refused a request");
                error(status)
            }
        }
    }

    async fn execute(&mut self, request: Request, bytes_max: usize) -> Result<Answer, Status> {
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
            command => self.iggy.execute(self.registration.id(), command, bytes_max).await,
        }
    }

    fn set_logged_in(&mut self, is_logged_in: bool) {
        self.is_logged_in = is_logged_in;
        self.registration.set_logged_in(is_logged_in);
    }
}

/// Whether a command needs no login. Others are not even decoded.
const fn is_for_all(code: u32) -> bool {
    use iggy_binary_protocol::codes::{LOGIN_USER_CODE, PING_CODE};
    matches!(code, PING_CODE | LOGIN_USER_CODE)
}
