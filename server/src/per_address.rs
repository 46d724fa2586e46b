//! [`PerAddress`]: how many connections an address may have.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the connections of each address, over all workers: the kernel spreads those of one address over
/// all of them. Under a lock, which is taken when a connection begins and when it ends.
///
/// The addresses of IPv6 count by their first 64 bits: who has one has all that begin so.
#[derive(Clone, Debug, Default)]
pub struct PerAddress {
    /// None: any number.
    limit: Option<Arc<Limit>>,
}

#[derive(Debug)]
struct Limit {
    max: usize,
    /// Bounded by the connections that are open.
    open: Mutex<BTreeMap<IpAddr, usize>>,
}

/// A connection that is counted, until it is dropped.
#[derive(Debug)]
pub struct Counted {
    counted: Option<(Arc<Limit>, IpAddr)>,
}

impl PerAddress {
    /// At most so many.
    pub fn at_most(max: usize) -> Self {
        Self { limit: Some(Arc::new(Limit { max, open: Mutex::default() })) }
    }

    /// Counts one more connection of `addr`; none if that has as many as it may.
    pub fn count(&self, addr: IpAddr) -> Option<Counted> {
        let Some(limit) = &self.limit else { return Some(Counted { counted: None }) };
        let addr = counted_as(addr);
        let mut open = limit.lock();
        let count = open.entry(addr).or_default();
        if *count >= limit.max {
            return None; // it has some, so the entry was there
        }
        *count += 1;
        Some(Counted { counted: Some((Arc::clone(limit), addr)) })
    }
}

impl Limit {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        // No code that can panic runs under the lock.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
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

fn counted_as(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => {
            let network = u128::from(addr) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
        addr @ IpAddr::V4(_) => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_as_many_as_it_may() {
        let addresses = PerAddress::at_most(2);
        let count = |addr: &str| addresses.count(addr.parse().unwrap());
        let first = count("192.0.2.1").unwrap();
        let mapped = count("::ffff:192.0.2.1").unwrap();
        assert!(count("192.0.2.1").is_none());
        let other = count("192.0.2.2").unwrap();
        drop(first);
        let third = count("192.0.2.1").unwrap();
        assert!(count("192.0.2.1").is_none());
        let network = [count("2001:db8::1").unwrap(), count("2001:db8::ffff:1").unwrap()];
        assert!(count("2001:db8::2").is_none());
        assert!(count("2001:db8:0:1::2").is_some());
        drop((mapped, other, third, network));
        assert!(addresses.limit.unwrap().lock().is_empty());
    }
}
