//! [`Ports`]: the local ports of a host's outgoing connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use crate::rng::Rng;

/// The range that Linux chooses from (`net.ipv4.ip_local_port_range`).
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// As on Linux, a local port serves one connection to each destination. So there are at most as many
/// connections to one address and port as the range has ports.
pub(crate) struct Ports {
    range: RangeInclusive<u16>,
    /// Indices into `destinations`.
    numbers: BTreeMap<SocketAddr, u32>,
    destinations: Vec<PortSet>,
}

/// The ports in use to one destination: one bit for each port, beginning with the first of the range.
struct PortSet {
    bits: Vec<u64>,
    count: usize,
}

impl Ports {
    pub(crate) fn new() -> Self {
        Self { range: EPHEMERAL, numbers: BTreeMap::new(), destinations: Vec::new() }
    }

    /// Limits the range from now on. Ports that are taken stay taken.
    pub(crate) fn limit(&mut self, count: u16) {
        let first = *EPHEMERAL.start();
        self.range = first..=first.saturating_add(count.max(1) - 1).min(*EPHEMERAL.end());
    }

    /// A free port for this destination, and the destination's number; `None` if all ports are taken.
    pub(crate) fn take(&mut self, to: SocketAddr, rng: &mut Rng) -> Option<(u16, u32)> {
        let number = *self.numbers.entry(to).or_insert_with(|| {
            self.destinations
                .push(PortSet { bits: vec![0; EPHEMERAL.len().div_ceil(64)], count: 0 });
            self.destinations.len() as u32 - 1
        });
        let taken = &mut self.destinations[number as usize];
        let count = self.range.len();
        if taken.count >= count {
            return None;
        }
        let start = rng.index(count);
        let free = (start..count).chain(0..start).find(|port| !taken.has(*port))?;
        taken.set(free);
        Some((self.range.start() + free as u16, number))
    }

    pub(crate) fn free(&mut self, destination: u32, port: u16) {
        self.destinations[destination as usize].clear((port - EPHEMERAL.start()) as usize);
    }

    /// Frees every port: a host that was down has no connections.
    pub(crate) fn free_all(&mut self) {
        // New connections get new destination numbers, because old ports may still be freed later.
        self.numbers.clear();
        for taken in &mut self.destinations {
            *taken = PortSet { bits: Vec::new(), count: 0 };
        }
    }
}

impl PortSet {
    fn has(&self, port: usize) -> bool {
        self.bits.get(port / 64).is_some_and(|bits| bits & 1 << (port % 64) != 0)
    }

    fn set(&mut self, port: usize) {
        self.bits[port / 64] |= 1 << (port % 64);
        self.count += 1;
    }

    fn clear(&mut self, port: usize) {
        if self.has(port) {
            self.bits[port / 64] &= !(1 << (port % 64));
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_destination_has_every_port_once() {
        let (mut ports, mut rng) = (Ports::new(), Rng::new(1));
        ports.limit(100);
        for server in 1..=2 {
            let to = SocketAddr::from(([10, 1, 0, server], 80));
            let mut taken: Vec<_> = (0..100).map(|_| ports.take(to, &mut rng).unwrap()).collect();
            assert_eq!(ports.take(to, &mut rng), None);
            let (port, destination) = taken[50];
            ports.free(destination, port);
            assert_eq!(ports.take(to, &mut rng), Some((port, destination)));
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(taken.len(), 100);
        }
        ports.free_all();
        assert!(ports.take(([10, 1, 0, 1], 80).into(), &mut rng).is_some());
    }
}
