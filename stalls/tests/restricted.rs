//! What the system refuses: to a process that is not dumpable, under a seccomp filter, or without capabilities. The
//! detector goes on with the rest, and says what it does not see.
//!
//! Each case is a child, since nothing of it can be undone. Root may read every file, so a child of root becomes the
//! user "nobody" first. For another user the same assertions hold without that.

mod common;

use std::time::Instant;

use common::{computes, find_stall, sleeps, tell, told};
use owned_io_stalls::{Class, Confidence, Config, Detector, Incident, Snapshot};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// The number of the user "nobody".
const NOBODY: libc::uid_t = 65_534;

/// Gives up root for good, and with it all capabilities. Does nothing for another user.
fn become_nobody() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // SAFETY: no group is passed, so no pointer is read.
    assert_eq!(unsafe { libc::setgroups(0, std::ptr::null()) }, 0);
    // SAFETY: integers are passed alone. The C library changes all threads of the process.
    assert_eq!(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
}

/// From now on this thread, and those that it starts, get `answer` to system calls that a strict sandbox refuses.
fn refuse_system_calls(answer: u32) {
    const REFUSED: [libc::c_long; 8] = [
        libc::SYS_process_vm_readv,
        libc::SYS_ptrace,
        libc::SYS_perf_event_open,
        libc::SYS_tgkill,
        libc::SYS_tkill,
        libc::SYS_rt_tgsigqueueinfo,
        libc::SYS_close_range,
        libc::SYS_io_uring_setup,
    ];
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IS_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// Where `seccomp_data` has the number of the call, and the low half of its first argument.
    const NUMBER: u32 = 0;
    const FIRST_ARGUMENT: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };
    let instruction = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut program = vec![instruction(LOAD, NUMBER, 0, 0)];
    for (at, number) in REFUSED.into_iter().enumerate() {
        let to_the_end = (REFUSED.len() - at) as u8 + 3; // over the rest, and the four before the last
        program.push(instruction(IS_EQUAL, number as u32, to_the_end, 0));
    }
    program.push(instruction(IS_EQUAL, libc::SYS_socket as u32, 0, 2));
    program.push(instruction(LOAD, FIRST_ARGUMENT, 0, 0));
    program.push(instruction(IS_EQUAL, libc::AF_NETLINK as u32, 1, 0));
    program.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    program.push(instruction(RETURN, answer, 0, 0));
    rustix::thread::set_no_new_privs(true).unwrap();
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `filter` names `len` instructions, which live until the call has copied them.
    let refused =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(refused, 0, "{}", std::io::Error::last_os_error());
}

/// The child: not a test of its own.
#[test]
fn child() {
    let Some(which) = common::which_child() else { return };
    let mut config = Config::default();
    match &*which {
        "not dumpable" => {
            become_nobody();
            set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
        }
        "no capabilities" => {
            become_nobody();
            // To change the user has made it not dumpable.
            set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
        }
        "seccomp" => refuse_system_calls(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        _ => {
            (config.signal, config.own_descriptors, config.netlink) = (None, false, false);
            refuse_system_calls(libc::SECCOMP_RET_KILL_PROCESS);
        }
    }
    let detector = Detector::start(config).unwrap();
    tell("sleeps", &find_stall(&detector, "sleeps", sleeps));
    tell("computes", &find_stall(&detector, "computes", computes));
    tell("snapshot", &detector.snapshot());
    let began = Instant::now();
    drop(detector);
    tell("ended_ms", &(began.elapsed().as_millis() as u64));
}

/// What a child found: the stall that sleeps, the one that computes, and what it says that it does not see.
fn found_by(which: &str) -> (Incident, Incident, Vec<String>) {
    let output = common::output_of_child(which);
    assert!(told::<u64>(&output, "ended_ms") < 1_000, "the detector hangs: {output}");
    let snapshot: Snapshot = told(&output, "snapshot");
    let panicked = snapshot.unseen.iter().any(|reason| reason.contains("panicked"));
    assert!(!panicked, "{:#?}", snapshot.unseen);
    (told(&output, "sleeps"), told(&output, "computes"), snapshot.unseen)
}

/// Nothing is sure of the thread that computes but that it waits for a CPU.
fn assert_nothing_is_sure(incident: &Incident) {
    let sure = incident.verdict.findings.iter().find(|it| it.confidence > Confidence::Possible);
    assert!(sure.is_none_or(|it| it.class == Class::WaitingForCpu), "{incident}");
}

#[test]
fn a_process_that_is_not_dumpable() {
    let (sleeps, computes, unseen) = found_by("not dumpable");
    for what in ["system calls: ", "stacks of blocked threads: ", "stacks in the kernel: "] {
        let is_refused = |it: &String| it.starts_with(what) && it.contains("denied");
        assert!(unseen.iter().any(is_refused), "{what}: {unseen:#?}");
    }
    assert_eq!(sleeps.verdict.class(), Class::BlockedLoop, "{sleeps}");
    assert_eq!(sleeps.verdict.confidence(), Confidence::Possible, "{sleeps}");
    assert!(sleeps.to_string().contains("system call is not known"), "{sleeps}");
    assert_nothing_is_sure(&computes);
    assert!(computes.to_string().contains("It has no stack"), "{computes}");
}

#[test]
fn a_process_without_capabilities() {
    let (sleeps, computes, unseen) = found_by("no capabilities");
    assert!(unseen.iter().any(|it| it.starts_with("stacks in the kernel: ")), "{unseen:#?}");
    assert!(!unseen.iter().any(|it| it.starts_with("system calls: ")), "{unseen:#?}");
    assert_eq!(sleeps.verdict.class(), Class::BlockedLoop, "{sleeps}");
    assert_eq!(sleeps.verdict.confidence(), Confidence::Certain, "{sleeps}");
    assert!(sleeps.to_string().contains("clock_nanosleep"), "{sleeps}");
    // The loop has no runtime that the detector knows.
    assert_nothing_is_sure(&computes);
}

#[test]
fn a_process_under_a_seccomp_filter() {
    let (sleeps, computes, unseen) = found_by("seccomp");
    for what in ["accept queues: sock_diag: ", "anything, once no descriptor is left: "] {
        let is_refused = |it: &String| it.starts_with(what) && it.contains("not permitted");
        assert!(unseen.iter().any(is_refused), "{what}: {unseen:#?}");
    }
    assert_eq!(sleeps.verdict.class(), Class::BlockedLoop, "{sleeps}");
    assert_eq!(sleeps.verdict.confidence(), Confidence::Certain, "{sleeps}");
    assert!(sleeps.to_string().contains("clock_nanosleep"), "{sleeps}");
    assert_nothing_is_sure(&computes);
    let missing = &computes.evidence.unseen;
    assert!(missing.iter().any(|it| it.contains("not permitted")), "{missing:#?}");
    assert!(computes.evidence.threads[0].stacks.is_empty(), "{computes:#?}");
}

/// The program would end with the first of these system calls. So none of them is made.
#[test]
fn a_process_under_a_seccomp_filter_that_kills() {
    let (sleeps, computes, unseen) = found_by("seccomp that kills");
    for reason in ["Config::netlink is off", "Config::own_descriptors is off"] {
        assert!(unseen.iter().any(|it| it.ends_with(reason)), "{reason}: {unseen:#?}");
    }
    assert_eq!(sleeps.verdict.class(), Class::BlockedLoop, "{sleeps}");
    assert_eq!(sleeps.verdict.confidence(), Confidence::Certain, "{sleeps}");
    assert_nothing_is_sure(&computes);
}
