//! Unblocks signals that the parent process has blocked.

use std::mem::MaybeUninit;
use std::{io, ptr};

/// Unblocks `signals` on this thread, and on all threads that it starts from now on.
///
/// A process inherits the signal mask of its parent. So a program that is started by a supervisor that waits for
/// signals with sigwait(3) may never get one, although it handles them. Register the handlers first: a pending
/// signal arrives during this call.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) if one of them is not a signal. None is unblocked then.
pub fn unblock_signals(signals: &[i32]) -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` has room for a set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: sigemptyset(3) has initialised it. It cannot fail.
    let mut set = unsafe { set.assume_init() };
    for signal in signals {
        // SAFETY: `set` is an initialised set. sigaddset(3) checks the number.
        if unsafe { libc::sigaddset(&raw mut set, *signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: `set` is an initialised set. The old mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
