//! How the writer removes segments: all of them, or the first ones.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use owned_io::{File, Files, Runtime};

use crate::format::SEGMENT_HEADER_BYTES;
use crate::segment::Segment;
use crate::shared::{BATCH_OVERHEAD_BYTES, Keep, Request};
use crate::writer::Writer;
use crate::{Error, ErrorKind, Position, Retention, Trimmed, recovery};

impl<R: Runtime + Files> Writer<R> {
    /// Removes all segments, from the first on, and begins again at offset 0. If there is no room for a segment, the next
    /// batch begins it.
    pub(crate) async fn purge(&mut self) -> Result<(), Error> {
        let cached = {
            let state = &mut *self.shared.state.borrow_mut();
            state.cache_bytes = 0;
            state.clear_segments();
            std::mem::take(&mut state.cache)
        };
        drop(cached); // not while the state is borrowed: the destructors are code of the caller
        let dir = &self.shared.dir;
        // As the directory lists them: one may be there that could not be created completely.
        let bases = recovery::list::<R>(dir).await;
        for base_offset in bases.map_err(Error::into_failed)? {
            let path = Segment::<R>::new(dir, base_offset, 0).path;
            let removed = R::remove_file(&path).await;
            removed.map_err(|error| Error::failed("remove", &path, error))?;
        }
        let synced = R::sync_dir(dir).await;
        synced.map_err(|error| Error::failed("sync", dir, error))?;
        let mut first = self.create_first().await?;
        if first.is_none() {
            // The removed file keeps its space while it is open, so it is truncated. Concurrent reads fail, see that the
            // segment is gone, and go on. An error: the space is freed with the next segment.
            let _ = self.opened.file.set_len(0).await;
            first = self.create_first().await?;
        }
        {
            let state = &mut *self.shared.state.borrow_mut();
            first.iter().for_each(|first| state.push_segment(Rc::clone(first)));
            state.assigned = Position { base_offset: 0, timestamp: self.timestamp };
            state.next = 0;
            // Appends wait for the last of them: it sets the next offset to 0 again.
            let is_purge = |request: &Request| matches!(request, Request::Purge(_));
            state.is_purging = state.queue.iter().any(is_purge);
        }
        match first {
            Some(first) => self.begin(first),
            None => self.defer_segment(),
        }
        self.shared.room.notify();
        Ok(())
    }

    /// The segment after a purge. `None`: there is no room for it.
    async fn create_first(&self) -> Result<Option<Rc<Segment<R>>>, Error> {
        match self.create(0, self.timestamp).await {
            Ok(first) => Ok(Some(first)),
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes segments from the first on.
    pub(crate) async fn trim(&mut self, keep: Keep) -> Result<Trimmed, Error> {
        if let Keep::From(offset) = keep {
            let next = self.shared.state.borrow().next;
            // All batches that were appended are acknowledged here: the writer does one thing at a time.
            if next <= offset && self.len > SEGMENT_HEADER_BYTES as u64 {
                self.roll(next).await?;
            }
        }
        let mut trimmed = Trimmed { segments: 0, bytes: 0, first: 0 };
        let removed = self.remove_first(keep, &mut trimmed).await;
        let dropped: Vec<_> = {
            let state = &mut *self.shared.state.borrow_mut();
            trimmed.first = state.offsets().first;
            let stale = state.cache.partition_point(|batch| batch.base_offset < trimmed.first);
            let dropped: Vec<_> = state.cache.drain(..stale).collect();
            let bytes = dropped.iter().map(|batch| batch.bytes.len() + BATCH_OVERHEAD_BYTES);
            state.cache_bytes -= bytes.sum::<usize>();
            dropped
        };
        drop(dropped); // not while the state is borrowed: the destructors are code of the caller
        if trimmed.segments > 0 {
            let dir = &self.shared.dir;
            R::sync_dir(dir).await.map_err(|error| Error::io("sync", dir, error))?;
        }
        removed.map(|()| trimmed)
    }

    async fn remove_first(&self, keep: Keep, trimmed: &mut Trimmed) -> Result<(), Error> {
        // Each round removes a segment.
        while self.is_first_unused(keep).await? {
            let Some(first) = self.shared.state.borrow_mut().pop_segment() else { break };
            if let Err(error) = R::remove_file(&first.path).await
                && error.kind() != std::io::ErrorKind::NotFound
            {
                let error = first.io("remove", error);
                self.shared.state.borrow_mut().restore_segment(first);
                return Err(error);
            }
            trimmed.segments += 1;
            trimmed.bytes += first.len.get();
        }
        Ok(())
    }

    /// Whether the first segment is to be removed. It is not the last one.
    async fn is_first_unused(&self, keep: Keep) -> Result<bool, Error> {
        let (second, bytes) = {
            let state = self.shared.state.borrow();
            (state.segments.get(1).cloned(), state.bytes)
        };
        let Some(second) = second else { return Ok(false) };
        match keep {
            Keep::From(offset) => Ok(second.base_offset <= offset),
            Keep::Retention(Retention { bytes_max, age_max }) => {
                if bytes_max.is_some_and(|bytes_max| bytes > bytes_max) {
                    return Ok(true);
                }
                let Some(age_max) = age_max else { return Ok(false) };
                // Its header has the timestamp of the last batch before it.
                let newest = second.header().await?.timestamp;
                let newest = SystemTime::UNIX_EPOCH + Duration::from_micros(newest);
                let age = R::wall_clock().duration_since(newest).unwrap_or(Duration::ZERO);
                Ok(age > age_max)
            }
        }
    }
}
