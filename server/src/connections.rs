//! The connections that are open, so that they can be ended from beside.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::rc::Rc;

use owned_io::ShutdownHandle;

/// The connections that a worker has open, over all its listeners.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    open: Rc<RefCell<Open>>,
}

/// A connection among them; not any more when dropped.
#[derive(Debug)]
pub struct Connection {
    open: Rc<RefCell<Open>>,
    id: u64,
}

/// Bounded by the places.
#[derive(Debug, Default)]
struct Open {
    handles: BTreeMap<u64, ShutdownHandle>,
    last_id: u64,
}

impl Connections {
    /// Adds one, until what this returns is dropped.
    #[must_use]
    pub fn add(&self, handle: ShutdownHandle) -> Connection {
        let mut open = self.open.borrow_mut();
        open.last_id += 1;
        let id = open.last_id;
        open.handles.insert(id, handle);
        Connection { open: Rc::clone(&self.open), id }
    }

    /// Shuts the read side of each down: it sees the end of its stream, answers what it has, and
    /// ends.
    pub fn end_reading(&self) {
        for handle in self.open.borrow().handles.values() {
            handle.shutdown(Shutdown::Read);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.borrow_mut().handles.remove(&self.id);
    }
}
