//! Whether io_uring is available, how a ring is set up, and the error when it cannot be.

use std::error::Error;
use std::time::Duration;
use std::{fmt, io};

use io_uring::{IoUring, Probe, opcode};

/// How a backend's ring is set up (io_uring_setup(2)).
///
/// Each backend documents which settings its runtime can use. One that it cannot use is an error when the runtime
/// starts, and is never ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingConfig {
    /// Entries of the submission queue, a power of two up to [`ENTRIES_MAX`].
    pub entries: u32,
    /// Entries of the completion queue, 16 bytes each (`IORING_SETUP_CQSIZE`): a power of two, at least `entries` and
    /// at most twice [`ENTRIES_MAX`]. `None`: twice `entries`. If more operations complete than it has room for before
    /// the runtime takes them, the kernel allocates memory for each, and delivers them later. Linux 5.5.
    pub completion_entries: Option<u32>,
    /// `IORING_SETUP_COOP_TASKRUN`: completions do not interrupt the thread. Linux 5.19.
    pub coop_taskrun: bool,
    /// `IORING_SETUP_SINGLE_ISSUER`: one thread submits, which saves locking. Linux 6.0.
    pub single_issuer: bool,
    /// `IORING_SETUP_DEFER_TASKRUN`: completions are processed when the thread asks for them. Needs
    /// `single_issuer`. Linux 6.1.
    pub defer_taskrun: bool,
    /// `IORING_SETUP_SQPOLL`: a kernel thread submits, and sleeps after this time without work. It uses a whole
    /// core while it is awake.
    pub sqpoll_idle: Option<Duration>,
}

/// The most entries a ring may have: `IORING_MAX_ENTRIES` (`io_uring/io_uring.h`).
pub const ENTRIES_MAX: u32 = 32_768;

/// Entries of a completion queue for a server: an operation of each of 16,000 connections, in 256 KiB. Beside 12,000 busy
/// connections one of 8,192 entries overflowed on tokio-uring and monoio.
pub const COMPLETION_ENTRIES_TUNED: u32 = 16_384;

impl RingConfig {
    /// A ring with no flags.
    pub const fn plain(entries: u32) -> Self {
        Self {
            entries,
            completion_entries: None,
            coop_taskrun: false,
            single_issuer: false,
            defer_taskrun: false,
            sqpoll_idle: None,
        }
    }

    /// Refuses what no kernel would take.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput), naming the setting.
    pub fn check(&self) -> io::Result<()> {
        if !self.entries.is_power_of_two() || self.entries > ENTRIES_MAX {
            return Err(invalid("entries is not a power of two up to 32768"));
        }
        let fits = |of: u32| of.is_power_of_two() && (self.entries..=2 * ENTRIES_MAX).contains(&of);
        if !self.completion_entries.is_none_or(fits) {
            return Err(invalid("completion_entries is not a power of two from entries to 65536"));
        }
        if self.defer_taskrun && !self.single_issuer {
            return Err(invalid("defer_taskrun needs single_issuer"));
        }
        if self.sqpoll_idle.is_some() && (self.coop_taskrun || self.defer_taskrun) {
            return Err(invalid("sqpoll_idle excludes coop_taskrun and defer_taskrun"));
        }
        Ok(())
    }
}

/// The error for a ring setting that cannot be used. `why` names the setting and the reason.
pub fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Checks that this process may use io_uring, and that the kernel has every operation that a backend uses.
///
/// A backend calls it before it builds the runtime. Where this fails, some runtimes panic, end the process or leak.
///
/// # Errors
/// [`RingError`] inside.
pub fn probe() -> io::Result<()> {
    // A ring as small as this needs little locked memory. The runtime reports a memlock limit that is too low for it.
    let ring = IoUring::new(2).map_err(explain)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(explain)?;
    check_kernel(ring.params().is_feature_ext_arg(), |code| probe.is_supported(code))
}

/// Adds the reason and the remedy to an error of io_uring_setup(2), which comes from [`probe`] or from a runtime.
pub fn explain(cause: io::Error) -> io::Error {
    let kind = match cause.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => io::ErrorKind::PermissionDenied,
        Some(libc::ENOSYS | libc::EINVAL) => io::ErrorKind::Unsupported,
        _ => cause.kind(),
    };
    io::Error::new(kind, RingError { cause })
}

/// Why io_uring is not available: the cause, and what to do about it.
#[derive(Debug)]
pub struct RingError {
    cause: io::Error,
}

impl RingError {
    /// The kernel's error.
    pub const fn cause(&self) -> &io::Error {
        &self.cause
    }

    fn remedy(&self) -> &'static str {
        match self.cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "it is not permitted here: allow io_uring in the container's seccomp policy, set \
                 the sysctl kernel.io_uring_disabled to 0, or run on tokio"
            }
            Some(libc::ENOSYS) => {
                "this kernel has none, or a seccomp policy says so: run on tokio, or on Linux 5.19 \
                 or newer"
            }
            Some(libc::ENOMEM) => {
                "the limit on locked memory is too small: raise it (ulimit -l, LimitMEMLOCK=), use \
                 fewer ring entries or fewer workers"
            }
            Some(libc::EINVAL) => {
                "this kernel is too old for the ring settings: use the runtime's default ones, or \
                 a newer kernel"
            }
            Some(libc::EMFILE | libc::ENFILE) => {
                "no descriptor is free: raise the limit on open files (ulimit -n, LimitNOFILE=)"
            }
            _ => "run on tokio, which needs no io_uring",
        }
    }
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot set up io_uring: {}; {}", self.cause, self.remedy())
    }
}

impl Error for RingError {
    /// The source of [`cause`](Self::cause). `Display` prints the cause itself.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.source()
    }
}

/// The operations that the backends and their runtimes use. The newest is of Linux 5.6.
const OPERATIONS: [(&str, u8); 10] = [
    ("POLL_ADD", opcode::PollAdd::CODE),
    ("POLL_REMOVE", opcode::PollRemove::CODE),
    ("TIMEOUT", opcode::Timeout::CODE),
    ("TIMEOUT_REMOVE", opcode::TimeoutRemove::CODE),
    ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ("CLOSE", opcode::Close::CODE),
    ("READ", opcode::Read::CODE),
    ("RECV", opcode::Recv::CODE),
    ("SEND", opcode::Send::CODE),
    ("SENDMSG", opcode::SendMsg::CODE),
];

fn check_kernel(has_ext_arg: bool, has_operation: impl Fn(u8) -> bool) -> io::Result<()> {
    let operation = OPERATIONS.iter().find(|(_, code)| !has_operation(*code));
    // compio needs it for waits with a timeout, and panics without it.
    let feature = (!has_ext_arg).then_some("the feature EXT_ARG");
    let lacks = operation.map(|(name, _)| format!("the operation {name}"));
    match lacks.as_deref().or(feature) {
        None => Ok(()),
        Some(lacks) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "cannot use io_uring: this kernel lacks {lacks}: run on tokio, or on Linux 5.19 or \
                 newer",
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_recognised_by_a_missing_operation() {
        let error = check_kernel(true, |code| code < opcode::Send::CODE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("lacks the operation RECV"), "{error}");
        let error = check_kernel(false, |_| true).unwrap_err();
        assert!(error.to_string().contains("lacks the feature EXT_ARG"), "{error}");
        check_kernel(true, |_| true).unwrap();
    }

    #[test]
    fn each_refusal_names_a_remedy() {
        for (code, kind, remedy) in [
            (libc::EPERM, io::ErrorKind::PermissionDenied, "kernel.io_uring_disabled"),
            (libc::ENOSYS, io::ErrorKind::Unsupported, "run on tokio"),
            (libc::ENOMEM, io::ErrorKind::OutOfMemory, "ulimit -l"),
            (libc::EINVAL, io::ErrorKind::Unsupported, "too old for the ring settings"),
        ] {
            let error = explain(io::Error::from_raw_os_error(code));
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }

    #[test]
    fn settings_that_exclude_each_other_are_refused() {
        let mut config = RingConfig::plain(48);
        assert!(config.check().unwrap_err().to_string().contains("entries"));
        config.entries = 64;
        config.check().unwrap();
        for wrong in [32, 96, 131_072] {
            config.completion_entries = Some(wrong);
            assert!(config.check().unwrap_err().to_string().contains("completion_entries"));
        }
        for right in [64, 65_536] {
            config.completion_entries = Some(right);
            config.check().unwrap();
        }
        config.defer_taskrun = true;
        assert!(config.check().unwrap_err().to_string().contains("single_issuer"));
        config.single_issuer = true;
        config.check().unwrap();
        config.sqpoll_idle = Some(Duration::from_millis(50));
        assert!(config.check().unwrap_err().to_string().contains("sqpoll_idle"));
    }
}
