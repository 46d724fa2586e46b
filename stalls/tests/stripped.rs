//! A program without symbols (`strip`): its stalls are found, and its stacks have the module of each function, and the
//! address that names it in a program with symbols.

mod common;

use std::process::Command;

use common::{computes, find_stall, sleeps, tell, told};
use owned_io_stalls::evidence::Frame;
use owned_io_stalls::{Class, Confidence, Config, Detector, Incident};

/// The child: not a test of its own.
#[test]
fn child() {
    if common::which_child().is_none() {
        return;
    }
    let detector = Detector::start(Config::default()).unwrap();
    tell("sleeps", &find_stall(&detector, "sleeps", sleeps));
    tell("computes", &find_stall(&detector, "computes", computes));
}

#[test]
fn a_program_without_symbols() {
    let folder = std::env::temp_dir().join(format!("stalls-stripped-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let stripped = folder.join("stripped-program");
    let mut strip = Command::new("strip"); // of binutils, which the linker belongs to as well
    strip.arg("--strip-all").arg("-o").arg(&stripped).arg(std::env::current_exe().unwrap());
    assert!(strip.status().unwrap().success());
    let output = common::output_of_child_in(&stripped, "stripped");
    std::fs::remove_dir_all(folder).unwrap();

    let [sleeps, computes]: [Incident; 2] = ["sleeps", "computes"].map(|key| told(&output, key));
    assert_eq!(sleeps.verdict.class(), Class::BlockedLoop, "{sleeps}");
    assert_eq!(sleeps.verdict.confidence(), Confidence::Certain, "{sleeps}");
    assert!(sleeps.to_string().contains("clock_nanosleep"), "{sleeps}");
    // Whether the function returns to a scheduler cannot be seen.
    assert_eq!(computes.verdict.class(), Class::BlockedLoop, "{computes}");
    assert_eq!(computes.verdict.confidence(), Confidence::Possible, "{computes}");
    for (incident, function) in [(&sleeps, "sleeps"), (&computes, "computes")] {
        let stacks = incident.evidence.threads.iter().flat_map(|thread| &thread.stacks);
        let frames: Vec<_> = stacks.flat_map(|stack| &stack.frames).collect();
        let is_own = |frame: &&Frame| frame.module.as_deref() == Some("stripped-program");
        let own: Vec<&Frame> = frames.into_iter().filter(is_own).collect();
        assert!(own.iter().all(|frame| frame.function.is_none()), "{incident}");
        let names = addr2line(own.iter().map(|frame| frame.offset.unwrap()));
        assert!(names.contains(&format!("::{function}\n")), "{names} {incident}");
        assert!(incident.to_string().contains("stripped-program+0x"), "{incident}");
    }
}

/// The functions at these addresses of this program, which has symbols.
fn addr2line(offsets: impl Iterator<Item = u64>) -> String {
    let mut command = Command::new("addr2line"); // of binutils, too
    command.args(["--functions", "--demangle", "--inlines", "--exe"]);
    command.arg(std::env::current_exe().unwrap());
    let output = command.args(offsets.map(|offset| format!("{offset:#x}"))).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}
