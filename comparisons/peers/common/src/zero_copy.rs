//! [`Completions`]: what the kernel says of sends that it was asked not to copy.

use std::io::{self, Write};

/// How many sends without a copy are complete, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completions {
    /// All of them.
    pub sends: u64,
    /// Those that the kernel copied all the same.
    pub copied: u64,
    printed: u64,
}

impl Completions {
    /// Prints them to stderr if there are more than the last time. Servers call this when the last connection has ended,
    /// because a signal ends the process before it could print anything.
    pub fn print(&mut self, name: &str) {
        let Self { sends, copied, printed } = *self;
        if sends > printed {
            self.printed = sends;
            let _ =
                writeln!(io::stderr(), "{name}: {sends} zero-copy sends, {copied} of them copied");
        }
    }
}
