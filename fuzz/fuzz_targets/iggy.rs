//! Requests of Iggy's protocol: the same wherever their bytes are cut; each is answered by one frame, whatever its
//! payload; and what is polled is what was sent.
#![no_main]

use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use iggy_binary_protocol::codes::{LOGIN_USER_CODE, POLL_MESSAGES_CODE, SEND_MESSAGES_CODE};
use iggy_binary_protocol::requests::messages::{RawMessage, SendMessagesEncoder};
use iggy_binary_protocol::responses::messages::PollMessagesResponse;
use iggy_binary_protocol::{COMMAND_TABLE, ResponseFrame, WireIdentifier, WirePartitioning};
use libfuzzer_sys::fuzz_target;
use owned_io_server::iggy::broker::Broker;
use owned_io_server::iggy::clients::Transport;
use owned_io_server::iggy::frame::{FrameDecoder, Progress, Request};
use owned_io_server::iggy::session::Session;
use owned_io_server::iggy::storage::MemoryStorage;
use owned_io_server::iggy::workers::{Hub, Iggy};
use owned_io_server::iggy::{Credentials, Environment, Node, Status};
use owned_io_sim::Sim;

const REQUEST_BYTES_MAX: usize = 100_000;

fuzz_target!(|bytes: &[u8]| {
    let whole = decode(bytes, bytes.len());
    assert_eq!(decode(bytes, 1), whole);
    assert_eq!(decode(bytes, 7), whole);
    owned_io_sim::block_on(execute(bytes));
});

/// The requests in a stream that is cut every `cut` bytes, and why it cannot be decoded further.
fn decode(stream: &[u8], cut: usize) -> (Vec<(u32, BytesMut)>, Option<Status>) {
    let mut decoder = FrameDecoder::new(REQUEST_BYTES_MAX);
    decoder.set_logged_in(true);
    let mut requests = Vec::new();
    for mut part in stream.chunks(cut.max(1)) {
        loop {
            match decoder.decode(&mut part) {
                Ok(Progress::NeedsBytes) => break,
                Ok(Progress::NeedsRoom(bytes)) => {
                    assert!(bytes <= REQUEST_BYTES_MAX);
                    decoder.make_room(bytes).unwrap();
                }
                Ok(Progress::Complete(request)) => requests.push((request.code, request.payload)),
                Err(status) => return (requests, Some(status)),
            }
        }
        assert!(part.is_empty());
    }
    (requests, None)
}

/// Executes what the bytes say: a byte for the command, one for the length of its payload, and the payload. From 200
/// on, the command is a batch of messages that is well formed.
async fn execute(mut bytes: &[u8]) {
    let credentials = Credentials::new("iggy".into(), "secret".into()).unwrap();
    let hub = Arc::new(Hub::new(credentials));
    let environment = Environment::of::<Sim>();
    let storage = Box::new(MemoryStorage::new(1 << 20, environment.now));
    let broker = Broker::new(storage, hub.clients().clone(), environment, Node::default());
    let iggy = Rc::new(Iggy::with_broker::<Sim>(hub, broker));
    let mut session = Session::new(&iggy, Transport::Tcp, None);
    ask(&mut session, LOGIN_USER_CODE, b"\x04iggy\x06secret\0\0\0\0\0\0\0\0"[..].into()).await;
    while let Some((&[command, len], rest)) = bytes.split_first_chunk() {
        let payload;
        (payload, bytes) = rest.split_at(rest.len().min(len.into()));
        if command >= 200 {
            ask(&mut session, SEND_MESSAGES_CODE, batch(command, payload)).await;
        } else {
            let code = COMMAND_TABLE[command as usize % COMMAND_TABLE.len()].code;
            ask(&mut session, code, payload.into()).await;
        }
    }
}

async fn ask(session: &mut Session, code: u32, payload: BytesMut) {
    let answer =
        session.answer::<Sim>(Request { code, payload }, &mut (1_usize << 20)).await.concat();
    let (answer, len) = ResponseFrame::decode(&answer).unwrap();
    assert_eq!(len, 8 + answer.payload.len());
    if code == POLL_MESSAGES_CODE && answer.is_ok() {
        let polled = PollMessagesResponse::decode(answer.payload).unwrap();
        let count = polled.header.messages_count;
        let views: Vec<_> = polled.messages.map(Result::unwrap).collect();
        assert_eq!(views.len(), count as usize);
        let bytes: usize = views.iter().map(|view| view.total_size()).sum();
        assert_eq!(16 + bytes, answer.payload.len());
        assert!(views.windows(2).all(|pair| pair[0].offset() + 1 == pair[1].offset()));
        assert!(views.iter().all(|view| view.payload() == view.user_headers()));
    }
}

/// A message for each byte of `payload`. Its user headers are its payload.
fn batch(command: u8, payload: &[u8]) -> BytesMut {
    let to = match command % 3 {
        0 => WirePartitioning::Balanced,
        1 => WirePartitioning::PartitionId((command / 3 % 4).into()),
        _ => WirePartitioning::MessagesKey(vec![command]),
    };
    let message = |byte| RawMessage {
        id: 0,
        origin_timestamp: 0,
        headers: Some(std::slice::from_ref(byte)),
        payload: std::slice::from_ref(byte),
    };
    let messages: Vec<_> = payload.iter().map(message).collect();
    let mut request = BytesMut::new();
    let zero = WireIdentifier::numeric(0);
    SendMessagesEncoder::encode(&mut request, &zero, &zero, &to, &messages);
    request
}
