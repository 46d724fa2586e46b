//! Recorded evidence gets the verdict that its file is named after: `<class>-<what>.json`, or
//! `<class>+<class>-<what>.json` if it has several.

use std::net::SocketAddr;

use owned_io_stalls::evidence::ProbeResult;
use owned_io_stalls::{Class, Evidence, Incident, judge};
use serde_json::{Value, json};

#[test]
fn recorded_evidence_gets_its_verdict() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/evidence");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let classes: Vec<&str> = name.split('-').next().unwrap().split('+').collect();
        let evidence: Evidence =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let verdict = judge(&evidence);
        assert_eq!(verdict.class().name(), classes[0], "{name}: {verdict}");
        let has =
            |class: &&str| verdict.findings.iter().any(|finding| finding.class.name() == *class);
        assert!(classes.iter().all(has), "{name}: {verdict}");
        assert_eq!(
            serde_json::from_str::<Evidence>(&serde_json::to_string(&evidence).unwrap()).unwrap(),
            evidence
        );
        count += 1;
    }
    assert!(count > 0);
}

/// The incident of the README is one.
#[test]
fn the_sample_of_the_readme_gets_its_verdict() {
    let readme = include_str!("../README.md");
    let sample = readme.split_once("```json").unwrap().1.split_once("```").unwrap().0;
    let incident: Incident = serde_json::from_str(sample).unwrap();
    assert_eq!(judge(&incident.evidence), incident.verdict);
}

/// A ring of a thread that is blocked has entries that wait, too. They follow from the block.
#[test]
fn a_blocked_thread_explains_entries_that_wait() {
    let evidence = |name: &str| -> Evidence {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/evidence");
        let text = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let waiting = evidence("unsubmitted_entries-yield");
    let mut blocked = evidence("blocked_loop-sleep");
    blocked.looks.clone_from(&waiting.looks);
    let classes: Vec<_> =
        judge(&blocked).findings.iter().map(|finding| finding.class.name()).collect();
    assert_eq!(classes, ["blocked_loop"]);
    assert_eq!(judge(&waiting).class(), Class::UnsubmittedEntries);
}

/// What a debugger or a signal has stopped, or what has ended, does not stall.
#[test]
fn a_stopped_thread_gets_no_verdict() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/evidence");
    for name in ["blocked_loop-read", "waiting_for_cpu+blocked_loop-computation"] {
        let text = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
        for state in ['T', 't', 'Z', 'X'] {
            let mut evidence: Evidence = serde_json::from_str(&text).unwrap();
            evidence.threads[0].state = Some(state);
            let verdict = judge(&evidence);
            assert_eq!(verdict.class().name(), "unknown", "{name} {state}: {verdict}");
            assert!(verdict.to_string().contains("is stopped"), "{verdict}");
        }
    }
}

/// One probe without an answer may have met a busy server, or a listener of another process.
#[test]
fn a_lost_accept_needs_two_probes_and_their_listener() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/evidence/lost_accept-kept.json");
    let text = std::fs::read_to_string(path).unwrap();
    let lost = |change: &dyn Fn(&mut Evidence)| {
        let mut evidence: Evidence = serde_json::from_str(&text).unwrap();
        change(&mut evidence);
        judge(&evidence).class() == Class::LostAccept
    };
    let probe = |evidence: &mut Evidence, change: &dyn Fn(&mut ProbeResult)| {
        change(evidence.looks.last_mut().unwrap().probe.as_mut().unwrap());
    };
    assert!(lost(&|_| {}));
    assert!(!lost(&|it| probe(it, &|probe| probe.silent = 1)));
    assert!(!lost(&|it| probe(it, &|probe| probe.addr.set_port(1))));
    assert!(!lost(&|it| probe(it, &|probe| probe.addr.set_ip([127, 0, 0, 9].into()))));
    assert!(!lost(&|it| it.looks.last_mut().unwrap().listeners[0].queue = 1));
    // A probe that met a loop that stood still, or one of which no look tells.
    let is_late = |late_ms: Option<u64>| {
        lost(&|it| it.looks.iter_mut().for_each(|look| look.heart_late_ms = late_ms))
    };
    assert!(is_late(None) && !is_late(Some(60)));
    assert!(!lost(&|it| probe(it, &|probe| probe.at_ms = 9_000)));
    assert!(!lost(&|it| probe(it, &|probe| probe.took_ms = 10)));
    // Another accept loop that waits on purpose explains nothing.
    let is_paused = |addr: SocketAddr| lost(&|it| it.looks[0].accept_pauses = vec![addr]);
    let evidence: Evidence = serde_json::from_str(&text).unwrap();
    let probed = evidence.looks.last().unwrap().probe.as_ref().unwrap().addr;
    assert!(!is_paused(probed) && is_paused(([127, 0, 0, 1], 1).into()));
    for any in ["0.0.0.0", "::"] {
        let is_any = |it: &mut Evidence| {
            for look in &mut it.looks {
                look.listeners.iter_mut().for_each(|it| it.addr.set_ip(any.parse().unwrap()));
            }
        };
        assert!(lost(&is_any), "{any}");
    }
}

/// They may be unread on purpose, so they are a further sentence of another finding.
#[test]
fn unread_bytes_and_completions_are_told() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/evidence");
    for name in
        ["lost_accept-unread", "connection_never_closes-kept", "back_pressure_ignored-gauge"]
    {
        let text = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
        let mut evidence: Evidence = serde_json::from_str(&text).unwrap();
        let said = "7 connections had bytes that nobody had read";
        evidence.looks.last_mut().unwrap().unread_connections = Some(7);
        let verdict = judge(&evidence);
        assert!(
            verdict.findings[0].evidence.iter().any(|it| it.contains(said)),
            "{name}: {verdict}"
        );
        evidence.looks.last_mut().unwrap().unread_connections = Some(0);
        assert!(!judge(&evidence).to_string().contains("nobody had read"));
    }
    let ring = r#"{"descriptor": 5, "cq_tail": 2, "cq_head": 4294967295, "polls": 9}"#;
    let text =
        format!(r#"{{"late_ms": 60, "looks": [{{"unread_connections": 7, "rings": [{ring}]}}]}}"#);
    let verdict = judge(&serde_json::from_str(&text).unwrap());
    assert_eq!(verdict.class(), Class::Unknown);
    let said = "Ring 5 has 3 completions that the program has not read, and 9 operations";
    assert!(verdict.to_string().contains(said), "{verdict}");
}

/// Nothing that is missing makes a verdict fail.
#[test]
fn empty_evidence_is_unknown() {
    for text in ["{}", r#"{"late_ms": 100}"#, r#"{"late_ms": 100, "threads": [{}], "looks": [{}]}"#]
    {
        let verdict = judge(&serde_json::from_str(text).unwrap());
        assert_eq!(verdict.class().name(), "unknown", "{text}: {verdict}");
    }
}

/// Figures that no kernel should give: each one of the recorded evidence in turn.
#[test]
fn a_figure_that_is_out_of_all_bounds_does_not_panic() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/evidence");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let mut evidence: Value = serde_json::from_str(&text).unwrap();
        let mut paths = Vec::new();
        paths_of_numbers(&evidence, String::new(), &mut paths);
        for path in paths {
            let number = evidence.pointer(&path).unwrap().clone();
            for odd in [json!(0), json!(1), json!(u64::MAX), json!(u32::MAX), json!(i64::MIN)] {
                *evidence.pointer_mut(&path).unwrap() = odd;
                // It may not fit the field.
                if let Ok(evidence) = serde_json::from_value::<Evidence>(evidence.clone()) {
                    assert!(!judge(&evidence).findings.is_empty(), "{path}");
                    count += 1;
                }
            }
            *evidence.pointer_mut(&path).unwrap() = number;
        }
    }
    assert!(count > 1_000, "{count}");
}

/// The JSON pointer of each number within a value that is at `at`.
fn paths_of_numbers(value: &Value, at: String, paths: &mut Vec<String>) {
    match value {
        Value::Number(_) => paths.push(at),
        Value::Array(values) => {
            for (number, value) in values.iter().enumerate() {
                paths_of_numbers(value, format!("{at}/{number}"), paths);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                paths_of_numbers(value, format!("{at}/{name}"), paths);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Some connections may just be closing, and a stalled loop closes none.
#[test]
fn connections_that_the_program_does_not_count() {
    let is_found = |open: u64, counted_max: u64, late_ms: Option<u64>| {
        let counted = json!([{"addr": "127.0.0.1:80", "open": open, "counted_max": counted_max}]);
        let looks = json!([{"close_wait_old": 0, "counted": counted}]);
        let evidence = json!({"late_ms": late_ms, "threshold_ms": 50, "looks": looks});
        let evidence: Evidence = serde_json::from_value(evidence).unwrap();
        judge(&evidence).has(Class::ConnectionNeverCloses)
    };
    assert!(is_found(20, 4, None));
    assert!(!is_found(19, 4, None));
    assert!(!is_found(4, 20, None), "they came after the inspection before");
    assert!(!is_found(20, 4, Some(60)));
}
