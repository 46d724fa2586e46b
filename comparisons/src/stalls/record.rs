//! What a server's detector says of a run: the file of events of the naive server, and `/stalls` of ours.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::value::{Datetime, Offset};

/// At most this much is read of an answer: 32 incidents with all their evidence are a few MiB.
const ANSWER_BYTES_MAX: u64 = 32 << 20;

/// How long the server may take to take a request, and for each read of the answer. A stalled one does not answer, and
/// is asked again.
const ANSWER: Duration = Duration::from_millis(200);

/// A stall as the detector reports it. Fields that the lab does not need are not read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Incident {
    id: u64,
    pub(crate) worker: String,
    pub(crate) began_unix_ms: f64,
    pub(crate) lasted_ms: f64,
    pub(crate) is_ongoing: bool,
    pub(crate) verdict: Verdict,
    /// When the lab first saw each class that it had, in ms since 1970.
    #[serde(default)]
    seen_unix_ms: BTreeMap<String, f64>,
    /// When the lab first saw each class as the one that fits best.
    #[serde(default)]
    led_unix_ms: BTreeMap<String, f64>,
}

/// What it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The surest first.
    pub(crate) findings: Vec<Finding>,
}

/// A class that fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub(crate) class: String,
    pub(crate) confidence: String,
    pub(crate) evidence: Vec<String>,
    pub(crate) cure: String,
}

/// A line of the file of events.
#[derive(Deserialize)]
struct Line {
    unix_ms: f64,
    #[serde(flatten)]
    event: Event,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    FaultBegan,
    FaultEnded,
    Late { ms: f64 },
    Incident(Incident),
}

/// What the file says.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// When the fault began and ended, in ms since 1970.
    pub(crate) fault_began: Option<f64>,
    pub(crate) fault_ended: Option<f64>,
    /// How late the heart was: when, in ms since 1970, and ms.
    pub(crate) late: Vec<[f64; 2]>,
    pub(crate) incidents: Vec<Incident>,
}

impl Record {
    /// Reads the lines of a file. The last one may be cut short: the server was ended.
    ///
    /// # Errors
    /// The number of the line that is not one of its events.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut record = Self::default();
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            if !line.ends_with('\n') {
                break;
            }
            let Line { unix_ms, event } =
                serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
            match event {
                Event::FaultBegan => record.fault_began = Some(unix_ms),
                Event::FaultEnded => record.fault_ended = Some(unix_ms),
                Event::Late { ms } => record.late.push([unix_ms, ms]),
                Event::Incident(incident) => add(&mut record.incidents, incident, unix_ms),
            }
        }
        Ok(record)
    }
}

impl Incident {
    /// The class that fits best.
    pub(crate) fn class(&self) -> &str {
        self.verdict.findings.first().map_or("unknown", |finding| &finding.class)
    }

    /// When the lab first saw `class`, if it is among what fits in the end.
    pub(crate) fn seen(&self, class: &str) -> Option<f64> {
        let is_there = self.verdict.findings.iter().any(|finding| finding.class == class);
        self.seen_unix_ms.get(class).copied().filter(|_| is_there)
    }

    /// When the lab first saw `class` as the one that fits best, if it is among what fits in the end.
    pub(crate) fn led(&self, class: &str) -> Option<f64> {
        self.seen(class).and_then(|_| self.led_unix_ms.get(class).copied())
    }

    /// All that fit, the best first.
    pub(crate) fn classes(&self) -> impl Iterator<Item = &str> {
        self.verdict.findings.iter().map(|finding| &*finding.class)
    }

    #[cfg(test)]
    pub(crate) fn of(classes: &[&str], seen_unix_ms: f64) -> Self {
        let finding = |class: &&str| Finding {
            class: (*class).to_owned(),
            confidence: "certain".to_owned(),
            evidence: vec![format!("It is <{class}>.")],
            cure: "None.".to_owned(),
        };
        let verdict = Verdict { findings: classes.iter().map(finding).collect() };
        Self {
            id: 1,
            worker: "worker 0".to_owned(),
            began_unix_ms: seen_unix_ms,
            lasted_ms: 100.0,
            is_ongoing: false,
            verdict,
            seen_unix_ms: classes.iter().map(|it| ((*it).to_owned(), seen_unix_ms)).collect(),
            led_unix_ms: classes
                .first()
                .map(|it| ((*it).to_owned(), seen_unix_ms))
                .into_iter()
                .collect(),
        }
    }
}

/// How late the hearts of a server were that tells its stalls alone: when each beat again, in ms since 1970, and ms. What
/// is of the process as a whole is no heart's.
pub(crate) fn late_hearts(incidents: &[Incident]) -> Vec<[f64; 2]> {
    let of_hearts = incidents.iter().filter(|incident| !incident.worker.is_empty());
    of_hearts.map(|it| [it.began_unix_ms + it.lasted_ms, it.lasted_ms]).collect()
}

/// Adds what is known of an incident at the time `unix_ms`, in the place of what was known of it before.
pub(crate) fn add(incidents: &mut Vec<Incident>, mut incident: Incident, unix_ms: f64) {
    let known = incidents.iter_mut().find(|known| known.id == incident.id);
    if let Some(known) = &known {
        incident.seen_unix_ms.clone_from(&known.seen_unix_ms);
        incident.led_unix_ms.clone_from(&known.led_unix_ms);
    }
    for finding in &incident.verdict.findings {
        incident.seen_unix_ms.entry(finding.class.clone()).or_insert(unix_ms);
    }
    let leads = incident.class().to_owned();
    incident.led_unix_ms.entry(leads).or_insert(unix_ms);
    match known {
        Some(known) => *known = incident,
        None => incidents.push(incident),
    }
}

/// The stalls in a server's log of JSON lines that are not among `known`. A line has the first class of a stall alone.
/// Other lines are skipped; so is one that was cut.
pub(crate) fn only_in_log(log: &str, known: &[Incident]) -> Vec<Incident> {
    #[derive(Deserialize)]
    struct Line {
        timestamp: String,
        level: String,
        fields: Fields,
    }
    #[derive(Deserialize)]
    struct Fields {
        id: u64,
        worker: String,
        class: String,
        lasted_ms: f64,
        message: String,
    }
    let mut incidents: Vec<Incident> = Vec::new();
    for line in log.lines() {
        let Ok(Line { timestamp, level, fields }) = serde_json::from_str(line) else { continue };
        let Some(unix_ms) = unix_ms_of(&timestamp) else { continue };
        if known.iter().any(|incident| incident.id == fields.id) {
            continue;
        }
        let finding = Finding {
            class: fields.class,
            confidence: "in the log".to_owned(),
            evidence: vec![fields.message],
            cure: String::new(),
        };
        let incident = Incident {
            id: fields.id,
            worker: fields.worker,
            began_unix_ms: unix_ms - fields.lasted_ms,
            lasted_ms: fields.lasted_ms,
            is_ongoing: level == "WARN",
            verdict: Verdict { findings: vec![finding] },
            seen_unix_ms: BTreeMap::new(),
            led_unix_ms: BTreeMap::new(),
        };
        add(&mut incidents, incident, unix_ms);
    }
    incidents
}

/// A time of a log (RFC 3339, in UTC) in ms since 1970.
fn unix_ms_of(timestamp: &str) -> Option<f64> {
    let Datetime { date: Some(date), time: Some(time), offset: Some(Offset::Z) } =
        timestamp.parse().ok()?
    else {
        return None;
    };
    // Years begin in March here, so that the day that some of them lack is their last.
    let is_early = date.month <= 2;
    let year = i64::from(date.year) - i64::from(is_early);
    let month = i64::from(date.month) + if is_early { 9 } else { -3 };
    let days_of_year = (153 * month + 2) / 5 + i64::from(date.day) - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + days_of_year - DAYS_TO_1970;
    let minutes = (days * 24 + i64::from(time.hour)) * 60 + i64::from(time.minute);
    let ms = f64::from(time.nanosecond) / 1e6;
    Some((minutes * 60 + i64::from(time.second)) as f64 * 1e3 + ms)
}

/// From 1 March of the year 0 to 1 January 1970.
const DAYS_TO_1970: i64 = 719_468;

/// Asks a server for `/stalls`. None if it does not have that page.
///
/// # Errors
/// It does not answer now.
pub(crate) fn ask(admin: SocketAddr) -> io::Result<Option<Vec<Incident>>> {
    let mut stream = TcpStream::connect_timeout(&admin, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    let request = format!(
        "GET /stalls HTTP/1.1\r\nhost: {admin}\r\naccept: application/json\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(incidents_of(&answer))
}

/// The incidents in an answer: an array, or the field of that name of an object. None without either.
fn incidents_of(answer: &[u8]) -> Option<Vec<Incident>> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Body {
        Incidents(Vec<Incident>),
        Snapshot { incidents: Vec<Incident> },
    }
    if !answer.starts_with(b"HTTP/1.1 200") {
        return None;
    }
    let body = answer.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    match serde_json::from_slice(&answer[body..]).ok()? {
        Body::Incidents(incidents) | Body::Snapshot { incidents } => Some(incidents),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INCIDENT: &str = r#"{"id":1,"worker":"w","began_unix_ms":5,"lasted_ms":60,"is_ongoing":true,"reports":1,
        "verdict":{"findings":[{"class":"unknown","confidence":"possible","evidence":[],"cure":"c"}]}}"#;

    fn line(unix_ms: u32, event: &str) -> String {
        format!("{{\"unix_ms\":{unix_ms},{}\n", event.replace('\n', "").trim_start_matches('{'))
    }

    #[test]
    fn a_file_that_ends_in_a_line_is_read() {
        let incident = INCIDENT.replacen('{', "{\"event\":\"incident\",", 1);
        let sure = incident.replace("unknown", "blocked_loop");
        let text = line(1, r#"{"event":"fault_began"}"#)
            + &line(2, r#"{"event":"late","ms":7}"#)
            + &line(3, &incident)
            + &line(4, &incident.replace("\"lasted_ms\":60", "\"lasted_ms\":90"))
            + &line(5, &sure)
            + &line(6, r#"{"event":"fault_ended"}"#)
            + "{\"unix_ms\":7,\"ev";
        let record = Record::parse(&text).unwrap();
        assert_eq!((record.fault_began, record.fault_ended), (Some(1.0), Some(6.0)));
        assert_eq!(record.late, [[2.0, 7.0]]);
        // The class came with the third line of it.
        let [incident] = &*record.incidents else { panic!("{:?}", record.incidents) };
        assert_eq!((incident.class(), incident.seen("blocked_loop")), ("blocked_loop", Some(5.0)));
        assert_eq!(incident.seen("unknown"), None);
        assert!(Record::parse("{}\n").unwrap_err().starts_with("line 1: "));
    }

    #[test]
    fn a_stall_of_a_worker_is_a_late_heart() {
        let of_worker = Incident::of(&["blocked_loop"], 1_000.0);
        let of_process = Incident { worker: String::new(), ..of_worker.clone() };
        assert_eq!(late_hearts(&[of_worker, of_process]), [[1_100.0, 100.0]]);
    }

    #[test]
    fn a_log_has_what_was_told_last() {
        let line = |level: &str, id: u32, class: &str| {
            format!(
                "{{\"timestamp\":\"2026-11-23T15:39:16.5Z\",\"level\":\"{level}\",\
                 \"fields\":{{\"message\":\"m\",\"id\":{id},\"worker\":\"0\",\"class\":\"{class}\",\
                 \"lasted_ms\":60,\"suppressed\":0}}}}\n"
            )
        };
        let text = "{\"level\":\"INFO\",\"fields\":{\"message\":\"listening\"}}\nno JSON\n"
            .to_owned()
            + &line("WARN", 1, "blocked_loop")
            + &line("WARN", 2, "unknown")
            + &line("INFO", 2, "blocked_loop")
            + "{\"level\":";
        let known = [Incident::of(&["blocked_loop"], 1.0)];
        let [incident] = &*only_in_log(&text, &known) else { panic!() };
        assert_eq!((incident.class(), incident.is_ongoing), ("blocked_loop", false));
        let at = 1_795_448_356_500.0;
        assert_eq!((incident.began_unix_ms, incident.led("blocked_loop")), (at - 60.0, Some(at)));
        assert_eq!(only_in_log(&text, &[]).len(), 2);
    }

    #[test]
    fn a_time_of_a_log_is_since_1970() {
        for (timestamp, unix_ms) in [
            ("1970-01-01T00:00:00Z", Some(0.0)),
            ("2000-02-29T23:59:59.25Z", Some(951_868_799_250.0)),
            ("2000-03-01T00:00:00Z", Some(951_868_800_000.0)),
            ("2000-03-01T00:00:00+01:00", None),
            ("15:39:16", None),
        ] {
            assert_eq!(unix_ms_of(timestamp), unix_ms, "{timestamp}");
        }
    }

    #[test]
    fn an_answer_has_incidents_or_the_server_has_no_such_page() {
        let answer = |status: &str, body: &str| {
            incidents_of(format!("HTTP/1.1 {status}\r\na: b\r\n\r\n{body}").as_bytes())
        };
        assert_eq!(answer("200 OK", "[]").unwrap(), []);
        assert_eq!(answer("200 OK", &format!("[{INCIDENT}]")).unwrap().len(), 1);
        let snapshot = format!("{{\"workers\":[],\"incidents\":[{INCIDENT}]}}");
        assert_eq!(answer("200 OK", &snapshot).unwrap().len(), 1);
        assert_eq!(answer("404 Not Found", "[]"), None);
        assert_eq!(answer("200 OK", "<p>"), None);
        assert_eq!(incidents_of(b"HTTP/1.1 200"), None);
    }
}
