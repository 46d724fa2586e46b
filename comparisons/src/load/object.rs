//! `load object`: asks for an object over HTTP/1.1, and checks each answer.

use std::net::SocketAddr;

use super::exchange::{Exchange, xorshift};
use super::{Failure, Report, Steady, Target, steady};

/// The content of objects repeats after so many bytes. It is a prime, so that a block of a power of two that is missing
/// or at another place is found. What answers are compared with fits into a core's cache, so that comparing costs `load`
/// less than receiving.
const PERIOD: usize = 65_521;

/// Runs it and prints the report.
///
/// # Errors
/// When there was no run; what happens to connections in a run is in the report.
pub fn run(options: &Steady, target: &Target) -> Result<Report, Failure> {
    if target.websocket.is_some() {
        return Err(Failure::new("`load object` speaks HTTP, without --websocket"));
    }
    steady::run(options, target, Object::new(target.addr, options.payload.get()))
}

/// The name of the object of this length.
pub fn name(bytes: u64) -> String {
    bytes.to_string()
}

/// Its content.
pub fn content(bytes: u64) -> Vec<u8> {
    period().into_iter().cycle().take(bytes as usize).collect()
}

/// The first bytes of every object, after which they repeat.
fn period() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PERIOD + 8);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    while bytes.len() < PERIOD {
        state = xorshift(state);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(PERIOD);
    bytes
}

/// The same request each time, for an object whose content is known.
#[derive(Debug)]
struct Object {
    request: Vec<u8>,
    bytes: u64,
    period: Vec<u8>,
}

impl Object {
    fn new(host: SocketAddr, bytes: u64) -> Self {
        let name = name(bytes);
        let request = format!("GET /object/{name} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        Self { request: request.into_bytes(), bytes, period: period() }
    }
}

impl Exchange for Object {
    fn is_http(&self) -> bool {
        true
    }

    fn request_bytes(&self) -> u64 {
        self.request.len() as u64
    }

    fn answer_bytes(&self) -> u64 {
        self.bytes
    }

    fn fill(&self, _connection: u32, _message: u64, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.request[offset as usize..][..out.len()]);
    }

    fn matches(&self, _connection: u32, _message: u64, offset: u64, got: &[u8]) -> bool {
        let (mut at, mut left) = (offset as usize % PERIOD, got);
        while !left.is_empty() {
            let (part, rest) = left.split_at(left.len().min(PERIOD - at));
            if *part != self.period[at..][..part.len()] {
                return false;
            }
            (at, left) = (0, rest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(bytes: u64) -> Object {
        Object::new(SocketAddr::from(([127, 0, 0, 1], 7)), bytes)
    }

    #[test]
    fn an_object_is_checked_at_every_byte() {
        let bytes = 3 * PERIOD as u64 + 5;
        let object = object(bytes);
        let content = content(bytes);
        assert_eq!((content.len() as u64, object.answer_bytes()), (bytes, bytes));
        for at in [0, 1, PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD, content.len() - 1] {
            let (first, second) = content.split_at(at);
            assert!(object.matches(0, 0, 0, first) && object.matches(0, 0, at as u64, second));
            let mut wrong = content.clone();
            wrong[at] ^= 0x10;
            assert!(!object.matches(0, 0, 0, &wrong), "wrong at {at}");
            assert!(!object.matches(0, 0, at as u64, &wrong[at..]), "wrong at {at}");
        }
        assert!(object.matches(0, 0, bytes, &[]));
    }

    #[test]
    fn a_block_at_another_place_is_wrong() {
        let object = object(1 << 20);
        let content = content(1 << 20);
        for block in [1 << 10, 4 << 10, 16 << 10, 1 << 18] {
            assert!(!object.matches(0, 0, 0, &content[block..2 * block]), "{block}");
        }
    }

    #[test]
    fn a_request_names_the_length() {
        let object = object(1024);
        let mut request = vec![0; object.request_bytes() as usize];
        object.fill(0, 0, 0, &mut request);
        assert_eq!(request, b"GET /object/1024 HTTP/1.1\r\nHost: 127.0.0.1:7\r\n\r\n");
    }
}
