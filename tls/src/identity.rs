//! [`Identity`]: a certificate and its key, from PEM files.

use std::error::Error;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{
    ClientHello, ParsedCertificate, ProducesTickets, ResolvesServerCert, ServerConfig,
};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, InconsistentKeys, RootCertStore};

/// The identity of a server: a chain of certificates, its own first, and the private key, read from PEM files.
/// [`reload`](Self::reload) reads the files again while connections go on.
///
/// All workers of a process share one identity and its key for session tickets. So any worker resumes a session that
/// began on another, also after a reload, until the process ends or the ticket is older than twelve hours.
pub struct Identity {
    chain_file: PathBuf,
    key_file: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    provider: Arc<CryptoProvider>,
    tickets: Arc<dyn ProducesTickets>,
}

impl Identity {
    /// The longest file that is read, in bytes. A chain of certificates takes some thousand.
    pub const FILE_BYTES_MAX: u64 = 1 << 20;

    /// Reads the files. Each must be a regular file of at most [`FILE_BYTES_MAX`](Self::FILE_BYTES_MAX).
    ///
    /// # Errors
    /// If a file cannot be read, if it is too long or no regular file, if it has no certificate or no key, if the key
    /// does not match the certificate, or if the certificate is not valid at the time `now`; if the system gives no
    /// randomness for the key of session tickets.
    pub fn load(
        chain_file: PathBuf,
        key_file: PathBuf,
        now: SystemTime,
    ) -> Result<Arc<Self>, IdentityError> {
        let provider = Arc::new(ring::default_provider());
        let current = RwLock::new(read(&chain_file, &key_file, &provider, now)?);
        let tickets = ring::Ticketer::new().map_err(|cause| IdentityError {
            file: key_file.clone(),
            is_key: true,
            flaw: Flaw::NoTickets(cause),
        })?;
        Ok(Arc::new(Self { chain_file, key_file, current, provider, tickets }))
    }

    /// Reads the files again. Handshakes that begin from now on use the new certificate and key.
    ///
    /// # Errors
    /// As for [`load`](Self::load). The identity is unchanged then.
    pub fn reload(&self, now: SystemTime) -> Result<(), IdentityError> {
        let new = read(&self.chain_file, &self.key_file, &self.provider, now)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// The server's own certificate.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.current().cert[0].clone()
    }

    /// A configuration for a server with these application protocols (ALPN), in order of preference. Without any, ALPN
    /// is not negotiated.
    pub fn server_config(self: &Arc<Self>, protocols: &[&str]) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider));
        let mut config = builder
            .with_safe_default_protocol_versions()
            .expect("ring has cipher suites for each version")
            .with_no_client_auth()
            .with_cert_resolver(Arc::<Self>::clone(self));
        config.alpn_protocols =
            protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config.ticketer = Arc::clone(&self.tickets);
        config
    }

    fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("chain_file", &self.chain_file)
            .field("key_file", &self.key_file)
            .finish_non_exhaustive()
    }
}

/// Why the files have no usable identity. `Display` prints a sentence that names the file.
#[derive(Debug)]
pub struct IdentityError {
    file: PathBuf,
    /// Whether `file` is that of the key.
    is_key: bool,
    flaw: Flaw,
}

impl IdentityError {
    /// Whether the file of the key is at fault. Otherwise it is that of the certificates.
    pub const fn is_about_key(&self) -> bool {
        self.is_key
    }
}

#[derive(Debug)]
enum Flaw {
    Unreadable(io::Error),
    NotRegular,
    TooLong,
    /// The file is not PEM.
    Malformed(pem::Error),
    NoCertificate,
    NoKey,
    /// The PEM is fine, the certificate in it is not.
    BadCertificate(rustls::Error),
    /// The PEM is fine, the key in it is not, or is of a kind that is not supported.
    BadKey(rustls::Error),
    /// The key of another certificate. Has the path of the certificate's file.
    NotTheKeyOf(PathBuf),
    Expired(Option<Duration>),
    NotYetValid,
    NoTickets(rustls::Error),
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.flaw {
            Flaw::Unreadable(error) => write!(f, "cannot read {file}: {error}"),
            Flaw::NotRegular => write!(f, "cannot read {file}: it is not a regular file"),
            Flaw::TooLong => {
                write!(
                    f,
                    "cannot read {file}: it is longer than {} bytes",
                    Identity::FILE_BYTES_MAX
                )
            }
            Flaw::Malformed(error) => write!(f, "cannot read {file} as PEM: {error}"),
            Flaw::NoCertificate => write!(f, "there is no certificate in {file}"),
            Flaw::NoKey => write!(f, "there is no private key in {file}"),
            Flaw::BadCertificate(error) => write!(f, "the certificate in {file} is bad: {error}"),
            Flaw::BadKey(error) => write!(f, "the private key in {file} is unusable: {error}"),
            Flaw::NotTheKeyOf(chain) => {
                write!(f, "the key in {file} is not that of the certificate in {}", chain.display())
            }
            Flaw::Expired(Some(ago)) => {
                let days = ago.as_secs() / (24 * 60 * 60);
                write!(f, "the certificate in {file} has expired, {days} days ago")
            }
            Flaw::Expired(None) => write!(f, "the certificate in {file} has expired"),
            Flaw::NotYetValid => write!(f, "the certificate in {file} is not valid yet"),
            Flaw::NoTickets(error) => write!(f, "cannot create a key for session tickets: {error}"),
        }
    }
}

impl Error for IdentityError {}

fn read(
    chain_file: &Path,
    key_file: &Path,
    provider: &CryptoProvider,
    now: SystemTime,
) -> Result<Arc<CertifiedKey>, IdentityError> {
    let in_chain = |flaw| IdentityError { file: chain_file.to_owned(), is_key: false, flaw };
    let in_key = |flaw| IdentityError { file: key_file.to_owned(), is_key: true, flaw };

    let bytes = read_file(chain_file).map_err(in_chain)?;
    let chain = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| in_chain(Flaw::Malformed(error)))?;
    let Some((own, issuers)) = chain.split_first() else {
        return Err(in_chain(Flaw::NoCertificate));
    };
    check_validity(own, issuers, provider, now).map_err(in_chain)?;

    let bytes = read_file(key_file).map_err(in_key)?;
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => in_key(Flaw::NoKey),
        error => in_key(Flaw::Malformed(error)),
    })?;
    let key = CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            in_key(Flaw::NotTheKeyOf(chain_file.to_owned()))
        }
        error => in_key(Flaw::BadKey(error)),
    })?;
    Ok(Arc::new(key))
}

/// Reads a regular file of at most [`FILE_BYTES_MAX`](Identity::FILE_BYTES_MAX). A file of another kind may have no
/// end, or block the thread that opens it.
fn read_file(path: &Path) -> Result<Vec<u8>, Flaw> {
    let mut bytes = Vec::new();
    if !fs::metadata(path).map_err(Flaw::Unreadable)?.is_file() {
        return Err(Flaw::NotRegular);
    }
    let file = File::open(path).map_err(Flaw::Unreadable)?;
    file.take(Identity::FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(Flaw::Unreadable)?;
    if bytes.len() as u64 > Identity::FILE_BYTES_MAX {
        return Err(Flaw::TooLong);
    }
    Ok(bytes)
}

/// Checks only that `own` is valid at the time `now`. Clients check more than that.
fn check_validity(
    own: &CertificateDer<'_>,
    issuers: &[CertificateDer<'_>],
    provider: &CryptoProvider,
    now: SystemTime,
) -> Result<(), Flaw> {
    let own = ParsedCertificate::try_from(own).map_err(Flaw::BadCertificate)?;
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let no_roots = RootCertStore::empty();
    let now = UnixTime::since_unix_epoch(since_1970);
    let algorithms = provider.signature_verification_algorithms.all;
    let verified =
        verify_server_cert_signed_by_trust_anchor(&own, &no_roots, issuers, now, algorithms);
    match verified {
        Err(rustls::Error::InvalidCertificate(CertificateError::Expired)) => {
            Err(Flaw::Expired(None))
        }
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => {
            let ago = since_1970.saturating_sub(Duration::from_secs(not_after.as_secs()));
            Err(Flaw::Expired(Some(ago)))
        }
        Err(rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        )) => Err(Flaw::NotYetValid),
        // No root is trusted here, so verification fails in some other way.
        _ => Ok(()),
    }
}
