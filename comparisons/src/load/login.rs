//! The login of a connection to Iggy, before its first message.
//!
//! ```text
//! answer   [status u32][length u32: of the payload][payload]
//! ```

const HEADER_BYTES: usize = 8;

/// The longest payload of an answer, in bytes. Iggy's has 4, the number of the user.
const PAYLOAD_BYTES_MAX: usize = 64;

/// A request that each connection sends once, before its first message, and the answer as far as it has arrived.
#[derive(Debug)]
pub(crate) struct Login {
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// Why there is no login.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LoginError {
    /// The server refused it, with this status.
    Refused(u32),
    /// It is not answered as Iggy does.
    Wrong(&'static str),
}

impl Login {
    /// A login by this request, which is framed as all messages of the connection are.
    pub(crate) fn new(request: &[u8]) -> Self {
        Self { request: request.to_vec(), answer: Vec::new() }
    }

    /// The request, once.
    pub(crate) fn take_request(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.request)
    }

    /// Takes the answer off `got`, and nothing of what is behind it. True when it is complete.
    ///
    /// # Errors
    /// The server refused the login, or answered wrongly.
    pub(crate) fn take(&mut self, got: &mut &[u8]) -> Result<bool, LoginError> {
        loop {
            let missing = self.missing()?;
            if missing == 0 {
                return self.status().map_or(Ok(true), |status| Err(LoginError::Refused(status)));
            }
            if got.is_empty() {
                return Ok(false);
            }
            let (part, rest) = got.split_at(missing.min(got.len()));
            self.answer.extend_from_slice(part);
            *got = rest;
        }
    }

    /// How many bytes the header lacks, or with the header the payload.
    fn missing(&self) -> Result<usize, LoginError> {
        let Some((header, payload)) = self.answer.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(HEADER_BYTES - self.answer.len());
        };
        let [.., a, b, c, d] = *header;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len > PAYLOAD_BYTES_MAX {
            return Err(LoginError::Wrong("more than 64 bytes in answer to the login"));
        }
        Ok(len - payload.len())
    }

    /// None if it is that of success.
    fn status(&self) -> Option<u32> {
        let status = self.answer.first_chunk().copied().map(u32::from_le_bytes);
        status.filter(|status| *status != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADMITTED: [u8; 12] = [0, 0, 0, 0, 4, 0, 0, 0, 9, 0, 0, 0];
    const REFUSED: [u8; 8] = [42, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn an_answer_is_taken_wherever_it_is_cut_and_what_follows_is_left() {
        let stream = [&ADMITTED[..], b"rest"].concat();
        for cut in 0..=ADMITTED.len() {
            let mut login = Login::new(b"me");
            assert_eq!((login.take_request(), login.take_request()), (b"me".to_vec(), Vec::new()));
            let (mut first, mut second) = stream.split_at(cut);
            assert_eq!(login.take(&mut first), Ok(cut == ADMITTED.len()), "cut at {cut}");
            assert_eq!(login.take(&mut second), Ok(true), "cut at {cut}");
            assert_eq!((first, second), (&b""[..], &b"rest"[..]), "cut at {cut}");
        }
    }

    #[test]
    fn a_status_refuses_and_a_long_answer_is_wrong() {
        let take = |mut answer: &[u8]| Login::new(b"").take(&mut answer);
        assert_eq!(take(&REFUSED), Err(LoginError::Refused(42)));
        assert_eq!(take(&REFUSED[..7]), Ok(false));
        let long = take(&[0, 0, 0, 0, 65, 0, 0, 0]);
        assert!(matches!(long, Err(LoginError::Wrong(_))), "{long:?}");
    }
}
