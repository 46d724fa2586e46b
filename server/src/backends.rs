//! The runtimes that are compiled in. Only this file of the server names any.

use std::io;

use owned_io::{Files, HandOver, Runtime};
use owned_io_server::config::{Config, Listener};
use owned_io_server::drain::DrainSignal;
use owned_io_server::server::{self, Outcome};

#[cfg(not(any(
    feature = "tokio",
    feature = "tokio-uring",
    feature = "compio",
    feature = "monoio",
    feature = "glommio"
)))]
compile_error!(
    "no runtime is chosen: enable at least one of the features tokio, tokio-uring, compio, monoio, \
     glommio"
);

/// A runtime that the server can run on.
pub(crate) struct Backend {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Config, DrainSignal, Listening) -> io::Result<Outcome>,
}

/// Called for each listener once all workers listen on it.
pub(crate) type Listening = fn(&Listener);

const fn backend<R: Runtime + Files + HandOver>() -> Backend {
    Backend { name: R::NAME, run: server::run::<R> }
}

/// The runtimes that are compiled in.
pub(crate) const BACKENDS: &[Backend] = &[
    #[cfg(feature = "tokio")]
    backend::<owned_io_tokio::Tokio>(),
    #[cfg(feature = "tokio-uring")]
    backend::<owned_io_tokio_uring::TokioUring>(),
    #[cfg(feature = "compio")]
    backend::<owned_io_compio::Compio>(),
    #[cfg(feature = "monoio")]
    backend::<owned_io_monoio::Monoio>(),
    #[cfg(feature = "glommio")]
    backend::<owned_io_glommio::Glommio>(),
];

/// The names of all runtimes that can be compiled in.
const ALL: [&str; 5] = ["tokio", "tokio-uring", "compio", "monoio", "glommio"];

/// The runtime of this name. Without a name, the only runtime that is compiled in.
///
/// # Errors
/// A sentence that lists the runtimes to choose from.
pub(crate) fn choose(name: Option<&str>) -> Result<&'static Backend, String> {
    let names: Vec<_> = BACKENDS.iter().map(|backend| backend.name).collect();
    let names = names.join(", ");
    match (name, BACKENDS) {
        (None, [only]) => Ok(only),
        (None, _) => {
            Err(format!("several runtimes are compiled in: choose one by --runtime: {names}"))
        }
        (Some(name), _) => BACKENDS.iter().find(|backend| backend.name == name).ok_or_else(|| {
            if ALL.contains(&name) {
                format!(
                    "runtime {name} is not compiled in (there is {names}): build with \
                         --features {name}"
                )
            } else {
                format!("there is no runtime {name}: choose one of {names}")
            }
        }),
    }
}
