//! [`FrameDecoder`]: requests in the bytes that arrive.
//!
//! ```text
//! request  [length u32: of the code and the payload][code u32][payload]
//! answer   [status u32][length u32: of the payload][payload]
//! ```

use std::collections::TryReserveError;

use bytes::{Buf, Bytes, BytesMut};
use iggy_binary_protocol::codes::SEND_MESSAGES_CODE;
use iggy_binary_protocol::framing::RequestFrame;

use super::Status;

/// The longest request before a login, in bytes: user, password, and what a client says of itself.
pub const BYTES_MAX_BEFORE_LOGIN: usize = 8 * 1024;

/// The longest request that does not send messages, in bytes. The longest that makes sense has three names.
pub const COMMAND_BYTES_MAX: usize = 64 * 1024;

/// What is allocated at first for a longer request, in bytes. More is allocated as it arrives.
const ROOM_BYTES_MIN: usize = 16 * 1024;

/// A request, not decoded further.
#[derive(Debug)]
pub struct Request {
    /// Which command.
    pub code: u32,
    /// Its parameters.
    pub payload: BytesMut,
}

/// Collects the bytes of one request after the other, wherever they are cut.
///
/// Call [`decode`](Self::decode) with what has arrived until it [needs bytes](Progress::NeedsBytes). It allocates
/// nothing but in [`make_room`](Self::make_room).
#[derive(Debug)]
pub struct FrameDecoder {
    message_bytes_max: usize,
    is_logged_in: bool,
    header: [u8; RequestFrame::HEADER_SIZE],
    header_len: usize,
    /// The payload as far as it has arrived, and its length. None: the header has not arrived.
    payload: Option<(Vec<u8>, usize)>,
}

/// What comes next.
#[derive(Debug)]
pub enum Progress {
    /// More bytes have to arrive. All that were given are taken.
    NeedsBytes,
    /// Room for so many bytes has to be made.
    NeedsRoom(usize),
    /// A request is complete. Bytes may be left.
    Complete(Request),
}

impl FrameDecoder {
    /// For a client that has not logged in. `message_bytes_max`: the longest request.
    pub const fn new(message_bytes_max: usize) -> Self {
        let header = [0; RequestFrame::HEADER_SIZE];
        Self { message_bytes_max, is_logged_in: false, header, header_len: 0, payload: None }
    }

    /// Sets whether the client has logged in. It may send longer requests then.
    pub const fn set_logged_in(&mut self, is_logged_in: bool) {
        self.is_logged_in = is_logged_in;
    }

    /// Whether a request has begun and is not complete.
    pub const fn is_within_request(&self) -> bool {
        self.header_len > 0 || self.payload.is_some()
    }

    /// Takes bytes from the front of `bytes`.
    ///
    /// # Errors
    /// A length that is not possible or over the limit. The stream cannot be decoded further: answer, and close it.
    pub fn decode(&mut self, bytes: &mut &[u8]) -> Result<Progress, Status> {
        if self.payload.is_none() {
            let n = bytes.len().min(self.header.len() - self.header_len);
            bytes.copy_to_slice(&mut self.header[self.header_len..self.header_len + n]);
            self.header_len += n;
            if self.header_len < self.header.len() {
                return Ok(Progress::NeedsBytes);
            }
            self.payload = Some((Vec::new(), self.payload_len(self.header)?));
            self.header_len = 0;
        }
        let Some((payload, len)) = &mut self.payload else { return Ok(Progress::NeedsBytes) };
        let missing = *len - payload.len();
        let room = payload.capacity() - payload.len();
        let n = bytes.len().min(missing).min(room);
        payload.extend_from_slice(&bytes[..n]);
        bytes.advance(n);
        if n == missing {
            return Ok(self.complete());
        }
        if n == room {
            let more = (2 * payload.capacity()).max(ROOM_BYTES_MIN);
            return Ok(Progress::NeedsRoom(more.min(*len)));
        }
        Ok(Progress::NeedsBytes)
    }

    /// The request that `bytes` are, if a request may begin and they are one and nothing else. Nothing is copied if
    /// nobody else has the bytes.
    ///
    /// # Errors
    /// As for [`decode`](Self::decode).
    pub fn decode_whole(&self, bytes: Bytes) -> Result<Result<Request, Bytes>, Status> {
        let Some(header) = bytes.first_chunk().copied().filter(|_| !self.is_within_request())
        else {
            return Ok(Err(bytes));
        };
        if self.payload_len(header)? != bytes.len() - header.len() {
            return Ok(Err(bytes));
        }
        let mut payload = bytes;
        payload.advance(header.len());
        let payload = payload.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        Ok(Ok(Request { code: code(header), payload }))
    }

    /// Allocates what [`NeedsRoom`](Progress::NeedsRoom) asked for.
    ///
    /// # Errors
    /// The allocation failed.
    pub fn make_room(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        let Some((payload, _)) = &mut self.payload else { return Ok(()) };
        payload.try_reserve_exact(bytes.saturating_sub(payload.len()))
    }

    /// Takes the payload out, to append to it up to its capacity, and says how many bytes it lacks. None if no long
    /// payload is arriving. Put it back with [`put_payload`](Self::put_payload).
    pub fn take_payload(&mut self) -> Option<(Vec<u8>, usize)> {
        let (payload, len) = self.payload.as_mut()?;
        let missing = *len - payload.len();
        (payload.capacity() > payload.len()).then(|| (std::mem::take(payload), missing))
    }

    /// Puts back what was taken out. Then call [`decode`](Self::decode), without bytes if there are none.
    pub fn put_payload(&mut self, appended: Vec<u8>) {
        if let Some((payload, _)) = &mut self.payload {
            *payload = appended;
        }
    }

    fn complete(&mut self) -> Progress {
        let payload = self.payload.take().map_or_else(Vec::new, |(payload, _)| payload);
        Progress::Complete(Request {
            code: code(self.header),
            payload: BytesMut::from(Bytes::from(payload)), // does not copy
        })
    }

    /// The length of the payload.
    fn payload_len(&self, header: [u8; RequestFrame::HEADER_SIZE]) -> Result<usize, Status> {
        let [a, b, c, d, ..] = header;
        let len = RequestFrame::payload_length(u32::from_le_bytes([a, b, c, d]))
            .map_err(|_| Status::InvalidCommand)? as usize;
        if len > BYTES_MAX_BEFORE_LOGIN && !self.is_logged_in {
            return Err(Status::Unauthenticated);
        }
        let is_to_send = code(header) == SEND_MESSAGES_CODE;
        let bytes_max = self.message_bytes_max.saturating_sub(header.len());
        let bytes_max = if is_to_send { bytes_max } else { bytes_max.min(COMMAND_BYTES_MAX) };
        if len > bytes_max { Err(Status::InvalidSizeBytes) } else { Ok(len) }
    }
}

fn code(header: [u8; RequestFrame::HEADER_SIZE]) -> u32 {
    let [.., a, b, c, d] = header;
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(code: u32, payload: &[u8]) -> BytesMut {
        let mut out = BytesMut::new();
        RequestFrame::encode(code, payload, &mut out).unwrap();
        out
    }

    fn logged_in(message_bytes_max: usize) -> FrameDecoder {
        let mut decoder = FrameDecoder::new(message_bytes_max);
        decoder.set_logged_in(true);
        decoder
    }

    /// All requests in `stream`, cut every `cut` bytes, reading directly into long payloads if `direct`.
    fn decode_all(
        decoder: &mut FrameDecoder,
        stream: &[u8],
        cut: usize,
        direct: bool,
    ) -> Vec<(u32, Vec<u8>)> {
        let mut requests = Vec::new();
        for mut part in stream.chunks(cut) {
            if direct && let Some((mut payload, missing)) = decoder.take_payload() {
                let n = part.len().min(missing).min(payload.capacity() - payload.len());
                payload.extend_from_slice(&part[..n]);
                part = &part[n..];
                decoder.put_payload(payload);
            }
            loop {
                match decoder.decode(&mut part).unwrap() {
                    Progress::NeedsBytes => break,
                    Progress::NeedsRoom(bytes) => decoder.make_room(bytes).unwrap(),
                    Progress::Complete(Request { code, payload }) => {
                        requests.push((code, payload.to_vec()));
                    }
                }
            }
            assert!(part.is_empty());
        }
        requests
    }

    #[test]
    fn requests_are_decoded_wherever_they_are_cut() {
        let long = vec![9; 70_000];
        let requests = [
            (1, &[][..]),
            (38, &[1, 2, 3]),
            (SEND_MESSAGES_CODE, &long),
            (1, &[]),
            (100, &[5; 300]),
        ];
        let mut stream = Vec::new();
        requests
            .iter()
            .for_each(|(code, payload)| stream.extend_from_slice(&frame(*code, payload)));
        let expected = requests.map(|(code, payload)| (code, payload.to_vec()));
        for cut in (1..40).chain([1_000, 16_384, 65_536, stream.len()]) {
            for direct in [false, true] {
                let mut decoder = logged_in(1 << 20);
                let decoded = decode_all(&mut decoder, &stream, cut, direct);
                assert!(decoded == expected, "cut every {cut} bytes, direct: {direct}");
                assert!(!decoder.is_within_request());
            }
        }
    }

    #[test]
    fn what_is_announced_is_not_allocated() {
        let mut decoder = logged_in(16 << 20);
        let mut announced = &frame(SEND_MESSAGES_CODE, &vec![0; 10 << 20])[..];
        let mut first = &announced[..9];
        let Progress::NeedsRoom(bytes) = decoder.decode(&mut first).unwrap() else { panic!() };
        assert_eq!(bytes, ROOM_BYTES_MIN);
        announced.advance(8);
        let mut arrived = 0;
        loop {
            match decoder.decode(&mut announced).unwrap() {
                Progress::NeedsRoom(bytes) => {
                    assert!(bytes <= ROOM_BYTES_MIN.max(2 * arrived), "{bytes} for {arrived}");
                    arrived = bytes;
                    decoder.make_room(bytes).unwrap();
                }
                Progress::Complete(request) => return assert_eq!(request.payload.len(), 10 << 20),
                Progress::NeedsBytes => panic!("all is there"),
            }
        }
    }

    #[test]
    fn lengths_over_the_limit_are_refused_before_their_bytes_arrive() {
        let decode = |mut decoder: FrameDecoder, code: u32, len: u32| {
            let header = [len.to_le_bytes(), code.to_le_bytes()].concat();
            let by_parts = decoder.decode(&mut &header[..]).map(drop);
            let mut whole = header;
            whole.resize((4 + len as usize).clamp(8, 100_000), 0);
            let whole = FrameDecoder { header_len: 0, payload: None, ..decoder }
                .decode_whole(whole.into())
                .map(drop);
            if len < 100_000 {
                assert_eq!(whole, by_parts);
            }
            by_parts
        };
        let before = || FrameDecoder::new(50_000);
        for len in 0..4 {
            assert_eq!(decode(before(), 1, len), Err(Status::InvalidCommand));
        }
        assert_eq!(decode(before(), 38, 4 + BYTES_MAX_BEFORE_LOGIN as u32), Ok(()));
        let long = 5 + BYTES_MAX_BEFORE_LOGIN as u32;
        assert_eq!(decode(before(), SEND_MESSAGES_CODE, long), Err(Status::Unauthenticated));
        let after = || logged_in(80_000);
        for (code, len, expected) in [
            (SEND_MESSAGES_CODE, 79_996, Ok(())),
            (SEND_MESSAGES_CODE, 79_997, Err(Status::InvalidSizeBytes)),
            (SEND_MESSAGES_CODE, u32::MAX, Err(Status::InvalidSizeBytes)),
            (100, 4 + COMMAND_BYTES_MAX as u32, Ok(())),
            (100, 5 + COMMAND_BYTES_MAX as u32, Err(Status::InvalidSizeBytes)),
        ] {
            assert_eq!(decode(after(), code, len), expected, "{code} {len}");
        }
    }

    #[test]
    fn a_whole_request_is_not_copied() {
        let decoder = logged_in(1 << 20);
        let bytes = Bytes::from(frame(SEND_MESSAGES_CODE, &[7; 5_000]).to_vec());
        let at = bytes[8..].as_ptr();
        let request = decoder.decode_whole(bytes).unwrap().unwrap();
        assert_eq!((request.code, request.payload.len()), (SEND_MESSAGES_CODE, 5_000));
        assert_eq!(request.payload.as_ptr(), at);
        for other in [&frame(1, &[1])[..7], &[frame(1, &[]), frame(1, &[])].concat(), b"", b"abc"] {
            let given = Bytes::copy_from_slice(other);
            assert_eq!(decoder.decode_whole(given.clone()).unwrap().unwrap_err(), given);
        }
    }
}
