//! `cargo bench -p owned-io-comparisons-layer --bench alignment`: the processor time that a read from a TCP connection on
//! loopback takes, by where its buffer begins within a page, and by how long it is.
//!
//! A figure is the median of the rounds, with the least and the largest. The offsets, and the lengths, take turns. The first
//! and the last byte of each read are checked. [`Pool::ALIGN`](owned_io::Pool::ALIGN) and
//! [`PoolConfig::SHORT_OF_PAGE_BYTES`](owned_io::PoolConfig::SHORT_OF_PAGE_BYTES) say why some are slow on some processors.
//!
//! - Where it begins: a peer writes 64 KiB at a time. In most runs what the kernel has received then begins at the start of a
//!   page; in the others no offset is slow. A read takes the rest of a block of 16 KiB to where it belongs in the buffer, so
//!   that the distance modulo a page stays the same after a short read.
//! - How long it is: a peer writes messages of 1,000,004 bytes. Each read may fill the buffer, which begins at a page.
//!
//! The third table has copies within the process, of 64,000 bytes in the cache, by how far the destination is above the
//! source, modulo a page. libc may copy in another way than the kernel.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use owned_io_comparisons_codec::{cpu_time, is_bench};

const PAGE_BYTES: usize = 4096;

/// Distances from the start of a page, in bytes.
const OFFSETS: [usize; 8] = [0, 8, 16, 24, 32, 64, 128, 2048];
const BLOCK_BYTES: usize = 16 * 1024;

/// The lengths of a read.
const LENGTHS: [usize; 8] = [16_384, 16_288, 61_440, 63_488, 65_440, 65_504, 65_520, 65_536];

/// The distances of a copy within the process, and its length.
const DISTANCES: [usize; 8] = [0, 1, 16, 31, 32, 64, 2048, 4095];
const COPY_BYTES: usize = 64_000;

/// How many bytes a round reads for each offset or length, and how many rounds there are. Without `--bench`, as
/// `cargo test --benches` runs it: enough to see that it works.
const ROUND_BYTES: usize = 64 << 20;
const ROUNDS: usize = 21;
const SMOKE_ROUND_BYTES: usize = 1 << 17;
const SMOKE_ROUNDS: usize = 1;

fn main() {
    let mut memory = vec![0; 2 * PAGE_BYTES + LENGTHS[LENGTHS.len() - 1]];
    let page = memory.as_ptr().align_offset(PAGE_BYTES);
    let memory = &mut memory[page..];

    let (mut stream, writing) = Stream::of_writes(64 * 1024);
    print_table("the buffer begins at, B", OFFSETS, |offset, bytes| {
        stream.read_to_position(&mut memory[offset..][..BLOCK_BYTES], bytes)
    });
    drop(stream);
    writing.join().unwrap();

    let (mut stream, writing) = Stream::of_writes(1_000_004);
    println!();
    print_table("the read takes at most, B", LENGTHS, |len, bytes| {
        stream.read_to_start(&mut memory[..len], bytes)
    });
    drop(stream);
    writing.join().unwrap();

    let source: Vec<u8> = (0..PAGE_BYTES + COPY_BYTES).map(|at| byte_at(at, usize::MAX)).collect();
    let page = source.as_ptr().align_offset(PAGE_BYTES);
    let source = &source[page..][..COPY_BYTES];
    println!();
    print_table("a copy to so far above its source, B", DISTANCES, |distance, bytes| {
        copy(source, &mut memory[distance..][..COPY_BYTES], bytes)
    });
}

/// Prints a row for each value. `read` reads at least so many bytes with it, and returns the processor time of a KiB in
/// nanoseconds.
fn print_table<const N: usize>(
    title: &str,
    values: [usize; N],
    mut read: impl FnMut(usize, usize) -> f64,
) {
    let (bytes, rounds) = match is_bench() {
        true => (ROUND_BYTES, ROUNDS),
        false => (SMOKE_ROUND_BYTES, SMOKE_ROUNDS),
    };
    let mut figures = values.map(|_| Vec::new());
    for _ in 0..rounds {
        for (value, figures) in values.into_iter().zip(&mut figures) {
            figures.push(read(value, bytes));
        }
    }
    println!("| {title} | CPU, ns/KiB |");
    println!("|---|---|");
    for (value, mut figures) in values.into_iter().zip(figures) {
        figures.sort_by(f64::total_cmp);
        let (median, last) = (figures[figures.len() / 2], figures[figures.len() - 1]);
        println!("| {value} | {median:.0} ({:.0}–{last:.0}) |", figures[0]);
    }
}

/// A connection whose peer makes writes of one length without end.
struct Stream {
    stream: TcpStream,
    write_bytes: usize,
    position: usize,
}

impl Stream {
    /// The connection, and the thread of its peer, which ends when it is dropped.
    fn of_writes(write_bytes: usize) -> (Self, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let writing = thread::spawn(move || {
            let bytes: Vec<u8> = (0..write_bytes).map(|at| byte_at(at, write_bytes)).collect();
            let mut stream = TcpStream::connect(addr).unwrap();
            while stream.write_all(&bytes).is_ok() {}
        });
        (Self { stream: listener.accept().unwrap().0, write_bytes, position: 0 }, writing)
    }

    /// Reads to the start of `buf`.
    fn read_to_start(&mut self, buf: &mut [u8], bytes: usize) -> f64 {
        self.read(bytes, |_| 0, buf)
    }

    /// Reads to where the bytes belong in `buf`, if it held each block of its length in turn.
    fn read_to_position(&mut self, buf: &mut [u8], bytes: usize) -> f64 {
        let len = buf.len();
        self.read(bytes, |position| position % len, buf)
    }

    /// Reads at least so many bytes. Returns the processor time of a KiB in nanoseconds.
    fn read(&mut self, bytes: usize, at: impl Fn(usize) -> usize, buf: &mut [u8]) -> f64 {
        let (began, start) = (self.position, cpu_time());
        while self.position < began + bytes {
            let at = at(self.position);
            let read = self.stream.read(&mut buf[at..]).unwrap();
            assert_ne!(read, 0, "the peer writes without end");
            assert_eq!(buf[at], byte_at(self.position, self.write_bytes));
            assert_eq!(buf[at + read - 1], byte_at(self.position + read - 1, self.write_bytes));
            self.position += read;
        }
        let kibibytes = (self.position - began) as f64 / 1024.0;
        (cpu_time() - start).as_nanos() as f64 / kibibytes
    }
}

/// Copies at least so many bytes. Returns the processor time of a KiB in nanoseconds.
fn copy(source: &[u8], destination: &mut [u8], bytes: usize) -> f64 {
    let (mut copied, start) = (0, cpu_time());
    while copied < bytes {
        destination.copy_from_slice(black_box(source));
        copied += black_box(&*destination).len();
    }
    let took = cpu_time() - start;
    assert_eq!(destination, source);
    took.as_nanos() as f64 / (copied as f64 / 1024.0)
}

/// The byte at `position` of a stream that consists of writes of one length.
const fn byte_at(position: usize, write_bytes: usize) -> u8 {
    (position % write_bytes % 251) as u8
}
