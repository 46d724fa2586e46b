//! Signals that this process does not take as its parent left them.

use std::mem::MaybeUninit;
use std::{io, ptr};

/// Unblocks `signals` on this thread, and on all threads that it starts from now on.
///
/// A process inherits the signals that its parent has blocked. A supervisor that waits for signals by sigwait(3) may
/// so start a program that never sees one, though it handles them. Register the handlers first: a signal that is
/// pending arrives within this call.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) if one of them is no signal. None is unblocked then.
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
