//! [`Context`]: what a service knows of its connection, and [`Resources`]: what a worker's connections share.

use std::rc::Rc;
use std::sync::Arc;

use owned_io::{MemoryBudget, Pool};
use owned_io_websocket::stream::Buffers;

use crate::config::{Limits, WebSockets};
use crate::connections::ConnectionHandle;
use crate::iggy::workers::Iggy;
use crate::memory::Memory;
use crate::metrics::{Metrics, WorkerMetrics};
use crate::service::application::{Application, Placement};
use crate::service::object::WorkerObjects;
use crate::service::source::Pattern;
use crate::service::tail::Feeds;
use crate::stalls::Stalls;
use crate::tls::{Tls, WorkerTls};

/// What a service is given with the stream of its connection.
#[derive(Debug)]
pub struct Context {
    /// The connection in the registry: how it is closed, and its memory account.
    pub connection: ConnectionHandle,
    /// What all connections of the worker share.
    pub worker: Rc<Resources>,
}

/// What all connections of a worker share, over all its listeners.
#[derive(Clone, Debug)]
pub struct Resources {
    /// The memory that connections may hold beyond the buffers of the pools. Each has an account in it.
    pub budget: MemoryBudget,
    /// Receive buffers: of bytes, messages, frames and TLS records.
    pub pool: Pool,
    /// Buffers of WebSockets.
    pub websocket_buffers: Buffers,
    /// The bytes that sources send.
    pub pattern: Pattern,
    /// The options of WebSockets.
    pub websockets: WebSockets,
    /// What a connection may use.
    pub limits: Limits,
    /// TLS, if a listener uses it.
    pub tls: WorkerTls,
    /// The stalls that `/stalls` shows to operators. Clients are shown none.
    pub stalls: Stalls,
    /// What this worker counts.
    pub metrics: Arc<WorkerMetrics>,
    /// The metrics of all workers, which `/metrics` shows to operators. Clients are shown none.
    pub all_metrics: Option<Metrics>,
    /// The application of [echo with hops](crate::service::application).
    pub application: Rc<Application>,
    /// The streams of Iggy's clients, if there is a password for them.
    pub iggy: Option<Rc<Iggy>>,
    /// What is pushed of them.
    pub feeds: Feeds,
    /// The objects, if there is an origin.
    pub objects: Option<Rc<WorkerObjects>>,
}

impl Resources {
    /// Fresh pools and a fresh budget, of the sizes that `memory` says. Without Iggy, and with an application that is a task.
    pub fn new(memory: Memory, tls: Option<Tls>, websockets: WebSockets, limits: Limits) -> Self {
        let (pool, budget) = (memory.receive_pool(), memory.budget());
        Self {
            websocket_buffers: Buffers::new(pool.clone(), budget.clone()),
            tls: WorkerTls::new(tls, pool.clone(), budget.clone()),
            pool,
            budget,
            pattern: Pattern::default(),
            websockets,
            limits,
            stalls: Stalls::default(),
            metrics: Arc::default(),
            all_metrics: None,
            application: Rc::new(Application::new(Placement::Task)),
            iggy: None,
            feeds: Feeds::default(),
            objects: None,
        }
    }
}

impl Context {
    /// The buffers of WebSockets, with what this connection holds reserved in its account.
    pub(crate) fn websocket_buffers(&self) -> Buffers {
        self.worker.websocket_buffers.with_account(self.connection.account())
    }
}
