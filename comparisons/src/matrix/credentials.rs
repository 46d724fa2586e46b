//! What servers and `load` know each other by, made for one run: a certificate for TLS, and the password of Iggy's clients.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use super::Failure;

/// The password: servers listen on loopback, and end with the run.
const PASSWORD: &str = "open sesame\n";

/// A certificate for localhost, its key (ECDSA, P-256) and a password, in files that are removed when this is dropped.
pub(crate) struct Credentials {
    chain: PathBuf,
    key: PathBuf,
    password: PathBuf,
}

impl Credentials {
    /// Writes the files into `folder`, over those that are there.
    ///
    /// # Errors
    /// When the certificate cannot be made, or a file cannot be written.
    pub(crate) fn create(folder: &Path) -> Result<Self, Failure> {
        let cannot =
            |error: &dyn Display| Failure::new(format!("cannot make a certificate: {error}"));
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
        let made = made.map_err(|error| cannot(&error))?;
        let [chain, key, password] =
            ["certificate.pem", "key.pem", "password"].map(|name| folder.join(name));
        let credentials = Self { chain, key, password };
        fs::write(&credentials.chain, made.cert.pem())
            .and_then(|()| fs::write(&credentials.key, made.signing_key.serialize_pem()))
            .and_then(|()| fs::write(&credentials.password, PASSWORD))
            .map_err(|error| cannot(&error))?;
        Ok(credentials)
    }

    /// The file of the certificate, PEM.
    pub(crate) fn chain(&self) -> &Path {
        &self.chain
    }

    /// The file of its key, PEM.
    pub(crate) fn key(&self) -> &Path {
        &self.key
    }

    /// The file of the password.
    pub(crate) fn password(&self) -> &Path {
        &self.password
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        // A file that cannot be removed does no harm.
        for file in [&self.chain, &self.key, &self.password] {
            let _ = fs::remove_file(file);
        }
    }
}
