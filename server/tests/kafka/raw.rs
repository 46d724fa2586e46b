//! Batches that no client of librdkafka makes, sent in the protocol of Kafka itself.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::Cluster;

/// The attributes of a batch: the record is a marker of Kafka, and belongs to a transaction.
const CONTROL: u16 = 0x20 | 0x10;

/// Appends a record with a header to partition 0 of topic `s.t`.
pub(crate) fn append_with_header(cluster: &Cluster, key: &[u8], payload: &[u8]) {
    let header = [&[varint(1)], &field(key)[..], &field(b"value")].concat();
    append(cluster, 0, &[&[varint(-1)], &field(payload)[..], &header].concat());
}

/// Appends what Kafka appends when a transaction is committed. It takes an offset, and no consumer gets it.
pub(crate) fn append_marker(cluster: &Cluster) {
    let key = field(&[0, 0, 0, 1]); // version 0, type 1: commit
    append(cluster, CONTROL, &[&key, &field(&[0; 6])[..], &[varint(0)]].concat());
}

/// Sends a batch of one record. `rest`: its key, its value and its headers.
fn append(cluster: &Cluster, attributes: u16, rest: &[u8]) {
    let record = field(&[&[0, 0, 0], rest].concat()); // attributes, and the two deltas
    let batch = [
        &2_u8.to_be_bytes()[..],   // the format
        &[0; 4],                   // a checksum, which the mock cluster does not look at
        &attributes.to_be_bytes(), //
        &[0; 4],                   // the delta of the last offset
        &[0; 16],                  // the first and the last timestamp
        &(-1_i64).to_be_bytes(),   // no producer, so no epoch and no sequence
        &(-1_i16).to_be_bytes(),   //
        &(-1_i32).to_be_bytes(),   //
        &1_i32.to_be_bytes(),      // records
        &record,                   //
    ]
    .concat();
    let batch_bytes = (batch.len() as i32 + 4).to_be_bytes(); // with the epoch of the leader
    let batch = [&[0; 8], &batch_bytes[..], &[0; 4], &batch].concat();
    let request = [
        &0_i16.to_be_bytes()[..], // Produce
        &3_i16.to_be_bytes(),     // version
        &7_i32.to_be_bytes(),     // the number of the request
        &(-1_i16).to_be_bytes(),  // no name of the client
        &(-1_i16).to_be_bytes(),  // no transaction
        &1_i16.to_be_bytes(),     // acknowledged by the leader
        &1_000_i32.to_be_bytes(), // ms
        &1_i32.to_be_bytes(),     // topics
        &3_i16.to_be_bytes(),     //
        b"s.t",                   //
        &1_i32.to_be_bytes(),     // partitions
        &0_i32.to_be_bytes(),     //
        &(batch.len() as i32).to_be_bytes(),
        &batch,
    ]
    .concat();
    let mut stream = TcpStream::connect(cluster.bootstrap_servers()).unwrap();
    stream.set_read_timeout(Some(super::server::PATIENCE)).unwrap();
    stream.write_all(&(request.len() as i32).to_be_bytes()).unwrap();
    stream.write_all(&request).unwrap();
    // Up to the status: the length, the number of the request, a topic, and a partition.
    let mut answer = [0; 4 + 4 + 4 + 5 + 4 + 4 + 2];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[answer.len() - 2..], [0, 0], "{answer:?}");
}

/// Bytes behind their length.
fn field(bytes: &[u8]) -> Vec<u8> {
    [&[varint(bytes.len() as i8)], bytes].concat()
}

/// A number that takes one byte.
fn varint(n: i8) -> u8 {
    assert!((-64..64).contains(&n), "{n}");
    (n << 1 ^ n >> 7) as u8
}
