//! [`AddressLimit`]: how many connections one address may have.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The limit on the connections of each address, over all workers, because the kernel spreads the connections
/// of one address over all of them. By default there is none.
///
/// It is behind a lock, which is taken when a connection begins and when it ends. An IPv6 address counts by
/// its first 64 bits: who has one address of such a network has all of them.
#[derive(Clone, Debug, Default)]
pub struct AddressLimit {
    /// None: any number.
    limit: Option<Arc<Limit>>,
}

/// One connection of an address. Dropping it releases it.
#[derive(Debug)]
pub struct AddressPermit {
    /// None if nothing is counted.
    counted: Option<(Arc<Limit>, IpAddr)>,
}

#[derive(Debug)]
struct Limit {
    max: usize,
    /// Connections of each address. Bounded by the connections that are open.
    open: Mutex<BTreeMap<IpAddr, usize>>,
}

impl AddressLimit {
    /// At most `max` connections for each address.
    pub fn new(max: usize) -> Self {
        Self { limit: Some(Arc::new(Limit { max, open: Mutex::default() })) }
    }

    /// Counts one more connection of `addr`. None if that address has as many as it may.
    pub fn acquire(&self, addr: IpAddr) -> Option<AddressPermit> {
        let Some(limit) = &self.limit else { return Some(AddressPermit { counted: None }) };
        let addr = network(addr);
        let mut open = limit.lock();
        let count = open.entry(addr).or_default();
        if *count >= limit.max {
            return None; // the address has connections, so this added no entry
        }
        *count += 1;
        Some(AddressPermit { counted: Some((Arc::clone(limit), addr)) })
    }
}

impl Limit {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        // No code that can panic runs under the lock.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let Some((limit, addr)) = &self.counted else { return };
        let mut open = limit.lock();
        if let Some(count) = open.get_mut(addr) {
            *count -= 1;
            if *count == 0 {
                open.remove(addr);
            }
        }
    }
}

/// What an address counts as: an IPv4 address as itself, an IPv6 address as its network of 64 bits.
fn network(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => Ipv6Addr::from(u128::from(addr) >> 64 << 64).into(),
        addr @ IpAddr::V4(_) => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gets_no_more_than_its_limit() {
        let addresses = AddressLimit::new(2);
        let acquire = |addr: &str| addresses.acquire(addr.parse().unwrap());
        let first = acquire("192.0.2.1").unwrap();
        let mapped = acquire("::ffff:192.0.2.1").unwrap();
        assert!(acquire("192.0.2.1").is_none());
        let other = acquire("192.0.2.2").unwrap();
        drop(first);
        let third = acquire("192.0.2.1").unwrap();
        assert!(acquire("192.0.2.1").is_none());
        let network = [acquire("2001:db8::1").unwrap(), acquire("2001:db8::ffff:1").unwrap()];
        assert!(acquire("2001:db8::2").is_none());
        assert!(acquire("2001:db8:0:1::2").is_some());
        drop((mapped, other, third, network));
        assert!(addresses.limit.unwrap().lock().is_empty());
    }
}
