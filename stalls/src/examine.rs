//! [`Examiner`]: a thread during a stall, from its files in /proc and its stack.

use std::io;
use std::time::{Duration, Instant};

use crate::evidence::Thread;
use crate::proc;
use crate::proc::thread::{
    Activity, Stat, is_stopped, parse_activity, parse_blocks_signal, parse_kernel_stack,
    parse_schedstat, parse_stat,
};
use crate::stack::{Registers, Stacks, ThreadRef};

/// How many stacks of a running thread are taken at once, and how far apart. Equal stacks are a long computation,
/// different ones a loop.
const SAMPLES: usize = 4;
const BETWEEN_SAMPLES: Duration = Duration::from_millis(2);
const TICK_MS: u64 = 10; // USER_HZ is 100 wherever Rust runs on Linux

/// The counters of a thread at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Baseline {
    at: Instant,
    stat: Option<Stat>,
    schedstat: Option<(u64, u64)>,
}

impl Baseline {
    pub(crate) fn of(thread: &ThreadRef) -> Self {
        let schedstat = file(thread, "schedstat").ok().and_then(|text| parse_schedstat(&text));
        let stat = file(thread, "stat").ok().and_then(|text| parse_stat(&text));
        Self { at: Instant::now(), stat, schedstat }
    }

    /// Whether a debugger or a signal has stopped the thread, or it has ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stat.as_ref().is_some_and(|stat| is_stopped(stat.state))
    }

    /// Whether the thread sleeps, and how long it has run since it began, in nanoseconds.
    pub(crate) fn sleeping(&self) -> Option<u64> {
        let is_asleep = self.stat.as_ref().is_some_and(|stat| matches!(stat.state, 'S' | 'D'));
        self.schedstat.map(|(ran, _)| ran).filter(|_| is_asleep)
    }

    /// Whether the thread was ready to run both now and at `before`, and did not run in between. Then it waited for a
    /// CPU all the time, since only a thread that runs can go to sleep. The kernel counts a wait when it is over.
    fn has_not_run_since(&self, before: &Self) -> bool {
        let is_ready = |it: &Self| it.stat.as_ref().is_some_and(|stat| stat.state == 'R');
        let ran_ns = |it: &Self| it.schedstat.map(|(ran, _)| ran);
        is_ready(self)
            && is_ready(before)
            && ran_ns(self).is_some()
            && ran_ns(self) == ran_ns(before)
    }

    /// Whether the number of the thread has passed to another thread.
    fn is_of_another(&self, thread: &ThreadRef) -> bool {
        let start_ticks = self.stat.as_ref().map(|stat| stat.start_ticks);
        thread.start_ticks != 0 && start_ticks.is_some_and(|ticks| ticks != thread.start_ticks)
    }
}

/// Examines threads. Belongs to the thread of the watchdog.
pub(crate) struct Examiner {
    stacks: Stacks,
    signal: Option<i32>,
}

impl Examiner {
    pub(crate) fn new(signal: Option<i32>, symbol_bytes_max: usize) -> Self {
        Self { stacks: Stacks::new(symbol_bytes_max), signal }
    }

    /// Drops what the next examination can read again.
    pub(crate) fn drop_unused_symbols(&mut self) {
        self.stacks.drop_unused_symbols();
    }

    /// What cannot be seen of threads, and why. The files of the calling thread are tried: those of the others in this
    /// process have the same permissions.
    pub(crate) fn unseen(&self) -> Vec<String> {
        let installed = self.signal.map(crate::stack::signal::install);
        let refused = |what: &str, error: io::Error| format!("{what}: {error}");
        let no_signal = installed.and_then(Result::err);
        let mut unseen: Vec<String> = no_signal
            .into_iter()
            .map(|error| refused("stacks of running threads", error))
            .collect();
        let no_memory = self.stacks.memory().err();
        unseen.extend(no_memory.map(|error| refused("stacks of blocked threads", error)));
        let this = ThreadRef::current();
        for (name, what) in [
            ("schedstat", "time on a CPU"),
            ("syscall", "system calls"),
            ("stack", "stacks in the kernel"),
        ] {
            unseen.extend(file(&this, name).err().map(|error| refused(what, error)));
        }
        unseen
    }

    /// The state of `thread` now, and what it has done since `baseline`. If `is_over` by the time that its stack is
    /// copied, state and stack are not of the stall, and are left out.
    pub(crate) fn examine(
        &mut self,
        thread: &ThreadRef,
        baseline: &Baseline,
        is_over: &dyn Fn() -> bool,
        unseen: &mut Vec<String>,
    ) -> Thread {
        let now = Baseline::of(thread);
        let mut found = Thread { tid: thread.tid, ..Thread::default() };
        if now.is_of_another(thread) || now.stat.is_none() {
            note(unseen, format!("thread {}: it has ended, or /proc does not show it", thread.tid));
            return found;
        }
        if let Some(stat) = &now.stat {
            found.name.clone_from(&stat.name);
            found.state = Some(stat.state);
        }
        let activity = match found.state {
            Some('R') => Activity::Running,
            _ => blocked_in(thread, &mut found, unseen),
        };
        let copies = self.copy_stacks(thread, &activity, unseen);
        // Later than the state: to copy a stack took the thread to a CPU, and only then is its wait for one counted.
        let counted = Baseline::of(thread);
        add_counters(&mut found, baseline, &counted, unseen);
        let waits_since = |it: &&Baseline| copies.is_empty() && counted.has_not_run_since(it);
        if let Some(since) = [baseline, &now].into_iter().find(waits_since) {
            let waits_ms = (counted.at - since.at).as_millis() as u64; // that is not counted yet
            found.waited_ms = found.waited_ms.map(|waited_ms| waited_ms.max(waits_ms));
        }
        if is_over() {
            note(unseen, "the thread during the stall: it ended while it was examined".into());
            return Thread { state: None, wchan: None, kernel_stack: Vec::new(), ..found };
        }
        let by_signal = matches!(activity, Activity::Running);
        found.stacks = copies.iter().map(|copy| self.stacks.named(copy, by_signal)).collect();
        self.stacks.unseen().iter().for_each(|reason| note(unseen, reason.clone()));
        if let Activity::Blocked(syscall) = activity {
            found.syscall = Some(syscall);
        }
        std::thread::sleep(BETWEEN_SAMPLES);
        let after = Baseline::of(thread);
        let window_ns = (after.at - now.at).as_nanos().max(1) as u64;
        let ran_ns = after
            .schedstat
            .zip(now.schedstat)
            .map(|(after, before)| after.0.saturating_sub(before.0));
        found.recently_ran_percent = ran_ns.map(|ran_ns| (ran_ns * 100 / window_ns).min(100));
        found
    }

    /// The stack of a blocked thread through /proc, or some of a running one by signals. None if neither is sure. They
    /// are named later, which takes long.
    fn copy_stacks(
        &self,
        thread: &ThreadRef,
        activity: &Activity,
        unseen: &mut Vec<String>,
    ) -> Vec<Registers> {
        match activity {
            Activity::Blocked(syscall) => {
                match self.stacks.copy_blocked(thread, syscall.pc, syscall.sp) {
                    Ok(stack) => return vec![stack],
                    Err(error) => note(unseen, format!("stacks of blocked threads: {error}")),
                }
            }
            Activity::Running => return self.interrupt(thread, unseen),
            Activity::Unknown => {
                note(unseen, "stacks: whether a thread is in a system call is unknown".into());
            }
        }
        Vec::new()
    }

    /// Stacks of a running thread, by signals.
    fn interrupt(&self, thread: &ThreadRef, unseen: &mut Vec<String>) -> Vec<Registers> {
        let Some(signal) = self.signal else {
            note(unseen, "stacks of running threads: no signal is configured".into());
            return Vec::new();
        };
        let mut copies = Vec::new();
        for sample in 0..SAMPLES {
            if sample > 0 {
                std::thread::sleep(BETWEEN_SAMPLES);
            }
            if let Err(reason) = may_interrupt(thread, signal) {
                note(unseen, format!("stack of thread {}: {reason}", thread.tid));
                continue;
            }
            match Stacks::copy_by_signal(signal, thread) {
                Ok(copy) => copies.push(copy),
                Err(error) => {
                    note(unseen, format!("stack of thread {}: {error}", thread.tid));
                    break;
                }
            }
        }
        copies
    }
}

/// Whether a thread has ended: it is not there any more, or its number has passed to another one. Not if /proc never
/// showed it.
pub(crate) fn has_ended(thread: &ThreadRef) -> bool {
    if thread.start_ticks == 0 {
        return false;
    }
    match file(thread, "stat") {
        Ok(text) => parse_stat(&text).is_some_and(|stat| {
            stat.start_ticks != thread.start_ticks || matches!(stat.state, 'Z' | 'X' | 'x')
        }),
        Err(error) => {
            error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
        }
    }
}

/// What a thread that does not run is blocked in. Adds the functions of the kernel to what is `found`.
fn blocked_in(thread: &ThreadRef, found: &mut Thread, unseen: &mut Vec<String>) -> Activity {
    let activity = match file(thread, "syscall") {
        Ok(text) => parse_activity(&text),
        Err(error) => {
            note(unseen, format!("system calls: {error}"));
            Activity::Unknown
        }
    };
    let wchan = file(thread, "wchan").unwrap_or_default();
    found.wchan = Some(wchan).filter(|wchan| !wchan.is_empty() && wchan != "0");
    match file(thread, "stack") {
        Ok(text) => found.kernel_stack = parse_kernel_stack(&text),
        Err(error) => note(unseen, format!("stacks in the kernel: {error}")),
    }
    activity
}

/// What the thread did between two moments.
fn add_counters(found: &mut Thread, before: &Baseline, after: &Baseline, unseen: &mut Vec<String>) {
    found.window_ms = (after.at - before.at).as_millis() as u64;
    if let (Some(after), Some(before)) = (after.schedstat, before.schedstat) {
        found.ran_ms = Some(after.0.saturating_sub(before.0) / 1_000_000);
        found.waited_ms = Some(after.1.saturating_sub(before.1) / 1_000_000);
    } else {
        note(unseen, "time on a CPU: no schedstat".into());
    }
    if let Some(stat) = &after.stat {
        let before = before.stat.clone().unwrap_or_default();
        found.system_ms = stat.system_ticks.saturating_sub(before.system_ticks) * TICK_MS;
        found.minor_faults = stat.minor_faults.saturating_sub(before.minor_faults);
        found.major_faults = stat.major_faults.saturating_sub(before.major_faults);
    }
}

/// Whether `thread` may get `signal` now: it is the same thread as ever, takes the signal, and runs. A blocked thread
/// is never interrupted, because its system call might end with EINTR or with a part of its work, which the program
/// need not expect.
fn may_interrupt(thread: &ThreadRef, signal: i32) -> Result<(), &'static str> {
    let status = file(thread, "status").unwrap_or_default();
    match parse_blocks_signal(&status, signal) {
        Some(false) => {}
        Some(true) => return Err("it blocks the signal"),
        None => return Err("whether it blocks the signal is unknown"),
    }
    let stat = file(thread, "stat").ok().and_then(|text| parse_stat(&text));
    let stat = stat.ok_or("it has ended, or /proc does not show it")?;
    if thread.start_ticks == 0 || stat.start_ticks != thread.start_ticks {
        return Err("its number may have passed to another thread");
    }
    if stat.state != 'R' {
        return Err("it did not run at that moment");
    }
    // Last, because it changes the fastest.
    let activity = file(thread, "syscall").map_or(Activity::Unknown, |text| parse_activity(&text));
    match activity {
        Activity::Running => Ok(()),
        Activity::Blocked(_) => Err("it did not run at that moment"),
        Activity::Unknown => Err("whether it is in a system call is unknown"),
    }
}

fn file(thread: &ThreadRef, name: &str) -> io::Result<String> {
    proc::read(format!("/proc/self/task/{}/{name}", thread.tid))
}

/// Adds what cannot be seen, once.
fn note(unseen: &mut Vec<String>, reason: String) {
    if !unseen.contains(&reason) {
        unseen.push(reason);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc;

    use super::*;

    const SIGNAL: i32 = libc::SIGURG;

    /// Examines a thread that runs `work`, once it has come to state `state`.
    fn examine_while(work: impl FnOnce() + Send + 'static, state: char) -> (ThreadRef, Thread) {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            sender.send(ThreadRef::current()).unwrap();
            work();
        });
        let thread = receiver.recv().unwrap();
        let is_there = || file(&thread, "stat").ok().and_then(|text| parse_stat(&text));
        while is_there().is_none_or(|stat| stat.state != state) {
            std::thread::yield_now();
        }
        let mut examiner = Examiner::new(Some(SIGNAL), 0);
        let found = examiner.examine(&thread, &Baseline::of(&thread), &|| false, &mut Vec::new());
        (thread, found)
    }

    /// A read with a timeout ends with EINTR if a signal comes, see signal(7). So none comes.
    #[test]
    fn a_read_with_a_timeout_is_not_interrupted() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let peer = listener.accept().unwrap().0;
        let (sender, receiver) = mpsc::channel();
        let (thread, found) =
            examine_while(move || sender.send(stream.read(&mut [0])).unwrap(), 'S');
        assert!(found.syscall.is_some(), "{found:?}");
        assert!(found.stacks.iter().all(|stack| !stack.by_signal), "{found:?}");
        assert!(may_interrupt(&thread, SIGNAL).is_err());
        drop(peer);
        assert_eq!(receiver.recv().unwrap().unwrap(), 0, "the end of the connection, and no EINTR");
    }

    /// A name of 16 bytes is cut after 15, and that may be within a character.
    #[test]
    fn a_name_that_is_not_utf_8() {
        let name = std::thread::spawn(|| {
            rustix::thread::set_name(c"abcdefghijklmn\xC3").unwrap();
            let this = ThreadRef::current();
            assert_ne!(this.start_ticks, 0);
            Baseline::of(&this).stat.unwrap().name
        });
        assert_eq!(name.join().unwrap(), "abcdefghijklmn\u{FFFD}");
    }

    /// Without the file `syscall` nobody knows that the thread runs, so no signal is sent.
    #[test]
    fn a_thread_of_which_nothing_is_known_is_not_interrupted() {
        let examiner = Examiner::new(Some(SIGNAL), 0);
        let mut unseen = Vec::new();
        let this = ThreadRef::current();
        assert!(examiner.copy_stacks(&this, &Activity::Unknown, &mut unseen).is_empty());
        assert!(unseen.iter().any(|reason| reason.contains("unknown")), "{unseen:?}");
        // No thread has this number, so none of its files can be read.
        let gone = ThreadRef { tid: u32::MAX, ..this.clone() };
        assert!(may_interrupt(&gone, SIGNAL).is_err());
        let another = ThreadRef { start_ticks: this.start_ticks + 1, ..this.clone() };
        assert!(may_interrupt(&another, SIGNAL).unwrap_err().contains("another thread"));
        let unknown = ThreadRef { start_ticks: 0, ..this.clone() };
        assert!(may_interrupt(&unknown, SIGNAL).is_err());
    }

    /// What the thread does afterwards says nothing of the stall. The time on a CPU does.
    #[test]
    fn a_stall_that_is_over_has_no_stack() {
        let mut examiner = Examiner::new(Some(SIGNAL), 0);
        let (this, mut unseen) = (ThreadRef::current(), Vec::new());
        let found = examiner.examine(&this, &Baseline::of(&this), &|| true, &mut unseen);
        assert!(found.state.is_none() && found.stacks.is_empty(), "{found:?}");
        assert!(unseen.iter().any(|reason| reason.contains("ended")), "{unseen:?}");
    }

    #[test]
    fn a_thread_that_is_ready_and_does_not_run_waits_for_a_cpu() {
        let counters = |state, ran_ns| Baseline {
            at: Instant::now(),
            stat: Some(Stat { state, ..Stat::default() }),
            schedstat: Some((ran_ns, 0)),
        };
        let before = counters('R', 7);
        assert!(counters('R', 7).has_not_run_since(&before));
        assert!(!counters('R', 8).has_not_run_since(&before), "it has run");
        assert!(!counters('S', 7).has_not_run_since(&before), "it sleeps");
        assert!(!before.has_not_run_since(&counters('S', 7)), "it may have slept until now");
        let unknown = Baseline { schedstat: None, ..before };
        assert!(!unknown.has_not_run_since(&unknown));
    }

    #[test]
    fn a_thread_that_computes_is_interrupted() {
        let end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let ended = std::sync::Arc::clone(&end);
        let computes = move || {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let (_, found) = examine_while(computes, 'R');
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(found.stacks.iter().any(|stack| stack.by_signal), "{found:?}");
    }
}
