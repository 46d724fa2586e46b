//! `/stalls`: the last stalls of the workers, as JSON, and as a page for people.
//!
//! The JSON is a [`Snapshot`]: how late each worker is, how long queues are, how the last probe ended, the incidents, the
//! newest last, and what cannot be seen. A client that prefers `text/html` to `application/json` gets the page.

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use owned_io_stalls::evidence::ProbeOutcome;
use owned_io_stalls::{Incident, Snapshot};

use crate::stalls::Stalls;

/// The answer has the newest incident, and as many before it as fit into this.
const BODY_BYTES_MAX: usize = 256 * 1024;

/// An answer is made on the loop of the worker that is asked, in some 100 µs for each stall. So it is made once in this
/// time, whoever asks, or by each worker once if all are asked at the same moment.
const MADE_EVERY: Duration = Duration::from_millis(500);

/// How many answers the workers together send at once: in all 2 MiB.
const SENT_MAX: usize = 8;

/// What the workers share of the answers to `GET /stalls`.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    json: LastBody,
    html: LastBody,
    /// How many are being sent.
    sent: Arc<AtomicUsize>,
}

/// The body that was made last.
#[derive(Debug, Default)]
pub(super) struct LastBody(Mutex<Option<(Instant, Arc<[u8]>)>>);

impl LastBody {
    /// The last body, unless that is old.
    pub(super) fn recent(&self) -> Option<Arc<[u8]>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (made, body) = last.as_ref()?;
        (made.elapsed() < MADE_EVERY).then(|| Arc::clone(body))
    }

    /// Makes `body` the last one.
    pub(super) fn put(&self, body: Vec<u8>) -> Arc<[u8]> {
        let body: Arc<[u8]> = body.into();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((Instant::now(), Arc::clone(&body)));
        body
    }

    /// The last body, or one that `make` makes if that is old. Nobody waits for it: a worker that asks meanwhile would
    /// stall, and makes one of its own.
    fn get(&self, make: impl FnOnce() -> Vec<u8>) -> Arc<[u8]> {
        self.recent().unwrap_or_else(|| self.put(make()))
    }
}

/// Counts an answer that is being sent until it is dropped.
pub(super) struct Sending(Arc<AtomicUsize>);

impl Sending {
    /// None if [`SENT_MAX`] are being sent.
    pub(super) fn begin(sent: &Arc<AtomicUsize>) -> Option<Self> {
        let increased = |sent: usize| (sent < SENT_MAX).then_some(sent + 1);
        sent.fetch_update(Ordering::AcqRel, Ordering::Acquire, increased).ok()?;
        Some(Self(Arc::clone(sent)))
    }

    /// The body, which counts as being sent until the connection has dropped it.
    pub(super) fn count(self, body: Arc<[u8]>) -> Bytes {
        struct Counted(Arc<[u8]>, #[expect(dead_code, reason = "its drop counts")] Sending);
        impl AsRef<[u8]> for Counted {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        Bytes::from_owner(Counted(body, self))
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An answer to `GET /stalls`. It counts as being sent until its body is dropped.
pub(super) struct Answer {
    pub(super) status: u16,
    content_type: &'static str,
    pub(super) body: Bytes,
}

impl Answer {
    /// `accept`: that header of the request.
    pub(super) fn new(stalls: &Stalls, accept: Option<&[u8]>) -> Self {
        let refusal = |status, why: &'static str| Self {
            status,
            content_type: "text/plain",
            body: Bytes::from_static(why.as_bytes()),
        };
        let Some(detector) = stalls.detector() else {
            return refusal(404, "nobody watches for stalls: see --stalls\n");
        };
        let answers = stalls.answers();
        let Some(sending) = Sending::begin(&answers.sent) else {
            return refusal(503, "too many others are being answered: ask again\n");
        };
        let (content_type, body) = match accept.is_some_and(prefers_html) {
            true => {
                let make = || html(&in_order(detector.snapshot())).into_bytes();
                ("text/html; charset=utf-8", answers.html.get(make))
            }
            false => {
                let make = || json(&in_order(detector.snapshot()));
                ("application/json", answers.json.get(make))
            }
        };
        Self { status: 200, content_type, body: sending.count(body) }
    }

    pub(super) fn headers(&self) -> [(&'static str, &'static str); 5] {
        [
            ("Content-Type", self.content_type),
            ("Cache-Control", "no-store"),
            ("Vary", "Accept"),
            ("X-Content-Type-Options", "nosniff"),
            // The page has no scripts, and none can be brought in.
            ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
        ]
    }
}

/// With its incidents in the order of their numbers.
fn in_order(mut snapshot: Snapshot) -> Snapshot {
    snapshot.incidents.sort_by_key(|incident| incident.id);
    snapshot
}

/// A snapshot as JSON, with the newest of its incidents, which are in the order of their numbers.
fn json(snapshot: &Snapshot) -> Vec<u8> {
    let list = |list: serde_json::Result<Vec<u8>>| list.unwrap_or_else(|_| b"[]".to_vec());
    let workers = list(serde_json::to_vec(&snapshot.workers));
    let gauges = list(serde_json::to_vec(&snapshot.gauges));
    let probe = serde_json::to_vec(&snapshot.probe).unwrap_or_else(|_| b"null".to_vec());
    let unseen = list(serde_json::to_vec(&snapshot.unseen));
    let mut newest = Vec::new();
    let mut bytes = 0;
    for incident in snapshot.incidents.iter().rev() {
        let Ok(json) = serde_json::to_vec(&**incident) else { continue };
        bytes += json.len();
        if bytes > BODY_BYTES_MAX && !newest.is_empty() {
            break;
        }
        newest.push(json);
    }
    newest.reverse();
    let incidents = newest.join(&b",\n"[..]);
    let parts: [&[u8]; 11] = [
        b"{\"workers\":",
        &workers,
        b",\n\"gauges\":",
        &gauges,
        b",\n\"probe\":",
        &probe,
        b",\n\"unseen\":",
        &unseen,
        b",\n\"incidents\":[",
        &incidents,
        b"]}\n",
    ];
    parts.concat()
}

const HEAD: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Stalls</title><style>
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
pre { overflow-x: auto; background: #f4f4f4; padding: .5em }
table { border-collapse: collapse } td, th { padding: 0 1em 0 0; text-align: right }
</style></head><body><h1>Stalls</h1>
";

/// The newest first, with their stacks. What is long is left out of the page: the JSON has it.
fn html(snapshot: &Snapshot) -> String {
    let mut page = HEAD.to_owned();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if snapshot.incidents.is_empty() {
        page += "<p>None was seen.</p>\n";
    }
    for incident in snapshot.incidents.iter().rev() {
        if page.len() > BODY_BYTES_MAX {
            page += "<p>Older ones are not shown.</p>\n";
            break;
        }
        add_incident(&mut page, incident, now);
    }
    page +=
        "<h2>Workers</h2>\n<p>How late they come to their tasks, in milliseconds.</p>\n<table>\n";
    page += "<tr><th>worker</th><th>beats</th><th>median</th><th>p99</th><th>longest</th></tr>\n";
    for worker in &snapshot.workers {
        let lateness = &worker.lateness;
        let [p50, p99, max] = [lateness.p50_us, lateness.p99_us, lateness.max_us]
            .map(|us| format!("<td>{:.1}</td>", us as f64 / 1e3));
        let (name, beats) = (escaped(&worker.name), lateness.beats);
        let _ = writeln!(page, "<tr><td>{name}</td><td>{beats}</td>{p50}{p99}{max}</tr>");
    }
    page += "</table>\n";
    add_queues(&mut page, snapshot);
    if !snapshot.unseen.is_empty() {
        page += "<h2>What cannot be seen here</h2>\n<ul>\n";
        for reason in &snapshot.unseen {
            let _ = writeln!(page, "<li>{}</li>", escaped(reason));
        }
        page += "</ul>\n";
    }
    page + "</body></html>\n"
}

/// The gauges, and the last probe.
fn add_queues(page: &mut String, snapshot: &Snapshot) {
    if !snapshot.gauges.is_empty() {
        *page += "<h2>Queues and connections</h2>\n<table>\n";
        for gauge in &snapshot.gauges {
            let (name, value) = (escaped(&gauge.name), gauge.value);
            let _ = writeln!(page, "<tr><td>{name}</td><td>{value}</td></tr>");
        }
        *page += "</table>\n";
    }
    if let Some(probe) = &snapshot.probe {
        let (addr, ms) = (probe.addr, probe.took_ms);
        let end = match probe.outcome {
            ProbeOutcome::Answered => "was answered",
            ProbeOutcome::NoByte => "got no answer",
            ProbeOutcome::NoConnection => "got no connection",
            ProbeOutcome::Refused => "was refused",
            ProbeOutcome::NoPort => "found no local port",
            _ => "failed",
        };
        let _ = writeln!(page, "<p>The last probe, of {addr}, {end} in {ms} ms.</p>");
    }
}

fn add_incident(page: &mut String, incident: &Incident, now: Duration) {
    let began = now.saturating_sub(Duration::from_millis(incident.began_unix_ms)).as_secs();
    let lasts = if incident.is_ongoing { ", and lasts" } else { "" };
    let (id, class) = (incident.id, incident.verdict.class());
    let text = escaped(&incident.to_string());
    let _ = write!(page, "<h2>{id}. {class}</h2>\n<p>Began {began} s ago{lasts}. {text}</p>\n");
    if !incident.is_ongoing {
        let _ = writeln!(page, "<p>{}</p>", escaped(&incident.verdict.to_string()));
    }
    let stacks = incident.evidence.threads.iter().filter_map(|thread| thread.stacks.last());
    for stack in stacks {
        *page += "<details><summary>Stack</summary><pre>";
        for frame in &stack.frames {
            let _ = writeln!(page, "{}", escaped(&frame.to_string()));
        }
        *page += "</pre></details>\n";
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            char => escaped.push(char),
        }
    }
    escaped
}

/// Whether `Accept` (RFC 9110 section 12.5.1) gives `text/html` more weight than `application/json`.
fn prefers_html(accept: &[u8]) -> bool {
    let accept = String::from_utf8_lossy(accept);
    weight(&accept, "text", "html") > weight(&accept, "application", "json")
}

/// The weight of a media type, in thousandths: that of the most specific range which includes it. 0 if none does.
fn weight(accept: &str, kind: &str, subtype: &str) -> u32 {
    let weights = accept.split(',').filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let (range_kind, range_subtype) = parts.next()?.split_once('/')?;
        let specificity = match (range_kind, range_subtype) {
            ("*", "*") => 0,
            (range_kind, "*") if range_kind.eq_ignore_ascii_case(kind) => 1,
            _ if range_kind.eq_ignore_ascii_case(kind)
                && range_subtype.eq_ignore_ascii_case(subtype) =>
            {
                2
            }
            _ => return None,
        };
        let weight = parts.find_map(|parameter| {
            let (name, weight) = parameter.split_once('=')?;
            name.eq_ignore_ascii_case("q").then(|| weight.parse::<f32>().unwrap_or(0.0))
        });
        Some((specificity, (weight.unwrap_or(1.0).clamp(0.0, 1.0) * 1e3) as u32))
    });
    weights.max().map_or(0, |(_, weight)| weight)
}

#[cfg(test)]
mod tests {
    use owned_io_stalls::evidence::{GaugeValue, ProbeResult};
    use serde_json::{Value, json};

    use super::*;

    const ODD: &str = "<script>alert(\"&'\")</script>\n\u{7}";

    fn incident(id: u64, evidence: &Value) -> Arc<Incident> {
        let finding = json!({
            "class": "blocked_loop", "confidence": "certain", "evidence": [ODD], "cure": "none",
        });
        let incident = json!({
            "id": id, "worker": ODD, "began_unix_ms": 1, "lasted_ms": 2, "is_ongoing": false, "reports": 1,
            "verdict": { "findings": [finding] }, "evidence": evidence,
        });
        Arc::new(serde_json::from_value(incident).unwrap())
    }

    #[test]
    fn whoever_asks_soon_gets_the_same_answer() {
        let body = LastBody::default();
        let first = body.get(|| b"first".to_vec());
        assert!(Arc::ptr_eq(&first, &body.get(|| unreachable!("it is new"))));
        body.0.lock().unwrap().as_mut().unwrap().0 -= MADE_EVERY;
        assert_eq!(*body.get(|| b"second".to_vec()), *b"second");
    }

    /// Somebody who asks while an answer is made makes another, and does not wait.
    #[test]
    fn nobody_waits_while_an_answer_is_made() {
        let body = LastBody::default();
        let slow = body.get(|| {
            assert_eq!(*body.get(|| b"meanwhile".to_vec()), *b"meanwhile");
            b"slow".to_vec()
        });
        assert_eq!(*slow, *b"slow");
    }

    #[test]
    fn few_answers_are_sent_at_once() {
        let sent = Arc::default();
        let mut sending: Vec<_> = (0..SENT_MAX).map(|_| Sending::begin(&sent).unwrap()).collect();
        assert!(Sending::begin(&sent).is_none());
        sending.pop();
        assert!(Sending::begin(&sent).is_some());
    }

    fn gauge() -> GaugeValue {
        serde_json::from_value(json!({ "name": ODD, "value": 3, "limit": null })).unwrap()
    }

    fn probe() -> ProbeResult {
        let probe = json!({
            "addr": "127.0.0.1:80", "at_ms": 1, "took_ms": 2_000, "limit_ms": 2_000, "outcome": "NoByte",
            "silent": 1,
        });
        serde_json::from_value(probe).unwrap()
    }

    fn snapshot(incidents: Vec<Arc<Incident>>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.incidents = incidents;
        snapshot
    }

    #[test]
    fn nothing_is_a_snapshot_without_incidents() {
        let empty = Snapshot::default();
        assert_eq!(serde_json::from_slice::<Snapshot>(&json(&empty)).unwrap(), empty);
        assert!(html(&Snapshot::default()).contains("None was seen"));
    }

    #[test]
    fn json_is_valid_whatever_names_contain() {
        let mut snapshot = snapshot(vec![incident(1, &json!({})), incident(2, &json!({}))]);
        let worker = json!({ "name": ODD, "lateness": { "beats": 3, "p50_us": 1, "p99_us": 2, "max_us": 4 } });
        snapshot.workers = vec![serde_json::from_value(worker).unwrap()];
        snapshot.unseen = vec![ODD.to_owned()];
        snapshot.gauges = vec![gauge()];
        snapshot.probe = Some(probe());
        assert_eq!(serde_json::from_slice::<Snapshot>(&json(&snapshot)).unwrap(), snapshot);
    }

    #[test]
    fn the_page_escapes_what_it_shows() {
        let evidence = json!({ "threads": [{ "name": ODD, "stacks": [{
            "by_signal": false, "is_complete": true,
            "frames": [{ "address": 1, "function": ODD, "location": ODD, "module": ODD }],
        }] }] });
        let mut snapshot = snapshot(vec![incident(1, &evidence)]);
        snapshot.unseen = vec![ODD.to_owned()];
        snapshot.gauges = vec![gauge()];
        snapshot.probe = Some(probe());
        let page = html(&snapshot);
        assert!(!page.contains("<script") && !page.contains("alert(\""), "{page}");
        assert!(page.matches("&lt;script&gt;alert(&quot;&amp;&#39;&quot;)").count() >= 5, "{page}");
        let ended = "The last probe, of 127.0.0.1:80, got no answer in 2000 ms.";
        assert!(page.contains(ended), "{page}");
    }

    /// The newest is always there.
    #[test]
    fn the_oldest_are_left_out_of_a_long_answer() {
        let unseen = |bytes: usize| json!({ "unseen": ["x".repeat(bytes)] });
        let long: Vec<_> = (1..=10).map(|id| incident(id, &unseen(60_000))).collect();
        let body = json(&snapshot(long));
        assert!(body.len() <= BODY_BYTES_MAX + 100);
        let ids = |body: &[u8]| -> Vec<u64> {
            let snapshot: Snapshot = serde_json::from_slice(body).unwrap();
            snapshot.incidents.iter().map(|incident| incident.id).collect()
        };
        assert_eq!(ids(&body), [7, 8, 9, 10]);
        let longest = vec![incident(1, &json!({})), incident(2, &unseen(BODY_BYTES_MAX))];
        assert_eq!(ids(&json(&snapshot(longest))), [2]);
    }

    #[test]
    fn a_browser_gets_the_page_and_programs_get_json() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for accept in [
            browser,
            "text/html",
            "TEXT/HTML; q=0.2",
            "application/json;q=0.1, text/*",
            "text/html;level=1",
        ] {
            assert!(prefers_html(accept.as_bytes()), "{accept}");
        }
        let others = [
            "",
            "*/*",
            "application/json",
            "text/html, application/json",
            "text/html;q=0, */*;q=0.1",
            "text/plain",
            "text/html;q=x",
            "text/html;q=0.4, application/json;q=0.5",
            ",;,=",
            "text",
        ];
        for accept in others {
            assert!(!prefers_html(accept.as_bytes()), "{accept}");
        }
        assert!(!prefers_html(&[0xFF, b'/', 0xFE]));
    }
}
