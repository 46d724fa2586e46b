//! Randomness from the kernel.

use std::io;

/// Fills `bytes` from getrandom(2).
///
/// # Panics
/// If the kernel refuses the call, which it does only where a policy forbids it. Continuing would mean secrets
/// that are not random.
pub fn fill_random(mut bytes: &mut [u8]) {
    // Each round fills at least one byte, or a signal interrupts it before the first.
    while !bytes.is_empty() {
        // SAFETY: the kernel writes at most `bytes.len()` bytes there.
        let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        let Ok(n) = usize::try_from(n) else {
            let error = io::Error::last_os_error();
            assert!(error.kind() == io::ErrorKind::Interrupted, "getrandom: {error}");
            continue;
        };
        bytes = &mut bytes[n..];
    }
}
