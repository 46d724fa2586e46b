//! What the log writes and sends in a second, for `comparisons/disk`:
//!
//! ```sh
//! owned-io-comparisons-log RUNTIME append DIR MIB   # appends batches without sync, and syncs at the end
//! owned-io-comparisons-log RUNTIME send DIR         # reads all batches, and sends them to a thread that drops them
//! owned-io-comparisons-log by-hand send DIR         # the same bytes, by read(2) and write(2) on the files
//! ```
//!
//! Each prints MiB a second. DIR is the directory of one partition.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::Instant;
use std::{env, io};

use bytes::Bytes;
use owned_io::{ByteStream, ConnectOptions, Files, OwnedWrite, OwnedWriteExt, Runtime};
use owned_io_compio::Compio;
use owned_io_glommio::Glommio;
use owned_io_log::{Partition, PartitionConfig, ReadFrom, SyncPolicy};
use owned_io_monoio::Monoio;
use owned_io_tokio::Tokio;
use owned_io_tokio_uring::TokioUring;

/// A batch of Iggy's benchmark: 1,000 messages of 1,000 bytes, each with a header of 64.
const BATCH_BYTES: usize = 1_064_000;

/// Batches that are appended at the same time.
const IN_FLIGHT: usize = 4;

/// What is read at once: by the log one batch, which is longer.
const READ_BYTES: usize = 1 << 20;

const MIB: f64 = 1_048_576.0;

type AnyError = Box<dyn Error + Send + Sync>;

const USAGE: &str =
    "usage: owned-io-comparisons-log RUNTIME append DIR MIB | RUNTIME send DIR | by-hand send DIR";

fn main() -> ExitCode {
    let args: Vec<_> = env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let measured = match args[..] {
        ["by-hand", "send", dir] => send_by_hand(Path::new(dir)),
        ["tokio", ref rest @ ..] => measure::<Tokio>(rest),
        ["tokio-uring", ref rest @ ..] => measure::<TokioUring>(rest),
        ["compio", ref rest @ ..] => measure::<Compio>(rest),
        ["monoio", ref rest @ ..] => measure::<Monoio>(rest),
        ["glommio", ref rest @ ..] => measure::<Glommio>(rest),
        _ => Err(USAGE.into()),
    };
    match measured {
        Ok(mib_per_s) => {
            println!("{mib_per_s:.1}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("owned-io-comparisons-log: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure<R: Runtime + Files>(args: &[&str]) -> Result<f64, AnyError> {
    match *args {
        ["append", dir, mib] => {
            let batches = (mib.parse::<f64>()? * MIB / BATCH_BYTES as f64).ceil() as usize;
            R::block_on(R::tuned(), append::<R>(dir.into(), batches))?
        }
        ["send", dir] => R::block_on(R::tuned(), send::<R>(dir.into()))?,
        _ => Err(USAGE.into()),
    }
}

/// Appends batches, several at the same time. The time ends when all are on the disk.
async fn append<R: Runtime + Files>(dir: PathBuf, batches: usize) -> Result<f64, AnyError> {
    let mut config = PartitionConfig::default();
    config.sync = SyncPolicy::Never;
    let (log, _) = Partition::<R>::open(dir, config).await?;
    let batch: Bytes = (0..BATCH_BYTES).map(|index| (index % 251) as u8).collect();
    let began = Instant::now();
    let mut tasks = Vec::new();
    for task in 0..IN_FLIGHT {
        let (log, batch) = (log.clone(), batch.clone());
        tasks.push(R::spawn(async move {
            for _ in (task..batches).step_by(IN_FLIGHT) {
                log.append(1000, |_| [batch.clone()]).await?;
            }
            Ok::<_, owned_io_log::Error>(())
        }));
    }
    for task in tasks {
        task.await.map_err(|_| "an append panicked")??;
    }
    log.flush().await?;
    let seconds = began.elapsed().as_secs_f64();
    log.close().await?;
    Ok((batches * BATCH_BYTES) as f64 / MIB / seconds)
}

/// Reads all batches, and sends each. The time ends when all were received.
async fn send<R: Runtime + Files>(dir: PathBuf) -> Result<f64, AnyError> {
    let (log, _) = Partition::<R>::open(dir, PartitionConfig::default()).await?;
    let (addr, receiver) = receiver()?;
    let (_read, mut write) = R::connect(ConnectOptions::new(addr)).await?.into_split();
    let began = Instant::now();
    let mut next = 0;
    loop {
        let batches = log.read(ReadFrom::Offset(next), READ_BYTES).await?;
        let Some(last) = batches.last() else { break };
        next = last.next_offset();
        for batch in batches {
            write.write_all(batch.bytes).await.into_result()?;
        }
    }
    write.shutdown().await?;
    let rate = rate(receiver, began);
    log.close().await?;
    rate
}

/// The same by hand: reads the files of the segments, and sends what is in them.
fn send_by_hand(dir: &Path) -> Result<f64, AnyError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            files.push(path);
        }
    }
    files.sort();
    let (addr, receiver) = receiver()?;
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    let began = Instant::now();
    let mut buf = vec![0; READ_BYTES];
    for path in files {
        let mut file = File::open(path)?;
        loop {
            let n = file.read(&mut buf)?;
            if n == 0 {
                break;
            }
            stream.write_all(&buf[..n])?;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    rate(receiver, began)
}

/// A thread that drops what one connection sends, and returns how many bytes it was.
fn receiver() -> io::Result<(SocketAddr, JoinHandle<io::Result<u64>>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let addr = listener.local_addr()?;
    let receive = move || {
        let (mut stream, _) = listener.accept()?;
        let (mut buf, mut bytes) = (vec![0; READ_BYTES], 0);
        loop {
            match stream.read(&mut buf)? {
                0 => return Ok(bytes),
                n => bytes += n as u64,
            }
        }
    };
    Ok((addr, thread::spawn(receive)))
}

/// MiB a second since `began`, of all that was received.
fn rate(receiver: JoinHandle<io::Result<u64>>, began: Instant) -> Result<f64, AnyError> {
    let bytes = receiver.join().map_err(|_| "the receiver panicked")??;
    Ok(bytes as f64 / MIB / began.elapsed().as_secs_f64())
}
