//! [`Counted`]: a connection that counts its operations.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use owned_io::{
    BufResult, ByteStream, IoBuf, IoBufMut, IoVec, OwnedRead, OwnedWrite, Pool, PoolBuf,
    ShutdownHandle,
};

/// A connection, or half of one, and the number of its reads and writes.
pub(crate) struct Counted<T> {
    inner: T,
    operations: Rc<Cell<u64>>,
}

impl<T> Counted<T> {
    pub(crate) const fn new(inner: T, operations: Rc<Cell<u64>>) -> Self {
        Self { inner, operations }
    }

    fn count(&self) {
        self.operations.set(self.operations.get() + 1);
    }
}

impl<T: OwnedRead> OwnedRead for Counted<T> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.count();
        self.inner.read(buf).await
    }

    async fn read_pooled(&mut self, pool: &Pool) -> io::Result<PoolBuf> {
        self.count();
        self.inner.read_pooled(pool).await
    }
}

impl<T: OwnedWrite> OwnedWrite for Counted<T> {
    async fn write<B: IoBuf>(&mut self, buf: B) -> BufResult<usize, B> {
        self.count();
        self.inner.write(buf).await
    }

    async fn write_vectored<B: IoBuf>(&mut self, bufs: IoVec<B>) -> BufResult<usize, IoVec<B>> {
        self.count();
        self.inner.write_vectored(bufs).await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.inner.shutdown().await
    }
}

impl<T: ByteStream> ByteStream for Counted<T> {
    type ReadHalf = Counted<T::ReadHalf>;
    type WriteHalf = Counted<T::WriteHalf>;

    fn into_split(self) -> (Self::ReadHalf, Self::WriteHalf) {
        let (read, write) = self.inner.into_split();
        (Counted::new(read, Rc::clone(&self.operations)), Counted::new(write, self.operations))
    }

    fn shutdown_handle(&self) -> ShutdownHandle {
        self.inner.shutdown_handle()
    }
}
