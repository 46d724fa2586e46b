//! [`Control`]: a client that waits for each answer.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use iggy_binary_protocol::{RequestFrame, ResponseFrame, STATUS_OK, WireEncode};
use rustls::StreamOwned;

use super::super::frames::{self, FrameEvent, FrameHeader, Frames};
use super::super::options::Target;
use super::super::transport;
use super::super::upgrade::{self, Upgrade};

/// The longest answer, in bytes: a topic of 1,000 partitions has 40 kB.
const ANSWER_BYTES_MAX: usize = 1 << 20;

const READ_BYTES: usize = 64 * 1024;

/// The number by which the key of its upgrade differs from those of the connections that are measured.
const CONNECTION: u32 = u32::MAX;

/// Any error, which the caller puts into a sentence.
type AnyError = Box<dyn Error>;

/// A connection besides those that are measured.
pub(super) struct Control {
    stream: Box<dyn Stream>,
    /// None over TCP.
    frames: Option<Frames>,
    /// What has arrived and was not looked at.
    arrived: Vec<u8>,
    patience: Duration,
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

impl Control {
    /// Connects and logs in. This and each request may take so long.
    ///
    /// # Errors
    /// Connection, upgrade or login failed.
    pub(super) fn connect(
        target: &Target,
        login: &[u8],
        patience: Duration,
    ) -> Result<Self, AnyError> {
        let stream = TcpStream::connect_timeout(&target.addr, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let stream: Box<dyn Stream> = match target.tls()? {
            None => Box::new(stream),
            Some(config) => Box::new(StreamOwned::new(transport::client(&config)?, stream)),
        };
        let mut control = Self { stream, frames: None, arrived: Vec::new(), patience };
        if let Some(upgrade) = target.upgrade() {
            control.upgrade(&upgrade)?;
            control.frames = Some(Frames::default());
        }
        control.exchange(login)?;
        Ok(control)
    }

    /// Sends a request, and waits for its answer's payload.
    ///
    /// # Errors
    /// The connection failed, or the status is not that of success.
    pub(super) fn request(
        &mut self,
        code: u32,
        request: &impl WireEncode,
    ) -> Result<Vec<u8>, AnyError> {
        self.exchange(&frame(code, &request.to_bytes()))
    }

    fn upgrade(&mut self, upgrade: &Upgrade) -> Result<(), AnyError> {
        let until = Instant::now() + self.patience;
        self.stream.write_all(&upgrade.request(CONNECTION))?;
        let mut head = Vec::new();
        loop {
            self.read(until)?;
            let mut got = &self.arrived[..];
            let is_open = upgrade::answer(&mut head, &mut got, CONNECTION, false)
                .map_err(|refusal| format!("no WebSocket: {refusal:?}"))?;
            self.arrived = got.to_vec();
            if is_open {
                return Ok(());
            }
        }
    }

    fn exchange(&mut self, request: &[u8]) -> Result<Vec<u8>, AnyError> {
        let until = Instant::now() + self.patience;
        if self.frames.is_some() {
            let mut message = FrameHeader::of_client(request.len() as u64).as_slice().to_vec();
            let begin = message.len();
            message.extend_from_slice(request);
            frames::mask(&mut message[begin..]);
            self.stream.write_all(&message)?;
        } else {
            self.stream.write_all(request)?;
        }
        self.stream.flush()?;
        let mut answer = Vec::new();
        while !self.take_answer(&mut answer)? {
            self.read(until)?;
        }
        let (ResponseFrame { status, payload }, _) = ResponseFrame::decode(&answer)?;
        if status == STATUS_OK {
            Ok(payload.to_vec())
        } else {
            Err(format!("status {status}").into())
        }
    }

    /// Appends to `arrived`.
    fn read(&mut self, until: Instant) -> Result<(), AnyError> {
        if Instant::now() >= until {
            return Err(format!("no answer within {} s", self.patience.as_secs_f64()).into());
        }
        let mut buf = vec![0; READ_BYTES];
        match self.stream.read(&mut buf)? {
            0 => Err("the server ended the connection".into()),
            n => {
                self.arrived.extend_from_slice(&buf[..n]);
                Ok(())
            }
        }
    }

    /// Moves what has arrived to `answer`. True when that is complete.
    fn take_answer(&mut self, answer: &mut Vec<u8>) -> Result<bool, AnyError> {
        let arrived = std::mem::take(&mut self.arrived);
        let mut got = &arrived[..];
        let is_complete = match &mut self.frames {
            None => {
                answer.extend_from_slice(got);
                got = &[];
                ResponseFrame::decode(answer).is_ok()
            }
            Some(frames) => loop {
                match frames.next(&mut got)? {
                    None => break false,
                    Some(FrameEvent::Payload(part, last)) => {
                        answer.extend_from_slice(part);
                        if last {
                            break true;
                        }
                    }
                    Some(FrameEvent::Ping(payload)) => {
                        self.stream.write_all(&frames::pong(&payload))?;
                    }
                    Some(FrameEvent::Pong) => {}
                    Some(FrameEvent::Close(_)) => return Err("the server closed".into()),
                }
            },
        };
        self.arrived = got.to_vec();
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(format!("an answer of more than {ANSWER_BYTES_MAX} bytes").into());
        }
        Ok(is_complete)
    }
}

/// A request in Iggy's frame.
pub(in super::super) fn frame(code: u32, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    RequestFrame::encode(code, payload, &mut frame).expect("it is shorter than 4 GiB");
    frame.freeze()
}
