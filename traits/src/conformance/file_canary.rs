//! Backends whose files each break one sentence of the contract. They test the cases of [`files`](super::files).
//!
//! ```ignore
//! owned_io::file_canaries! { runtime: my_backend::MyRuntime, config: my_backend::Config::default() }
//! ```

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use super::prove::prove;
use super::support;
use crate::{
    BufResult, Clock, DirEntry, Executor, FILE_TRANSFER_BYTES_MAX, File, Files, IoBuf, IoBufExt,
    IoBufMut, IoBufMutExt, IoVec, OpenMode, OwnedReadAt, OwnedReadAtExt, OwnedWriteAt,
    OwnedWriteAtExt, Random, Runtime, Tcp, forward_runtime,
};

/// The sentence that a canary breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDefect {
    /// No defect. [`Sound`] uses it, to show that a case fails because of the defect, not the wrapper.
    None,
    /// A read does not shorten the length of a longer buffer.
    KeepsTheLength,
    /// A read sets the length, but keeps the old bytes.
    KeepsStaleBytes,
    /// An error empties the buffer.
    ClearsOnError,
    /// A read at the end is an error.
    FailsAtTheEnd,
    /// A read begins at the start of the file, whatever the position.
    ReadsAtTheStart,
    /// A read or a vectored write that does not have to wait never yields.
    NeverYields,
    /// A read sees the file as it was when it was opened.
    ReadsTheCache,
    /// A write takes its whole buffer, whatever its length is.
    WritesAll,
    /// A write of a non-empty buffer returns zero.
    WritesZero,
    /// A write fills a gap before it with other bytes than zeros.
    FillsGaps,
    /// A vectored write writes the pieces in reverse order.
    ReordersPieces,
    /// A vectored write does not advance.
    ForgetsToAdvance,
    /// The offset is passed to the kernel as it is, and taken for a smaller one.
    WrapsOffsets,
    /// A file is extended by other bytes than zeros.
    ExtendsByOnes,
    /// Reserving space changes the length.
    ExtendsOnAllocate,
    /// A lock is granted to all.
    NeverLocks,
    /// A file that was dropped stays open.
    LeaksFiles,
    /// A lock ends while a dropped write of its file goes on.
    UnlocksEarly,
    /// A dropped operation leaks its buffer.
    LeaksBuffers,
    /// A file that is opened for writing is cut to nothing.
    CutsOnOpen,
    /// A file that exists is opened as a new one.
    ReusesNames,
    /// A file is not renamed if one has the new name.
    KeepsTheOldFile,
    /// The entries of a directory come in the reverse order.
    ReversesEntries,
}

/// A type that selects a [`FileDefect`].
pub trait HasFileDefect: 'static {
    /// The defect.
    const DEFECT: FileDefect;
}

/// Selects no defect.
#[derive(Debug)]
pub struct Sound;

impl HasFileDefect for Sound {
    const DEFECT: FileDefect = FileDefect::None;
}

/// Panics unless a case fails with the defect of `D` (`defective`) and passes without it (`sound`).
pub fn check_canary<R: Runtime, D: HasFileDefect, F: Future + 'static, G: Future + 'static>(
    config: &R::Config,
    defective: fn() -> F,
    sound: fn() -> G,
) {
    let is_noticed = prove(config, move |config| drop(support::run::<R, F>(config, defective())));
    assert!(is_noticed.is_err(), "{:?} was not noticed", D::DEFECT);
    let sound = prove(config, move |config| drop(support::run::<R, G>(config, sound())));
    assert_eq!(sound, Ok(()), "fails without {:?} too", D::DEFECT);
}

/// Creates a `#[test]` for each canary over a correct runtime. The test passes if the case of its defect fails.
#[macro_export]
macro_rules! file_canaries {
    (runtime: $runtime:ty, config: $config:expr $(,)?) => {
        $crate::__file_canaries! {
            { $runtime, $config }
            keeps_the_length: KeepsTheLength => read_at_sets_the_exact_length,
            keeps_stale_bytes: KeepsStaleBytes => read_at_leaves_no_stale_bytes,
            clears_on_error: ClearsOnError => read_at_error_leaves_the_length,
            fails_at_the_end: FailsAtTheEnd => read_at_is_zero_at_the_end,
            reads_at_the_start: ReadsAtTheStart => read_at_reads_at_the_position,
            never_yields: NeverYields => operations_let_others_run,
            never_yields_to_vectored_writes: NeverYields => vectored_writes_let_others_run,
            reads_the_cache: ReadsTheCache => a_read_sees_the_writes_before_it,
            writes_all: WritesAll => one_operation_transfers_a_bounded_number_of_bytes,
            writes_zero: WritesZero => write_at_takes_at_least_one_byte,
            fills_gaps: FillsGaps => write_at_past_the_end_leaves_zeros,
            reorders_pieces: ReordersPieces => write_vectored_at_keeps_the_order_and_advances,
            forgets_to_advance: ForgetsToAdvance => write_vectored_at_keeps_the_order_and_advances,
            wraps_offsets: WrapsOffsets => offsets_beyond_the_maximum_are_refused,
            extends_by_ones: ExtendsByOnes => set_len_cuts_and_extends_by_zeros,
            extends_on_allocate: ExtendsOnAllocate => allocate_keeps_the_length,
            never_locks: NeverLocks => a_lock_excludes_other_locks,
            leaks_files: LeaksFiles => a_lock_ends_with_its_file,
            unlocks_early: UnlocksEarly => a_lock_is_held_until_dropped_writes_have_ended,
            leaks_buffers: LeaksBuffers => the_buffer_of_a_dropped_operation_is_freed,
            cuts_on_open: CutsOnOpen => open_keeps_the_contents,
            reuses_names: ReusesNames => open_says_what_it_did_not_find,
            keeps_the_old_file: KeepsTheOldFile => rename_replaces_in_one_step,
            reverses_entries: ReversesEntries => list_dir_names_the_entries_in_order,
        }
    };
}

/// Expands to the tests of [`file_canaries!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __file_canaries {
    ({ $runtime:ty, $config:expr } $($test:ident: $defect:ident => $case:ident,)*) => {$(
        #[test]
        fn $test() {
            use $crate::conformance::{file_canary, files};
            struct This;
            impl file_canary::HasFileDefect for This {
                const DEFECT: file_canary::FileDefect = file_canary::FileDefect::$defect;
            }
            file_canary::check_canary::<$runtime, This, _, _>(
                &$config,
                files::$case::<file_canary::FileCanary<$runtime, This>>,
                files::$case::<file_canary::FileCanary<$runtime, file_canary::Sound>>,
            );
        }
    )*};
}

/// `R`, whose files have the defect of `D`.
#[derive(Debug)]
pub struct FileCanary<R, D>(PhantomData<(R, D)>);

impl<R: Runtime, D: HasFileDefect> Clock for FileCanary<R, D> {
    forward_runtime!(Clock => R);
}
impl<R: Runtime, D: HasFileDefect> Random for FileCanary<R, D> {
    forward_runtime!(Random => R);
}
impl<R: Runtime, D: HasFileDefect> Executor for FileCanary<R, D> {
    forward_runtime!(Executor => R);
}
impl<R: Runtime, D: HasFileDefect> Tcp for FileCanary<R, D> {
    forward_runtime!(Tcp => R);
}

impl<R: Runtime + Files, D: HasFileDefect> Files for FileCanary<R, D> {
    type File = CanaryFile<R, D>;

    async fn open(path: &Path, mode: OpenMode) -> io::Result<Self::File> {
        let mode = match (D::DEFECT, mode) {
            (FileDefect::ReusesNames, OpenMode::CreateNew) => OpenMode::Create,
            _ => mode,
        };
        let inner = Rc::new(R::open(path, mode).await?);
        let mut cache = None;
        match D::DEFECT {
            FileDefect::CutsOnOpen if mode != OpenMode::Read => inner.set_len(0).await?,
            FileDefect::LeaksFiles => {
                LEAKED.with_borrow_mut(|leaked| leaked.push(Box::new(Rc::clone(&inner))));
            }
            FileDefect::ReadsTheCache | FileDefect::NeverYields => {
                let len = inner.size().await? as usize;
                let read = inner.read_exact_at(Vec::with_capacity(len), len, 0).await;
                cache = Some(RefCell::new(read.into_result()?.1));
            }
            _ => {}
        }
        Ok(CanaryFile {
            inner,
            path: path.to_owned(),
            lock: Cell::new(None),
            cache,
            defect: PhantomData,
        })
    }

    async fn list_dir(path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = R::list_dir(path).await?;
        if D::DEFECT == FileDefect::ReversesEntries {
            entries.reverse();
        }
        Ok(entries)
    }

    async fn create_dir_all(path: &Path) -> io::Result<()> {
        R::create_dir_all(path).await
    }

    async fn rename(from: &Path, to: &Path) -> io::Result<()> {
        if D::DEFECT == FileDefect::KeepsTheOldFile && R::open(to, OpenMode::Read).await.is_ok() {
            return R::remove_file(from).await;
        }
        R::rename(from, to).await
    }

    async fn remove_file(path: &Path) -> io::Result<()> {
        R::remove_file(path).await
    }

    async fn remove_dir(path: &Path) -> io::Result<()> {
        R::remove_dir(path).await
    }

    async fn sync_dir(path: &Path) -> io::Result<()> {
        R::sync_dir(path).await
    }
}

/// A file of a canary.
pub struct CanaryFile<R: Files, D> {
    inner: Rc<R::File>,
    path: PathBuf,
    /// The open file that has the lock, if it is another one.
    lock: Cell<Option<R::File>>,
    /// The contents, for defects that read from memory.
    cache: Option<RefCell<Vec<u8>>>,
    defect: PhantomData<D>,
}

thread_local! {
    /// Dropped at the end of the case's thread.
    static LEAKED: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

impl<R: Runtime + Files, D: HasFileDefect> OwnedReadAt for CanaryFile<R, D> {
    async fn read_at<B: IoBufMut>(&self, mut buf: B, mut offset: u64) -> BufResult<usize, B> {
        let before = buf.buf_bytes().to_vec();
        match D::DEFECT {
            FileDefect::WrapsOffsets => offset &= 0xffff,
            FileDefect::ReadsAtTheStart => offset = 0,
            FileDefect::LeaksBuffers => {
                // The read begins, as on a ring, and is forgotten when the caller drops it.
                struct Forgotten<B>(Option<B>);
                impl<B> Drop for Forgotten<B> {
                    fn drop(&mut self) {
                        std::mem::forget(self.0.take());
                    }
                }
                let mut held = Forgotten(Some(buf));
                let len = held.0.as_ref().map_or(0, IoBufMut::buf_capacity);
                let read = self.inner.read_at(Vec::with_capacity(len), offset).await;
                buf = held.0.take().expect("put there above");
                return match read.into_result() {
                    Ok((_, bytes)) => BufResult(Ok(buf.buf_fill(&bytes)), buf),
                    Err(error) => BufResult(Err(error), buf),
                };
            }
            _ => {}
        }
        if let Some(cache) = &self.cache
            && D::DEFECT == FileDefect::ReadsTheCache
        {
            let cache = cache.borrow();
            let start = (offset as usize).min(cache.len());
            let n = buf.buf_fill(&cache[start..]);
            return BufResult(Ok(n), buf);
        }
        if D::DEFECT == FileDefect::NeverYields && buf.buf_capacity() == 64 {
            let n = buf.buf_fill(&[0; 64]); // as if the file were mapped into memory
            return BufResult(Ok(n), buf);
        }
        let result;
        BufResult(result, buf) = self.inner.read_at(buf, offset).await;
        match (D::DEFECT, &result) {
            (FileDefect::KeepsTheLength, &Ok(n)) => {
                let mut bytes = buf.buf_bytes().to_vec();
                bytes.extend(before.get(n..).unwrap_or_default());
                buf.buf_fill(&bytes);
            }
            (FileDefect::KeepsStaleBytes, &Ok(n)) => {
                let mut bytes = before;
                bytes.resize(n, 0);
                buf.buf_fill(&bytes);
            }
            (FileDefect::ClearsOnError, Err(_)) => buf.buf_clear(),
            (FileDefect::FailsAtTheEnd, Ok(0)) if buf.buf_capacity() > 0 => {
                return BufResult(Err(io::ErrorKind::UnexpectedEof.into()), buf);
            }
            _ => {}
        }
        BufResult(result, buf)
    }
}

impl<R: Runtime + Files, D: HasFileDefect> OwnedWriteAt for CanaryFile<R, D> {
    async fn write_at<B: IoBuf>(&self, buf: B, mut offset: u64) -> BufResult<usize, B> {
        match D::DEFECT {
            FileDefect::WritesZero => return BufResult(Ok(0), buf),
            FileDefect::WrapsOffsets => offset &= 0xffff,
            FileDefect::WritesAll => {
                let len = buf.buf_len();
                return self.inner.write_all_at(buf, offset).await.map(|()| len);
            }
            FileDefect::UnlocksEarly => {
                // The write begins, as on a ring, and goes on when the caller drops it.
                let (inner, bytes) = (Rc::clone(&self.inner), buf.buf_bytes().to_vec());
                let writing = R::spawn(async move {
                    R::sleep(Duration::from_millis(1)).await;
                    inner.write_at(bytes, offset).await.0
                });
                return BufResult(writing.await.expect("no panic"), buf);
            }
            FileDefect::FillsGaps => {
                let len = self.inner.size().await.unwrap_or(offset);
                let gap = vec![1; offset.saturating_sub(len) as usize];
                let _ = self.inner.write_all_at(gap, len).await;
            }
            _ => {}
        }
        self.inner.write_at(buf, offset).await
    }

    async fn write_vectored_at<B: IoBuf>(
        &self,
        mut bufs: IoVec<B>,
        offset: u64,
    ) -> BufResult<usize, IoVec<B>> {
        if D::DEFECT == FileDefect::NeverYields && bufs.bytes_left() == 64 {
            bufs.advance(64); // as if the file were mapped into memory
            return BufResult(Ok(64), bufs);
        }
        if !matches!(D::DEFECT, FileDefect::ReordersPieces | FileDefect::ForgetsToAdvance) {
            return self.inner.write_vectored_at(bufs, offset).await;
        }
        let pieces = bufs.as_io_slices_within(FILE_TRANSFER_BYTES_MAX).iter();
        let mut pieces: Vec<Vec<u8>> = pieces.map(|piece| piece.to_vec()).collect();
        if D::DEFECT == FileDefect::ReordersPieces {
            pieces.reverse();
        }
        let all = pieces.concat();
        let n = all.len();
        let BufResult(result, _) = self.inner.write_all_at(all, offset).await;
        if D::DEFECT == FileDefect::ReordersPieces && result.is_ok() {
            bufs.advance(n);
        }
        BufResult(result.map(|()| n), bufs)
    }
}

impl<R: Runtime + Files, D: HasFileDefect> File for CanaryFile<R, D> {
    async fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data().await
    }

    async fn size(&self) -> io::Result<u64> {
        self.inner.size().await
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        let size = self.inner.size().await?;
        if D::DEFECT == FileDefect::ExtendsByOnes && len > size {
            let ones = vec![1; (len - size) as usize];
            return self.inner.write_all_at(ones, size).await.0;
        }
        self.inner.set_len(len).await
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        if D::DEFECT == FileDefect::ExtendsOnAllocate {
            return self.inner.set_len(len.max(self.inner.size().await?)).await;
        }
        self.inner.allocate(len).await
    }

    async fn try_lock(&self) -> io::Result<()> {
        match D::DEFECT {
            FileDefect::NeverLocks => Ok(()),
            FileDefect::UnlocksEarly => {
                let lock = R::open(&self.path, OpenMode::Read).await?;
                lock.try_lock().await?;
                self.lock.set(Some(lock));
                Ok(())
            }
            _ => self.inner.try_lock().await,
        }
    }
}
