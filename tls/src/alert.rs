//! The alert for a failure for which rustls has queued none.

use rustls::{AlertDescription, Error, PeerMisbehaved};

/// The alert for a failure (RFC 8446 section 6.2). `None` if the peer itself ended the connection by an alert, which
/// is not answered.
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

/// Sets the description of `record`, if that is an alert that is not encrypted. Returns whether it is.
pub(crate) fn describe(record: &mut [u8], description: AlertDescription) -> bool {
    // Content type, version, length, level, description (RFC 8446 5.1 and 6). An encrypted alert is longer.
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

/// A byte that begins no record and no message, at any position: there is no such content type, and the length of a
/// message of such bytes is wrong.
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
