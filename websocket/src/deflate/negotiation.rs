//! Negotiation of permessage-deflate in the `Sec-WebSocket-Extensions` headers.

use std::{fmt, mem};

use super::{Deflate, WINDOW_BITS_MAX, WINDOW_BITS_MIN};

/// What both sides agreed on. `Display` writes the server's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    server_takeover: bool,
    client_takeover: bool,
    /// `None`: not in the response, so the window is 15.
    server_window_bits: Option<u8>,
    client_window_bits: Option<u8>,
}

/// How one side compresses what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextParameters {
    /// Whether its messages may refer to earlier ones.
    pub takeover: bool,
    /// The window: messages refer back at most 2 to the power of this, in bytes. 9 to 15, or 8 for
    /// what the peer sends.
    pub window_bits: u8,
}

/// Why a response does not accept the offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseError {
    /// It names another extension, or several.
    Unknown,
    /// Its parameters are unknown, duplicate, not as offered, or not supported here.
    Parameters,
}

impl Agreement {
    /// How the server compresses.
    pub fn server(&self) -> ContextParameters {
        ContextParameters::new(self.server_takeover, self.server_window_bits)
    }

    /// How the client compresses.
    pub fn client(&self) -> ContextParameters {
        ContextParameters::new(self.client_takeover, self.client_window_bits)
    }
}

impl ContextParameters {
    fn new(takeover: bool, window_bits: Option<u8>) -> Self {
        Self { takeover, window_bits: window_bits.unwrap_or(WINDOW_BITS_MAX) }
    }

    /// Whether zlib supports this for compression.
    const fn can_compress(self) -> bool {
        self.window_bits >= WINDOW_BITS_MIN
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)?;
        let flags = [
            (SERVER_NO_TAKEOVER, self.server_takeover),
            (CLIENT_NO_TAKEOVER, self.client_takeover),
        ];
        for (name, _) in flags.into_iter().filter(|(_, takeover)| !takeover) {
            write!(f, "; {name}")?;
        }
        let windows =
            [(SERVER_BITS, self.server_window_bits), (CLIENT_BITS, self.client_window_bits)];
        for (name, bits) in windows.into_iter().filter_map(|(name, bits)| Some((name, bits?))) {
            write!(f, "; {name}={bits}")?;
        }
        Ok(())
    }
}

impl Deflate {
    /// Returns a client's offer. A client that would keep its context also offers, as a second
    /// choice, not to. Some servers ask a client to drop its context only if the offer mentions it.
    pub(crate) fn offer(&self) -> String {
        match self.send_takeover {
            true => format!("{}, {}", self.offer_with(true), self.offer_with(false)),
            false => self.offer_with(false),
        }
    }

    fn offer_with(&self, send_takeover: bool) -> String {
        let [send, receive] = self.window_bits();
        let mut offer = NAME.to_owned();
        if !self.receive_takeover {
            offer += &format!("; {SERVER_NO_TAKEOVER}");
        }
        if !send_takeover {
            offer += &format!("; {CLIENT_NO_TAKEOVER}");
        }
        if receive < WINDOW_BITS_MAX {
            offer += &format!("; {SERVER_BITS}={receive}");
        }
        // Without a value: the server may choose any.
        offer += &match send {
            WINDOW_BITS_MAX => format!("; {CLIENT_BITS}"),
            less => format!("; {CLIENT_BITS}={less}"),
        };
        offer
    }

    /// Returns what a server accepts: the first offer in `headers` that is valid and supported (RFC
    /// 7692 section 7.1). Unknown, duplicate or wrong parameters make an offer invalid. Other
    /// extensions are skipped.
    #[expect(single_use_lifetimes, reason = "`impl Trait` needs it named")]
    pub(crate) fn choose<'h>(&self, headers: impl Iterator<Item = &'h [u8]>) -> Option<Agreement> {
        extensions(headers)
            .filter(|offer| offer.name == NAME.as_bytes())
            .filter_map(Extension::parameters)
            .find_map(|offered| self.respond_to(offered))
    }

    /// Returns `None` if zlib cannot compress as the offer demands.
    fn respond_to(&self, offered: ExtensionParameters) -> Option<Agreement> {
        let [send, receive] = self.window_bits();
        let less = |bits: &u8| *bits < WINDOW_BITS_MAX;
        let agreement = Agreement {
            server_takeover: self.send_takeover && !offered.server_no_takeover,
            client_takeover: self.receive_takeover && !offered.client_no_takeover,
            // A window that was requested has to be in the response, even 15 (section 7.1.2.1).
            server_window_bits: match offered.server_bits {
                Some(bits) => Some(bits.min(send)),
                None => Some(send).filter(less),
            },
            // A parameter that the client did not name must not be (section 7.1.2.2).
            client_window_bits: offered
                .client_bits
                .map(|bits| bits.unwrap_or(WINDOW_BITS_MAX).min(receive))
                .filter(less),
        };
        agreement.server().can_compress().then_some(agreement)
    }

    /// Returns what a server accepted, from the `headers` of its response. `None` if it accepted no
    /// compression.
    #[expect(single_use_lifetimes, reason = "`impl Trait` needs it named")]
    pub(crate) fn check<'h>(
        &self,
        headers: impl Iterator<Item = &'h [u8]>,
    ) -> Result<Option<Agreement>, ResponseError> {
        let mut chosen = extensions(headers);
        let Some(response) = chosen.next() else { return Ok(None) };
        if response.name != NAME.as_bytes() || chosen.next().is_some() {
            return Err(ResponseError::Unknown);
        }
        let parameters = response.parameters().ok_or(ResponseError::Parameters)?;
        let [send, receive] = self.window_bits();
        let keeps_takeover = self.receive_takeover || parameters.server_no_takeover;
        let keeps_bits = receive == WINDOW_BITS_MAX
            || parameters.server_bits.is_some_and(|bits| bits <= receive);
        if !keeps_takeover || !keeps_bits || parameters.client_bits == Some(None) {
            return Err(ResponseError::Parameters);
        }
        let agreement = Agreement {
            server_takeover: !parameters.server_no_takeover,
            client_takeover: self.send_takeover && !parameters.client_no_takeover,
            server_window_bits: parameters.server_bits,
            client_window_bits: Some(parameters.client_bits.flatten().unwrap_or(send).min(send)),
        };
        // An offer cannot prevent a server from requesting what zlib does not support (sections 7.1
        // and 7.1.2.2).
        match agreement.client().can_compress() {
            true => Ok(Some(agreement)),
            false => Err(ResponseError::Parameters),
        }
    }

    /// The windows of sent and of received messages.
    fn window_bits(&self) -> [u8; 2] {
        [self.send_window_bits, self.receive_window_bits]
            .map(|bits| bits.clamp(WINDOW_BITS_MIN, WINDOW_BITS_MAX))
    }
}

const NAME: &str = "permessage-deflate";
const SERVER_NO_TAKEOVER: &str = "server_no_context_takeover";
const CLIENT_NO_TAKEOVER: &str = "client_no_context_takeover";
const SERVER_BITS: &str = "server_max_window_bits";
const CLIENT_BITS: &str = "client_max_window_bits";

/// The parameters of an offer or a response.
#[derive(Clone, Copy, Default)]
struct ExtensionParameters {
    server_no_takeover: bool,
    client_no_takeover: bool,
    server_bits: Option<u8>,
    /// May have no value.
    client_bits: Option<Option<u8>>,
}

/// One extension in a header's list (RFC 6455 section 9.1).
#[derive(Clone, Copy)]
struct Extension<'h> {
    name: &'h [u8],
    /// What follows the name: nothing, or a semicolon and parameters.
    rest: &'h [u8],
}

fn extensions<'h>(headers: impl Iterator<Item = &'h [u8]>) -> impl Iterator<Item = Extension<'h>> {
    headers
        .flat_map(|header| split(header, b','))
        .map(<[u8]>::trim_ascii)
        .filter(|extension| !extension.is_empty())
        .map(|extension| {
            let end = extension.iter().position(|byte| *byte == b';').unwrap_or(extension.len());
            let (name, rest) = extension.split_at(end);
            Extension { name: name.trim_ascii_end(), rest }
        })
}

impl Extension<'_> {
    /// Returns `None` if a parameter is unknown, duplicate or has a wrong value.
    fn parameters(self) -> Option<ExtensionParameters> {
        let mut all = ExtensionParameters::default();
        for parameter in split(self.rest, b';').skip(1) {
            let mut parts = parameter.splitn(2, |byte| *byte == b'=').map(<[u8]>::trim_ascii);
            let (name, value) = (std::str::from_utf8(parts.next()?).ok()?, parts.next());
            let is_double = match (name, value) {
                (SERVER_NO_TAKEOVER, None) => mem::replace(&mut all.server_no_takeover, true),
                (CLIENT_NO_TAKEOVER, None) => mem::replace(&mut all.client_no_takeover, true),
                (SERVER_BITS, Some(bits)) => all.server_bits.replace(window_bits(bits)?).is_some(),
                (CLIENT_BITS, None) => all.client_bits.replace(None).is_some(),
                (CLIENT_BITS, Some(bits)) => {
                    all.client_bits.replace(Some(window_bits(bits)?)).is_some()
                }
                _ => return None,
            };
            if is_double {
                return None;
            }
        }
        Some(all)
    }
}

/// Parses a number from 8 to 15 without leading zeros (RFC 7692 section 7.1.2), quoted or not.
fn window_bits(value: &[u8]) -> Option<u8> {
    let number = match value {
        [b'"', quoted @ .., b'"'] => quoted,
        plain => plain,
    };
    match number {
        [digit @ b'8'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

/// Splits at each `separator` outside quotes.
fn split(list: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    list.split(move |byte| {
        if mem::take(&mut is_escaped) {
            return false;
        }
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'\\' => is_escaped = is_quoted,
            _ => {}
        }
        !is_quoted && *byte == separator
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(deflate: Deflate, offer: &str) -> Option<String> {
        deflate.choose([offer.as_bytes()].into_iter()).map(|agreed| agreed.to_string())
    }

    fn takeover() -> Deflate {
        Deflate { send_takeover: true, receive_takeover: true, ..Deflate::default() }
    }

    #[test]
    fn what_a_server_answers() {
        const BOTH: &str =
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        let small = Deflate { send_window_bits: 10, receive_window_bits: 11, ..takeover() };
        let odd = Deflate { send_window_bits: 0, receive_window_bits: 99, ..takeover() };
        for (deflate, offer, response) in [
            (Deflate::default(), "permessage-deflate", BOTH),
            (Deflate::default(), "permessage-deflate; client_max_window_bits", BOTH),
            (takeover(), "permessage-deflate", "permessage-deflate"),
            (takeover(), " permessage-deflate ;  client_max_window_bits ", "permessage-deflate"),
            (takeover(), BOTH, BOTH),
            (
                takeover(),
                "permessage-deflate;server_max_window_bits=15",
                "permessage-deflate; server_max_window_bits=15",
            ),
            (
                takeover(),
                "permessage-deflate; server_max_window_bits=9; client_max_window_bits=8",
                "permessage-deflate; server_max_window_bits=9; client_max_window_bits=8",
            ),
            (
                takeover(),
                "permessage-deflate; server_max_window_bits = \"12\"; client_max_window_bits=\"9\"",
                "permessage-deflate; server_max_window_bits=12; client_max_window_bits=9",
            ),
            (small, "permessage-deflate", "permessage-deflate; server_max_window_bits=10"),
            (
                small,
                "permessage-deflate; server_max_window_bits=14; client_max_window_bits",
                "permessage-deflate; server_max_window_bits=10; client_max_window_bits=11",
            ),
            (
                small,
                "permessage-deflate; server_max_window_bits=9; client_max_window_bits=10",
                "permessage-deflate; server_max_window_bits=9; client_max_window_bits=10",
            ),
            (odd, "permessage-deflate", "permessage-deflate; server_max_window_bits=9"),
            // Another extension, and offers that are declined before one that is accepted.
            (
                takeover(),
                "x; a=\"1, permessage-deflate; b\", permessage-deflate",
                "permessage-deflate",
            ),
            (
                takeover(),
                "permessage-deflate; server_max_window_bits=16, , permessage-deflate",
                "permessage-deflate",
            ),
            (
                takeover(),
                "permessage-deflate; server_max_window_bits=8, permessage-deflate; \
                 server_max_window_bits=9",
                "permessage-deflate; server_max_window_bits=9",
            ),
        ] {
            assert_eq!(choose(deflate, offer).as_deref(), Some(response), "{offer}");
        }
    }

    #[test]
    fn what_a_server_declines() {
        for offer in [
            "",
            "x-webkit-deflate-frame",
            "permessage-deflate2",
            "permessage-deflate; unknown",
            "permessage-deflate; unknown=1",
            "permessage-deflate;",
            "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
            "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
            "permessage-deflate; server_max_window_bits=10; server_max_window_bits=10",
            "permessage-deflate; client_max_window_bits; client_max_window_bits=10",
            "permessage-deflate; client_max_window_bits=10; client_max_window_bits",
            "permessage-deflate; server_no_context_takeover=1",
            "permessage-deflate; client_no_context_takeover=\"\"",
            "permessage-deflate; server_max_window_bits",
            "permessage-deflate; server_max_window_bits=",
            "permessage-deflate; server_max_window_bits=7",
            "permessage-deflate; server_max_window_bits=16",
            "permessage-deflate; server_max_window_bits=08",
            "permessage-deflate; server_max_window_bits=+9",
            "permessage-deflate; server_max_window_bits=\"10",
            "permessage-deflate; client_max_window_bits=\"\"",
            "permessage-deflate; client_max_window_bits=x",
            "permessage-deflate; \"server_no_context_takeover\"",
            "permessage-deflate; =",
            "permessage-deflate; server_max_window_bits=8", // 7.1: not supported by zlib
            "permessage-deflate; server_max_window_bits=8; client_max_window_bits",
        ] {
            assert_eq!(choose(takeover(), offer), None, "{offer}");
        }
    }

    #[test]
    fn the_first_good_offer_of_several_headers_wins() {
        let headers = [
            "permessage-deflate; unknown, permessage-deflate; server_max_window_bits=11",
            "permessage-deflate",
        ];
        let chosen = takeover().choose(headers.map(str::as_bytes).into_iter()).unwrap();
        assert_eq!(chosen.to_string(), "permessage-deflate; server_max_window_bits=11");
        assert_eq!(chosen.server(), ContextParameters { takeover: true, window_bits: 11 });
        assert_eq!(chosen.client(), ContextParameters { takeover: true, window_bits: 15 });
    }

    #[test]
    fn what_a_client_offers() {
        let small = Deflate { send_window_bits: 10, receive_window_bits: 11, ..takeover() };
        for (deflate, offer) in [
            (
                Deflate::default(),
                "permessage-deflate; server_no_context_takeover; client_no_context_takeover; \
                 client_max_window_bits",
            ),
            (
                takeover(),
                "permessage-deflate; client_max_window_bits, \
                 permessage-deflate; client_no_context_takeover; client_max_window_bits",
            ),
            (
                Deflate { send_takeover: false, ..small },
                "permessage-deflate; client_no_context_takeover; server_max_window_bits=11; \
                 client_max_window_bits=10",
            ),
        ] {
            assert_eq!(deflate.offer(), offer);
        }
    }

    #[test]
    fn a_client_checks_the_answer_against_its_offer() {
        let side = |takeover, window_bits| ContextParameters { takeover, window_bits };
        let small = Deflate { send_window_bits: 10, receive_window_bits: 11, ..takeover() };
        let deflate = Deflate::default();
        let (unknown, parameters) = (Err(ResponseError::Unknown), Err(ResponseError::Parameters));
        let none = "; server_no_context_takeover";
        for (deflate, response, expected) in [
            (takeover(), "", Ok((side(true, 15), side(true, 15)))),
            (takeover(), none, Ok((side(false, 15), side(true, 15)))),
            (takeover(), "; client_no_context_takeover", Ok((side(true, 15), side(false, 15)))),
            (takeover(), "; server_max_window_bits=8", Ok((side(true, 8), side(true, 15)))),
            (takeover(), "; client_max_window_bits=\"9\"", Ok((side(true, 15), side(true, 9)))),
            (takeover(), "; client_max_window_bits=8", parameters), // 7.1: not supported by zlib
            (deflate, none, Ok((side(false, 15), side(false, 15)))),
            (deflate, "", parameters), // ignores the request not to take over
            (small, "; server_max_window_bits=11", Ok((side(true, 11), side(true, 10)))),
            (
                small,
                "; server_max_window_bits=9; client_max_window_bits=12",
                Ok((side(true, 9), side(true, 10))),
            ),
            (small, "; server_max_window_bits=12", parameters),
            (small, "", parameters),
            (takeover(), "; client_max_window_bits", parameters),
            (takeover(), "; unknown", parameters),
            (takeover(), "; server_no_context_takeover; server_no_context_takeover", parameters),
            (takeover(), ", permessage-deflate", unknown),
            (takeover(), ", other", unknown),
            (takeover(), "-other", unknown),
        ] {
            let response = format!("permessage-deflate{response}");
            let agreed = deflate.check([response.as_bytes()].into_iter());
            let sides = agreed.map(|agreed| {
                let agreed = agreed.unwrap();
                (agreed.server(), agreed.client())
            });
            assert_eq!(sides, expected, "{response}");
        }
        assert_eq!(takeover().check(std::iter::empty()), Ok(None));
    }

    #[test]
    fn both_sides_agree_on_the_same_parameters() {
        let all = || {
            (0..16).flat_map(|flags| {
                [[15, 15], [9, 15], [15, 12], [10, 10]].map(
                    |[send_window_bits, receive_window_bits]| Deflate {
                        send_takeover: flags & 1 != 0,
                        receive_takeover: flags & 2 != 0,
                        send_window_bits,
                        receive_window_bits,
                        ..Deflate::default()
                    },
                )
            })
        };
        for (client, server) in all().flat_map(|client| all().map(move |server| (client, server))) {
            let response = server.choose([client.offer().as_bytes()].into_iter()).unwrap();
            let agreed = client.check([response.to_string().as_bytes()].into_iter());
            let agreed = agreed.unwrap().unwrap();
            assert_eq!(agreed.server(), response.server());
            assert_eq!(agreed.client(), response.client());
            assert_eq!(agreed.server().takeover, server.send_takeover && client.receive_takeover);
            assert_eq!(agreed.client().takeover, client.send_takeover && server.receive_takeover);
            let bits = server.send_window_bits.min(client.receive_window_bits);
            assert_eq!(agreed.server().window_bits, bits);
            let bits = client.send_window_bits.min(server.receive_window_bits);
            assert_eq!(agreed.client().window_bits, bits);
        }
    }
}
