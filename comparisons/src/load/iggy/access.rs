//! [`Access`]: who logs in.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;
use iggy_binary_protocol::codes::LOGIN_USER_CODE;
use iggy_binary_protocol::requests::users::LoginUserRequest;
use iggy_binary_protocol::{WireEncode, WireName};

use super::control::frame;
use crate::Failure;

/// The user of the server's configuration.
const USER: &str = "iggy";

/// The longest password, in bytes: its length is a byte on the wire.
const PASSWORD_BYTES_MAX: usize = 255;

/// The options that say who logs in. They are named as the server's, and not in a plan.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access {
    /// The user that logs in [default: iggy].
    #[arg(long, value_name = "NAME")]
    iggy_user: Option<String>,
    /// The file with the user's password, in its first line.
    #[arg(long, value_name = "FILE")]
    iggy_password_file: Option<PathBuf>,
}

impl Access {
    /// The request to log in, in Iggy's frame.
    ///
    /// # Errors
    /// There is no file, or what is in it cannot be sent.
    pub(in super::super) fn login(&self) -> Result<Bytes, Failure> {
        let user = self.user();
        let username = WireName::new(user)
            .map_err(|error| Failure::new(format!("--iggy-user {user:?}: {error}")))?;
        let password = self.password()?;
        let (version, context) = (None, None);
        let login = LoginUserRequest { username, password, version, context };
        Ok(frame(LOGIN_USER_CODE, &login.to_bytes()))
    }

    /// Whether a password is named.
    pub(in super::super) const fn is_named(&self) -> bool {
        self.iggy_password_file.is_some()
    }

    pub(in super::super) fn user(&self) -> &str {
        self.iggy_user.as_deref().unwrap_or(USER)
    }

    /// # Errors
    /// There is no file, or what is in it cannot be sent.
    pub(in super::super) fn password(&self) -> Result<String, Failure> {
        let Some(file) = &self.iggy_password_file else {
            return Err(Failure::new("Iggy needs a login: name --iggy-password-file"));
        };
        let cannot = |why: &dyn std::fmt::Display| {
            Failure::new(format!("--iggy-password-file: cannot use {}: {why}", file.display()))
        };
        let mut text = Vec::new();
        // With a line end and one byte more, which shows that it is too long.
        let bytes_max = PASSWORD_BYTES_MAX as u64 + 3;
        File::open(file)
            .and_then(|file| file.take(bytes_max).read_to_end(&mut text))
            .map_err(|error| cannot(&error))?;
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > PASSWORD_BYTES_MAX {
            return Err(cannot(&"its first line has more than 255 bytes"));
        }
        let password = str::from_utf8(line).map_err(|error| cannot(&error))?;
        Ok(password.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use iggy_binary_protocol::{RequestFrame, WireDecode};

    use super::*;

    fn login_of(name: &str, text: &str) -> Result<LoginUserRequest, String> {
        let file = std::env::temp_dir().join(format!("load-{name}-{}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let access = Access { iggy_user: None, iggy_password_file: Some(file.clone()) };
        let login = access.login();
        std::fs::remove_file(file).unwrap();
        let login = login.map_err(|failure| failure.to_string())?;
        let (frame, _) = RequestFrame::decode(&login).unwrap();
        assert_eq!(frame.code, LOGIN_USER_CODE);
        Ok(LoginUserRequest::decode_from(frame.payload).unwrap())
    }

    #[test]
    fn the_password_is_the_first_line_of_its_file() {
        let login = login_of("password", "open sesame\nmore\n").unwrap();
        assert_eq!((login.username.as_str(), &*login.password), ("iggy", "open sesame"));
        assert_eq!(login_of("longest", &"x".repeat(255)).unwrap().password.len(), 255);
        let error = login_of("longer", &"x".repeat(256)).unwrap_err();
        assert!(error.contains("more than 255 bytes"), "{error}");
        let error = Access::default().login().unwrap_err().to_string();
        assert!(error.contains("--iggy-password-file"), "{error}");
    }
}
