//! Stalls that need a process of their own: its standard error, or its limit of descriptors.

mod common;

use std::io::{Read, Write};
use std::time::Duration;

use common::wait_for;
use owned_io_stalls::{Class, Config, Detector, Incident, Verdict};

/// The verdict of a child that makes the stall `which`.
fn verdict_of_child(which: &str) -> Verdict {
    let output = common::output_of_child(which);
    let incident: Incident = common::told(&output, "incident");
    common::record(&incident, which);
    incident.verdict
}

/// Ends the child, also if its watcher fails.
struct ExitOnDrop;

impl Drop for ExitOnDrop {
    fn drop(&mut self) {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
            .unwrap();
    }
}

/// The child: not a test of its own.
#[test]
fn child() {
    let Some(which) = common::which_child() else { return };
    let detector = Detector::start(Config::default()).unwrap();
    let heart = detector.watch_current_thread("worker 0");
    let class = if which == "log" { Class::BlockedLog } else { Class::OutOfDescriptors };
    let both = which == "both";
    std::thread::spawn(move || {
        let _exit = ExitOnDrop;
        let is_meant =
            |it: &Incident| it.verdict.has(class) && (!both || it.verdict.has(Class::BlockedLoop));
        let incident = wait_for(&detector, &which, is_meant);
        common::tell("incident", &incident);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::spawn(async move {
            loop {
                heart.beat();
                tokio::time::sleep(heart.interval()).await;
            }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        if class == Class::BlockedLog {
            loop {
                std::io::stderr().write_all(&[b'x'; 4096]).unwrap();
                tokio::task::yield_now().await;
            }
        }
        let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        let (blocking, _writer) = std::io::pipe().unwrap();
        let mut files = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            files.push(file);
        }
        if both {
            let _ = (&blocking).read(&mut [0]);
        }
        tokio::time::sleep(common::LIMIT).await;
    });
}

#[test]
fn a_log_that_nobody_reads() {
    let verdict = verdict_of_child("log");
    assert_eq!(verdict.class(), Class::BlockedLog, "{verdict}");
    assert!(verdict.to_string().contains("standard error"), "{verdict}");
}

#[test]
fn out_of_descriptors_while_the_heart_beats() {
    assert_eq!(verdict_of_child("descriptors").class(), Class::OutOfDescriptors);
}

#[test]
fn out_of_descriptors_and_blocked() {
    let verdict = verdict_of_child("both");
    assert!(verdict.has(Class::OutOfDescriptors) && verdict.has(Class::BlockedLoop), "{verdict}");
}
