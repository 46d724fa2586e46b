//! What the tests of real stalls share.
#![allow(dead_code, reason = "each test uses a part")]

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

use owned_io_stalls::{Class, Detector, Incident};

/// How long anything may take. The machine may be busy with other work.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Says to a child what it is for.
const WHICH: &str = "STALLS_TEST_CHILD";

/// Runs the test `child` of this program again, in a process of its own, and returns what it prints. Nobody reads its
/// standard error.
pub(crate) fn output_of_child(which: &str) -> String {
    output_of_child_in(&std::env::current_exe().unwrap(), which)
}

/// The same in a copy of this program.
pub(crate) fn output_of_child_in(program: &Path, which: &str) -> String {
    let mut child = Command::new(program)
        .args(["child", "--exact", "--nocapture"])
        .env(WHICH, which)
        .env_remove("STALLS_RECORD") // a child without descriptors could not
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    child.wait().unwrap();
    output
}

/// What this process is for, if it is such a child.
pub(crate) fn which_child() -> Option<String> {
    std::env::var(WHICH).ok()
}

/// In a child: prints a value for its parent.
pub(crate) fn tell(key: &str, value: &impl serde::Serialize) {
    println!("\n{key} {}", serde_json::to_string(value).unwrap());
}

/// The value that a child has printed.
pub(crate) fn told<T: serde::de::DeserializeOwned>(output: &str, key: &str) -> T {
    let json = output.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    serde_json::from_str(json.unwrap_or_else(|| panic!("no {key}: {output}"))).unwrap()
}

/// Ends a stall: when the test says so, and at the latest after [`LIMIT`].
#[derive(Clone, Default)]
pub(crate) struct End(Arc<AtomicBool>);

impl End {
    pub(crate) fn set(&self) {
        self.0.store(true, Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Acquire)
    }
}

impl Drop for End {
    /// A test that fails ends its stall, too.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.set();
        }
    }
}

/// With `STALLS_RECORD`, a folder, writes the evidence there: the files of tests/evidence were made so.
pub(crate) fn record(incident: &Incident, name: &str) {
    if let Some(folder) = std::env::var_os("STALLS_RECORD") {
        let json = serde_json::to_string_pretty(&incident.evidence).unwrap();
        let file = format!("{}-{name}.json", incident.verdict.class().name());
        std::fs::write(Path::new(&folder).join(file), json + "\n").unwrap();
    }
}

/// Whether a stack of the incident has a function whose name contains `part`.
pub(crate) fn has_function(incident: &Incident, part: &str) -> bool {
    let stacks = incident.evidence.threads.iter().flat_map(|thread| &thread.stacks);
    stacks
        .flat_map(|stack| &stack.frames)
        .any(|frame| frame.function.as_deref().is_some_and(|name| name.contains(part)))
}

/// Waits for an incident that lasts and that `is_meant`.
pub(crate) fn wait_for(
    detector: &Detector,
    name: &str,
    is_meant: impl Fn(&Incident) -> bool,
) -> Incident {
    let until = Instant::now() + LIMIT;
    loop {
        let incidents = detector.incidents();
        if let Some(incident) =
            incidents.iter().find(|incident| incident.is_ongoing && is_meant(incident))
        {
            record(incident, name);
            return Incident::clone(incident);
        }
        assert!(Instant::now() < until, "no such incident: {incidents:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until no incident of `class` lasts, and returns the last one.
pub(crate) fn wait_for_end(detector: &Detector, class: Class) -> Incident {
    let until = Instant::now() + LIMIT;
    loop {
        let incidents = detector.incidents();
        let meant = |incident: &&Arc<Incident>| incident.verdict.has(class);
        match incidents.iter().rfind(meant) {
            Some(incident) if !incident.is_ongoing => return Incident::clone(incident),
            _ => assert!(Instant::now() < until, "it does not end: {incidents:#?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn sleeps(end: &End) {
    while !end.is_set() {
        std::thread::sleep(Duration::from_millis(500));
    }
}

pub(crate) fn computes(end: &End) {
    while !end.is_set() {
        std::hint::spin_loop();
    }
}

/// A loop that beats its heart, and then does `work` until its stall is found.
pub(crate) fn find_stall(detector: &Detector, name: &'static str, work: fn(&End)) -> Incident {
    let end = End::default();
    let (ended, watched) = (end.clone(), detector.clone());
    let worker = std::thread::spawn(move || {
        let heart = watched.watch_current_thread(name);
        for _ in 0..4 {
            heart.beat();
            std::thread::sleep(heart.interval());
        }
        work(&ended);
    });
    let is_meant = |it: &Incident| it.worker == name && it.verdict.has(Class::BlockedLoop);
    let incident = wait_for(detector, name, is_meant);
    end.set();
    worker.join().unwrap();
    incident
}
