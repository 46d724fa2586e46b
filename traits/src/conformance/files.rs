//! Files: cases for the sentences of [`Files`] and [`File`] that can be observed while the machine runs.
//!
//! The suite has its own macro, because files are not part of [`Runtime`]:
//!
//! ```ignore
//! owned_io::file_conformance! { runtime: my_backend::MyRuntime, config: my_backend::Config::default() }
//! ```
//!
//! What a loss of power keeps can be tested in the simulator only: see `backend-sim/tests/files.rs`. Each case uses a
//! new directory below that for temporary files, and removes it.

use std::env;
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::prove::prove;
use super::support::{
    self, count_runs, expect_at_least, expect_bytes, expect_error, pattern, soon,
};
use crate::{
    BufResult, FILE_OFFSET_MAX, FILE_TRANSFER_BYTES_MAX, File, Files, IOV_MAX, IoVec, OpenMode,
    OwnedReadAt, OwnedReadAtExt, OwnedWriteAt, OwnedWriteAtExt, Pool, PoolConfig, Runtime,
};

/// Creates a `#[test]` for each case about files, for one runtime and one configuration.
#[macro_export]
macro_rules! file_conformance {
    (runtime: $runtime:ty, config: $config:expr $(,)?) => {
        $crate::__file_conformance! {
            { $runtime, $config }
            read_at_sets_the_exact_length
            read_at_leaves_no_stale_bytes
            read_at_reads_at_the_position
            read_at_is_zero_at_the_end
            read_at_without_capacity_returns_at_once
            read_at_error_leaves_the_length
            read_exact_at_reports_an_early_end
            read_at_takes_a_buffer_of_more_than_four_gibibytes
            write_at_returns_the_buffer_unchanged
            write_at_takes_at_least_one_byte
            write_at_past_the_end_leaves_zeros
            write_at_of_nothing_returns_at_once
            write_at_to_a_read_only_file_fails
            write_vectored_at_keeps_the_order_and_advances
            write_vectored_at_takes_more_than_iov_max_pieces
            one_operation_transfers_a_bounded_number_of_bytes
            operations_take_buffers_that_are_not_send
            offsets_beyond_the_maximum_are_refused
            operations_on_one_file_run_at_once
            operations_let_others_run
            vectored_writes_let_others_run
            a_read_sees_the_writes_before_it
            set_len_cuts_and_extends_by_zeros
            allocate_keeps_the_length
            sync_data_keeps_the_contents
            a_dropped_write_leaves_the_file_usable
            a_dropped_read_leaves_the_file_usable
            the_buffer_of_a_dropped_operation_is_freed
            a_lock_excludes_other_locks
            a_lock_ends_with_its_file
            a_lock_is_held_until_dropped_writes_have_ended
            open_says_what_it_did_not_find
            open_keeps_the_contents
            rename_replaces_in_one_step
            a_removed_file_stays_readable
            list_dir_names_the_entries_in_order
            remove_dir_refuses_a_directory_with_entries
            create_dir_all_creates_those_above
        }

        #[test]
        fn block_on_ends_while_operations_run() {
            let case = $crate::conformance::files::block_on_ends_while_operations_run::<$runtime>;
            $crate::conformance::files::check_function::<$runtime>(
                "block_on_ends_while_operations_run",
                &$config,
                case,
            );
        }
    };
}

/// Expands to the tests of [`file_conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __file_conformance {
    ({ $runtime:ty, $config:expr } $($case:ident)*) => {
        $(#[test]
        fn $case() {
            let case = $crate::conformance::files::$case::<$runtime>;
            $crate::conformance::files::check::<$runtime, _>(::std::stringify!($case), &$config, case);
        })*
    };
}

/// Checks that a case passes. The tests of [`file_conformance!`] call it.
///
/// # Panics
/// If the case fails.
pub fn check<R: Runtime, F: Future>(
    name: &str,
    config: &R::Config,
    case: impl FnOnce() -> F + Send + 'static,
) {
    check_function::<R>(name, config, move |config| drop(support::run::<R, F>(config, case())));
}

/// Checks that a case passes that calls `block_on` itself.
///
/// # Panics
/// If the case fails.
pub fn check_function<R: Runtime>(
    name: &str,
    config: &R::Config,
    case: impl FnOnce(&R::Config) + Send + 'static,
) {
    if let Err(why) = prove(config, case) {
        panic!("{} does not keep files::{name}: {why}", R::NAME);
    }
}

/// A new directory, and a file in it.
struct Scratch<R: Files> {
    dir: PathBuf,
    path: PathBuf,
    file: R::File,
}

impl<R: Runtime + Files> Scratch<R> {
    async fn new() -> Self {
        let mut number = [0; 8];
        R::fill_random(&mut number);
        let number = u64::from_le_bytes(number);
        let dir = env::temp_dir().join(format!("owned-io-conformance-{number:016x}"));
        R::create_dir_all(&dir).await.expect("expected to create a directory");
        let path = dir.join("file");
        let file = open::<R>(&path, OpenMode::CreateNew).await;
        Self { dir, path, file }
    }

    async fn with(contents: &[u8]) -> Self {
        let scratch = Self::new().await;
        scratch.write(contents.to_vec(), 0).await;
        scratch
    }

    async fn write(&self, contents: Vec<u8>, offset: u64) {
        let written = soon::<R, _>("a write", self.file.write_all_at(contents, offset)).await;
        written.into_result().expect("expected to write");
    }

    /// All bytes of the file.
    async fn contents(&self) -> Vec<u8> {
        contents::<R>(&self.file).await
    }

    async fn remove(self) {
        let Self { dir, file, .. } = self;
        drop(file);
        for entry in R::list_dir(&dir).await.expect("expected to list the directory") {
            let path = dir.join(entry.name);
            let removed =
                if entry.is_dir { R::remove_dir(&path).await } else { R::remove_file(&path).await };
            removed.expect("expected to remove an entry");
        }
        R::remove_dir(&dir).await.expect("expected to remove the directory");
    }
}

async fn open<R: Files>(path: &Path, mode: OpenMode) -> R::File {
    R::open(path, mode).await.expect("expected to open the file")
}

async fn contents<R: Runtime + Files>(file: &R::File) -> Vec<u8> {
    let len = soon::<R, _>("the length", file.size()).await.expect("expected the length") as usize;
    let read = soon::<R, _>("a read", file.read_exact_at(Vec::with_capacity(len), len, 0)).await;
    read.into_result().expect("expected to read").1
}

/// "`Ok(n)`: the first `n` bytes of the buffer are new, and its length is exactly `n`, whatever it was before."
pub async fn read_at_sets_the_exact_length<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"five!").await;
    let buf = b"what the buffer held before".to_vec();
    let (n, buf) = scratch.file.read_at(buf, 0).await.into_result().unwrap();
    assert!((1..=5).contains(&n), "expected 1 to 5 bytes; seen: {n}");
    assert_eq!(buf, b"five!"[..n], "the buffer after a read of {n} bytes");
    scratch.remove().await;
}

/// "The first `n` bytes of the buffer are new."
pub async fn read_at_leaves_no_stale_bytes<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(&pattern(1000)).await;
    let ((), buf) =
        scratch.file.read_exact_at(vec![0xaa; 2000], 1000, 0).await.into_result().unwrap();
    expect_bytes(&buf, &pattern(1000));
    scratch.remove().await;
}

/// "Reads the bytes of the file from `offset` on."
pub async fn read_at_reads_at_the_position<R: Runtime + Files>() {
    let all = pattern(10_000);
    let scratch = Scratch::<R>::with(&all).await;
    for offset in [0_usize, 1, 4095, 4096, 9_000, 17] {
        let read = scratch.file.read_exact_at(Vec::with_capacity(900), 900, offset as u64).await;
        expect_bytes(&read.into_result().unwrap().1, &all[offset..offset + 900]);
    }
    scratch.remove().await;
}

/// "`Ok(0)`: the file ends at `offset` or before. A later read sees what was written meanwhile."
pub async fn read_at_is_zero_at_the_end<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"end").await;
    for offset in [3, 4, 1 << 40] {
        let (n, buf) = scratch.file.read_at(vec![1; 8], offset).await.into_result().unwrap();
        assert_eq!((n, buf), (0, Vec::new()), "a read at {offset}, the file ends at 3");
    }
    scratch.write(b"!".to_vec(), 3).await;
    let (n, buf) = scratch.file.read_at(vec![1; 8], 3).await.into_result().unwrap();
    assert_eq!((n, buf), (1, b"!".to_vec()), "a read of what was written meanwhile");
    scratch.remove().await;
}

/// "A buffer without capacity returns `Ok(0)` at once."
pub async fn read_at_without_capacity_returns_at_once<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"bytes").await;
    let (n, _) = scratch.file.read_at(Vec::new(), 0).await.into_result().unwrap();
    assert_eq!(n, 0, "the bytes read into a buffer without capacity");
    scratch.remove().await;
}

/// "The buffer comes back with its length unchanged. The error keeps its OS error code."
pub async fn read_at_error_leaves_the_length<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"bytes").await;
    let mut buf = Vec::with_capacity(64);
    buf.extend_from_slice(b"before");
    let BufResult(result, buf) = scratch.file.read_at(buf, u64::MAX).await;
    let error = expect_error(result, ErrorKind::InvalidInput);
    assert_eq!(error.raw_os_error(), Some(22), "the OS error code of {error:?}");
    assert_eq!((&buf[..], buf.capacity()), (&b"before"[..], 64), "the buffer after an error");
    scratch.remove().await;
}

/// "`UnexpectedEof` if the file ends first: the buffer contains the bytes read so far."
pub async fn read_exact_at_reports_an_early_end<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"half").await;
    let BufResult(result, buf) = scratch.file.read_exact_at(Vec::with_capacity(8), 8, 0).await;
    expect_error(result, ErrorKind::UnexpectedEof);
    assert_eq!(buf, b"half");
    let BufResult(result, _) = scratch.file.read_exact_at(Vec::new(), 1, 0).await;
    expect_error(result, ErrorKind::InvalidInput);
    scratch.remove().await;
}

/// "Request at most `FILE_TRANSFER_BYTES_MAX` bytes", also of a capacity that does not fit 32 bits.
pub async fn read_at_takes_a_buffer_of_more_than_four_gibibytes<R: Runtime + Files>() {
    if cfg!(miri) || cfg!(target_pointer_width = "32") {
        return;
    }
    let scratch = Scratch::<R>::with(b"bytes").await;
    let huge = Vec::with_capacity((4 << 30) + 1); // not touched, so it takes no memory
    let ((), buf) = scratch.file.read_exact_at(huge, 5, 0).await.into_result().unwrap();
    assert_eq!(buf, b"bytes");
    scratch.remove().await;
}

/// "The buffer comes back unchanged."
pub async fn write_at_returns_the_buffer_unchanged<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    let buf = pattern(5000);
    let at = buf.as_ptr();
    let (n, buf) = scratch.file.write_at(buf, 0).await.into_result().unwrap();
    assert_eq!(buf.as_ptr(), at, "the address of the buffer");
    expect_bytes(&buf, &pattern(5000));
    expect_bytes(&scratch.contents().await, &pattern(5000)[..n]);
    scratch.remove().await;
}

/// "`n` is at least 1."
pub async fn write_at_takes_at_least_one_byte<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    let (n, _) = scratch.file.write_at(b"x", 0).await.into_result().unwrap();
    assert_eq!(n, 1, "the bytes that a write of one byte takes");
    let mut one = IoVec::new();
    one.push("y");
    let (n, _) = scratch.file.write_vectored_at(one, 1).await.into_result().unwrap();
    assert_eq!(n, 1, "the bytes that a vectored write of one byte takes");
    assert_eq!(scratch.contents().await, b"xy");
    scratch.remove().await;
}

/// "A write past the end extends the file; a gap before `offset` reads as zeros."
pub async fn write_at_past_the_end_leaves_zeros<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"start").await;
    scratch.write(b"end".to_vec(), 10_000).await;
    let expected = [&b"start"[..], &[0; 9_995], b"end"].concat();
    expect_bytes(&scratch.contents().await, &expected);
    scratch.remove().await;
}

/// "An empty buffer returns `Ok(0)` at once, and the file is unchanged."
pub async fn write_at_of_nothing_returns_at_once<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"bytes").await;
    let (n, _) = scratch.file.write_at(Vec::new(), 100).await.into_result().unwrap();
    assert_eq!(n, 0, "the bytes that a write of nothing takes");
    let empty = IoVec::<Vec<u8>>::new();
    let (n, _) = scratch.file.write_vectored_at(empty, 100).await.into_result().unwrap();
    assert_eq!(n, 0, "the bytes that a vectored write of nothing takes");
    assert_eq!(scratch.contents().await, b"bytes");
    scratch.remove().await;
}

/// "`EBADF` if the file was opened for reading. The buffer comes back unchanged."
pub async fn write_at_to_a_read_only_file_fails<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"bytes").await;
    let file = open::<R>(&scratch.path, OpenMode::Read).await;
    let BufResult(result, buf) = file.write_at("no", 0).await;
    let error = result.expect_err("expected an error");
    assert_eq!(error.raw_os_error(), Some(9), "the OS error code of {error:?}");
    assert_eq!(buf, "no");
    let mut bufs = IoVec::new();
    bufs.push("no");
    let BufResult(result, bufs) = file.write_vectored_at(bufs, 0).await;
    let error = result.expect_err("expected an error");
    assert_eq!(error.raw_os_error(), Some(9), "the OS error code of {error:?}");
    assert_eq!(bufs.bytes_left(), 2, "the bytes left after an error");
    let error = file.set_len(0).await.expect_err("expected an error");
    assert_eq!(error.raw_os_error(), Some(22), "the OS error code of {error:?}");
    assert_eq!(scratch.contents().await, b"bytes");
    scratch.remove().await;
}

/// "It is like a `write_at` of the concatenated pieces. After `Ok(n)`, `bufs` is already advanced by `n`."
pub async fn write_vectored_at_keeps_the_order_and_advances<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"..").await;
    let mut bufs = IoVec::new();
    bufs.extend([b"one ".to_vec(), Vec::new(), b"two ".to_vec(), b"three".to_vec()]);
    let (n, bufs) = scratch.file.write_vectored_at(bufs, 2).await.into_result().unwrap();
    assert_eq!(bufs.bytes_left(), 13 - n, "the bytes left after a write of {n} of 13 bytes");
    let written = scratch.file.write_all_vectored_at(bufs, 2 + n as u64).await;
    assert_eq!(written.into_result().unwrap().1.bytes_left(), 0);
    assert_eq!(scratch.contents().await, b"..one two three");
    scratch.remove().await;
}

/// "At most `IOV_MAX` of them."
pub async fn write_vectored_at_takes_more_than_iov_max_pieces<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    let all = pattern(3 * IOV_MAX);
    let mut bufs = IoVec::new();
    bufs.extend(all.chunks(2).map(<[u8]>::to_vec));
    let written = soon::<R, _>("the write", scratch.file.write_all_vectored_at(bufs, 0)).await;
    written.into_result().unwrap();
    expect_bytes(&scratch.contents().await, &all);
    scratch.remove().await;
}

/// "The most bytes that one read or write of a file passes to the kernel", and all bytes arrive by several.
pub async fn one_operation_transfers_a_bounded_number_of_bytes<R: Runtime + Files>() {
    let all = pattern(support::scaled(2 * FILE_TRANSFER_BYTES_MAX + 4097));
    let scratch = Scratch::<R>::new().await;
    let (n, all) = scratch.file.write_at(all, 0).await.into_result().unwrap();
    assert!(n <= FILE_TRANSFER_BYTES_MAX, "expected a bounded write; seen: {n} bytes");
    let mut bufs = IoVec::new();
    bufs.extend(all.chunks(100_000).map(<[u8]>::to_vec));
    let (n, bufs) = scratch.file.write_vectored_at(bufs, 0).await.into_result().unwrap();
    assert!(n <= FILE_TRANSFER_BYTES_MAX, "expected a bounded vectored write; seen: {n} bytes");
    scratch.file.write_all_vectored_at(bufs, n as u64).await.into_result().unwrap();
    let buf = Vec::with_capacity(all.len());
    let (n, _) = scratch.file.read_at(buf, 0).await.into_result().unwrap();
    assert!(n <= FILE_TRANSFER_BYTES_MAX, "expected a bounded read; seen: {n} bytes");
    expect_bytes(&scratch.contents().await, &all);
    scratch.remove().await;
}

/// No buffer has to be `Send`: those of a pool and of an `Rc` are not.
pub async fn operations_take_buffers_that_are_not_send<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    scratch.file.write_all_at(Rc::<[u8]>::from(&b"shared"[..]), 0).await.into_result().unwrap();
    let pool = Pool::new(PoolConfig::default());
    let pooled = pool.take().unwrap();
    let ((), pooled) = scratch.file.read_exact_at(pooled, 6, 0).await.into_result().unwrap();
    assert_eq!(&pooled[..], b"shared");
    scratch.file.write_all_at(pooled, 6).await.into_result().unwrap();
    assert_eq!(scratch.contents().await, b"sharedshared");
    assert_eq!(pool.leased(), 0, "the buffers of the pool in use");
    scratch.remove().await;
}

/// "`EINVAL` if `offset` is greater than `FILE_OFFSET_MAX`."
pub async fn offsets_beyond_the_maximum_are_refused<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"bytes").await;
    for offset in [FILE_OFFSET_MAX + 1, u64::MAX] {
        let BufResult(read, _) = scratch.file.read_at(vec![0; 8], offset).await;
        let BufResult(written, _) = scratch.file.write_at("no", offset).await;
        let set = scratch.file.set_len(offset).await.map(|()| 0);
        let allocated = scratch.file.allocate(offset).await.map(|()| 0);
        for result in [read, written, set, allocated] {
            let error = result.expect_err("expected an error");
            assert_eq!(error.raw_os_error(), Some(22), "at {offset}: {error:?}");
        }
    }
    assert_eq!(scratch.contents().await, b"bytes");
    scratch.remove().await;
}

/// "Several operations on one file may be pending at once."
pub async fn operations_on_one_file_run_at_once<R: Runtime + Files>() {
    const BLOCK: usize = 3000;
    let scratch = Scratch::<R>::new().await;
    let file = Rc::new(open::<R>(&scratch.path, OpenMode::Write).await);
    let write = |number: usize| {
        let file = Rc::clone(&file);
        R::spawn(async move {
            let block = vec![number as u8; BLOCK];
            let offset = (number * BLOCK) as u64;
            let ((), block) = file.write_all_at(block, offset).await.into_result().unwrap();
            let buf = Vec::with_capacity(BLOCK);
            let ((), read) = file.read_exact_at(buf, BLOCK, offset).await.into_result().unwrap();
            expect_bytes(&read, &block);
        })
    };
    let tasks: Vec<_> = (0..20).map(write).collect();
    for task in tasks {
        support::joined::<R, _>("a task with a write and a read", task).await;
    }
    let expected: Vec<_> = (0..20).flat_map(|number| [number; BLOCK]).collect();
    expect_bytes(&scratch.contents().await, &expected);
    drop(file);
    scratch.remove().await;
}

/// "A loop of reads lets other tasks run." "A loop of writes lets other tasks run."
pub async fn operations_let_others_run<R: Runtime + Files>() {
    const TIMES: u32 = if cfg!(miri) { 100 } else { 2_000 };
    let scratch = Scratch::<R>::with(&pattern(64)).await;
    let runs = count_runs::<R>();
    let mut buf = Vec::with_capacity(64);
    for _ in 0..TIMES {
        (_, buf) = scratch.file.read_at(buf, 0).await.into_result().unwrap();
    }
    expect_at_least(10, &format!("runs of another task during {TIMES} reads"), runs.get());
    let before = runs.get();
    for _ in 0..TIMES {
        (_, buf) = scratch.file.write_at(buf, 0).await.into_result().unwrap();
    }
    let seen = runs.get() - before;
    expect_at_least(10, &format!("runs of another task during {TIMES} writes"), seen);
    scratch.remove().await;
}

/// "It is like a `write_at` of the concatenated pieces": "A loop of writes lets other tasks run."
pub async fn vectored_writes_let_others_run<R: Runtime + Files>() {
    const TIMES: u32 = if cfg!(miri) { 100 } else { 2_000 };
    let scratch = Scratch::<R>::new().await;
    let runs = count_runs::<R>();
    let mut bufs = IoVec::new();
    for _ in 0..TIMES {
        bufs.clear();
        bufs.push(&[7_u8; 64]);
        (_, bufs) = scratch.file.write_vectored_at(bufs, 0).await.into_result().unwrap();
    }
    expect_at_least(10, &format!("runs of another task during {TIMES} writes"), runs.get());
    scratch.remove().await;
}

/// "A read sees the bytes of every write that completed before the read began", through any open file.
pub async fn a_read_sees_the_writes_before_it<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    let other = open::<R>(&scratch.path, OpenMode::Read).await;
    for round in 0..20 {
        scratch.write(vec![round; 100], 50 * u64::from(round)).await;
        let buf = Vec::with_capacity(100);
        let read = other.read_exact_at(buf, 100, 50 * u64::from(round)).await;
        assert_eq!(read.into_result().unwrap().1, [round; 100]);
    }
    scratch.remove().await;
}

/// "Cuts the file to `len` bytes, or extends it to `len` by zeros."
pub async fn set_len_cuts_and_extends_by_zeros<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(&[7; 6000]).await;
    scratch.file.set_len(10).await.unwrap();
    assert_eq!(scratch.file.size().await.unwrap(), 10, "the length of a file cut to 10 bytes");
    scratch.file.set_len(5000).await.unwrap();
    expect_bytes(&scratch.contents().await, &[&[7; 10][..], &[0; 4990]].concat());
    scratch.file.set_len(0).await.unwrap();
    assert_eq!(scratch.contents().await, b"");
    scratch.remove().await;
}

/// "Reserves space for the first `len` bytes. The length of the file does not change."
pub async fn allocate_keeps_the_length<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"bytes").await;
    for len in [0, 1, 1 << 20] {
        match scratch.file.allocate(len).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(error) => panic!("expected to allocate {len} bytes; seen: {error:?}"),
        }
        assert_eq!(scratch.contents().await, b"bytes");
    }
    scratch.remove().await;
}

/// "Makes the contents durable", and changes nothing else.
pub async fn sync_data_keeps_the_contents<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(&pattern(10_000)).await;
    soon::<R, _>("the sync", scratch.file.sync_data()).await.unwrap();
    soon::<R, _>("the sync of the directory", R::sync_dir(&scratch.dir)).await.unwrap();
    expect_bytes(&scratch.contents().await, &pattern(10_000));
    scratch.remove().await;
}

/// "The file stays usable. A dropped write forfeits its buffer, and any part of the bytes may be written."
pub async fn a_dropped_write_leaves_the_file_usable<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(&[1; 8192]).await;
    for _ in 0..10 {
        let mut write = Box::pin(scratch.file.write_at(vec![2; 4096], 4096));
        let _ = support::poll_once(write.as_mut()).await;
        drop(write);
        let mut bufs = IoVec::new();
        bufs.push(vec![2; 4096]);
        let mut write = Box::pin(scratch.file.write_vectored_at(bufs, 4096));
        let _ = support::poll_once(write.as_mut()).await;
        drop(write);
        let mut sync = Box::pin(scratch.file.sync_data());
        let _ = support::poll_once(sync.as_mut()).await;
    }
    scratch.write(vec![3; 4096], 0).await;
    let contents = scratch.contents().await;
    expect_bytes(&contents[..4096], &[3; 4096]);
    let other = contents[4096..].iter().find(|byte| !matches!(byte, 1 | 2));
    assert_eq!(other, None, "a byte that nobody wrote");
    scratch.remove().await;
}

/// "Safe for the file, which stays usable."
pub async fn a_dropped_read_leaves_the_file_usable<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(&pattern(4096)).await;
    for _ in 0..10 {
        let mut read = Box::pin(scratch.file.read_at(Vec::with_capacity(4096), 0));
        let _ = support::poll_once(read.as_mut()).await;
    }
    expect_bytes(&scratch.contents().await, &pattern(4096));
    scratch.remove().await;
}

/// "A dropped read forfeits its buffer, which is freed some time after the kernel has released it."
pub async fn the_buffer_of_a_dropped_operation_is_freed<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(&pattern(4096)).await;
    let pool = Pool::new(PoolConfig::default());
    let mut read = Box::pin(scratch.file.read_at(pool.take().unwrap(), 0));
    let _ = support::poll_once(read.as_mut()).await;
    drop(read);
    let freed = soon::<R, _>("the buffer of the dropped read", async {
        // Bounded by the time that `soon` permits.
        while pool.leased() > 0 {
            R::sleep(support::A_WHILE).await;
            let _ = scratch.contents().await;
        }
    });
    freed.await;
    scratch.remove().await;
}

/// "Locks the file against every other open file of the same path. `WouldBlock` if another open file has the lock. To
/// lock an open file again succeeds."
pub async fn a_lock_excludes_other_locks<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    scratch.file.try_lock().await.expect("expected to lock the file");
    scratch.file.try_lock().await.expect("expected to lock the file again");
    let other = open::<R>(&scratch.path, OpenMode::Write).await;
    let error = expect_error(other.try_lock().await, ErrorKind::WouldBlock);
    assert_eq!(error.raw_os_error(), Some(11), "the OS error code of {error:?}");
    other.write_all_at("advisory", 0).await.into_result().unwrap();
    assert_eq!(scratch.contents().await, b"advisory");
    drop(other);
    scratch.remove().await;
}

/// "The lock ends when the file is closed: dropped, with its operations ended."
pub async fn a_lock_ends_with_its_file<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    for has_dropped_write in [false, true] {
        let file = open::<R>(&scratch.path, OpenMode::Write).await;
        file.try_lock().await.expect("expected to lock the file");
        file.write_all_at("x", 0).await.into_result().unwrap();
        if has_dropped_write {
            let mut write = Box::pin(file.write_at(vec![2; 4096], 0));
            let _ = support::poll_once(write.as_mut()).await;
        }
        drop(file);
        if has_dropped_write {
            let ended = soon::<R, _>("the lock", async {
                // Bounded by the time that `soon` permits.
                while scratch.file.try_lock().await.is_err() {
                    R::sleep(support::A_WHILE).await;
                }
            });
            ended.await;
        } else {
            let other = open::<R>(&scratch.path, OpenMode::Write).await;
            other.try_lock().await.expect("expected to lock the file, which is closed");
        }
    }
    scratch.remove().await;
}

/// "A lock is held until such a write has ended": who gets the lock next finds a file that no longer changes. "It may be
/// cut even later, as for a dropped write": also after a dropped `set_len`.
pub async fn a_lock_is_held_until_dropped_writes_have_ended<R: Runtime + Files>() {
    const ROUNDS: u64 = if cfg!(miri) { 4 } else { 40 };
    const BYTES: usize = support::scaled(FILE_TRANSFER_BYTES_MAX);
    let scratch = Scratch::<R>::new().await;
    for round in 0..ROUNDS {
        let file = open::<R>(&scratch.path, OpenMode::Write).await;
        file.try_lock().await.expect("expected to lock the file");
        let write = |number: u64| {
            let (file, bytes, offset) = (&file, vec![2; BYTES], number * BYTES as u64);
            Box::pin(async move {
                // A round has one kind of them, or all.
                match if round % 4 == 3 { number % 3 } else { round % 4 } {
                    0 => drop(file.write_at(bytes, offset).await),
                    1 => {
                        let mut bufs = IoVec::new();
                        bufs.push(bytes);
                        drop(file.write_vectored_at(bufs, offset).await);
                    }
                    _ => drop(file.set_len(offset).await),
                }
            })
        };
        let mut writes: Vec<_> = (0..9).map(write).collect();
        for write in &mut writes {
            let _ = support::poll_once(write.as_mut()).await;
        }
        R::sleep(Duration::from_micros(50 * round)).await; // they are at another point in each round
        drop(writes);
        drop(file);
        let other = open::<R>(&scratch.path, OpenMode::Write).await;
        let locked = soon::<R, _>("the lock", async {
            // Bounded by the time that `soon` permits.
            while other.try_lock().await.is_err() {
                R::sleep(Duration::from_millis(1)).await;
            }
        });
        locked.await;
        other.set_len(0).await.unwrap();
        R::sleep(support::A_WHILE).await;
        let size = other.size().await.unwrap();
        assert_eq!(size, 0, "the length of a file that was emptied under the lock");
    }
    scratch.remove().await;
}

/// "`NotFound`, `AlreadyExists` as `mode` says, `IsADirectory` for writing." "Errors keep their OS error code."
pub async fn open_says_what_it_did_not_find<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    let missing = scratch.dir.join("missing");
    let refused = [
        (&missing, OpenMode::Read, ErrorKind::NotFound, 2),
        (&missing, OpenMode::Write, ErrorKind::NotFound, 2),
        (&missing.join("below"), OpenMode::Create, ErrorKind::NotFound, 2),
        (&scratch.path, OpenMode::CreateNew, ErrorKind::AlreadyExists, 17),
        (&scratch.dir, OpenMode::Write, ErrorKind::IsADirectory, 21),
    ];
    for (path, mode, kind, code) in refused {
        let error = expect_error(R::open(path, mode).await, kind);
        assert_eq!(error.raw_os_error(), Some(code), "the OS error code of {error:?}");
    }
    let error = expect_error(R::list_dir(&missing).await, ErrorKind::NotFound);
    assert_eq!(error.raw_os_error(), Some(2), "the OS error code of {error:?}");
    expect_error(R::remove_file(&missing).await, ErrorKind::NotFound);
    expect_error(R::rename(&missing, &scratch.path).await, ErrorKind::NotFound);
    expect_error(R::sync_dir(&missing).await, ErrorKind::NotFound);
    scratch.remove().await;
}

/// "Creates an empty file if there is none": one that exists keeps its contents.
pub async fn open_keeps_the_contents<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"contents").await;
    for mode in [OpenMode::Read, OpenMode::Write, OpenMode::Create] {
        let file = open::<R>(&scratch.path, mode).await;
        assert_eq!(contents::<R>(&file).await, b"contents", "after opening for {mode:?}");
    }
    let new = open::<R>(&scratch.dir.join("new"), OpenMode::Create).await;
    assert_eq!(contents::<R>(&new).await, b"");
    drop(new);
    scratch.remove().await;
}

/// "Renames a file. A file that had the new name is removed."
pub async fn rename_replaces_in_one_step<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"old").await;
    let new_path = scratch.dir.join("new");
    let new = open::<R>(&new_path, OpenMode::CreateNew).await;
    new.write_all_at("new", 0).await.into_result().unwrap();
    R::rename(&new_path, &scratch.path).await.expect("expected to rename");
    expect_error(R::open(&new_path, OpenMode::Read).await, ErrorKind::NotFound);
    let replaced = open::<R>(&scratch.path, OpenMode::Read).await;
    assert_eq!(contents::<R>(&replaced).await, b"new");
    assert_eq!(scratch.contents().await, b"old", "the replaced file, which is open");
    scratch.remove().await;
}

/// "Files that are open stay readable and writable."
pub async fn a_removed_file_stays_readable<R: Runtime + Files>() {
    let scratch = Scratch::<R>::with(b"still ").await;
    R::remove_file(&scratch.path).await.expect("expected to remove the file");
    expect_error(R::open(&scratch.path, OpenMode::Read).await, ErrorKind::NotFound);
    scratch.write(b"here".to_vec(), 6).await;
    assert_eq!(scratch.contents().await, b"still here");
    scratch.remove().await;
}

/// "The entries of a directory, in order of their names."
pub async fn list_dir_names_the_entries_in_order<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    for name in ["b", "c", "a"] {
        drop(open::<R>(&scratch.dir.join(name), OpenMode::Create).await);
    }
    R::create_dir_all(&scratch.dir.join("dir")).await.expect("expected to create a directory");
    let entries = R::list_dir(&scratch.dir).await.expect("expected to list the directory");
    let entries: Vec<_> =
        entries.iter().map(|entry| (entry.name.to_str().unwrap(), entry.is_dir)).collect();
    let expected = [("a", false), ("b", false), ("c", false), ("dir", true), ("file", false)];
    assert_eq!(entries, expected);
    scratch.remove().await;
}

/// "Removes an empty directory. `DirectoryNotEmpty`."
pub async fn remove_dir_refuses_a_directory_with_entries<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    expect_error(R::remove_dir(&scratch.dir).await, ErrorKind::DirectoryNotEmpty);
    let dir = scratch.dir.clone();
    scratch.remove().await;
    expect_error(R::list_dir(&dir).await, ErrorKind::NotFound);
}

/// "Creates a directory and those above it. An existing directory is no error."
pub async fn create_dir_all_creates_those_above<R: Runtime + Files>() {
    let scratch = Scratch::<R>::new().await;
    let (above, below) = (scratch.dir.join("above"), scratch.dir.join("above/below"));
    for _ in 0..2 {
        R::create_dir_all(&below).await.expect("expected to create the directories");
    }
    let entries = R::list_dir(&above).await.expect("expected to list the directory");
    assert_eq!(entries.len(), 1, "the entries of the directory above");
    R::remove_dir(&below).await.expect("expected to remove the directory");
    scratch.remove().await;
}

/// "A dropped read forfeits its buffer, which is freed some time after the kernel has released it": also when the
/// runtime ends meanwhile.
pub fn block_on_ends_while_operations_run<R: Runtime + Files>(config: &R::Config) {
    let rounds = if cfg!(miri) { 2 } else { 20 };
    for round in 0..rounds {
        support::run::<R, _>(config, async {
            let scratch = Scratch::<R>::with(&pattern(1 << 20)).await;
            scratch.file.try_lock().await.expect("expected to lock the file");
            let Scratch { dir, path, file } = scratch;
            let file = Rc::new(file);
            for _ in 0..4 {
                let file = Rc::clone(&file);
                drop(R::spawn(async move {
                    loop {
                        let read = file.read_at(Vec::with_capacity(1 << 20), 0).await;
                        let (n, bytes) = read.into_result().expect("expected to read");
                        let written = file.write_at(bytes, 0).await.into_result();
                        assert!(written.expect("expected to write").0 <= n);
                        file.sync_data().await.expect("expected to sync");
                    }
                }));
            }
            drop(file);
            // The operations are at another point in each round.
            R::sleep(Duration::from_micros(300 * round)).await;
            R::remove_file(&path).await.expect("expected to remove the file");
            R::remove_dir(&dir).await.expect("expected to remove the directory");
        });
    }
}
