//! Logs in with a password: method `password`, or `keyboard-interactive` where a server has only that.

use std::fmt;
use std::path::Path;

use fs_err as fs;
use greenroom_ports::connector::ConnectError;
use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse, Prompt};
use russh::{MethodKind, MethodSet};

use super::handler::Client;
use super::login::LoginError;

/// Questions of a server that are answered before it is given up: some ask none first, or show a text.
const ROUNDS: usize = 4;

/// Never shown.
pub(super) struct Password(String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

impl Password {
    pub(super) fn read(path: &Path) -> Result<Self, ConnectError> {
        let local = |what| ConnectError::Local { what };
        let text = fs::read_to_string(path).map_err(|error| local(error.to_string()))?;
        let password = text.strip_suffix('\n').unwrap_or(&text);
        let password = password.strip_suffix('\r').unwrap_or(password);
        if password.is_empty() {
            return Err(local(format!("{} has no password", path.display())));
        }
        Ok(Self(password.to_owned()))
    }

    pub(super) async fn log_in(&self, handle: &mut Handle<Client>, user: &str) -> Result<(), LoginError> {
        let asked = handle.authenticate_none(user).await.map_err(|_| LoginError::Gone)?;
        let AuthResult::Failure { remaining_methods: offered, .. } = asked else { return Ok(()) };
        if offered.contains(&MethodKind::Password) {
            let answer = handle.authenticate_password(user, self.0.as_str()).await;
            return match answer.map_err(|_| LoginError::Gone)? {
                AuthResult::Success => Ok(()),
                AuthResult::Failure { partial_success: true, .. } => Err(more()),
                AuthResult::Failure { remaining_methods, .. } => {
                    lives(handle, &remaining_methods).await?;
                    Err(refused())
                }
            };
        }
        if offered.contains(&MethodKind::KeyboardInteractive) {
            return self.answer(handle, user).await;
        }
        lives(handle, &offered).await?;
        Err(LoginError::Refused("it accepts no passwords".to_owned()))
    }

    /// Answers one question for a password, and no other.
    async fn answer(&self, handle: &mut Handle<Client>, user: &str) -> Result<(), LoginError> {
        let gone = |_| LoginError::Gone;
        let mut reply = handle.authenticate_keyboard_interactive_start(user, None).await.map_err(gone)?;
        let mut answered = false;
        for _ in 0..ROUNDS {
            let answers = match reply {
                KeyboardInteractiveAuthResponse::Success => return Ok(()),
                KeyboardInteractiveAuthResponse::Failure { partial_success: true, .. } => return Err(more()),
                KeyboardInteractiveAuthResponse::Failure { .. } => return Err(refused()),
                KeyboardInteractiveAuthResponse::InfoRequest { prompts, .. } => match prompts.as_slice() {
                    [] => Vec::new(),
                    [Prompt { echo: false, .. }] if !answered => {
                        answered = true;
                        vec![self.0.clone()]
                    }
                    _ => return Err(more()),
                },
            };
            reply = handle.authenticate_keyboard_interactive_respond(answers).await.map_err(gone)?;
        }
        Err(more())
    }
}

/// russh also returns a failure without methods when the session has ended.
async fn lives(handle: &Handle<Client>, methods: &MethodSet) -> Result<(), LoginError> {
    // Its task may need a moment to close the handle.
    tokio::task::yield_now().await;
    if methods.is_empty() && handle.is_closed() { Err(LoginError::Gone) } else { Ok(()) }
}

fn refused() -> LoginError {
    LoginError::Refused("it does not accept the password".to_owned())
}

fn more() -> LoginError {
    LoginError::Refused("it requires more than the password".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_break_at_the_end_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        for (text, expected) in [("pw", "pw"), ("pw\n", "pw"), ("pw\r\n", "pw"), (" p w \n\n", " p w \n")] {
            fs::write(&path, text).unwrap();
            let password = Password::read(&path).unwrap();
            assert_eq!(password.0, expected);
            assert!(!format!("{password:?}").contains("pw"));
        }
        for empty in ["", "\n"] {
            fs::write(&path, empty).unwrap();
            assert!(Password::read(&path).unwrap_err().to_string().contains("has no password"));
        }
        let missing = Password::read(Path::new("/nowhere/password")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/password"), "{missing}");
    }
}
