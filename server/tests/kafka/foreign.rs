//! What other producers may store, and this server does not: odd headers.

use iggy_binary_protocol::WirePollingStrategy;

use super::client::Client;
use super::raw::append_with_header;
use super::server::RUNTIMES;
use super::{cluster, payloads, start};

/// The crate `rdkafka` panics at such a header, on the thread that reads all partitions.
#[test]
fn a_header_whose_key_is_not_utf8_is_ignored() {
    let cluster = cluster();
    let server = start(RUNTIMES[0], &cluster, &[]);
    let mut client = Client::login(&server);
    assert_eq!(client.send(0, &[b"before".to_vec()], None), 0);
    append_with_header(&cluster, b"\xff\xfe", b"odd");
    append_with_header(&cluster, b"iggy-user-headers", b"even");
    let polled = client.poll(0, WirePollingStrategy::first(), 10).unwrap();
    assert_eq!(payloads(&polled), [&b"before"[..], b"odd", b"even"]);
    let user_headers: Vec<_> = polled.iter().map(|message| &message.user_headers[..]).collect();
    assert_eq!(user_headers, [&b""[..], b"", b"value"]);
    assert_eq!(client.send(1, &[b"after".to_vec()], None), 0);
    assert_eq!(payloads(&client.poll_all(1, 10)), [b"after"]);
}
