//! Forks: a child has none of the detector's threads, and locks that they held stay held.
//!
//! The C library runs a handler in each child. It counts the fork, and removes requests of the parent, so that no
//! signal handler of the child answers one. A detector that was started under another count is inert: it takes no lock
//! and waits for nothing. A child may start a detector of its own. `vfork` runs no handler, and its child may not
//! return into the program.
#![allow(unsafe_code, reason = "pthread_atfork has no safe wrapper")]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::stack::signal;

/// How many forks lie between the first process and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process that something was started in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u64);

impl Process {
    /// This one.
    ///
    /// # Errors
    /// Forks would not be noticed.
    pub(crate) fn current() -> io::Result<Self> {
        static REGISTERED: OnceLock<i32> = OnceLock::new();
        let refused = *REGISTERED.get_or_init(|| {
            // SAFETY: the handler is async-signal-safe: it stores to atomics. It stays for the life of the process.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) }
        });
        if refused != 0 {
            return Err(io::Error::from_raw_os_error(refused));
        }
        Ok(Self(FORKS.load(Acquire)))
    }

    /// Whether this is still the same process, and no child of it. One load.
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Acquire)
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, AcqRel);
    signal::forget_requests();
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::{Duration, Instant};

    use crate::{Config, Detector};

    /// In a child nothing of the parent's detector waits or reports, and a detector of its own finds its stalls.
    #[test]
    fn a_fork() {
        let detector = Detector::start(Config::default()).unwrap();
        let heart = detector.watch_current_thread("silent");
        let pool = detector.watch_pool("pool");
        let gauge = detector.gauge("queue", None);
        wait_for_a_stall(&detector); // the watchdog has work while the process forks
        for _ in 0..8 {
            // SAFETY: the child runs safe code alone, and ends by `_exit`. Allocating is allowed in a child of the C
            // libraries that Rust supports here.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let fine = catch_unwind(AssertUnwindSafe(|| {
                    heart.beat();
                    pool.thread_started();
                    gauge.set(1);
                    assert!(detector.incidents().is_empty());
                    assert_eq!(detector.snapshot(), crate::Snapshot::default());
                    drop(detector.watch_current_thread("of the child"));
                    drop(detector.gauge("of the child", None));
                    pool.thread_stopped();
                    drop(detector.clone());
                    let own = Detector::start(Config::default()).unwrap();
                    let heart = own.watch_current_thread("own");
                    wait_for_a_stall(&own);
                    drop((heart, own));
                }));
                // SAFETY: _exit has no preconditions.
                unsafe { libc::_exit(i32::from(fine.is_err())) };
            }
            assert!(child > 0);
            assert_eq!(exit_status(child), 0);
        }
        let incidents = detector.incidents();
        assert!(incidents.iter().any(|it| it.is_ongoing && it.worker == "silent"), "{incidents:?}");
    }

    fn wait_for_a_stall(detector: &Detector) {
        let until = Instant::now() + Duration::from_secs(60);
        while detector.incidents().is_empty() {
            assert!(Instant::now() < until, "no stall is found");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Of a child that hangs, -1.
    fn exit_status(child: libc::pid_t) -> i32 {
        let until = Instant::now() + Duration::from_secs(120);
        let mut status = -1;
        // SAFETY: `child` is a child of this process, and `status` is writable.
        while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
            if Instant::now() > until {
                // SAFETY: the child has not been waited for, so the number is still its own.
                unsafe { libc::kill(child, libc::SIGKILL) };
                return -1;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        status
    }
}
