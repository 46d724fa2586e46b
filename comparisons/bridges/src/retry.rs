//! Sends a message that does not fit, and retries by `flush` or by `send`.

use std::io::{self, Read, Write};
use std::time::Instant;

use bytes::Bytes;
use tungstenite::protocol::Role;
use tungstenite::{Error, Message, WebSocket};

use crate::{megabytes, memory};

/// The bytes that fit into the window.
const WINDOW_BYTES: usize = 8 * 1024;

/// The bytes that tungstenite may hold before this stops.
const WAITING_BYTES_MAX: usize = 1_000_000_000;

/// Runs tungstenite alone, with a window that is emptied after each `WouldBlock`. The message is sent once and then
/// flushed until all is written. Then the same with `send` instead of `flush`.
pub(crate) fn run(payload: &Bytes) -> io::Result<()> {
    println!("\nA window of 8 KiB is emptied after each WouldBlock, and the call is retried\n");
    println!("| retried | rounds | written, MB | waiting, MB | moved, MB | peak, MB | ms |");
    println!("|---|---|---|---|---|---|---|");
    let message = Message::Binary(payload.clone());

    let mut flushed = Attempt::new(payload.len());
    flushed.write(message.clone())?;
    while !flushed.is_done {
        flushed.make_room();
        flushed.attempt(WebSocket::flush)?;
    }
    flushed.make_room();
    flushed.print("flush");

    let mut sent = Attempt::new(payload.len());
    sent.write(message.clone())?;
    while !sent.is_done && sent.waiting_bytes() < WAITING_BYTES_MAX {
        sent.make_room();
        sent.write(message.clone())?;
        if sent.rounds.is_power_of_two() {
            sent.print("send");
        }
    }
    sent.print("send");
    Ok(())
}

struct Attempt {
    socket: WebSocket<Window>,
    payload_bytes: usize,
    is_done: bool,
    /// How often a call returned `WouldBlock`.
    rounds: usize,
    /// How many messages tungstenite has accepted.
    messages: usize,
    started: Instant,
}

/// A writer that takes [`WINDOW_BYTES`] until it is emptied.
#[derive(Default)]
struct Window {
    /// The bytes in the window.
    taken_bytes: usize,
    /// The bytes that were in the window when it was emptied.
    written_bytes: usize,
    /// The bytes that the caller has to move to the front of its buffer.
    moved_bytes: usize,
}

impl Attempt {
    fn new(payload_bytes: usize) -> Self {
        memory::start();
        Self {
            socket: WebSocket::from_raw_socket(Window::default(), Role::Server, None),
            payload_bytes,
            is_done: false,
            rounds: 0,
            messages: 0,
            started: Instant::now(),
        }
    }

    fn write(&mut self, message: Message) -> io::Result<()> {
        self.messages += 1;
        self.attempt(|socket| socket.send(message))
    }

    fn attempt(
        &mut self,
        call: impl FnOnce(&mut WebSocket<Window>) -> Result<(), Error>,
    ) -> io::Result<()> {
        match call(&mut self.socket) {
            Ok(()) => self.is_done = true,
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => self.rounds += 1,
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(())
    }

    fn make_room(&mut self) {
        let window = self.socket.get_mut();
        window.written_bytes += std::mem::take(&mut window.taken_bytes);
    }

    fn waiting_bytes(&self) -> usize {
        let window = self.socket.get_ref();
        (self.messages * self.payload_bytes).saturating_sub(window.written_bytes)
    }

    fn print(&self, retried: &str) {
        let Window { written_bytes, moved_bytes, .. } = *self.socket.get_ref();
        println!(
            "| {retried} | {} | {} | {} | {} | {} | {:.1} |",
            self.rounds,
            megabytes(written_bytes as u64),
            megabytes(self.waiting_bytes() as u64),
            megabytes(moved_bytes as u64),
            megabytes(memory::counted().peak_bytes.unsigned_abs()),
            self.started.elapsed().as_secs_f64() * 1e3,
        );
    }
}

impl Write for Window {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(WINDOW_BYTES - self.taken_bytes);
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.taken_bytes += n;
        self.moved_bytes += bytes.len() - n; // by tungstenite, once it learns that `n` were taken
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Window {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}
