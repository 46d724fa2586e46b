//! The effect of each fault.

use std::time::Duration;

use crate::connection::{Side, Socket};
use crate::core::{Action, Core, Event, after};
use crate::host::HostId;
use crate::plan::{Fault, FaultPlan};
use crate::slab::Key;
use crate::trace::TraceKind;

impl Core {
    /// Schedules the faults of `plan`, counted from now.
    pub(crate) fn inject(&mut self, plan: FaultPlan) {
        for (when, fault) in plan.faults {
            let goes_down =
                matches!(fault, Fault::Crash { .. } | Fault::Kill { .. } | Fault::Pause { .. });
            assert!(
                !goes_down || fault.hosts()[0].id != HostId::MAIN,
                "{fault}: that is where the test runs"
            );
            let at = after(self.now, when);
            self.queue.push(at, Event::Fault(self.plan.faults.len() as u32));
            self.plan.faults.push((Duration::from_nanos(at), fault));
        }
    }

    /// Applies the fault with this index in the plan.
    pub(crate) fn apply_fault(&mut self, index: usize) {
        let fault = self.plan.faults[index].1.clone();
        let now = self.now;
        self.record(fault.hosts()[0].id, TraceKind::Fault, index as u32, 0);
        match fault {
            Fault::Partition { a, b, lasts } => self.links.cut(a.id, b.id, after(now, lasts)),
            Fault::Stall { from, to, lasts } => self.links.hold(from.id, to.id, after(now, lasts)),
            Fault::Latency { a, b, by, lasts } => {
                self.links.slow_down(a.id, b.id, after(0, by), after(now, lasts));
            }
            Fault::Loss { a, b, per_million, lasts } => {
                self.links.lose(a.id, b.id, per_million, after(now, lasts));
            }
            Fault::Crash { host, down } => self.crash(host.id, down),
            Fault::Kill { host, down } => self.kill(host.id, down),
            Fault::Pause { host, lasts } => {
                let until = after(now, lasts);
                let host_state = self.hosts.get_mut(host.id);
                host_state.paused_until = host_state.paused_until.max(until);
                self.queue.push(until, Event::Resume(host.id));
            }
            Fault::SlowReader { host, lasts } => {
                self.hosts.get_mut(host.id).slow_until = after(now, lasts);
            }
            Fault::Descriptors { host, lasts } => {
                self.hosts.get_mut(host.id).exhausted_until = after(now, lasts);
            }
            Fault::Clock { host, ahead_millis } => {
                let ahead = &mut self.hosts.get_mut(host.id).clock_ahead;
                *ahead = ahead.saturating_add(ahead_millis.saturating_mul(1_000_000));
            }
            Fault::DiskFull { host, lasts } => {
                self.hosts.get_mut(host.id).disk.full_until = after(now, lasts);
            }
            Fault::ReadErrors { host, lasts } => {
                self.hosts.get_mut(host.id).disk.read_errors_until = after(now, lasts);
            }
            Fault::SyncErrors { host, lasts } => {
                self.hosts.get_mut(host.id).disk.sync_errors_until = after(now, lasts);
            }
            Fault::SlowDisk { host, lasts } => {
                self.hosts.get_mut(host.id).disk.slow_until = after(now, lasts);
            }
        }
    }

    /// Brings a host up and starts its services again.
    pub(crate) fn restart(&mut self, host: HostId) {
        self.finish_late_writes(host);
        let state = self.hosts.get_mut(host);
        state.is_up = true;
        state.is_running = true;
        self.record(host, TraceKind::Started, 0, 0);
        self.actions.push(Action::StartService(host));
    }

    /// A host loses its power, and with it what its disk has not written. A host that is down already stays as it is.
    fn crash(&mut self, host: HostId, down: Duration) {
        let state = self.hosts.get_mut(host);
        if !std::mem::replace(&mut state.is_running, false) {
            return;
        }
        state.is_up = false;
        self.record(host, TraceKind::Down, 0, 0);
        let open: Vec<_> = self.connections.iter().map(|(key, _)| key).collect();
        for connection in open {
            self.vanish(host, connection);
        }
        let queues = self.listeners.queues.iter().filter(|(_, queue)| queue.host == host);
        let queues: Vec<_> = queues.map(|(key, _)| key).collect();
        for queue in queues {
            self.end_listening(queue, false);
        }
        let attempts = self.attempts.iter().filter(|(_, attempt)| attempt.from == host);
        let attempts: Vec<_> = attempts.map(|(key, _)| key).collect();
        for attempt in attempts {
            self.cancel_attempt(attempt);
        }
        let state = self.hosts.get_mut(host);
        state.forget_all();
        state.disk.crash(&mut self.rng);
        self.actions.push(Action::DropTasks(host));
        self.queue.push(after(self.now, down), Event::Restart(host));
    }

    /// Removes the ends of a connection that are on `host`, and tells nobody.
    fn vanish(&mut self, host: HostId, key: Key) {
        for side in [Side::Client, Side::Server] {
            let Some(connection) = self.connections.get_mut(key) else { return };
            let (end, _) = connection.ends(side);
            if end.host == host {
                end.is_open = false;
                end.is_reset = true;
                end.is_write_shut = true;
                end.has_descriptor = false;
                self.clear_end(Socket { connection: key, side });
            }
        }
        self.free_if_closed(key);
    }

    /// The process of a host is gone; the kernel closes what it had open.
    fn kill(&mut self, host: HostId, down: Duration) {
        let state = self.hosts.get_mut(host);
        if std::mem::replace(&mut state.is_running, false) {
            self.record(host, TraceKind::Down, 0, 0);
            self.actions.push(Action::DropTasks(host));
            self.queue.push(after(self.now, down), Event::Restart(host));
        }
    }
}
