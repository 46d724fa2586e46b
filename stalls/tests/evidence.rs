//! Recorded evidence gets the verdict that its file is named after: `<class>-<what>.json`, or
//! `<class>+<class>-<what>.json` if it has several.

use owned_io_stalls::{Evidence, judge};

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

/// Nothing that is missing makes a verdict fail.
#[test]
fn empty_evidence_is_unknown() {
    for text in ["{}", r#"{"late_ms": 100}"#, r#"{"late_ms": 100, "threads": [{}], "looks": [{}]}"#]
    {
        let verdict = judge(&serde_json::from_str(text).unwrap());
        assert_eq!(verdict.class().name(), "unknown", "{text}: {verdict}");
    }
}
