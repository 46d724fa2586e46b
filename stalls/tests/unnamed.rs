//! Evidence without names of functions, or without stacks: as of a stripped program, or with `Config::signal` at
//! `None`. What is not known then is not told for sure.

use owned_io_stalls::{Confidence, Evidence, judge};

/// The recorded evidence: its name, and the classes that are true, the first of which is the verdict.
fn recorded() -> Vec<(String, Vec<String>, Evidence)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/evidence");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let classes = name.split('-').next().unwrap().split('+').map(str::to_owned).collect();
        let text = std::fs::read_to_string(&path).unwrap();
        (name, classes, serde_json::from_str(&text).unwrap())
    });
    files.collect()
}

/// What is left of a stack's functions: its name, and whether a function with such a name and location is.
type Kind = (&'static str, fn(&str) -> bool);

const KINDS: [Kind; 3] = [
    ("no names", |_| false),
    ("the C library's names", |name| !name.contains("::") && !name.contains("/src/")),
    ("the names of an unknown runtime", |name| {
        let runtimes = ["tokio", "monoio", "compio", "glommio", "owned_io", "async_task", "smol"];
        !runtimes.iter().any(|runtime| name.contains(runtime))
    }),
];

/// The evidence of `name` with such functions alone.
fn with_names(evidence: &Evidence, keeps: fn(&str) -> bool) -> Evidence {
    let mut evidence = evidence.clone();
    for frame in
        evidence.threads.iter_mut().flat_map(|it| &mut it.stacks).flat_map(|it| &mut it.frames)
    {
        let path = format!(
            "{} {}",
            frame.function.as_deref().unwrap_or_default(),
            frame.location.as_deref().unwrap_or_default()
        );
        if !keeps(&path) {
            (frame.function, frame.location) = (None, None);
        }
    }
    evidence
}

fn without_stacks(evidence: &Evidence) -> Evidence {
    let mut evidence = evidence.clone();
    evidence.threads.iter_mut().for_each(|thread| thread.stacks.clear());
    evidence
}

#[test]
fn nothing_false_is_sure() {
    let mut judged = 0;
    for (name, _, evidence) in recorded() {
        let told = judge(&evidence);
        let mut reduced = vec![("no stacks", without_stacks(&evidence))];
        reduced.extend(KINDS.map(|(kind, keeps)| (kind, with_names(&evidence, keeps))));
        for (kind, evidence) in reduced {
            let verdict = judge(&evidence);
            for finding in &verdict.findings {
                let is_true = told.has(finding.class);
                let is_sure = finding.confidence > Confidence::Possible;
                assert!(is_true || !is_sure, "{name}, {kind}: {verdict}");
                let runs = evidence.threads.first().is_some_and(|it| it.state == Some('R'));
                let by_stack = ["blocked_loop", "self_waking_task", "connection_owns_worker"];
                let needs_names = runs && by_stack.contains(&finding.class.name());
                assert!(!(needs_names && is_sure), "{name}, {kind}: {verdict}");
            }
            judged += 1;
        }
    }
    assert!(judged > 40, "{judged}");
}

/// System calls, counters and rings tell their classes without a stack.
#[test]
fn what_needs_no_stack_is_as_sure_as_ever() {
    let mut judged = 0;
    for (name, classes, evidence) in recorded() {
        if evidence.threads.iter().any(|thread| thread.state == Some('R')) {
            continue;
        }
        let expected = judge(&evidence);
        let mut reduced = vec![without_stacks(&evidence)];
        reduced.extend(KINDS.map(|(_, keeps)| with_names(&evidence, keeps)));
        for verdict in reduced.iter().map(judge) {
            assert_eq!(verdict.class().name(), classes[0], "{name}: {verdict}");
            assert_eq!(verdict.confidence(), expected.confidence(), "{name}: {verdict}");
        }
        judged += 1;
    }
    assert!(judged > 12, "{judged}");
}

/// The sentence says what is missing, and what it may be instead.
#[test]
fn a_finding_says_what_is_not_known() {
    let text = r#"{"late_ms": 2000, "threshold_ms": 50, "threads": [{"state": "R", "window_ms": 2000, "ran_ms": 1990,
        "waited_ms": 5, "recently_ran_percent": 100, "stacks": [STACKS]}]}"#;
    for (stacks, reason) in [
        ("", "It has no stack"),
        (r#"{"frames": [{"address": 1}]}"#, "Its stacks have no names"),
        (
            r#"{"frames": [{"address": 1, "function": "shop::run"}]}"#,
            "no scheduler of a known runtime",
        ),
    ] {
        let stacks =
            stacks.replace(r#"{"frames""#, r#"{"by_signal": true, "is_complete": true, "frames""#);
        let frame = r#"{"location": null, "module": "shop", "address""#;
        let stacks = stacks.replace(r#"{"address""#, frame);
        let verdict = judge(&serde_json::from_str(&text.replace("STACKS", &stacks)).unwrap());
        let found = (verdict.class().name(), verdict.confidence());
        assert_eq!(found, ("blocked_loop", Confidence::Possible), "{verdict}");
        let said = verdict.to_string();
        assert!(said.contains(reason) && said.contains("a task may wake itself"), "{said}");
    }
}

/// A thread that is blocked in `call`, with functions of these names on its stack.
fn blocked_in(call: &str, names: &[&str]) -> String {
    let frame = |name: &&str| format!(r#"{{"address": 1, "function": "{name}"}}"#);
    let frames = names.iter().map(frame).collect::<Vec<_>>().join(", ");
    format!(
        r#"{{"state": "S", "window_ms": 2000, "ran_ms": 0,
            "syscall": {{"number": 1, "name": "{call}", "first_argument": 0, "sp": 8, "pc": 8}},
            "stacks": [{{"by_signal": false, "is_complete": true, "frames": [{frames}]}}]}}"#
    )
}

/// The confidence that a loop with these threads is blocked, and what is said.
fn is_blocked(threads: &[String]) -> (Confidence, String) {
    let threads = threads.join(", ");
    let text = format!(r#"{{"late_ms": 2000, "threshold_ms": 50, "threads": [{threads}]}}"#);
    let verdict = judge(&serde_json::from_str(&text).unwrap());
    assert_eq!(verdict.class().name(), "blocked_loop", "{verdict}");
    (verdict.confidence(), verdict.to_string())
}

/// A lock of the program and a park of an unknown runtime are the same system call.
#[test]
fn a_call_that_may_be_a_park_is_sure_with_a_stack_alone() {
    const LOCK: &str = "std::sys::sync::mutex::futex::Mutex::lock_contended";
    // `futures::executor::block_on` in a task.
    const NESTED: [&str; 4] = [
        "std::thread::park",
        "futures_executor::local_pool::run_executor",
        "shop::waits",
        "tokio::runtime::task::raw::poll",
    ];
    for (call, names, confidence) in [
        ("futex", &["shop::waits", "tokio::runtime::task::raw::poll"][..], Confidence::Certain),
        ("futex", &NESTED, Confidence::Certain),
        ("futex", &["syscall", LOCK, "shop::run"], Confidence::Certain),
        ("futex", &["syscall", "std::thread::park", "shop::block_on"], Confidence::Possible),
        ("futex", &["syscall"], Confidence::Possible),
        ("epoll_wait", &["epoll_wait", "shop::Reactor::wait"], Confidence::Possible),
        ("read", &[], Confidence::Certain),
    ] {
        let (found, said) = is_blocked(&[blocked_in(call, names)]);
        assert_eq!(found, confidence, "{call} {names:?}: {said}");
    }
}

/// An idle thread of a pool is not what stalls it.
#[test]
fn the_thread_that_is_surely_blocked_explains_the_stall() {
    let threads = ["futex", "read", "futex"].map(|call| blocked_in(call, &[]));
    let (confidence, said) = is_blocked(&threads);
    assert_eq!(confidence, Confidence::Certain);
    assert!(said.contains("in read"), "{said}");
}
