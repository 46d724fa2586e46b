//! The connections that are open, so that they can be ended from beside.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::ops::Bound;
use std::rc::Rc;

use owned_io::ShutdownHandle;
use owned_io_websocket::stream::CloseHandle;
use owned_io_websocket::{CloseCode, CloseFrame};

use crate::leaving::Leaving;
use crate::watch::Activity;

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
    /// The same, over tungstenite.
    #[cfg(feature = "tungstenite")]
    Bridge(owned_io_tungstenite::CloseHandle),
}

/// Bounded by the places.
#[derive(Debug, Default)]
struct Open {
    known: BTreeMap<u64, Known>,
    last_id: u64,
    /// Whether each was asked to end.
    is_ending: bool,
    leaving: Leaving,
}

/// One of them.
#[derive(Debug)]
struct Known {
    ending: Ending,
    /// The transport's.
    handle: ShutdownHandle,
    /// Where something is to move now and then.
    activity: Option<Rc<Activity>>,
}

impl Connections {
    /// None yet, of a server that is asked to end like this.
    pub fn new(leaving: Leaving) -> Self {
        Self { open: Rc::new(RefCell::new(Open { leaving, ..Open::default() })) }
    }

    /// Adds one, until what this returns is dropped.
    #[must_use]
    pub fn add(&self, handle: ShutdownHandle) -> Connection {
        let mut open = self.open.borrow_mut();
        open.last_id += 1;
        let id = open.last_id;
        let ending = Ending::Reading(handle.clone());
        if open.is_ending {
            ending.ask();
        }
        open.known.insert(id, Known { ending, handle, activity: None });
        Connection { entry: Entry { open: Rc::clone(&self.open), id } }
    }

    /// Asks each to end, and each that is added from now on.
    pub fn end(&self) {
        let mut open = self.open.borrow_mut();
        open.is_ending = true;
        open.known.values().for_each(|known| known.ending.ask());
    }

    /// Resets each that is open, and says how many that were: what has come of their streams is no end.
    pub fn cut_off(&self) -> usize {
        let open = self.open.borrow();
        open.known.values().for_each(|known| known.handle.abort());
        open.known.len()
    }

    /// Passes to `look` those that are watched, at most `count` of those behind the last of `after`; says where
    /// to go on, if there are more.
    pub(crate) fn look(
        &self,
        after: Option<u64>,
        count: usize,
        mut look: impl FnMut(&Activity, &Ending, &ShutdownHandle),
    ) -> Option<u64> {
        let open = self.open.borrow();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = open.known.range((start, Bound::Unbounded));
        let mut last = None;
        for (id, known) in rest.by_ref().take(count) {
            last = Some(*id);
            if let Some(activity) = &known.activity {
                look(activity, &known.ending, &known.handle);
            }
        }
        rest.next().and(last)
    }
}

impl Ending {
    pub(crate) fn ask(&self) {
        let away = CloseFrame { code: Some(CloseCode::GOING_AWAY), reason: "" };
        // A WebSocket can only be closed already.
        let _ = match self {
            Self::Reading(handle) => {
                handle.shutdown(Shutdown::Read);
                Ok(())
            }
            Self::Upgrading => Ok(()),
            Self::WebSocket(handle) => handle.close(away),
            #[cfg(feature = "tungstenite")]
            Self::Bridge(handle) => handle.close(away),
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

    /// Whether the server was asked to end, or will be soon.
    pub fn is_leaving(&self) -> bool {
        let open = self.open.borrow();
        open.is_ending || open.leaving.is_leaving()
    }

    /// From now on the connection is asked to end in this way.
    pub fn set(&self, ending: Ending) {
        let mut open = self.open.borrow_mut();
        if open.is_ending {
            ending.ask();
        }
        if let Some(known) = open.known.get_mut(&self.id) {
            known.ending = ending;
        }
    }

    /// From now on the connection is [watched](crate::watch::watch): something has to move on it.
    pub fn watched(&self) -> Rc<Activity> {
        let activity = Rc::new(Activity::default());
        if let Some(known) = self.open.borrow_mut().known.get_mut(&self.id) {
            known.activity = Some(Rc::clone(&activity));
        }
        activity
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Entry { open, id } = &self.entry;
        open.borrow_mut().known.remove(id);
    }
}
