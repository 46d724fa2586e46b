//! Objects: the cache of what an origin has, without I/O. [`service::object`](crate::service::object) joins it to
//! connections and to the origin.
//!
//! All workers share one cache, behind a lock that is held for less than a microsecond at a time, except while an
//! object is removed. So an object is in memory once, and however many requests for a missing object arrive at however
//! many workers, the origin gets one. The request that misses is given a [`Fetch`]; its worker asks the origin. All
//! others join the [`Transfer`], and read from it what has arrived. Bodies are in blocks of [`Bytes`](bytes::Bytes),
//! which are shared by reference.
//!
//! | module | subject |
//! |---|---|
//! | `name` | which names objects have |
//! | `cache` | [`Objects`]: what a request for a name gets |
//! | `fetch` | [`Fetch`]: what the task that asks the origin puts into the cache |
//! | `transfer` | [`Transfer`]: an object that is arriving |
//! | `stored` | [`Stored`]: an object that has arrived |
//! | `recency` | a map that knows which entry was used longest ago |
//! | `ledger` | counts the bytes that objects take, until the last reader has dropped them |
//! | `freshness` | `Cache-Control`: how long an object may be used |
//! | `response` | parses what an origin answers |
//! | `condition` | which part of an object a request gets, if any |
//! | `origin` | where objects come from |

mod cache;
mod condition;
mod fetch;
mod freshness;
mod ledger;
mod name;
mod origin;
mod recency;
pub mod response;
mod stored;
mod transfer;

use std::num::NonZeroUsize;
use std::time::Duration;

pub use cache::{CONNECTIONS_MAX, ENTRIES_MAX, FETCHES_MAX, Lookup, MISSING_MAX, Objects, Totals};
pub use condition::Choice;
pub use fetch::{Failure, Fetch, MISSING_TIME, RETRY_TIME};
pub use freshness::{CacheControl, Lifetime};
pub use name::{NAME_BYTES_MAX, NameError, ObjectName};
pub use origin::{Directory, HttpOrigin, Origin};
pub use stored::{BLOCK_BYTES, Head, Stored};
pub use transfer::{Arrival, End, Transfer};

/// The options of objects.
#[derive(Clone, Debug)]
pub struct ObjectsConfig {
    /// Where they come from.
    pub origin: Origin,
    /// The bytes of each chunk that bodies are sent in. None: bodies are sent with their length.
    pub chunk_bytes: Option<NonZeroUsize>,
    /// How long an object is fresh, and how long it is used after that, if its origin does not say.
    pub lifetime: Lifetime,
    /// The bytes that all objects take in memory, also while clients receive them.
    pub memory_max: usize,
    /// The bytes of the longest object.
    pub object_bytes_max: u64,
}

impl ObjectsConfig {
    /// The defaults, for an origin. Their reasons are in the code.
    pub fn new(origin: Origin) -> Self {
        const MINUTE: Duration = Duration::from_secs(60);
        Self {
            origin,
            chunk_bytes: None,
            // An origin that says nothing expects changes to be seen soon. A cache that asks once a minute takes nearly
            // all load from it.
            lifetime: Lifetime { fresh: MINUTE, stale: MINUTE },
            // Two hundred objects of the workload, and as much as `--iggy-memory-max`.
            memory_max: 256 << 20,
            // A sixteenth of that, so that a few long objects do not remove all others.
            object_bytes_max: 16 << 20,
        }
    }
}
