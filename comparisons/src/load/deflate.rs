//! `load deflate`: sends one compressed message again and again, and expects it back, compressed.

use std::io::{Read, Write};
use std::net::TcpStream;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use rustls::StreamOwned;

use super::exchange::Exchange;
use super::frames::{self, Expected, FrameEvent, FrameHeader, Frames};
use super::upgrade::{self, Upgrade};
use super::{Failure, Report, Steady, Target, steady, transport};

/// Runs it and prints the report.
///
/// # Errors
/// When there was no run; what happens to connections in a run is in the report.
pub fn run(options: &Steady, target: &Target) -> Result<Report, Failure> {
    let target = Target { compressed: true, ..target.clone() };
    let exchange = CompressedEcho::ask(options, &target, &json(options.payload.count()))?;
    steady::run(options, &target, exchange)
}

/// The same message each time, compressed by itself. However the server compresses, its answers are then all the
/// same. The first is decompressed before the run and compared with the message.
#[derive(Debug)]
struct CompressedEcho {
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl CompressedEcho {
    fn ask(options: &Steady, target: &Target, message: &[u8]) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(format!("the first message failed: {error}"))
        };
        let compressed = compress(message).ok_or_else(|| failed(&"it cannot be compressed"))?;
        let mut request =
            FrameHeader::of_client_compressed(compressed.len() as u64).as_slice().to_vec();
        let begin = request.len();
        request.extend_from_slice(&compressed);
        frames::mask(&mut request[begin..]);
        let answer = first_answer(options, target, &request).map_err(|error| failed(&error))?;
        if decompress(&answer, message.len() + 1).as_deref() != Some(message) {
            return Err(failed(&"it does not come back"));
        }
        Ok(Self { request, answer })
    }
}

impl Exchange for CompressedEcho {
    fn request_bytes(&self) -> u64 {
        self.request.len() as u64
    }

    fn answer_bytes(&self) -> u64 {
        self.answer.len() as u64
    }

    fn answer_head(&self) -> FrameHeader {
        FrameHeader::of_server_compressed(self.answer_bytes())
    }

    fn fill(&self, _connection: u32, _message: u64, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.request[offset as usize..][..out.len()]);
    }

    fn matches(&self, _connection: u32, _message: u64, offset: u64, got: &[u8]) -> bool {
        *got == self.answer[offset as usize..][..got.len()]
    }
}

/// The payload of the answer to `request`, still compressed, over a connection of its own.
fn first_answer(
    options: &Steady,
    target: &Target,
    request: &[u8],
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let patience = options.patience.get();
    let upgrade = target.upgrade().ok_or("`load deflate` needs --websocket PATH")?;
    let mut stream = TcpStream::connect(target.addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let Some(config) = target.tls()? else { return ask(&mut stream, &upgrade, request) };
    ask(&mut StreamOwned::new(transport::client(&config)?, stream), &upgrade, request)
}

fn ask(
    stream: &mut (impl Read + Write),
    upgrade: &Upgrade,
    request: &[u8],
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    stream.write_all(&upgrade.request(0))?;
    let (mut head, mut is_open, mut frames) =
        (Vec::new(), false, Frames::new(Expected::CompressedText));
    let (mut answer, mut buf) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let mut got = match stream.read(&mut buf)? {
            0 => return Err("the server ended the connection".into()),
            n => &buf[..n],
        };
        if !is_open {
            is_open = upgrade::answer(&mut head, &mut got, 0, true)
                .map_err(|refusal| format!("{refusal:?}"))?;
            if is_open {
                stream.write_all(request)?;
            }
        }
        while is_open && let Some(piece) = frames.next(&mut got)? {
            let FrameEvent::Payload(part, last) = piece else { continue };
            answer.extend_from_slice(part);
            if last {
                return Ok(answer);
            }
        }
    }
}

/// JSON like an exchange's list of orders.
fn json(bytes: usize) -> Vec<u8> {
    let mut json = b"[".to_vec();
    let mut n = 0_u64;
    while json.len() < bytes {
        n += 1;
        let (price, size) = (n * 7919 % 100_003, n * 104_729 % 997);
        let side = if n * n % 7 < 3 { "buy" } else { "sell" };
        json.extend_from_slice(
            format!(
                "{{\"id\":{},\"symbol\":\"ABC-{}\",\"side\":\"{side}\",\"price\":{}.{:02},\"size\":{size}}},",
                1_000_000 + n * 31,
                n % 13,
                price / 100,
                price % 100,
            )
            .as_bytes(),
        );
    }
    json.truncate(bytes);
    json
}

const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// As browsers do, at level 6 (RFC 7692 7.2.1).
fn compress(message: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(2 * message.len() + 100);
    let mut compress = Compress::new(Compression::new(6), false);
    compress.compress_vec(message, &mut out, FlushCompress::Sync).ok()?;
    out.ends_with(&TAIL).then(|| out[..out.len() - TAIL.len()].to_vec())
}

/// Decompresses at most `bytes_max` bytes (RFC 7692 7.2.2).
fn decompress(compressed: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes_max);
    let mut decompress = Decompress::new(false);
    decompress
        .decompress_vec(&[compressed, &TAIL].concat(), &mut out, FlushDecompress::Sync)
        .ok()?;
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_json_and_compresses_to_less_than_half() {
        for bytes in [1, 1024, 16_384] {
            let message = json(bytes);
            assert_eq!(message.len(), bytes);
            let compressed = compress(&message).unwrap();
            assert!(bytes == 1 || compressed.len() < bytes / 2, "{}", compressed.len());
            assert_eq!(decompress(&compressed, bytes + 1), Some(message));
        }
    }
}
