//! `cargo bench -p owned-io-comparisons-layer --bench alignment`: the processor time that a read from a TCP connection on
//! loopback takes, by where its buffer begins within a page.
//!
//! A peer writes 64 KiB at a time. In most runs what the kernel has received then begins at the start of a page; in the others
//! no offset is slow. A read takes the rest of a block of 16 KiB to where it belongs in the buffer, so that the distance
//! modulo a page stays the same after a short read. A figure is the median of the rounds, with the least and the largest. The
//! offsets take turns. The first and the last byte of each read are checked.
//!
//! [`Pool::ALIGN`](owned_io::Pool::ALIGN) says why some offsets are slow on some processors.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use owned_io_comparisons_codec::{cpu_time, is_bench};

/// Distances from the start of a page, in bytes.
const OFFSETS: [usize; 8] = [0, 8, 16, 24, 32, 64, 128, 2048];
const PAGE_BYTES: usize = 4096;
const READ_BYTES: usize = 16 * 1024;
const WRITE_BYTES: usize = 64 * 1024;

/// How many reads a round has for each offset, and how many rounds there are. Without `--bench`, as
/// `cargo test --benches` runs it: enough to see that it works.
const READS: usize = 4_000;
const ROUNDS: usize = 21;
const SMOKE_READS: usize = 10;
const SMOKE_ROUNDS: usize = 1;

fn main() {
    let (reads, rounds) = if is_bench() { (READS, ROUNDS) } else { (SMOKE_READS, SMOKE_ROUNDS) };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let writing = thread::spawn(move || write_until_closed(TcpStream::connect(addr).unwrap()));
    let mut stream = Stream { stream: listener.accept().unwrap().0, position: 0 };

    let mut memory = vec![0; 2 * PAGE_BYTES + READ_BYTES];
    let page = memory.as_ptr().align_offset(PAGE_BYTES);
    let mut figures = OFFSETS.map(|_| Vec::new());
    for _ in 0..rounds {
        for (offset, figures) in OFFSETS.iter().zip(&mut figures) {
            let buf = &mut memory[page + offset..][..READ_BYTES];
            figures.push(stream.read_kibibytes(buf, reads));
        }
    }
    drop(stream);
    writing.join().unwrap();

    println!("| the buffer begins at, B | CPU, ns/KiB |");
    println!("|---|---|");
    for (offset, mut figures) in OFFSETS.into_iter().zip(figures) {
        figures.sort_by(f64::total_cmp);
        let (median, last) = (figures[figures.len() / 2], figures[figures.len() - 1]);
        println!("| {offset} | {median:.0} ({:.0}–{last:.0}) |", figures[0]);
    }
}

/// The byte at `position` of the stream.
const fn byte_at(position: usize) -> u8 {
    (position % WRITE_BYTES % 251) as u8
}

fn write_until_closed(mut stream: TcpStream) {
    let bytes: Vec<u8> = (0..WRITE_BYTES).map(byte_at).collect();
    while stream.write_all(&bytes).is_ok() {}
}

struct Stream {
    stream: TcpStream,
    position: usize,
}

impl Stream {
    /// Reads so many times, and returns the processor time of a KiB in nanoseconds.
    fn read_kibibytes(&mut self, buf: &mut [u8], reads: usize) -> f64 {
        let (began, start) = (self.position, cpu_time());
        for _ in 0..reads {
            let at = self.position % READ_BYTES;
            let bytes = self.stream.read(&mut buf[at..]).unwrap();
            assert_ne!(bytes, 0, "the peer writes without end");
            assert_eq!(buf[at], byte_at(self.position));
            assert_eq!(buf[at + bytes - 1], byte_at(self.position + bytes - 1));
            self.position += bytes;
        }
        let kibibytes = (self.position - began) as f64 / 1024.0;
        (cpu_time() - start).as_nanos() as f64 / kibibytes
    }
}
