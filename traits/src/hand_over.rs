//! [`HandOver`]: one worker accepts a connection, another serves it.

use std::io;
use std::net::SocketAddr;

use crate::Tcp;

/// Accepts connections without deciding which worker serves them.
///
/// The kernel distributes clients over the listeners of the workers by a hash, so some workers get more connections
/// than others. With this trait a worker accepts a connection and sends it to another worker, for example through a
/// [`channel`](crate::channel()). That worker adopts it.
///
/// It is not part of [`Runtime`](crate::Runtime). A service that needs it requires `R: Runtime + HandOver`.
///
/// ```
/// use std::io;
/// use owned_io::{ByteStream, HandOver, Receiver, Runtime, Sender};
///
/// /// Accepts for another worker.
/// async fn accept<R: Runtime + HandOver>(
///     mut listener: R::TcpListener,
///     other: Sender<R::Detached>,
/// ) -> io::Result<()> {
///     loop {
///         let (detached, _peer) = R::accept_detached(&mut listener).await?;
///         if other.send::<R>(detached).await.is_err() {
///             return Ok(()); // the other worker has ended, and the connection is closed
///         }
///     }
/// }
///
/// /// Serves what another worker accepts: resets each client.
/// async fn serve<R: Runtime + HandOver>(mut accepted: Receiver<R::Detached>) -> io::Result<()> {
///     while let Some(detached) = accepted.receive::<R>().await {
///         let stream = R::adopt(detached)?;
///         stream.shutdown_handle().abort();
///     }
///     Ok(())
/// }
/// # use owned_io::{ConnectOptions, Executor, ListenOptions, OwnedReadExt, Tcp, channel};
/// # use owned_io_sim::Sim;
/// # Sim::block_on(Default::default(), async {
/// #     let (sender, receiver) = channel(1.try_into().unwrap());
/// #     let bound = Sim::bind(ListenOptions::new(([10, 0, 0, 1], 7).into()))?;
/// #     drop(Sim::spawn(accept::<Sim>(Sim::listen(&bound)?, sender)));
/// #     drop(Sim::spawn(serve::<Sim>(receiver)));
/// #     let mut client = Sim::connect(ConnectOptions::new(bound.local_addr())).await?;
/// #     let error = client.read_exact(Vec::with_capacity(1), 1).await.into_result().unwrap_err();
/// #     assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
/// #     Ok::<(), io::Error>(())
/// # })??;
/// # Ok::<(), io::Error>(())
/// ```
///
/// # Implementing it
///
/// `owned_io_os::runtime_functions!(HandOver)` has all of it for a kernel backend whose listener is an
/// `owned_io_os::Listener`. The implementation is complete when it passes the cases of `hand_over_conformance!` (feature
/// `conformance`).
#[expect(async_fn_in_trait, reason = "one thread per runtime: no future is asked to be `Send`")]
pub trait HandOver: Tcp {
    /// A connection that was accepted and belongs to no worker. Dropping it closes the connection.
    type Detached: Send + 'static;

    /// [`accept`](crate::TcpListener::accept) for any worker: waits for a client, and takes it from the accept queue.
    /// The fairness is the same.
    ///
    /// # Errors
    /// Those of `accept`, without those of the registration with the runtime.
    ///
    /// # Cancellation
    /// Safe: a dropped accept has taken no client.
    async fn accept_detached(
        listener: &mut Self::TcpListener,
    ) -> io::Result<(Self::Detached, SocketAddr)>;

    /// Makes it a connection of the calling worker. The first read is as after `accept`: it returns at once what has
    /// arrived by then.
    ///
    /// # Errors
    /// The runtime has no memory to register the connection. The connection is closed.
    fn adopt(detached: Self::Detached) -> io::Result<Self::TcpStream>;
}
