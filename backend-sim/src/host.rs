//! [`Host`]: a simulated machine, with its address, limits and clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use owned_io::{AddrError, BoundAddr, Executor, JoinHandle, ListenOptions};

use crate::core::Time;
use crate::disk::Disk;
use crate::errno::{EADDRNOTAVAIL, error};
use crate::executor;
use crate::ports::Ports;
use crate::runtime::Sim;

/// A simulated machine. [`World::host`](crate::World::host) makes it.
///
/// The functions of [`Sim`] act on the host of the task that calls them.
#[derive(Clone, PartialEq, Eq)]
pub struct Host {
    pub(crate) id: HostId,
    name: Rc<str>,
    ip: IpAddr,
}

impl Host {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Its address with a port, to bind or to connect to.
    pub const fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }

    /// Runs the future that `service` makes on this host: now, and again whenever the host starts after it was
    /// down.
    ///
    /// A service that returns an error, or panics, fails the simulation, because nothing would start it again. A
    /// service that returns `Ok` is done until the host starts again.
    ///
    /// # Panics
    /// Outside the simulation.
    pub fn start<F, Fut>(&self, service: F)
    where
        F: Fn() -> Fut + 'static,
        Fut: Future<Output = io::Result<()>> + 'static,
    {
        executor::current().serve(self.id, Rc::new(move || Box::pin(service())));
    }

    /// Runs `future` on this host, as a task that is dropped when the host goes down.
    ///
    /// # Panics
    /// Outside the simulation.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: 'static> + 'static,
    {
        executor::current().on_host(self.id, || Sim::spawn(future))
    }

    /// From now on, at most `count` sockets and files are open on this host. Opening one more fails with `EMFILE`.
    /// Default: no limit.
    ///
    /// # Panics
    /// Outside the simulation.
    pub fn limit_descriptors(&self, count: u32) {
        executor::current().with(|core| core.hosts.get_mut(self.id).descriptors_max = count);
    }

    /// From now on, at most `count` connections from this host have the same destination. One more fails with
    /// `EADDRNOTAVAIL`. `count` is clamped to 1 to 28,232, which is the default, and that of Linux.
    ///
    /// # Panics
    /// Outside the simulation.
    pub fn limit_ports(&self, count: u16) {
        executor::current().with(|core| core.hosts.get_mut(self.id).ports.limit(count));
    }

    /// From now on, the files of this host have at most `bytes` together. A write that needs more fails with `ENOSPC`,
    /// or is short. Default: no limit.
    ///
    /// # Panics
    /// Outside the simulation.
    pub fn limit_disk(&self, bytes: u64) {
        executor::current().with(|core| core.hosts.get_mut(self.id).disk.bytes_max = bytes);
    }

    /// From now on, the work that tasks of this host consume ([`owned_io::coop`]) takes no virtual time, as if
    /// each of them had its own core. All other tasks share one.
    ///
    /// # Panics
    /// Outside the simulation.
    pub fn work_takes_no_time(&self) {
        executor::current().with(|core| core.hosts.get_mut(self.id).work_takes_time = false);
    }

    /// How many descriptors are open on this host: files, listeners, connections and attempts to connect.
    ///
    /// # Panics
    /// Outside the simulation.
    pub fn descriptors(&self) -> u32 {
        executor::current().with(|core| core.hosts.get(self.id).descriptors)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({}, {})", self.name, self.ip)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The index of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostId(u16);

impl HostId {
    /// The host that the main future runs on. It has every address that no other host has.
    pub(crate) const MAIN: Self = Self(0);

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) const fn number(self) -> u16 {
        self.0
    }
}

/// All hosts.
pub(crate) struct Hosts {
    all: Vec<HostState>,
    by_ip: BTreeMap<IpAddr, HostId>,
}

/// The state of a host.
pub(crate) struct HostState {
    name: Rc<str>,
    ip: IpAddr,
    pub(crate) ports: Ports,
    bound: BTreeMap<SocketAddr, Weak<()>>,
    pub(crate) descriptors: u32,
    pub(crate) descriptors_max: u32,
    pub(crate) exhausted_until: Time,
    pub(crate) paused_until: Time,
    /// Until when reads on it are slow.
    pub(crate) slow_until: Time,
    /// How far its time of day is ahead of the simulation's, in nanoseconds.
    pub(crate) clock_ahead: i64,
    /// Whether its kernel answers.
    pub(crate) is_up: bool,
    /// Whether its services run.
    pub(crate) is_running: bool,
    pub(crate) work_takes_time: bool,
    pub(crate) disk: Disk,
}

impl Hosts {
    pub(crate) fn new() -> Self {
        let main = HostState::new("main".into(), Ipv4Addr::LOCALHOST.into());
        Self { all: vec![main], by_ip: BTreeMap::new() }
    }

    /// Adds a host. Their addresses are 10.1.0.1 and so on.
    pub(crate) fn add(&mut self, name: &str) -> Host {
        let number = u16::try_from(self.all.len()).expect("no more hosts than 10.1.0.0/16 has");
        let [high, low] = number.to_be_bytes();
        let ip = IpAddr::from([10, 1, high, low]);
        self.by_ip.insert(ip, HostId(number));
        self.all.push(HostState::new(name.into(), ip));
        self.handle(HostId(number))
    }

    pub(crate) fn handle(&self, id: HostId) -> Host {
        let HostState { name, ip, .. } = self.get(id);
        Host { id, name: Rc::clone(name), ip: *ip }
    }

    pub(crate) fn get(&self, id: HostId) -> &HostState {
        &self.all[id.index()]
    }

    pub(crate) fn get_mut(&mut self, id: HostId) -> &mut HostState {
        &mut self.all[id.index()]
    }

    /// The host that `from` reaches at `ip`.
    pub(crate) fn resolve(&self, from: HostId, ip: IpAddr) -> HostId {
        if ip.is_loopback() || ip.is_unspecified() {
            return from;
        }
        self.by_ip.get(&ip).copied().unwrap_or(HostId::MAIN)
    }

    pub(crate) fn has_addr(&self, host: HostId, ip: IpAddr) -> bool {
        ip.is_unspecified() || self.resolve(host, ip) == host
    }

    /// Binds an address of `host`.
    pub(crate) fn bind(
        &mut self,
        host: HostId,
        mut options: ListenOptions,
    ) -> io::Result<BoundAddr> {
        let failed = |cause| io::Error::from(AddrError::new("listen on", options.addr, cause));
        if !self.has_addr(host, options.addr.ip()) {
            return Err(failed(error(EADDRNOTAVAIL)));
        }
        let bound = &mut self.get_mut(host).bound;
        bound.retain(|_, hold| hold.strong_count() > 0);
        let is_free = |addr: &SocketAddr| {
            let is_taken_outside = host == HostId::MAIN && is_bound_outside(addr);
            !(is_taken(bound, addr) || is_taken_outside)
        };
        let Some(addr) = choose(options.addr, is_free) else {
            return Err(failed(io::ErrorKind::AddrInUse.into()));
        };
        options.addr = addr;
        let hold = Arc::new(());
        bound.insert(addr, Arc::downgrade(&hold));
        Ok(BoundAddr::new(options, hold))
    }
}

impl HostState {
    fn new(name: Rc<str>, ip: IpAddr) -> Self {
        Self {
            name,
            ip,
            ports: Ports::new(),
            bound: BTreeMap::new(),
            descriptors: 0,
            descriptors_max: u32::MAX,
            exhausted_until: 0,
            paused_until: 0,
            slow_until: 0,
            clock_ahead: 0,
            is_up: true,
            is_running: true,
            work_takes_time: true,
            disk: Disk::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Counts one more descriptor; false if the limit is reached.
    pub(crate) const fn open_descriptor(&mut self, now: Time) -> bool {
        let may = self.descriptors < self.descriptors_max && self.exhausted_until <= now;
        if may {
            self.descriptors += 1;
        }
        may
    }

    pub(crate) const fn close_descriptor(&mut self) {
        self.descriptors = self.descriptors.saturating_sub(1);
    }

    /// Releases all descriptors, ports and addresses.
    pub(crate) fn forget_all(&mut self) {
        self.descriptors = 0;
        self.ports.free_all();
        self.bound.clear();
    }
}

/// Binds an address outside a simulation: a service binds before it runs.
pub(crate) fn bind_outside(mut options: ListenOptions) -> io::Result<BoundAddr> {
    BOUND_OUTSIDE.with_borrow_mut(|bound| {
        bound.retain(|_, hold| hold.strong_count() > 0);
        let Some(addr) = choose(options.addr, |addr| !is_taken(bound, addr)) else {
            let cause = io::ErrorKind::AddrInUse.into();
            return Err(AddrError::new("listen on", options.addr, cause).into());
        };
        options.addr = addr;
        let hold = Arc::new(());
        bound.insert(addr, Arc::downgrade(&hold));
        Ok(BoundAddr::new(options, hold))
    })
}

/// `addr` if it is free; for port 0, `addr` with the first free port.
fn choose(addr: SocketAddr, is_free: impl Fn(&SocketAddr) -> bool) -> Option<SocketAddr> {
    if addr.port() != 0 {
        return is_free(&addr).then_some(addr);
    }
    PORT_ZERO_RANGE.map(|port| SocketAddr::new(addr.ip(), port)).find(|addr| is_free(addr))
}

/// Whether `addr` collides with a bound address: same port, and the same address or one of them unspecified.
fn is_taken(bound: &BTreeMap<SocketAddr, Weak<()>>, addr: &SocketAddr) -> bool {
    let collides = |other: &SocketAddr| {
        let is_wildcard = other.ip().is_unspecified() || addr.ip().is_unspecified();
        other.port() == addr.port() && (other.ip() == addr.ip() || is_wildcard)
    };
    bound.iter().any(|(other, hold)| hold.strong_count() > 0 && collides(other))
}

fn is_bound_outside(addr: &SocketAddr) -> bool {
    BOUND_OUTSIDE.with_borrow(|bound| is_taken(bound, addr))
}

/// The ports that port 0 chooses from (RFC 6335 6).
const PORT_ZERO_RANGE: std::ops::RangeInclusive<u16> = 49_152..=65_535;

thread_local! {
    /// Addresses that this thread bound outside a simulation. They belong to the main host.
    static BOUND_OUTSIDE: RefCell<BTreeMap<SocketAddr, Weak<()>>> =
        const { RefCell::new(BTreeMap::new()) };
}
