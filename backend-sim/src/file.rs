//! [`SimFile`]: an open file, and its operations as a kernel performs them.

use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::Duration;
use std::{fmt, io};

use owned_io::{
    BufResult, FILE_OFFSET_MAX, FILE_TRANSFER_BYTES_MAX, File, IoBuf, IoBufMut, IoBufMutExt, IoVec,
    OpenMode, OwnedReadAt, OwnedWriteAt, coop,
};

use crate::core::{Core, Event, Time, after};
use crate::disk::Disk;
use crate::errno::{EINVAL, EIO, EMFILE, error};
use crate::executor::{self, Shared};
use crate::host::HostId;
use crate::pending::{Pieces, Single, fingerprint};
use crate::rng::Rng;
use crate::slab::Key;
use crate::timer::Sleep;
use crate::trace::TraceKind;

/// The longest time of a read, a write or a change of names, in microseconds.
const OPERATION_TAKES_MAX: u64 = 100;

/// The longest time of a sync, in microseconds.
const SYNC_TAKES_MAX: u64 = 2_000;

/// The longest time of any operation on a disk that is slow, in microseconds.
const SLOW_TAKES_MAX: u64 = 1_000_000;

/// How much later a dropped write may happen, in microseconds.
const LATE_BY_MAX: u64 = 1_000;

/// The file that [`Sim::open`](owned_io::Files::open) returns.
pub struct SimFile {
    /// Weak, because a file may be in a task, which the simulation owns.
    world: Weak<Shared>,
    host: HostId,
    /// The crashes of the host before the file was opened. After another, it is closed.
    boots: u32,
    id: u64,
}

/// A write that was dropped and still happens.
pub(crate) struct LateWrite {
    host: HostId,
    boots: u32,
    id: u64,
    offset: u64,
    bytes: Vec<u8>,
}

pub(crate) async fn open(path: &Path, mode: OpenMode) -> io::Result<SimFile> {
    let world = executor::current();
    let host = world.host();
    takes(&world, host, OPERATION_TAKES_MAX).await;
    world.with(|core| {
        let state = core.hosts.get_mut(host);
        if !state.open_descriptor(core.now) {
            return Err(error(EMFILE));
        }
        let opened = state.disk.open(path, mode).inspect_err(|_| state.close_descriptor());
        let boots = state.disk.boots;
        Ok(SimFile { world: Rc::downgrade(&world), host, boots, id: opened? })
    })
}

/// Reads or changes names, at some time during the call.
pub(crate) async fn on_disk<T>(f: impl FnOnce(&mut Disk, Time) -> io::Result<T>) -> io::Result<T> {
    let world = executor::current();
    let host = world.host();
    let call = || world.with(|core| f(&mut core.hosts.get_mut(host).disk, core.now));
    if world.with(|core| core.rng.one_in(2)) {
        let result = call();
        takes(&world, host, OPERATION_TAKES_MAX).await;
        return result;
    }
    takes(&world, host, OPERATION_TAKES_MAX).await;
    call()
}

async fn takes(world: &Rc<Shared>, host: HostId, micros_max: u64) {
    let duration = world.with(|core| {
        let is_slow = core.hosts.get(host).disk.slow_until > core.now;
        let micros_max = if is_slow { SLOW_TAKES_MAX } else { micros_max };
        Duration::from_micros(1 + core.rng.below(micros_max))
    });
    Sleep::new(world, duration).await;
}

impl OwnedReadAt for SimFile {
    async fn read_at<B: IoBufMut>(&self, mut buf: B, offset: u64) -> BufResult<usize, B> {
        if offset > FILE_OFFSET_MAX {
            return BufResult(Err(error(EINVAL)), buf);
        }
        let len = buf.buf_capacity().min(FILE_TRANSFER_BYTES_MAX);
        if len == 0 {
            return BufResult(Ok(0), buf);
        }
        let _operation = self.begin();
        self.takes(OPERATION_TAKES_MAX).await;
        let result = self.with(|disk, rng, now| {
            let bytes = disk.read(now, self.id, offset, len)?;
            let n = if bytes.is_empty() { 0 } else { rng.part_of(bytes.len()) };
            Ok(buf.buf_fill(&bytes[..n]))
        });
        self.record(TraceKind::FileRead, &result);
        coop::consume_transfer(*result.as_ref().unwrap_or(&0));
        BufResult(result, buf)
    }
}

impl OwnedWriteAt for SimFile {
    async fn write_at<B: IoBuf>(&self, buf: B, offset: u64) -> BufResult<usize, B> {
        if buf.buf_len() == 0 {
            return BufResult(check_offset(offset).map(|()| 0), buf);
        }
        let BufResult(result, Single(buf)) = self.write(Single(buf), offset).await;
        BufResult(result, buf)
    }

    async fn write_vectored_at<B: IoBuf>(
        &self,
        bufs: IoVec<B>,
        offset: u64,
    ) -> BufResult<usize, IoVec<B>> {
        if bufs.bytes_left() == 0 {
            return BufResult(check_offset(offset).map(|()| 0), bufs);
        }
        let BufResult(result, mut bufs) = self.write(bufs, offset).await;
        if let Ok(n) = result {
            bufs.advance(n);
        }
        BufResult(result, bufs)
    }
}

impl File for SimFile {
    async fn sync_data(&self) -> io::Result<()> {
        let _operation = self.begin();
        let syncing = self.with(|disk, _, _| disk.begin_sync(self.id))?;
        self.takes(SYNC_TAKES_MAX).await;
        let result = self.with(|disk, rng, now| {
            disk.end_sync(now, self.id, syncing, rng)?;
            Ok(0)
        });
        self.record(TraceKind::FileSynced, &result);
        result.map(drop)
    }

    async fn size(&self) -> io::Result<u64> {
        self.takes(OPERATION_TAKES_MAX).await;
        self.with(|disk, _, _| disk.size(self.id))
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        check_offset(len)?;
        let _operation = self.begin();
        self.takes(OPERATION_TAKES_MAX).await;
        self.with(|disk, _, now| disk.set_len(now, self.id, len))
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        check_offset(len)?;
        let _operation = self.begin();
        self.takes(OPERATION_TAKES_MAX).await;
        self.with(|disk, _, now| disk.allocate(now, self.id, len))
    }

    async fn try_lock(&self) -> io::Result<()> {
        self.takes(OPERATION_TAKES_MAX).await;
        self.with(|disk, _, _| disk.try_lock(self.id))
    }
}

impl SimFile {
    async fn write<P: Pieces>(&self, pieces: P, offset: u64) -> BufResult<usize, P> {
        if let Err(error) = check_offset(offset) {
            return BufResult(Err(error), pieces);
        }
        let _operation = self.begin();
        let mut held = PendingWrite { file: self, offset, pieces: Some(pieces), result: None };
        let before = fingerprint(held.pieces());
        // The kernel takes the bytes at the beginning or at the end, while others read and write.
        if self.chance(2) {
            held.finish();
        }
        self.takes(OPERATION_TAKES_MAX).await;
        held.finish();
        let unchanged = fingerprint(held.pieces()) == before;
        assert!(
            unchanged,
            "somebody wrote to a buffer, or moved its bytes, while a write had it (see IoBuf, \
             # Safety, 2 and 4)"
        );
        let result = held.result.take().expect("it is finished");
        coop::consume_transfer(*result.as_ref().unwrap_or(&0));
        BufResult(result, held.pieces.take().expect("there until it is given back"))
    }

    /// Calls `f`, unless the simulation is gone or the host has crashed.
    fn with<T>(&self, f: impl FnOnce(&mut Disk, &mut Rng, Time) -> io::Result<T>) -> io::Result<T> {
        let Some(world) = self.world.upgrade() else { return Err(error(EIO)) };
        world.with(|core| {
            let disk = &mut core.hosts.get_mut(self.host).disk;
            if disk.boots != self.boots {
                return Err(error(EIO));
            }
            f(disk, &mut core.rng, core.now)
        })
    }

    fn chance(&self, n: u64) -> bool {
        self.with(|_, rng, _| Ok(rng.one_in(n))).unwrap_or(false)
    }

    async fn takes(&self, micros_max: u64) {
        takes(&executor::current(), self.host, micros_max).await;
    }

    fn record(&self, kind: TraceKind, result: &io::Result<usize>) {
        let Some(world) = self.world.upgrade() else { return };
        let (kind, amount) = match result {
            Ok(n) => (kind, *n as u32),
            Err(error) => (TraceKind::Failed, error.raw_os_error().unwrap_or(0) as u32),
        };
        world.with(|core| core.record(self.host, kind, self.id as u32, amount));
    }

    /// The file stays open until the operation is dropped.
    fn begin(&self) -> Operation<'_> {
        let _ = self.with(|disk, _, _| {
            disk.begin(self.id);
            Ok(())
        });
        Operation(self)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let Some(world) = self.world.upgrade() else { return };
        world.with(|core| {
            let state = core.hosts.get_mut(self.host);
            if state.disk.boots == self.boots {
                state.disk.close(self.id);
                state.close_descriptor();
            }
        });
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({})", self.id)
    }
}

struct Operation<'a>(&'a SimFile);

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let _ = self.0.with(|disk, _, _| {
            disk.end(self.0.id);
            Ok(())
        });
    }
}

/// A write and its buffers. If it is dropped it may happen all the same, in part, or later.
struct PendingWrite<'a, P: Pieces> {
    file: &'a SimFile,
    offset: u64,
    pieces: Option<P>,
    result: Option<io::Result<usize>>,
}

impl<P: Pieces> PendingWrite<'_, P> {
    const fn pieces(&self) -> &P {
        self.pieces.as_ref().expect("there until it is given back")
    }

    fn finish(&mut self) {
        if self.result.is_some() {
            return;
        }
        let (file, offset) = (self.file, self.offset);
        let result = file.with(|disk, rng, now| {
            let bytes = first_bytes(self.pieces());
            let fits = disk.check_write(now, file.id, offset, bytes.len())?;
            let n = rng.part_of(fits);
            disk.write(file.id, offset, &bytes[..n], rng);
            Ok(n)
        });
        file.record(TraceKind::FileWrote, &result);
        self.result = Some(result);
    }
}

impl<P: Pieces> Drop for PendingWrite<'_, P> {
    fn drop(&mut self) {
        if self.pieces.is_none() || self.result.is_some() {
            return;
        }
        let Some(world) = self.file.world.upgrade() else { return };
        let choice = world.with(|core| {
            if core.config.dropped_operations_may_complete { core.rng.below(3) } else { 0 }
        });
        match choice {
            0 => {}
            1 => self.finish(),
            _ => {
                let SimFile { host, boots, id, .. } = *self.file;
                let bytes = first_bytes(self.pieces());
                let late = LateWrite { host, boots, id, offset: self.offset, bytes };
                world.with(|core| core.write_late(late));
            }
        }
    }
}

/// The bytes that one operation takes at most.
fn first_bytes(pieces: &impl Pieces) -> Vec<u8> {
    pieces.with(|pieces| {
        let mut bytes = Vec::new();
        for piece in pieces {
            let left = FILE_TRANSFER_BYTES_MAX - bytes.len();
            bytes.extend_from_slice(&piece[..piece.len().min(left)]);
        }
        bytes
    })
}

fn check_offset(offset: u64) -> io::Result<()> {
    if offset > FILE_OFFSET_MAX { Err(error(EINVAL)) } else { Ok(()) }
}

impl Core {
    /// Schedules a write that was dropped. Its file stays open until then.
    fn write_late(&mut self, late: LateWrite) {
        let disk = &mut self.hosts.get_mut(late.host).disk;
        if disk.boots != late.boots {
            return;
        }
        disk.begin(late.id);
        let at = after(self.now, Duration::from_micros(1 + self.rng.below(LATE_BY_MAX)));
        let key = self.late_writes.insert(late);
        self.queue.push(at, Event::LateWrite(key));
    }

    pub(crate) fn finish_late_write(&mut self, key: Key) {
        // The host may have started again meanwhile, which finished it.
        let Some(late) = self.late_writes.remove(key) else { return };
        let disk = &mut self.hosts.get_mut(late.host).disk;
        if disk.boots != late.boots {
            return;
        }
        if let Ok(n) = disk.check_write(self.now, late.id, late.offset, late.bytes.len()) {
            let n = self.rng.part_of(n);
            disk.write(late.id, late.offset, &late.bytes[..n], &mut self.rng);
            self.record(late.host, TraceKind::FileWrote, late.id as u32, n as u32);
        }
        self.hosts.get_mut(late.host).disk.end(late.id);
    }

    /// Finishes the writes of a host that starts again: the end of a process waits for them.
    pub(crate) fn finish_late_writes(&mut self, host: HostId) {
        let of_host = self.late_writes.iter().filter(|(_, late)| late.host == host);
        let keys: Vec<_> = of_host.map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.finish_late_write(key));
    }
}
