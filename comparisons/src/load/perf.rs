//! A `perf stat --control` of the server, which counts in the measured window only.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Failure;

/// How long perf may take to answer.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The two FIFOs of `perf stat --control fifo:CONTROL,ACK`.
#[derive(Clone, Debug)]
pub(crate) struct Perf {
    control: PathBuf,
    ack: PathBuf,
}

impl Perf {
    /// Parses the value of `--perf`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (control, ack) = text.split_once(',').ok_or("expected two FIFOs: CONTROL,ACK")?;
        Ok(Self { control: control.into(), ack: ack.into() })
    }

    /// Starts counting.
    pub(crate) fn begin(&self) -> Result<(), Failure> {
        self.tell("enable\n")
    }

    /// Stops counting.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        self.tell("disable\n")
    }

    fn tell(&self, what: &str) -> Result<(), Failure> {
        let exchange = || {
            // Opened first: a FIFO without an open end loses what is written.
            let mut ack = open(&self.ack)?;
            open(&self.control)?.write_all(what.as_bytes())?;
            let mut readable = [PollFd::new(&ack, PollFlags::IN)];
            if poll(&mut readable, Some(&PATIENCE))? == 0 {
                return Err(io::Error::other("it does not answer"));
            }
            // "ack", with a line's end and a zero.
            ack.read(&mut [0; 16]).map(drop)
        };
        exchange()
            .map_err(|error| Failure::new(format!("cannot tell perf to {}: {error}", what.trim())))
    }
}

/// Opens for reading and writing, which does not wait for another end (fifo(7)).
fn open(fifo: &PathBuf) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(fifo)
}
