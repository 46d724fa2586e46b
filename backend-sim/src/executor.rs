//! The tasks of a simulation, and the loop that polls them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use owned_io::backend::run_main;
use owned_io::{Executor, Panicked, coop};

use crate::core::{Action, Core, Time};
use crate::host::HostId;
use crate::ready::{Ready, Round, TaskWaker};
use crate::runtime::{Config, Sim};
use crate::slab::{Key, Slab};
use crate::trace::TraceKind;

/// How long one poll of a task takes by the virtual clock, in nanoseconds, besides the work that it
/// [consumes](owned_io::coop). So timers come even while some task is always ready. All hosts share one core,
/// except where work [takes no time](crate::Host::work_takes_no_time).
const POLL_COST: Time = 1_000;

/// How long, by the real clock, a simulation with nothing left to do waits for a wake from another thread before
/// it reports a deadlock.
const DEADLOCK_AFTER: Duration = Duration::from_secs(10);

/// The key of the future that is given to [`run`]. It is not a task, because it may borrow.
const MAIN: Key = Key::NONE;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Shared>>> = const { RefCell::new(None) };
}

/// Runs `future` and the tasks that it spawns in the simulation `world`, until `future` is done.
///
/// # Errors
/// The panic of `future`.
///
/// # Panics
/// When nothing is left that could wake `future`, when there were too many events, when a service of a host has
/// failed, and when it is called within a simulation.
pub(crate) fn run<F: Future>(world: &Rc<Shared>, future: F) -> Result<F::Output, Panicked> {
    CURRENT.with_borrow_mut(|current| {
        assert!(current.is_none(), "a simulation runs on this thread already");
        *current = Some(Rc::clone(world));
    });
    let _end = EndSimulation(world);
    world.run(future)
}

/// The world that runs on this thread.
///
/// # Panics
/// Outside a simulation.
pub(crate) fn current() -> Rc<Shared> {
    CURRENT.with_borrow(Clone::clone).expect("called outside of a simulation (Sim::block_on)")
}

pub(crate) fn is_running() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// Drops the tasks while `current` still works, then ends the simulation; on a panic too.
struct EndSimulation<'a>(&'a Shared);

impl Drop for EndSimulation<'_> {
    fn drop(&mut self) {
        drop(self.0.services.take());
        // A task may spawn another while it is dropped.
        while self.0.tasks.borrow().len() > 0 {
            drop(self.0.tasks.replace(Slab::new()));
        }
        CURRENT.with_borrow_mut(|current| *current = None);
    }
}

/// Ends the trace when the scenario ends or fails. Otherwise the last lines of a report would be about what is
/// dropped afterwards.
struct EndOfTrace<'a>(&'a Shared);

impl Drop for EndOfTrace<'_> {
    fn drop(&mut self) {
        self.0.core.borrow_mut().trace.end();
    }
}

/// A simulation: what its tasks share.
pub(crate) struct Shared {
    pub(crate) core: RefCell<Core>,
    config: Config,
    started: Instant,
    /// The host of the task that is being polled.
    host: Cell<HostId>,
    tasks: RefCell<Slab<Task>>,
    tasks_made: Cell<u32>,
    ready: Arc<Ready>,
    round: RefCell<Round>,
    /// Tasks that were woken while their hosts were paused.
    paused: RefCell<Vec<(HostId, Arc<TaskWaker>)>>,
    services: RefCell<Vec<(HostId, Service)>>,
    /// Why the simulation has failed.
    failure: RefCell<Option<String>>,
}

struct Task {
    /// Taken out while it is polled, because it may spawn tasks.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    host: HostId,
    number: u32,
}

/// A function whose future a host runs whenever it starts.
pub(crate) type Service = Rc<dyn Fn() -> Pin<Box<dyn Future<Output = io::Result<()>>>>>;

impl Shared {
    pub(crate) fn new(config: Config) -> Rc<Self> {
        Rc::new(Self {
            core: RefCell::new(Core::new(config)),
            config,
            started: Instant::now(),
            host: Cell::new(HostId::MAIN),
            tasks: RefCell::new(Slab::new()),
            tasks_made: Cell::new(0),
            ready: Ready::new(),
            round: RefCell::default(),
            paused: RefCell::default(),
            services: RefCell::default(),
            failure: RefCell::default(),
        })
    }

    /// Changes the state by `f`. Then wakes, drops and starts what `f` has asked for, outside the borrow, because
    /// that may run code of tasks.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.core.borrow_mut();
        let output = f(&mut core);
        if !core.woken.is_empty() || !core.dropped.is_empty() || !core.actions.is_empty() {
            self.follow_up(core);
        }
        output
    }

    fn follow_up(&self, mut core: std::cell::RefMut<'_, Core>) {
        let (mut woken, mut dropped, actions) = {
            let core = &mut *core;
            let Core { woken, dropped, actions, .. } = core;
            (std::mem::take(woken), std::mem::take(dropped), std::mem::take(actions))
        };
        drop(core);
        woken.drain(..).for_each(Waker::wake);
        dropped.clear();
        for action in actions {
            self.execute(action);
        }
        // Keep the allocations, unless new entries came meanwhile.
        let mut core = self.core.borrow_mut();
        if core.woken.is_empty() {
            core.woken = woken;
        }
        if core.dropped.is_empty() {
            core.dropped = dropped;
        }
    }

    fn execute(&self, action: Action) {
        match action {
            Action::Resume(host) => {
                let paused = self.paused.take();
                let (resumed, paused) = paused.into_iter().partition(|(of, _)| *of == host);
                *self.paused.borrow_mut() = paused;
                self.ready.push_again(resumed.into_iter().map(|(_, task)| task));
            }
            Action::DropTasks(host) => {
                let of_host = |(key, task): (Key, &Task)| (task.host == host).then_some(key);
                let keys: Vec<_> = self.tasks.borrow().iter().filter_map(of_host).collect();
                for key in keys {
                    let task = self.tasks.borrow_mut().remove(key);
                    self.on_host(host, || drop(task));
                }
            }
            Action::StartService(host) => self.start_services(host),
        }
    }

    fn run<F: Future>(&self, future: F) -> Result<F::Output, Panicked> {
        let mut main = pin!(run_main::<Sim, _>(async {
            let _trace = EndOfTrace(self);
            future.await
        }));
        let _trace = EndOfTrace(self);
        self.ready.push_new(MAIN);
        loop {
            if self.round.borrow().is_over() {
                self.begin_round();
            }
            let Some(woken) = self.next_task() else {
                // All tasks of the round may be done or paused, while others were woken.
                if self.ready.is_empty() {
                    self.wait_for_event();
                }
                continue;
            };
            let key = woken.key;
            let waker = Waker::from(woken);
            let mut cx = Context::from_waker(&waker);
            coop::refill();
            if key == MAIN {
                if let Poll::Ready(output) = main.as_mut().poll(&mut cx) {
                    return output;
                }
            } else {
                self.poll_task(key, &mut cx);
            }
            let mut core = self.core.borrow_mut();
            if core.hosts.get(self.host.get()).work_takes_time {
                core.now += coop::spent_nanos();
            }
            drop(core);
            if let Some(why) = self.failure.take() {
                panic!("{why}");
            }
        }
    }

    /// Tasks that are ready are polled before tasks that the events of this moment wake. So a sleep of zero lets
    /// every ready task be polled.
    fn begin_round(&self) {
        self.round.borrow_mut().begin(&self.ready);
        self.with(Core::fire_due);
        let mut round = self.round.borrow_mut();
        if round.is_over() {
            round.begin(&self.ready);
        }
    }

    /// A random task of the round that is not paused; records that it is polled.
    fn next_task(&self) -> Option<Arc<TaskWaker>> {
        let mut core = self.core.borrow_mut();
        let core = &mut *core;
        let mut round = self.round.borrow_mut();
        loop {
            let woken = round.take(&mut core.rng)?;
            let tasks = self.tasks.borrow();
            let (host, number) = match tasks.get(woken.key) {
                Some(task) => (task.host, task.number),
                None if woken.key == MAIN => (HostId::MAIN, 0),
                None => continue, // the task is done
            };
            if core.hosts.get(host).paused_until > core.now {
                self.paused.borrow_mut().push((host, woken));
                continue;
            }
            woken.mark_polled();
            self.host.set(host);
            core.record(host, TraceKind::Polled, number, 0);
            core.now += POLL_COST;
            let count = core.trace.count();
            assert!(count <= self.config.events_max, "not done after {count} events");
            return Some(woken);
        }
    }

    fn poll_task(&self, key: Key, cx: &mut Context<'_>) {
        let taken = self.tasks.borrow_mut().get_mut(key).and_then(|task| task.future.take());
        let Some(mut future) = taken else { return };
        if future.as_mut().poll(cx).is_ready() {
            let done = self.tasks.borrow_mut().remove(key);
            drop((future, done));
            return;
        }
        // The task is gone if its host went down during this poll. Then the future is dropped outside the borrow.
        let mut tasks = self.tasks.borrow_mut();
        if let Some(task) = tasks.get_mut(key) {
            task.future = Some(future);
        } else {
            drop(tasks);
            drop(future);
        }
    }

    /// Nothing is ready: advances the clock to the next event, or waits for another thread.
    fn wait_for_event(&self) {
        let mut core = self.core.borrow_mut();
        if let Some(at) = core.queue.next_at() {
            core.now = core.now.max(at);
            return;
        }
        drop(core);
        let seed = self.config.seed;
        assert!(
            self.config.waits_for_threads,
            "deadlock: no task is ready, and no event is scheduled (seed {seed})"
        );
        let gave_up = Instant::now() + DEADLOCK_AFTER;
        while self.ready.is_empty() {
            let left = gave_up.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "deadlock: no task is ready, no timer is set, and no other thread woke one in \
                 {DEADLOCK_AFTER:?} (seed {seed})",
            );
            thread::park_timeout(left);
        }
    }

    /// Starts a task on the current host. If that host is down, the future is dropped at once.
    pub(crate) fn spawn(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        let host = self.host.get();
        if !self.core.borrow().hosts.get(host).is_running {
            return;
        }
        let number = self.tasks_made.get() + 1;
        self.tasks_made.set(number);
        let task = Task { future: Some(future), host, number };
        let key = self.tasks.borrow_mut().insert(task);
        self.ready.push_new(key);
    }

    /// The host of the task that is being polled.
    pub(crate) fn host(&self) -> HostId {
        self.host.get()
    }

    /// Calls `f` with `host` as the current host.
    pub(crate) fn on_host<T>(&self, host: HostId, f: impl FnOnce() -> T) -> T {
        let before = self.host.replace(host);
        let output = f();
        self.host.set(before);
        output
    }

    /// Runs a service now, and whenever its host starts again.
    pub(crate) fn serve(&self, host: HostId, service: Service) {
        self.services.borrow_mut().push((host, Rc::clone(&service)));
        self.start_service(host, &service);
    }

    fn start_services(&self, host: HostId) {
        let of_host = |(of, service): &(HostId, Service)| (*of == host).then(|| Rc::clone(service));
        let services: Vec<_> = self.services.borrow().iter().filter_map(of_host).collect();
        for service in services {
            self.start_service(host, &service);
        }
    }

    fn start_service(&self, host: HostId, service: &Service) {
        let name = self.core.borrow().hosts.get(host).name().to_owned();
        self.on_host(host, || {
            let running = Sim::spawn(service());
            Sim::spawn_detached(async move {
                let why = match running.await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error.to_string(),
                    Err(panicked) => panicked.to_string(),
                };
                let why = format!("the service of {name} has ended: {why}");
                current().failure.borrow_mut().get_or_insert(why);
            });
        });
    }

    pub(crate) fn now(&self) -> Instant {
        self.started + self.elapsed()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.core.borrow().now)
    }
}
