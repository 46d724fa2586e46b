//! What other producers may store, and this server does not: odd headers, offsets
//! without messages, and compressed batches.

use std::time::{Duration, Instant};

use iggy_binary_protocol::WirePollingStrategy;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::client::Client;
use super::raw::{append_marker, append_with_header};
use super::server::{PATIENCE, RUNTIMES};
use super::{cluster, payloads, pushed, start, tail};

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

/// librdkafka tells of the end once, which is to the first of these polls.
#[test]
fn polls_at_the_end_of_a_transaction_are_empty() {
    let cluster = cluster();
    let server = start(RUNTIMES[0], &cluster, &[]);
    let mut client = Client::login(&server);
    assert_eq!(client.send(0, &[b"one".to_vec()], None), 0);
    append_marker(&cluster);
    assert_eq!(payloads(&client.poll(0, WirePollingStrategy::first(), 10).unwrap()), [b"one"]);
    let began = Instant::now();
    for _ in 0..3 {
        assert_eq!(client.poll(0, WirePollingStrategy::offset(1), 10), Ok(vec![]));
    }
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(client.send(0, &[b"two".to_vec()], None), 0);
    let polled = client.poll(0, WirePollingStrategy::offset(1), 10).unwrap();
    assert_eq!((polled[0].offset, payloads(&polled)), (2, vec![b"two".to_vec()]));
}

#[test]
fn compressed_batches_are_read() {
    let cluster = cluster();
    let server = start(RUNTIMES[0], &cluster, &[]);
    let mut client = Client::login(&server);
    let mut sent = Vec::new();
    for codec in ["gzip", "snappy", "lz4", "zstd"] {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        let producer: BaseProducer = config.set("compression.codec", codec).create().unwrap();
        let payload = codec.repeat(1_000).into_bytes(); // shorter when it is compressed, or it would be sent as it is
        let record = BaseRecord::<str, _>::to("s.t").partition(0).payload(&payload);
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(PATIENCE).unwrap();
        sent.push(payload);
    }
    assert_eq!(payloads(&client.poll_all(0, 10)), sent);
}

/// The binary subprotocol is closed when messages are lost.
#[test]
fn a_tail_passes_over_offsets_without_messages() {
    for runtime in RUNTIMES {
        println!("{runtime}"); // shown when it fails
        let cluster = cluster();
        let server = start(runtime, &cluster, &[]);
        let mut client = Client::login(&server);
        let mut early = tail(&server, 0);
        for n in 0..5 {
            append_marker(&cluster);
            let payload = format!("{n}").into_bytes();
            assert_eq!(client.send(0, std::slice::from_ref(&payload), None), 0);
            assert_eq!(pushed(&mut early), (2 * n + 1, payload));
        }
        append_marker(&cluster);
        let mut late = tail(&server, 0);
        for n in 0..5 {
            assert_eq!(pushed(&mut late), (2 * n + 1, format!("{n}").into_bytes()));
        }
    }
}
