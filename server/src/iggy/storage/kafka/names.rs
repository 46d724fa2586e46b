//! The names of Kafka topics: which stream and topic are which topic of Kafka, and back.
//!
//! Topic `orders` of stream `shop-1` is `shop-1.orders`. Kafka allows ASCII letters, digits, `.`, `_` and `-`, so:
//!
//! - The only `.` stands between the names of stream and topic.
//! - Letters, digits and `-` stand for themselves.
//! - Every other byte of UTF-8, `.` and `_` among them, is `_` and two digits, as in `_2E`: hexadecimal, upper case.
//! - If a topic's name begins with two hexadecimal digits (upper case), its first byte is written so, too.
//!
//! Kafka refuses to have two topics whose names differ in `.` and `_` alone, because its metrics would confuse them. The
//! last rule keeps that from happening: the separator is never followed by what could be an escape.

use std::fmt::Write as _;

/// The longest name of a Kafka topic, in bytes.
pub const TOPIC_BYTES_MAX: usize = 249;

/// The topic of Kafka. `None`: a name is empty, or the topic's name would be longer than [`TOPIC_BYTES_MAX`].
pub fn kafka_topic(stream: &str, topic: &str) -> Option<String> {
    if stream.is_empty() || topic.is_empty() {
        return None;
    }
    let mut name = String::with_capacity(TOPIC_BYTES_MAX);
    for byte in stream.bytes() {
        push(&mut name, byte, !is_plain(byte));
    }
    name.push('.');
    let begins_like_escape = topic.as_bytes().first_chunk().is_some_and(is_hex_pair);
    for (n, byte) in topic.bytes().enumerate() {
        push(&mut name, byte, !is_plain(byte) || n == 0 && begins_like_escape);
    }
    (name.len() <= TOPIC_BYTES_MAX).then_some(name)
}

/// The names of stream and topic. `None`: [`kafka_topic`] makes no such name, so the topic is somebody else's.
pub fn stream_and_topic(kafka_topic_name: &str) -> Option<(String, String)> {
    let (stream, topic) = kafka_topic_name.split_once('.')?;
    let (stream, topic) = (unescaped(stream)?, unescaped(topic)?);
    // What could have been written in another way is nobody's: two names would be one stream.
    let is_canonical = kafka_topic(&stream, &topic).as_deref() == Some(kafka_topic_name);
    is_canonical.then_some((stream, topic))
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

const fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'A'..=b'F')
}

fn is_hex_pair(pair: &[u8; 2]) -> bool {
    pair.iter().all(|&byte| is_hex(byte))
}

fn push(name: &mut String, byte: u8, is_escaped: bool) {
    if is_escaped {
        write!(name, "_{byte:02X}").expect("a string takes what it is given");
    } else {
        name.push(byte.into());
    }
}

fn unescaped(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [byte, behind @ ..] = rest {
        if *byte == b'_' {
            let digits = behind.first_chunk().filter(|pair| is_hex_pair(pair))?;
            let digits = str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &behind[2..];
        } else {
            bytes.push(*byte);
            rest = behind;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn names_become_topics_that_can_be_read() {
        for (stream, topic, expected) in [
            ("shop-1", "orders", "shop-1.orders"),
            ("shop", "orders.2026", "shop.orders_2E2026"),
            ("my_shop", "straße 7", "my_5Fshop.stra_C3_9Fe_207"),
            ("a", "5Fb", "a._35Fb"),
            ("a", "5", "a.5"),
            ("..", "日", "_2E_2E._E6_97_A5"),
        ] {
            let name = kafka_topic(stream, topic).unwrap();
            assert_eq!(name, expected);
            assert_eq!(stream_and_topic(&name), Some((stream.into(), topic.into())));
        }
    }

    #[test]
    fn names_that_nobody_writes_are_nobodys() {
        for name in [
            "",
            ".",
            "a",
            "a.",
            ".a",
            "a.b.c",
            "__consumer_offsets",
            "a_b.c",
            "a_2e.b",
            "a._41",
            "a.5Fb",
            "a_.b",
            "a_4.b",
            "a._FF",
            "a b.c",
        ] {
            assert_eq!(stream_and_topic(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_name_is_as_long_as_kafka_allows() {
        let topic = "t".repeat(TOPIC_BYTES_MAX - 2);
        assert_eq!(kafka_topic("s", &topic).unwrap().len(), TOPIC_BYTES_MAX);
        assert_eq!(kafka_topic("ss", &topic), None);
        assert_eq!(kafka_topic(&".".repeat(83), "t"), None); // three bytes for each
        assert_eq!(kafka_topic("", "t"), None);
        assert_eq!(kafka_topic("s", ""), None);
    }

    /// All pairs of names of up to five bytes of these: what a `.` and an escape could be confused by.
    #[test]
    fn no_two_names_are_the_same_topic_nor_confused_by_the_metrics_of_kafka() {
        let mut names = vec![String::new()];
        let mut from = 0;
        for _ in 0..5 {
            let until = names.len();
            for n in from..until {
                for c in ['.', '_', '5', 'F'] {
                    names.push(format!("{}{c}", names[n]));
                }
            }
            from = until;
        }
        let mut seen = HashMap::new();
        for stream in &names[1..] {
            for topic in names[1..].iter().filter(|topic| topic.len() + stream.len() <= 6) {
                let name = kafka_topic(stream, topic).unwrap();
                assert!(name.bytes().all(|b| is_plain(b) || b == b'.' || b == b'_'), "{name}");
                assert_eq!(stream_and_topic(&name), Some((stream.clone(), topic.clone())));
                let before = seen.insert(name.replace('.', "_"), (stream, topic));
                assert_eq!(before, None, "{stream} {topic}: {name}");
            }
        }
        assert!(seen.len() > 10_000);
    }
}
