//! [`Forger`]: a client that violates the protocol.

use owned_io::{ByteStream, OwnedReadExt};
use owned_io_tls::rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use owned_io_tls::rustls::{
    ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite,
    SupportedProtocolVersion,
};

use super::{Plain, client_config};

/// A client whose handshake rustls has done. Then it makes records that rustls would not make.
pub(crate) struct Forger<S> {
    pub(crate) stream: S,
    encrypter: Box<dyn MessageEncrypter>,
    decrypter: Box<dyn MessageDecrypter>,
    /// Sequence numbers of the next record to send, and of the next one to receive.
    sequences: [u64; 2],
}

impl<S: ByteStream> Forger<S> {
    pub(crate) async fn connected(stream: S, version: &'static SupportedProtocolVersion) -> Self {
        let mut config = client_config(&[version]);
        config.enable_secret_extraction = true;
        let mut plain = Plain::client(stream, config);
        plain.shake_hands().await;
        let suite = plain.tls.negotiated_cipher_suite().unwrap();
        let secrets = plain.tls.dangerous_extract_secrets().unwrap();
        let sequences = [secrets.tx.0, secrets.rx.0];
        let [(ours, our_iv), (theirs, their_iv)] = [secrets.tx.1, secrets.rx.1].map(key_and_iv);
        let (encrypter, decrypter) = match suite {
            SupportedCipherSuite::Tls12(suite) => {
                let at = suite.aead_alg.key_block_shape().fixed_iv_len;
                let (fixed, explicit) = our_iv.as_ref().split_at(at);
                (
                    suite.aead_alg.encrypter(ours, fixed, explicit),
                    suite.aead_alg.decrypter(theirs, &their_iv.as_ref()[..at]),
                )
            }
            SupportedCipherSuite::Tls13(suite) => {
                (suite.aead_alg.encrypter(ours, our_iv), suite.aead_alg.decrypter(theirs, their_iv))
            }
        };
        Self { stream: plain.stream, encrypter, decrypter, sequences }
    }

    pub(crate) fn record(&mut self, typ: ContentType, payload: &[u8]) -> Vec<u8> {
        let version = ProtocolVersion::TLSv1_2; // the version that records of every TLS version carry
        let payload = OutboundChunks::Single(payload);
        let message = OutboundPlainMessage { typ, version, payload };
        self.sequences[0] += 1;
        self.encrypter.encrypt(message, self.sequences[0] - 1).unwrap().encode()
    }

    /// The type and payload of the next record.
    pub(crate) async fn receive(&mut self) -> (ContentType, Vec<u8>) {
        let header = self.stream.read_exact(Vec::with_capacity(5), 5).await;
        let header = header.into_result().expect("a record").1;
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let payload = self.stream.read_exact(Vec::with_capacity(len), len).await;
        let mut payload = payload.into_result().expect("all of the record").1;
        let (typ, version) = (ContentType::from(header[0]), ProtocolVersion::TLSv1_2);
        let message = InboundOpaqueMessage::new(typ, version, &mut payload);
        self.sequences[1] += 1;
        let message = self.decrypter.decrypt(message, self.sequences[1] - 1).unwrap();
        (message.typ, message.payload.to_vec())
    }
}

fn key_and_iv(secrets: ConnectionTrafficSecrets) -> (AeadKey, Iv) {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
        _ => panic!("of no suite of ring's"),
    }
}
