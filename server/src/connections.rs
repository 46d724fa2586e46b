//! The connections that are open, so that they can be ended from beside.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::rc::Rc;

use owned_io::ShutdownHandle;
use owned_io_websocket::stream::CloseHandle;
use owned_io_websocket::{CloseCode, CloseFrame};

/// The connections that a worker has open, over all its listeners.
#[derive(Clone, Debug, Default)]
pub struct Connections {
    open: Rc<RefCell<Open>>,
}

/// A connection among them; not any more when dropped.
#[derive(Debug)]
pub struct Connection {
    entry: Entry,
}

/// Where it is said how a connection ends.
#[derive(Clone, Debug)]
pub struct Entry {
    open: Rc<RefCell<Open>>,
    id: u64,
}

/// How a connection is asked to end.
#[derive(Debug)]
pub enum Ending {
    /// Its read side is shut down: it sees the end of its stream, answers what it has, and ends.
    Reading(ShutdownHandle),
    /// Not before it is upgraded, and something else is said here: until then there is no way.
    Upgrading,
    /// It is closed as [going away](CloseCode::GOING_AWAY), and ends once its peer agrees.
    WebSocket(CloseHandle),
}

/// Bounded by the places.
#[derive(Debug, Default)]
struct Open {
    endings: BTreeMap<u64, Ending>,
    last_id: u64,
    /// Whether each was asked to end.
    is_ending: bool,
}

impl Connections {
    /// Adds one, until what this returns is dropped.
    #[must_use]
    pub fn add(&self, handle: ShutdownHandle) -> Connection {
        let mut open = self.open.borrow_mut();
        open.last_id += 1;
        let id = open.last_id;
        let ending = Ending::Reading(handle);
        if open.is_ending {
            ending.ask();
        }
        open.endings.insert(id, ending);
        Connection { entry: Entry { open: Rc::clone(&self.open), id } }
    }

    /// Asks each to end, and each that is added from now on.
    pub fn end(&self) {
        let mut open = self.open.borrow_mut();
        open.is_ending = true;
        open.endings.values().for_each(Ending::ask);
    }
}

impl Ending {
    fn ask(&self) {
        let away = CloseFrame { code: Some(CloseCode::GOING_AWAY), reason: "" };
        // A WebSocket can only be closed already.
        let _ = match self {
            Self::Reading(handle) => {
                handle.shutdown(Shutdown::Read);
                Ok(())
            }
            Self::Upgrading => Ok(()),
            Self::WebSocket(handle) => handle.close(away),
        };
    }
}

impl Connection {
    /// For the service that learns more about the connection.
    pub fn entry(&self) -> Entry {
        self.entry.clone()
    }
}

impl Entry {
    /// Whether the connection was asked to end.
    pub fn is_ending(&self) -> bool {
        self.open.borrow().is_ending
    }

    /// From now on the connection is asked to end in this way.
    pub fn set(&self, ending: Ending) {
        let mut open = self.open.borrow_mut();
        if open.is_ending {
            ending.ask();
        }
        if let Some(known) = open.endings.get_mut(&self.id) {
            *known = ending;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Entry { open, id } = &self.entry;
        open.borrow_mut().endings.remove(id);
    }
}
