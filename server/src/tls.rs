//! TLS, with feature `tls`: the server's certificates, and the handshake of a connection.

#[cfg(not(feature = "tls"))]
pub use absent::{Tls, WorkerTls};
#[cfg(feature = "tls")]
pub use present::{Tls, WorkerTls};

#[cfg(feature = "tls")]
mod present {
    use std::io;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use owned_io::{ByteStream, MemoryBudget, Pool, Runtime};
    use owned_io_tls::{Acceptor, Buffers, Identity, IdentityError, TlsStream};

    use crate::config::Service;
    use crate::connections::{CloseMethod, ConnectionHandle};

    /// The server's certificates and key. All workers share them, and the sessions that can be resumed.
    #[derive(Clone, Debug)]
    pub struct Tls {
        identity: Arc<Identity>,
        https: Acceptor,
        other: Acceptor,
    }

    /// The answer to a client that speaks plain HTTP to an HTTPS listener. `curl http://…` prints it.
    const NOT_HTTPS: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
        Content-Type: text/plain\r\nContent-Length: 35\r\nConnection: close\r\n\r\n\
        this port speaks TLS: use https://\n";

    impl Tls {
        /// Reads a chain of certificates, and the key of the first certificate. A client has `close_timeout` to end a
        /// connection that has failed.
        ///
        /// # Errors
        /// A sentence that names the option, the file and the cause.
        pub fn load(chain: PathBuf, key: PathBuf, close_timeout: Duration) -> Result<Self, String> {
            let identity = Identity::load(chain, key, SystemTime::now());
            let identity = identity.map_err(|error| named(&error))?;
            let mut https = Acceptor::new(Arc::new(identity.server_config(&["http/1.1"])));
            https.plain_answer = NOT_HTTPS;
            let mut other = Acceptor::new(Arc::new(identity.server_config(&[])));
            (https.close_timeout, other.close_timeout) = (close_timeout, close_timeout);
            Ok(Self { identity, https, other })
        }

        /// Reads the files again. Connections that begin from now on use them.
        ///
        /// # Errors
        /// As for [`load`](Self::load). Nothing has changed then.
        pub fn reload(&self) -> Result<(), String> {
            self.identity.reload(SystemTime::now()).map_err(|error| named(&error))
        }
    }

    /// Names the option too.
    fn named(error: &IdentityError) -> String {
        let option = if error.is_about_key() { "--tls-key" } else { "--tls-cert" };
        format!("{option}: {error}")
    }

    /// TLS on one worker.
    #[derive(Clone, Debug)]
    pub struct WorkerTls {
        tls: Option<Tls>,
        buffers: Buffers,
    }

    impl WorkerTls {
        /// Receives into buffers of `pool`. What a connection holds beyond those is reserved in its account in
        /// `budget`.
        pub fn new(tls: Option<Tls>, pool: Pool, budget: MemoryBudget) -> Self {
            Self { tls, buffers: Buffers::new(pool, budget) }
        }

        /// Performs the handshake of a connection to `service`. From then on the connection is closed as TLS
        /// asks for, with a close_notify.
        ///
        /// # Errors
        /// The error of the handshake.
        pub async fn accept<R: Runtime, S: ByteStream>(
            &self,
            stream: S,
            service: Service,
            connection: &ConnectionHandle,
        ) -> io::Result<TlsStream<S>> {
            let Some(tls) = &self.tls else { return Err(io::ErrorKind::Unsupported.into()) };
            let acceptor = if service == Service::Http { &tls.https } else { &tls.other };
            // Boxed because it is large, and needed only once.
            let buffers = self.buffers.with_account(connection.account());
            let stream = Box::pin(acceptor.accept::<R, S>(stream, &buffers)).await?;
            connection.set_close_method(CloseMethod::ShutdownRead(stream.shutdown_handle()));
            Ok(stream)
        }
    }
}

#[cfg(not(feature = "tls"))]
mod absent {
    use std::io;
    use std::path::PathBuf;
    use std::time::Duration;

    use owned_io::{ByteStream, MemoryBudget, Pool, Runtime};

    use crate::config::Service;
    use crate::connections::ConnectionHandle;

    /// TLS is not compiled in, so there is no value of this.
    #[derive(Clone, Debug)]
    pub enum Tls {}

    impl Tls {
        /// # Errors
        /// Always. The sentence says what to build with.
        pub fn load(
            _chain: PathBuf,
            _key: PathBuf,
            _close_timeout: Duration,
        ) -> Result<Self, String> {
            Err("TLS is not compiled in: build with --features tls".to_owned())
        }

        /// Never called.
        ///
        /// # Errors
        /// None.
        pub fn reload(&self) -> Result<(), String> {
            match *self {}
        }
    }

    /// TLS is not compiled in: no listener is over TLS.
    #[derive(Clone, Debug)]
    pub struct WorkerTls;

    impl WorkerTls {
        /// Nothing.
        pub fn new(_tls: Option<Tls>, _pool: Pool, _budget: MemoryBudget) -> Self {
            Self
        }

        /// Never called: no listener is over TLS.
        ///
        /// # Errors
        /// Always.
        pub async fn accept<R: Runtime, S: ByteStream>(
            &self,
            _stream: S,
            _service: Service,
            _connection: &ConnectionHandle,
        ) -> io::Result<S> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}
