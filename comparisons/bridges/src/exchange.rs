//! The server on either engine, which is the end that is measured.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use owned_io::{
    ByteStream, MemoryBudget, Pool, PoolConfig, Runtime, ShutdownHandle, shutdown_after,
};
use owned_io_tungstenite as bridge;
use owned_io_websocket::handshake::Origins;
use owned_io_websocket::stream::{Buffers, Error, Message, PendingRequest, Received, WebSocket};
use owned_io_websocket::{AnyIncoming, AnyOutgoing, Config, Fragment, MessageKind};

use crate::counted::Counted;
use crate::memory::{self, Memory};
use crate::{Case, Direction, MESSAGE_BYTES, TIME_MAX};

/// The cost of one message.
pub(crate) struct Cost {
    pub(crate) time: Duration,
    /// The number of reads and writes.
    pub(crate) operations: u64,
    pub(crate) memory: Memory,
    /// The bytes that a bridge copied and moved. None for the native engine.
    pub(crate) work: Option<(u64, u64)>,
}

/// Upgrades the connection. Then it sends the message and waits for an answer, or asks for the message and receives
/// it.
pub(crate) async fn serve<R: Runtime>(
    stream: impl ByteStream,
    case: Case,
    payload: Bytes,
) -> Result<Cost, Error> {
    let operations = Rc::<Cell<u64>>::default();
    let stream = Counted::new(stream, Rc::clone(&operations));
    let buffers =
        Buffers::new(Pool::new(PoolConfig::default()), MemoryBudget::new(2 * MESSAGE_BYTES));
    let pending = PendingRequest::<R, _>::read(stream, &buffers, Config::default()).await?;
    let meter = Meter { direction: case.direction, payload, operations };
    match case.growth {
        Some(growth) => {
            let accepting = bridge::accept_pending(pending, Origins::Any, None, &[], growth);
            let socket = accepting.await?;
            let bridge::WebSocket { mut incoming, mut outgoing } = socket;
            let connection = outgoing.shutdown_handle();
            let cost = meter.measure::<R>(&mut incoming, &mut outgoing, &connection).await?;
            let work = outgoing.copy_stats();
            Ok(Cost { work: Some((work.copied_bytes, work.moved_bytes)), ..cost })
        }
        None => {
            let socket = pending.accept(Origins::Any, None, &[]).await?;
            let WebSocket { mut incoming, mut outgoing } = socket;
            let connection = outgoing.shutdown_handle();
            meter.measure::<R>(&mut incoming, &mut outgoing, &connection).await
        }
    }
}

struct Meter {
    direction: Direction,
    payload: Bytes,
    operations: Rc<Cell<u64>>,
}

impl Meter {
    async fn measure<R: Runtime>(
        self,
        incoming: &mut impl AnyIncoming,
        outgoing: &mut impl AnyOutgoing,
        connection: &ShutdownHandle,
    ) -> Result<Cost, Error> {
        if matches!(self.direction, Direction::Receives) {
            outgoing.send(Message::Text("go")).await?;
        }
        self.operations.set(0);
        memory::start();
        let started = Instant::now();
        let payload = self.payload.clone();
        let exchange = async {
            if matches!(self.direction, Direction::Sends) {
                outgoing.write_bytes(Fragment::Whole(MessageKind::Binary), payload)?;
                outgoing.flush().await?;
            }
            incoming.receive_owned().await
        };
        let received = shutdown_after::<R, _>(TIME_MAX, connection, exchange).await?;
        let (time, memory) = (started.elapsed(), memory::counted());
        let expected: &[u8] = match self.direction {
            Direction::Sends => &[],
            Direction::Receives => &self.payload[..],
        };
        if received.as_ref().map(Received::as_bytes) != Some(expected) {
            return Err(io::Error::other("not the message that was sent").into());
        }
        Ok(Cost { time, operations: self.operations.get(), memory, work: None })
    }
}
