//! [`Clients`]: the connected clients of all workers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// How many clients have left.
    departures: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    clients: BTreeMap<u32, Client>,
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
        state.clients.insert(id, Client { transport, address, is_logged_in: false });
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

    /// How many have left. It changes whenever one leaves.
    pub fn departures(&self) -> u64 {
        self.shared.departures.load(Ordering::Acquire)
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
        self.clients.lock().clients.remove(&self.id);
        self.clients.shared.departures.fetch_add(1, Ordering::AcqRel);
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
        assert_eq!((clients.count(), clients.departures()), (1, 1));
        clients.lock().last_id = u32::MAX - 1;
        let ids = [(); 3].map(|()| clients.register(Transport::Tcp, None));
        assert_eq!(ids.map(|registration| registration.id()), [u32::MAX, 1, 3]);
    }
}
