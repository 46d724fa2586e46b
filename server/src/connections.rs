//! [`Connections`]: the registry of a worker's open connections.
//!
//! Each connection runs in a task of its own. The drain and the [watch](crate::watch) use the registry to
//! end connections from outside their tasks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use owned_io::{Clock, MemoryAccount, MemoryBudget, ShutdownHandle};
use owned_io_websocket::stream::CloseHandle;
use owned_io_websocket::{CloseCode, CloseFrame};

use crate::drain::DrainSignal;
use crate::watch::Activity;

/// How many connections are closed or reset before other tasks run. Each takes a system call of some microseconds: of
/// a reset the kernel also sends the segment.
pub const CLOSED_AT_ONCE_MAX: usize = 64;

/// The connections that a worker has open, over all its listeners. Cloning gives another handle to the same
/// registry.
#[derive(Clone, Debug)]
pub struct Connections {
    registry: Rc<RefCell<Registry>>,
    budget: MemoryBudget,
}

/// A connection in the registry. Dropping it removes the connection.
#[derive(Debug)]
pub struct ConnectionHandle {
    registry: Rc<RefCell<Registry>>,
    id: u64,
    account: MemoryAccount,
}

/// How a connection is closed from outside its task.
#[derive(Debug)]
pub enum CloseMethod {
    /// Shut down the read side. The service reads the end of the stream, answers what it has received, and
    /// ends.
    ShutdownRead(ShutdownHandle),
    /// Do nothing: the connection is being upgraded. The upgrade sets the next method.
    Upgrading,
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
    /// Of the transport.
    transport: ShutdownHandle,
    /// Set if the connection is watched.
    activity: Option<Rc<Activity>>,
}

impl Connections {
    /// An empty registry. Each connection gets an account in `budget`.
    pub fn new(drain: DrainSignal, budget: MemoryBudget) -> Self {
        let registry = Registry { entries: BTreeMap::new(), last_id: 0, is_closing: false, drain };
        Self { registry: Rc::new(RefCell::new(registry)), budget }
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
        ConnectionHandle { registry, id, account: self.budget.account() }
    }

    /// Asks every connection to close, and every connection that is added later. Other tasks run after every
    /// [`CLOSED_AT_ONCE_MAX`] connections.
    ///
    /// # Cancellation
    /// Some connections may not be asked. Those that are added later are.
    pub async fn close_all<R: Clock>(&self) {
        self.registry.borrow_mut().is_closing = true;
        self.visit_all::<R>(|entry| entry.close_method.close()).await;
    }

    /// Resets every connection that is open, and returns their number. A reset tells the peers that their
    /// streams were cut off. Other tasks run after every [`CLOSED_AT_ONCE_MAX`] connections.
    ///
    /// # Cancellation
    /// Some connections may not be reset.
    pub async fn reset_all<R: Clock>(&self) -> usize {
        let mut count = 0;
        self.visit_all::<R>(|entry| {
            entry.transport.abort();
            count += 1;
        })
        .await;
        count
    }

    async fn visit_all<R: Clock>(&self, mut visit: impl FnMut(&Entry)) {
        let mut after = None;
        // Each iteration visits some of the connections; the last one ends the list.
        loop {
            after = self.visit(after, CLOSED_AT_ONCE_MAX, &mut visit);
            if after.is_none() {
                return;
            }
            R::sleep(Duration::ZERO).await;
        }
    }

    /// Calls `look` for up to `count` connections behind the id `after`, if they are watched. Returns the id
    /// to continue from, or none at the end.
    pub(crate) fn look(
        &self,
        after: Option<u64>,
        count: usize,
        mut look: impl FnMut(&Activity, &CloseMethod, &ShutdownHandle),
    ) -> Option<u64> {
        self.visit(after, count, |entry| {
            if let Some(activity) = &entry.activity {
                look(activity, &entry.close_method, &entry.transport);
            }
        })
    }

    /// Calls `visit` for up to `count` connections behind the id `after`. Returns as [`look`](Self::look) does.
    fn visit(
        &self,
        after: Option<u64>,
        count: usize,
        mut visit: impl FnMut(&Entry),
    ) -> Option<u64> {
        let registry = self.registry.borrow();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = registry.entries.range((start, Bound::Unbounded));
        let mut last = None;
        for (id, entry) in rest.by_ref().take(count) {
            last = Some(*id);
            visit(entry);
        }
        rest.next().and(last)
    }
}

impl ConnectionHandle {
    /// What the connection holds of its worker's memory budget.
    pub const fn account(&self) -> &MemoryAccount {
        &self.account
    }

    /// Whether the connection was asked to close.
    pub fn is_closing(&self) -> bool {
        self.registry.borrow().is_closing
    }

    /// Whether the server drains, or has given notice that it will.
    pub fn is_draining(&self) -> bool {
        let registry = self.registry.borrow();
        registry.is_closing || registry.drain.has_begun()
    }

    /// Sets how the connection is closed from now on. If it was asked to close already, it is closed in this
    /// way at once.
    pub fn set_close_method(&self, close_method: CloseMethod) {
        let mut registry = self.registry.borrow_mut();
        if registry.is_closing {
            close_method.close();
        }
        if let Some(entry) = registry.entries.get_mut(&self.id) {
            entry.close_method = close_method;
        }
    }

    /// Has the connection [watched](crate::watch::watch) from now on. The service reports its progress to
    /// what this returns.
    pub fn watched(&self) -> Rc<Activity> {
        let activity = Rc::new(Activity::default());
        if let Some(entry) = self.registry.borrow_mut().entries.get_mut(&self.id) {
            entry.activity = Some(Rc::clone(&activity));
        }
        activity
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        self.registry.borrow_mut().entries.remove(&self.id);
    }
}

/// What a WebSocket is closed with.
const AWAY: CloseFrame<'_> = CloseFrame { code: Some(CloseCode::GOING_AWAY), reason: "" };

impl CloseMethod {
    pub(crate) fn close(&self) {
        match self {
            Self::ShutdownRead(transport) => transport.shutdown(Shutdown::Read),
            Self::Upgrading => {}
            // An error means that the WebSocket is closing already.
            Self::WebSocket(socket) => drop(socket.close(AWAY)),
            #[cfg(feature = "tungstenite")]
            Self::Bridge(socket) => drop(socket.close(AWAY)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::rc::Weak;

    use owned_io::backend::ShutdownTarget;
    use owned_io_sim::Sim;

    use super::*;

    /// Counts how often it was shut down and reset.
    #[derive(Default)]
    struct Transport {
        shut_down: Cell<usize>,
        reset: Cell<usize>,
    }

    impl ShutdownTarget for Transport {
        fn shutdown(&self, _how: Shutdown) {
            self.shut_down.set(self.shut_down.get() + 1);
        }

        fn abort(&self) {
            self.reset.set(self.reset.get() + 1);
        }
    }

    /// Polls `closing` to its end. Returns how much `count` grew in each poll.
    async fn polled<T>(closing: impl Future<Output = T>, count: &Cell<usize>) -> (Vec<usize>, T) {
        let (mut closing, mut growths) = (pin!(closing), Vec::new());
        let output = poll_fn(|cx| {
            let before = count.get();
            let polled = closing.as_mut().poll(cx);
            growths.push(count.get() - before);
            polled
        })
        .await;
        (growths, output)
    }

    #[test]
    fn many_connections_are_closed_and_reset_in_pieces() {
        const COUNT: usize = 1000;
        owned_io_sim::block_on(async {
            let budget = MemoryBudget::new(0);
            let connections = Connections::new(DrainSignal::default(), budget);
            let transport = Rc::new(Transport::default());
            let target: Weak<dyn ShutdownTarget> = Rc::<Transport>::downgrade(&transport);
            let handle = ShutdownHandle::new(target);
            let added: Vec<_> = (0..COUNT).map(|_| connections.add(handle.clone())).collect();

            let (closed, ()) = polled(connections.close_all::<Sim>(), &transport.shut_down).await;
            assert_eq!(closed.iter().sum::<usize>(), COUNT);
            assert!(closed.iter().all(|count| *count <= CLOSED_AT_ONCE_MAX), "{closed:?}");
            let late = connections.add(handle);
            assert_eq!(transport.shut_down.get(), COUNT + 1, "what is added later is closed");

            drop(late);
            let resetting = connections.reset_all::<Sim>();
            let (reset, number) = polled(resetting, &transport.reset).await;
            assert_eq!((reset.iter().sum::<usize>(), number), (COUNT, COUNT));
            assert!(reset.iter().all(|count| *count <= CLOSED_AT_ONCE_MAX), "{reset:?}");
            drop(added);
        });
    }
}
