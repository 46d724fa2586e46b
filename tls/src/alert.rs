//! What a peer is told about a failure that rustls has no alert for.

use rustls::{AlertDescription, Error, PeerMisbehaved};

/// The alert for a failure (RFC 8446 section 6.2); none if the peer itself has ended the connection by
/// one, which is not answered.
pub(crate) fn description(failure: &Error) -> Option<AlertDescription> {
    Some(match failure {
        Error::AlertReceived(_) => return None,
        Error::InvalidMessage(invalid) => (*invalid).into(),
        Error::InvalidCertificate(invalid) => invalid.clone().into(),
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            AlertDescription::UnexpectedMessage
        }
        Error::PeerMisbehaved(
            PeerMisbehaved::MessageInterleavedWithHandshakeMessage
            | PeerMisbehaved::RejectedEarlyDataInterleavedWithHandshakeMessage
            | PeerMisbehaved::IllegalMiddleboxChangeCipherSpec
            | PeerMisbehaved::IllegalTlsInnerPlaintext // 5.4
            | PeerMisbehaved::TooManyEmptyFragments
            | PeerMisbehaved::TooManyKeyUpdateRequests
            | PeerMisbehaved::TooManyRenegotiationRequests
            | PeerMisbehaved::TooManyWarningAlertsReceived,
        ) => AlertDescription::UnexpectedMessage,
        Error::PeerMisbehaved(_) => AlertDescription::IllegalParameter,
        Error::PeerIncompatible(_) => AlertDescription::HandshakeFailure,
        Error::PeerSentOversizedRecord => AlertDescription::RecordOverflow,
        Error::DecryptError => AlertDescription::BadRecordMac,
        Error::NoApplicationProtocol => AlertDescription::NoApplicationProtocol,
        Error::NoCertificatesPresented => AlertDescription::CertificateRequired,
        _ => AlertDescription::InternalError,
    })
}

/// Puts `description` into the record, if it is an alert that is not encrypted: whether it is.
pub(crate) fn describe(record: &mut [u8], description: AlertDescription) -> bool {
    // Content type, version, length, level, description (RFC 8446 5.1 and 6). An encrypted one is longer.
    match record {
        [ALERT, _, _, 0, 2, FATAL, code] => {
            *code = description.into();
            true
        }
        _ => false,
    }
}

const ALERT: u8 = 21;
const FATAL: u8 = 2;

/// What begins no record and no message, wherever it is read from: there is no such content type, and the
/// length of the message is not what it says.
pub(crate) const NOISE: u8 = 0xFF;

#[cfg(test)]
mod tests {
    use rustls::InvalidMessage;

    use super::*;

    #[test]
    fn failures_and_their_alerts() {
        let too_large = InvalidMessage::HandshakePayloadTooLarge.into();
        for (failure, expected) in [
            (too_large, Some(AlertDescription::DecodeError)),
            (Error::PeerSentOversizedRecord, Some(AlertDescription::RecordOverflow)),
            (
                PeerMisbehaved::MessageInterleavedWithHandshakeMessage.into(),
                Some(AlertDescription::UnexpectedMessage),
            ),
            (PeerMisbehaved::InvalidKeyShare.into(), Some(AlertDescription::IllegalParameter)),
            (Error::General("?".into()), Some(AlertDescription::InternalError)),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), None),
        ] {
            assert_eq!(description(&failure), expected, "{failure:?}");
        }
    }

    #[test]
    fn an_alert_is_described_where_it_can_be_read() {
        let mut plain = [21, 3, 3, 0, 2, 2, 50];
        assert!(describe(&mut plain, AlertDescription::UnexpectedMessage));
        assert_eq!(plain, [21, 3, 3, 0, 2, 2, 10]);
        let mut warning = [21, 3, 3, 0, 2, 1, 90];
        assert!(!describe(&mut warning, AlertDescription::UnexpectedMessage));
        let mut encrypted = [21, 3, 3, 0, 4, 2, 50, 7, 7];
        assert!(!describe(&mut encrypted, AlertDescription::UnexpectedMessage));
    }
}
