//! What becomes of a message that does not fit, by what is tried again.

use std::io::{self, Read, Write};
use std::time::Instant;

use bytes::Bytes;
use tungstenite::protocol::Role;
use tungstenite::{Error, Message, WebSocket};

use crate::{megabytes, memory};

/// What fits.
const WINDOW_BYTES: usize = 8 * 1024;

/// What tungstenite may hold before this is given up, in bytes.
const WAITING_BYTES_MAX: usize = 1_000_000_000;

/// tungstenite alone, with a window that is emptied each time that it says `WouldBlock`. The message is
/// written once and then flushed as often as it takes; or it is sent, and sent again.
pub(crate) fn run(payload: &Bytes) -> io::Result<()> {
    println!("\nA window of 8 KiB is emptied, and what said WouldBlock is tried again\n");
    println!("| tried again | rounds | left, MB | waiting, MB | moved, MB | peak, MB | ms |");
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
    /// How often there was no room.
    rounds: usize,
    /// How many messages tungstenite was given.
    messages: usize,
    started: Instant,
}

/// Takes so many bytes, until it is emptied.
#[derive(Default)]
struct Window {
    taken_bytes: usize,
    left_bytes: usize,
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
        of: impl FnOnce(&mut WebSocket<Window>) -> Result<(), Error>,
    ) -> io::Result<()> {
        match of(&mut self.socket) {
            Ok(()) => self.is_done = true,
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => self.rounds += 1,
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(())
    }

    fn make_room(&mut self) {
        let window = self.socket.get_mut();
        window.left_bytes += std::mem::take(&mut window.taken_bytes);
    }

    fn waiting_bytes(&self) -> usize {
        let window = self.socket.get_ref();
        (self.messages * self.payload_bytes).saturating_sub(window.left_bytes)
    }

    fn print(&self, tried: &str) {
        let Window { left_bytes, moved_bytes, .. } = *self.socket.get_ref();
        println!(
            "| {tried} | {} | {} | {} | {} | {} | {:.1} |",
            self.rounds,
            megabytes(left_bytes as u64),
            megabytes(self.waiting_bytes() as u64),
            megabytes(moved_bytes as u64),
            megabytes(memory::so_far().peak_bytes.unsigned_abs()),
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
        self.moved_bytes += bytes.len() - n; // by whoever is told that `n` were taken
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
