//! Certificates and keys from files: errors are sentences that name the file.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use owned_io_tls::Identity;
use owned_io_tls::rustls::pki_types::CertificateDer;
use owned_io_tls::rustls::pki_types::pem::PemObject;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};

/// A separate folder for each test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let name = format!("owned-io-identity-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A certificate that is valid in these years, and its key, as PEM.
fn made(from: i32, to: i32) -> (String, String) {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// The middle of 2025.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_000)
}

#[test]
fn an_error_names_the_flaw_and_the_file() {
    let folder = Folder::new("wrong");
    let (certificate, key) = made(2024, 2030);
    let (other, _) = made(2024, 2030);
    let empty = folder.write("empty.pem", "");
    let torn = folder.write("torn.pem", &certificate[..certificate.len() / 2]);
    let chain = folder.write("chain.pem", &certificate);
    let key = folder.write("key.pem", &key);
    let other = folder.write("other.pem", &other);
    let nonsense = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    let nonsense = folder.write("nonsense.pem", nonsense);
    let expired = folder.write("expired.pem", &made(2020, 2025).0);
    let early = folder.write("early.pem", &made(2026, 2030).0);
    let missing = folder.0.join("missing.pem");

    assert!(Identity::load(chain.clone(), key.clone(), now()).is_ok());
    let display = |path: &PathBuf| path.display().to_string();
    for (chain, key, sentence) in [
        (&missing, &key, format!("cannot read {}: No such file", display(&missing))),
        (&chain, &missing, format!("cannot read {}: No such file", display(&missing))),
        (&empty, &key, format!("there is no certificate in {}", display(&empty))),
        (&key, &key, format!("there is no certificate in {}", display(&key))),
        (&torn, &key, format!("cannot read {} as PEM: ", display(&torn))),
        (&nonsense, &key, format!("the certificate in {} is bad: ", display(&nonsense))),
        (&chain, &empty, format!("there is no private key in {}", display(&empty))),
        (&chain, &chain, format!("there is no private key in {}", display(&chain))),
        (
            &other,
            &key,
            format!(
                "the key in {} is not that of the certificate in {}",
                display(&key),
                display(&other)
            ),
        ),
        (
            &expired,
            &key,
            format!("the certificate in {} has expired, 165 days ago", display(&expired)),
        ),
        (&early, &key, format!("the certificate in {} is not valid yet", display(&early))),
    ] {
        let error = Identity::load(chain.clone(), key.clone(), now()).unwrap_err().to_string();
        assert!(error.starts_with(&sentence), "{error}\n{sentence}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn files_are_reloaded_or_the_identity_is_unchanged() {
    let folder = Folder::new("again");
    let (certificate, key) = made(2024, 2030);
    let chain_file = folder.write("chain.pem", &certificate);
    let key_file = folder.write("key.pem", &key);
    let identity = Identity::load(chain_file, key_file, now()).unwrap();
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    assert_eq!(identity.certificate(), der(&certificate));

    let (new_certificate, new_key) = made(2025, 2031);
    folder.write("chain.pem", &new_certificate);
    let error = identity.reload(now()).unwrap_err().to_string();
    assert!(error.contains("is not that of the certificate"), "{error}");
    assert_eq!(identity.certificate(), der(&certificate));

    folder.write("key.pem", &new_key);
    identity.reload(now()).unwrap();
    assert_eq!(identity.certificate(), der(&new_certificate));
}
