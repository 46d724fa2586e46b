//! Ctrl-C and a terminal that is closed: each ends the current measurement and keeps the results.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// Tells whether SIGHUP, SIGINT or SIGTERM arrived.
pub(crate) struct Interrupt {
    /// Readable after a signal. Nothing is read, so that it stays readable.
    signalled: UnixStream,
}

impl Interrupt {
    /// Catches these signals: from now on they no longer end the process.
    pub(crate) fn listen() -> io::Result<Self> {
        let (signalled, signals) = UnixStream::pair()?;
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            pipe::register(signal, signals.try_clone()?)?;
        }
        Ok(Self { signalled })
    }

    /// No signal reaches this one.
    #[cfg(test)]
    pub(crate) fn never() -> Self {
        let (signalled, signals) = UnixStream::pair().unwrap();
        std::mem::forget(signals);
        Self { signalled }
    }

    pub(crate) fn is_pending(&self) -> io::Result<bool> {
        let mut signalled = [PollFd::new(&self.signalled, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        retry_on_eintr(|| poll(&mut signalled, Some(&at_once)))?;
        Ok(!signalled[0].revents().is_empty())
    }

    /// Waits for `time`. False after a signal.
    pub(crate) fn pause(&self, time: Duration) -> io::Result<bool> {
        let mut signalled = [PollFd::new(&self.signalled, PollFlags::IN)];
        let time = Timespec::try_from(time).map_err(io::Error::other)?;
        retry_on_eintr(|| poll(&mut signalled, Some(&time)))?;
        Ok(signalled[0].revents().is_empty())
    }

    /// Waits until `from` is readable or at its end. False after `time`, or after a signal.
    pub(crate) fn wait_readable(&self, from: &impl AsFd, time: Duration) -> io::Result<bool> {
        let mut either =
            [PollFd::new(from, PollFlags::IN), PollFd::new(&self.signalled, PollFlags::IN)];
        let time = Timespec::try_from(time).map_err(io::Error::other)?;
        retry_on_eintr(|| poll(&mut either, Some(&time)))?;
        Ok(either[1].revents().is_empty() && !either[0].revents().is_empty())
    }

    /// Waits for `process` to end. A signal kills it.
    ///
    /// # Errors
    /// When it takes longer than `time`: then it is killed.
    pub(crate) fn wait(&self, process: &mut Child, time: Duration) -> io::Result<ExitStatus> {
        // No thread and no timer: waiting uses no CPU that is measured.
        let ended = pidfd_open(Pid::from_child(process), PidfdFlags::empty())?;
        let mut either =
            [PollFd::new(&ended, PollFlags::IN), PollFd::new(&self.signalled, PollFlags::IN)];
        let at_most = Timespec::try_from(time).map_err(io::Error::other)?;
        let ready = retry_on_eintr(|| poll(&mut either, Some(&at_most)))?;
        if ready == 0 || self.is_pending()? {
            process.kill()?;
        }
        let ended = process.wait()?;
        if ready == 0 {
            let why = format!("it did not end within {} s", time.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Ok(ended)
    }
}

/// Repeats a call that a signal interrupts.
fn retry_on_eintr(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn a_signal_ends_the_process_that_is_waited_for() {
        let interrupt = Interrupt::listen().unwrap();
        let long = Duration::from_secs(30);
        let ended = interrupt.wait(&mut Command::new("true").spawn().unwrap(), long).unwrap();
        assert!(ended.success() && !interrupt.is_pending().unwrap());
        assert!(interrupt.pause(Duration::ZERO).unwrap());
        let sleep = || Command::new("sleep").arg("60").spawn().unwrap();
        let late = interrupt.wait(&mut sleep(), Duration::from_millis(10)).unwrap_err();
        assert_eq!(late.to_string(), "it did not end within 0 s");
        assert!(!interrupt.is_pending().unwrap());
        let began = Instant::now();
        let signal = thread::spawn(|| {
            thread::sleep(Duration::from_millis(50));
            kill_process(getpid(), Signal::HUP).unwrap();
        });
        let ended = interrupt.wait(&mut sleep(), long);
        signal.join().unwrap();
        assert!(!ended.unwrap().success() && interrupt.is_pending().unwrap());
        assert!(!interrupt.pause(long).unwrap());
        assert!(began.elapsed() < long);
    }
}
