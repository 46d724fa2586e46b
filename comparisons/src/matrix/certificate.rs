//! The certificate of the servers over TLS, made for one run.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use super::Failure;

/// A certificate for localhost and its key (ECDSA, P-256), in files that are removed when this is dropped.
pub(crate) struct Certificate {
    chain: PathBuf,
    key: PathBuf,
}

impl Certificate {
    /// Writes both files into `folder`, over those that are there.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub(crate) fn create(folder: &Path) -> Result<Self, Failure> {
        let cannot =
            |error: &dyn Display| Failure::new(format!("cannot make a certificate: {error}"));
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let made = made.map_err(|error| cannot(&error))?;
        let [chain, key] = ["certificate.pem", "key.pem"].map(|name| folder.join(name));
        let certificate = Self { chain, key };
        fs::write(&certificate.chain, made.cert.pem())
            .and_then(|()| fs::write(&certificate.key, made.signing_key.serialize_pem()))
            .map_err(|error| cannot(&error))?;
        Ok(certificate)
    }

    /// The file of the certificate, PEM.
    pub(crate) fn chain(&self) -> &Path {
        &self.chain
    }

    /// The file of its key, PEM.
    pub(crate) fn key(&self) -> &Path {
        &self.key
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        // A file that cannot be removed does no harm.
        let _ = fs::remove_file(&self.chain);
        let _ = fs::remove_file(&self.key);
    }
}
