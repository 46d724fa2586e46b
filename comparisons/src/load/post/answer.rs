//! What an answer says, and which offsets were acknowledged.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::super::http::Head;
use super::super::report::PartitionPosts;

/// The longest body of an answer, in bytes. Those of a server are sentences, or a short line of JSON.
pub(super) const BODY_BYTES_MAX: usize = 1024;

/// The longest time that a client waits because of `Retry-After`. A server that asks for more is asked earlier.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The most partitions that are told apart.
const PARTITIONS_MAX: usize = 4096;

/// The most offsets of all partitions together, in words of 64: 32 MiB.
const WORDS_MAX: usize = 1 << 22;

/// How far below the first offset of a partition that is acknowledged another one may be. Answers of as many
/// connections can overtake each other.
const BELOW_MAX: u64 = 1 << 20;

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is stored, there.
    Acknowledged { partition: u32, offset: u64 },
    /// It is not stored, and may be sent again after this time.
    Refused { retry: Duration },
    /// It may be stored or not.
    Failed,
}

/// Judges an answer to one event.
///
/// # Errors
/// What is wrong with it.
pub(super) fn judge(head: Head, body: &[u8]) -> Result<Verdict, &'static str> {
    match (head.status, head.retry_after) {
        (200, _) => acknowledged(body).ok_or("a body that does not say where one event is"),
        (503, Some(seconds)) => {
            let retry = Duration::from_secs(seconds.into()).min(RETRY_MAX);
            Ok(Verdict::Refused { retry })
        }
        (503, None) => Err("an answer 503 without Retry-After"),
        (500, _) => Ok(Verdict::Failed),
        _ => Err("an answer whose status is not 200, 500 or 503"),
    }
}

fn acknowledged(body: &[u8]) -> Option<Verdict> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Appended {
        events: u64,
        partition: u32,
        offset: u64,
    }
    let Appended { events, partition, offset } = serde_json::from_slice(body).ok()?;
    (events == 1).then_some(Verdict::Acknowledged { partition, offset })
}

/// The offsets that were acknowledged. No two events have the same one.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    partitions: BTreeMap<u32, Partition>,
    words: usize,
}

#[derive(Debug)]
struct Partition {
    /// The offset of the first bit.
    base: u64,
    bits: Vec<u64>,
    count: u64,
    first: u64,
    last: u64,
}

impl Offsets {
    /// Adds an offset.
    ///
    /// # Errors
    /// It was there, or is too far from the others.
    pub(super) fn insert(&mut self, partition: u32, offset: u64) -> Result<(), &'static str> {
        if self.partitions.len() == PARTITIONS_MAX && !self.partitions.contains_key(&partition) {
            return Err("more partitions than are told apart");
        }
        let new = || Partition {
            base: offset.saturating_sub(BELOW_MAX),
            bits: Vec::new(),
            count: 0,
            first: offset,
            last: offset,
        };
        let partition = self.partitions.entry(partition).or_insert_with(new);
        let at = offset.checked_sub(partition.base).ok_or("an offset far below the others")?;
        let word = usize::try_from(at / 64).unwrap_or(usize::MAX);
        if word >= partition.bits.len() {
            let room = WORDS_MAX - (self.words - partition.bits.len());
            if word >= room {
                return Err("an offset far above the others");
            }
            // Twice as much as there is, so that few bits are moved often.
            let words = (word + 1).max(2 * partition.bits.len()).min(room);
            self.words += words - partition.bits.len();
            partition.bits.resize(words, 0);
        }
        let bit = 1 << (at % 64);
        if partition.bits[word] & bit != 0 {
            return Err("an offset that another event has");
        }
        partition.bits[word] |= bit;
        partition.count += 1;
        partition.first = partition.first.min(offset);
        partition.last = partition.last.max(offset);
        Ok(())
    }

    /// What each partition has.
    pub(super) fn report(&self) -> Vec<PartitionPosts> {
        let report = |(number, partition): (&u32, &Partition)| PartitionPosts {
            partition: *number,
            acknowledged: partition.count,
            first_offset: partition.first,
            last_offset: partition.last,
        };
        self.partitions.iter().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::http::HttpAnswers;
    use super::*;

    fn judged(head: &str, body: &str) -> Result<Verdict, &'static str> {
        let length = body.len();
        let answer = format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\n\r\n{body}");
        let (mut answers, mut got) = (HttpAnswers::of_any_status(), answer.as_bytes());
        while let Some((_, is_end)) = answers.next(&mut got)? {
            if is_end {
                return judge(answers.last_head(), body.as_bytes());
            }
        }
        Err("no answer")
    }

    #[test]
    fn an_answer_is_an_acknowledgement_a_refusal_or_a_failure() {
        let acknowledged = Verdict::Acknowledged { partition: 3, offset: 1 << 40 };
        let body = "{\"events\":1,\"partition\":3,\"offset\":1099511627776}\n";
        assert_eq!(judged("200 OK", body), Ok(acknowledged));
        let refused = |seconds| Ok(Verdict::Refused { retry: Duration::from_secs(seconds) });
        assert_eq!(judged("503 Busy\r\nRetry-After: 1", "wait\n"), refused(1));
        assert_eq!(judged("503 Busy\r\nretry-after: 3600", ""), refused(10));
        assert_eq!(judged("500 Internal Server Error", "perhaps\n"), Ok(Verdict::Failed));
    }

    #[test]
    fn other_answers_are_wrong() {
        let body = "{\"events\":1,\"partition\":0,\"offset\":7}";
        for (head, body, what) in [
            ("200 OK", "", "where one event is"),
            ("200 OK", &body[1..], "where one event is"),
            ("200 OK", &*body.replace(":1", ":2"), "where one event is"),
            ("200 OK", &*body.replace(":7", ":-7"), "where one event is"),
            ("200 OK", &*body.replace("offset", "onset"), "where one event is"),
            ("201 Created", body, "not 200, 500 or 503"),
            ("401 Unauthorized", "", "not 200, 500 or 503"),
            ("503 Busy", "", "without Retry-After"),
            ("503 Busy\r\nRetry-After: tomorrow", "", "without Retry-After"),
        ] {
            let error = judged(head, body).unwrap_err();
            assert!(error.contains(what), "{head} {body}: {error}");
        }
    }

    #[test]
    fn an_offset_is_acknowledged_once() {
        let mut offsets = Offsets::default();
        for offset in [BELOW_MAX * 2, BELOW_MAX * 2 + 200, BELOW_MAX * 2 - 70, BELOW_MAX] {
            assert_eq!(offsets.insert(0, offset), Ok(()), "{offset}");
            assert_eq!(offsets.insert(1, offset), Ok(()), "{offset}");
            let again = offsets.insert(0, offset);
            assert_eq!(again, Err("an offset that another event has"), "{offset}");
        }
        let [first, second] = offsets.report().try_into().expect("two partitions");
        assert_eq!((first.acknowledged, second.acknowledged), (4, 4));
        assert_eq!((first.first_offset, first.last_offset), (BELOW_MAX, BELOW_MAX * 2 + 200));
    }

    #[test]
    fn offsets_take_no_more_than_a_bound() {
        let mut offsets = Offsets::default();
        let farthest = WORDS_MAX as u64 * 64 - 1;
        offsets.insert(0, 0).expect("room");
        offsets.insert(0, farthest).expect("room");
        assert_eq!(offsets.insert(0, farthest + 1), Err("an offset far above the others"));
        assert_eq!(offsets.insert(1, 0), Err("an offset far above the others"));
        assert_eq!(offsets.words, WORDS_MAX);
        let mut offsets = Offsets::default();
        offsets.insert(0, u64::MAX).expect("room");
        assert_eq!(offsets.insert(0, 0), Err("an offset far below the others"));
        for partition in 1..PARTITIONS_MAX as u32 {
            offsets.insert(partition, 0).expect("room");
        }
        assert!(offsets.insert(PARTITIONS_MAX as u32, 0).is_err());
        assert_eq!(offsets.insert(1, 1), Ok(()));
    }
}
