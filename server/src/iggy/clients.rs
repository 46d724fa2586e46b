//! [`Clients`]: the connected clients of all workers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The clients that are connected, over all workers. Cloning gives another handle to the same.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    shared: Arc<Shared>,
}

/// Bounded by the connection limit.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Whether `departed` is not empty. It changes with the lock held, and is read without it: each request about a
    /// consumer group asks for it.
    has_departed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    clients: BTreeMap<u32, Client>,
    /// The clients that have joined a consumer group and have left since. They are taken before another client joins,
    /// so there are at most as many as were connected then.
    departed: BTreeSet<u32>,
    last_id: u32,
}

/// A client.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// How it is connected.
    pub transport: Transport,
    /// Its address, if it has one.
    pub address: Option<SocketAddr>,
    /// Whether it has logged in.
    pub is_logged_in: bool,
    /// Whether it has ever joined a consumer group.
    has_joined: bool,
}

/// How a client is connected, as the protocol numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Transport {
    /// TCP, perhaps with TLS.
    Tcp = 1,
    /// WebSocket, perhaps with TLS.
    WebSocket = 4,
}

/// A client that is connected until this is dropped.
#[derive(Debug)]
pub struct Registration {
    clients: Clients,
    id: u32,
}

impl Clients {
    /// Adds a client. Its number is free, and not 0.
    pub fn register(&self, transport: Transport, address: Option<SocketAddr>) -> Registration {
        let mut state = self.lock();
        // There are fewer clients than numbers, so this ends.
        let id = loop {
            state.last_id = state.last_id.checked_add(1).unwrap_or(1);
            if !state.clients.contains_key(&state.last_id) {
                break state.last_id;
            }
        };
        let client = Client { transport, address, is_logged_in: false, has_joined: false };
        state.clients.insert(id, client);
        Registration { clients: self.clone(), id }
    }

    /// A client, if it is connected.
    pub fn get(&self, id: u32) -> Option<Client> {
        self.lock().clients.get(&id).copied()
    }

    /// All clients by their numbers.
    pub fn all(&self) -> Vec<(u32, Client)> {
        self.lock().clients.iter().map(|(&id, &client)| (id, client)).collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().clients.len()
    }

    /// Records that a client joins a consumer group, so that [`take_departed`](Self::take_departed) tells when it has
    /// left. Returns whether it is still connected. The caller takes those that have departed first.
    pub fn set_joined(&self, id: u32) -> bool {
        let mut state = self.lock();
        let Some(client) = state.clients.get_mut(&id) else { return false };
        client.has_joined = true;
        true
    }

    /// The clients that have left since the last call. Clients that never joined a consumer group are not among them.
    pub fn take_departed(&self) -> BTreeSet<u32> {
        if !self.shared.has_departed.load(Ordering::Acquire) {
            return BTreeSet::new();
        }
        let mut state = self.lock();
        self.shared.has_departed.store(false, Ordering::Release);
        std::mem::take(&mut state.departed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner) // no code inside can panic halfway
    }
}

impl Registration {
    /// The number of the client.
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Records whether the client has logged in.
    pub fn set_logged_in(&self, is_logged_in: bool) {
        if let Some(client) = self.clients.lock().clients.get_mut(&self.id) {
            client.is_logged_in = is_logged_in;
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.clients.lock();
        let removed = state.clients.remove(&self.id);
        if removed.is_some_and(|client| client.has_joined) {
            state.departed.insert(self.id);
            self.clients.shared.has_departed.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_there_until_its_registration_is_dropped() {
        let clients = Clients::default();
        let one = clients.register(Transport::Tcp, None);
        let other = clients.register(Transport::WebSocket, None);
        one.set_logged_in(true);
        assert_eq!((one.id(), other.id()), (1, 2));
        assert!(clients.get(1).unwrap().is_logged_in && !clients.get(2).unwrap().is_logged_in);
        drop(one);
        assert!(clients.get(1).is_none());
        assert_eq!(clients.count(), 1);
        clients.lock().last_id = u32::MAX - 1;
        let ids = [(); 3].map(|()| clients.register(Transport::Tcp, None));
        assert_eq!(ids.map(|registration| registration.id()), [u32::MAX, 1, 3]);
    }

    #[test]
    fn only_departures_of_clients_that_joined_a_group_are_recorded() {
        let clients = Clients::default();
        let [stays, joined, also_joined, never_joined] =
            [(); 4].map(|()| clients.register(Transport::Tcp, None));
        for joins in [&stays, &joined, &also_joined] {
            assert!(clients.set_joined(joins.id()));
        }
        drop(never_joined);
        assert_eq!(clients.take_departed(), BTreeSet::new());
        drop((joined, also_joined));
        assert!(!clients.set_joined(2), "it has left");
        assert_eq!(clients.take_departed(), BTreeSet::from([2, 3]));
        assert_eq!(clients.take_departed(), BTreeSet::new());
        drop(stays);
        assert_eq!(clients.take_departed(), BTreeSet::from([1]));
    }
}
