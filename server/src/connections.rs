//! [`Connections`]: the registry of a worker's open connections.
//!
//! Each connection runs in a task of its own. The drain and the [watch](crate::watch) use the registry to
//! end connections from outside their tasks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr};
use std::ops::Bound;
use std::rc::Rc;

use owned_io::{MemoryAccount, MemoryBudget, ShutdownHandle};
use owned_io_http::EndHandle;
use owned_io_websocket::stream::CloseHandle;
use owned_io_websocket::{CloseCode, CloseFrame};

use crate::drain::DrainSignal;
use crate::metrics::{CloseCause, ConnectionMetrics, Refusal};
use crate::watch::Activity;

/// The connections that a worker has open, over all its listeners. Cloning gives another handle to the same
/// registry.
#[derive(Clone, Debug)]
pub struct Connections {
    registry: Rc<RefCell<Registry>>,
    budget: MemoryBudget,
    metrics: Rc<ConnectionMetrics>,
}

/// A connection in the registry. Dropping it removes the connection.
///
/// It is boxed because it passes through several futures, and each that it passes through keeps space for it.
#[derive(Debug)]
pub struct ConnectionHandle(Box<Registered>);

#[derive(Debug)]
struct Registered {
    registry: Rc<RefCell<Registry>>,
    id: u64,
    account: MemoryAccount,
    peer: Option<SocketAddr>,
    metrics: Rc<ConnectionMetrics>,
    /// Why it ends, once that is known.
    cause: Cell<Option<CloseCause>>,
}

/// How a connection is closed from outside its task.
#[derive(Debug)]
pub enum CloseMethod {
    /// Shut down the read side. The service reads the end of the stream, answers what it has received, and
    /// ends.
    ShutdownRead(ShutdownHandle),
    /// End the connection after the request that is being answered. While it is upgraded, do nothing: the upgrade sets
    /// the next method.
    Http(EndHandle),
    /// Close the WebSocket as [going away](CloseCode::GOING_AWAY). It ends once the peer has answered.
    WebSocket(CloseHandle),
    /// The same, over tungstenite.
    #[cfg(feature = "tungstenite")]
    Bridge(owned_io_tungstenite::CloseHandle),
}

/// Bounded by the connection limit.
#[derive(Debug)]
struct Registry {
    entries: BTreeMap<u64, Entry>,
    last_id: u64,
    /// Whether all connections were asked to close.
    is_closing: bool,
    drain: DrainSignal,
}

#[derive(Debug)]
struct Entry {
    close_method: CloseMethod,
    /// Shuts down or resets the transport.
    transport: ShutdownHandle,
    /// Set if the connection is watched.
    activity: Option<Rc<Activity>>,
}

impl Connections {
    /// An empty registry. Each connection gets an account in `budget`.
    pub fn new(drain: DrainSignal, budget: MemoryBudget) -> Self {
        let registry = Registry { entries: BTreeMap::new(), last_id: 0, is_closing: false, drain };
        Self { registry: Rc::new(RefCell::new(registry)), budget, metrics: Rc::default() }
    }

    /// The same registry, which counts what is added to it here by `metrics`.
    #[must_use]
    pub fn with_metrics(self, metrics: ConnectionMetrics) -> Self {
        Self { metrics: Rc::new(metrics), ..self }
    }

    /// Counts connections.
    pub(crate) fn metrics(&self) -> &ConnectionMetrics {
        &self.metrics
    }

    /// Adds a connection. It is removed when the returned handle is dropped.
    #[must_use]
    pub fn add(&self, transport: ShutdownHandle) -> ConnectionHandle {
        let mut registry = self.registry.borrow_mut();
        registry.last_id += 1;
        let id = registry.last_id;
        let close_method = CloseMethod::ShutdownRead(transport.clone());
        if registry.is_closing {
            close_method.close();
        }
        registry.entries.insert(id, Entry { close_method, transport, activity: None });
        let registry = Rc::clone(&self.registry);
        let (account, metrics) = (self.budget.account(), Rc::clone(&self.metrics));
        metrics.accepted();
        let cause = Cell::default();
        let registered = Registered { registry, id, account, peer: None, metrics, cause };
        ConnectionHandle(Box::new(registered))
    }

    /// Asks every connection to close, and every connection that is added later. It takes some microseconds for each.
    /// All are asked in one piece: while they are busy, one round of the worker's tasks may take as long as the drain.
    pub fn close_all(&self) {
        let mut registry = self.registry.borrow_mut();
        registry.is_closing = true;
        registry.entries.values().for_each(|entry| entry.close_method.close());
    }

    /// Resets every connection that is open, and returns their number. A reset tells the peers that their
    /// streams were cut off. Like [`close_all`](Self::close_all), it does not let others run in between.
    pub fn reset_all(&self) -> usize {
        let registry = self.registry.borrow();
        registry.entries.values().for_each(|entry| entry.transport.abort());
        registry.entries.len()
    }

    /// Calls `check` for up to `count` connections behind the id `after`, if they are watched. Returns the id
    /// to continue from, or none at the end.
    pub(crate) fn check(
        &self,
        after: Option<u64>,
        count: usize,
        mut check: impl FnMut(&Activity, &CloseMethod, &ShutdownHandle),
    ) -> Option<u64> {
        let registry = self.registry.borrow();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = registry.entries.range((start, Bound::Unbounded));
        let mut last = None;
        for (id, entry) in rest.by_ref().take(count) {
            last = Some(*id);
            if let Some(activity) = &entry.activity {
                check(activity, &entry.close_method, &entry.transport);
            }
        }
        rest.next().and(last)
    }
}

impl ConnectionHandle {
    /// The address of the peer, if it was set.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.0.peer
    }

    /// Sets the address of the peer.
    pub fn set_peer(&mut self, peer: SocketAddr) {
        self.0.peer = Some(peer);
    }

    /// What the connection holds of its worker's memory budget.
    pub fn account(&self) -> &MemoryAccount {
        &self.0.account
    }

    /// Whether the connection was asked to close.
    pub fn is_closing(&self) -> bool {
        self.0.registry.borrow().is_closing
    }

    /// Whether the server drains, or has given notice that it will.
    pub fn is_draining(&self) -> bool {
        let registry = self.0.registry.borrow();
        registry.is_closing || registry.drain.has_begun()
    }

    /// Sets how the connection is closed from now on. If it was asked to close already, it is closed in this
    /// way at once.
    pub fn set_close_method(&self, close_method: CloseMethod) {
        let mut registry = self.0.registry.borrow_mut();
        if registry.is_closing {
            close_method.close();
        }
        if let Some(entry) = registry.entries.get_mut(&self.0.id) {
            entry.close_method = close_method;
        }
    }

    /// Counts the connection as refused.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        self.0.metrics.refused(refusal);
        self.0.cause.set(Some(CloseCause::Refused));
    }

    /// Sets why it ends, for metrics.
    pub(crate) fn set_cause(&self, cause: CloseCause) {
        self.0.cause.set(Some(cause));
    }

    /// Starts [watching](crate::watch::watch) the connection. The service reports its progress to the returned
    /// activity.
    pub fn watched(&self) -> Rc<Activity> {
        let activity = Rc::new(Activity::default());
        if let Some(entry) = self.0.registry.borrow_mut().entries.get_mut(&self.0.id) {
            entry.activity = Some(Rc::clone(&activity));
        }
        activity
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.registry.borrow_mut().entries.remove(&self.id);
        let unknown = || match std::thread::panicking() {
            true => CloseCause::Panic,
            false => CloseCause::Dropped,
        };
        self.metrics.closed(self.cause.get().unwrap_or_else(unknown));
    }
}

/// The close frame of a WebSocket when the server drains.
const AWAY: CloseFrame<'_> = CloseFrame { code: Some(CloseCode::GOING_AWAY), reason: "" };

impl CloseMethod {
    pub(crate) fn close(&self) {
        match self {
            Self::ShutdownRead(transport) => transport.shutdown(Shutdown::Read),
            Self::Http(connection) => connection.end(),
            // An error means that the WebSocket is closing already.
            Self::WebSocket(socket) => drop(socket.close(AWAY)),
            #[cfg(feature = "tungstenite")]
            Self::Bridge(socket) => drop(socket.close(AWAY)),
        }
    }
}
