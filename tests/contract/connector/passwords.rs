//! Logins with passwords: OpenSSH's server in a namespace with a shadow file of its own, and a server that asks questions.

use std::borrow::Cow;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom_core::endpoint::{Endpoint, LoginKey};
use greenroom_ports::connector::ConnectError;
use greenroom_testkit::skipped::skipped;
use russh::server::{self, Auth, Handler, Response};
use russh::{MethodKind, MethodSet};
use tokio::net::TcpListener;

use super::sshd::{Sshd, account, write_private};
use crate::trick::HOST;

const WITHIN: Duration = Duration::from_secs(10);
const PASSWORD: &str = "hunter2 and more";

fn file(sshd: &Sshd, password: &str) -> PathBuf {
    let path = sshd.path("password");
    write_private(&path, password);
    path
}

fn with(sshd: &Sshd, password: &str) -> Endpoint {
    Endpoint { key: Some(LoginKey::Password(file(sshd, password))), ..sshd.at.clone() }
}

/// A shadow file in which the account of the tests has the password.
fn shadow() -> String {
    let hashed = Command::new("openssl").args(["passwd", "-6", PASSWORD]).output().unwrap();
    let hash = String::from_utf8(hashed.stdout).unwrap();
    format!("{}:{}:19000:0:99999:7:::\n", account(), hash.trim())
}

#[tokio::test]
async fn openssh_accepts_the_right_password_and_no_other() {
    if !rustix::process::getuid().is_root() {
        return skipped("passwords: this is not root, which may give sshd a shadow file of its own");
    }
    let mut sshd = Sshd::start().await;
    write_private(&sshd.path("shadow"), &shadow());
    sshd.restart();
    let at = with(&sshd, &format!("{PASSWORD}\n"));
    sshd.connector().check(&sshd.id, &at, WITHIN).await.unwrap();
    let other = Endpoint { key: Some(LoginKey::Password(sshd.path("other"))), ..at };
    write_private(&sshd.path("other"), "another");
    let error = sshd.connector().check(&sshd.id, &other, WITHIN).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("does not accept the password") && !text.contains("another"), "{text}");
}

#[tokio::test]
async fn openssh_that_takes_keys_only_is_named_so() {
    let sshd = Sshd::start().await;
    let error = sshd.connector().check(&sshd.id, &with(&sshd, PASSWORD), WITHIN).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("accepts no passwords"), "{error}");
}

#[tokio::test]
async fn a_password_file_that_is_missing_or_empty_is_our_own_fault() {
    let sshd = Sshd::start().await;
    for at in [
        with(&sshd, "\n"),
        Endpoint { key: Some(LoginKey::Password(sshd.path("nowhere"))), ..sshd.at.clone() },
    ] {
        let error = sshd.connector().check(&sshd.id, &at, WITHIN).await.unwrap_err();
        assert!(matches!(error, ConnectError::Local { .. }), "{error:?}");
    }
}

/// The proof that a server wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    Password,
    /// A question for the password.
    Answer,
    /// A text, then the question, then another text.
    AnswerAmongTexts,
    /// A question whose answer everybody may see.
    Name,
    /// The password, then a code.
    Code,
    /// Questions without end that have no answer.
    Nothing,
    /// The password, then a key.
    Key,
}

struct Server {
    wants: Wants,
    rounds: usize,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn note(&self, what: impl Into<String>) {
        self.log.lock().unwrap().push(what.into());
    }
}

fn question(text: &'static str, echo: bool) -> Auth {
    let prompts = if text.is_empty() { Vec::new() } else { vec![(Cow::Borrowed(text), echo)] };
    Auth::Partial { name: "login".into(), instructions: "".into(), prompts: prompts.into() }
}

impl Handler for Server {
    type Error = russh::Error;

    async fn auth_password(&mut self, _: &str, password: &str) -> Result<Auth, Self::Error> {
        self.note(format!("password {password}"));
        let right = password == PASSWORD;
        Ok(match self.wants {
            Wants::Password if right => Auth::Accept,
            Wants::Key if right => {
                let methods = MethodSet::from([MethodKind::PublicKey].as_slice());
                Auth::Reject { proceed_with_methods: Some(methods), partial_success: true }
            }
            _ => Auth::reject(),
        })
    }

    async fn auth_keyboard_interactive<'a>(
        &'a mut self,
        _: &str,
        _: &str,
        response: Option<Response<'a>>,
    ) -> Result<Auth, Self::Error> {
        let answers: Option<Vec<String>> =
            response.map(|all| all.map(|one| String::from_utf8_lossy(&one).into_owned()).collect());
        self.rounds += 1;
        if let Some(answers) = &answers {
            self.note(format!("answers {answers:?}"));
        }
        let right = answers.as_deref().is_some_and(|answers| answers.iter().any(|one| one == PASSWORD));
        Ok(match (self.wants, self.rounds) {
            (Wants::Answer | Wants::Code, 1) | (Wants::AnswerAmongTexts, 2) => question("Password: ", false),
            (Wants::Answer, 2) if right => Auth::Accept,
            (Wants::AnswerAmongTexts, 1) | (Wants::Nothing, _) => question("", false),
            (Wants::AnswerAmongTexts, 3) if right => question("", false),
            (Wants::AnswerAmongTexts, 4) => Auth::Accept,
            (Wants::Name, 1) => question("Who? ", true),
            (Wants::Code, 2) if right => question("Code: ", false),
            _ => Auth::reject(),
        })
    }
}

/// The result of a login with a password at a server, and what the server saw.
async fn outcome(wants: Wants, password: &str) -> (Result<(), ConnectError>, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let methods: &[MethodKind] = match wants {
        Wants::Password | Wants::Key => &[MethodKind::Password, MethodKind::PublicKey],
        _ => &[MethodKind::KeyboardInteractive],
    };
    let config = Arc::new(server::Config {
        keys: vec![HOST.clone()],
        methods: MethodSet::from(methods),
        auth_rejection_time: Duration::ZERO,
        ..server::Config::default()
    });
    let log = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&log);
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = Server { wants, rounds: 0, log: Arc::clone(&seen) };
            if let Ok(running) = server::run_stream(Arc::clone(&config), stream, server).await {
                // How it ends does not matter to the server.
                let _ended = running.await;
            }
        }
    });
    let sshd = Sshd::start().await;
    let host_key = HOST.public_key().to_openssh().unwrap();
    let at = Endpoint { port, host_key, ..with(&sshd, password) };
    let checked = sshd.connector().check(&sshd.id, &at, WITHIN).await;
    serving.abort();
    let seen = log.lock().unwrap().clone();
    (checked, seen)
}

#[tokio::test]
async fn a_server_that_asks_gets_the_password_once() {
    let answer = format!("answers [{PASSWORD:?}]");
    for (wants, said) in [
        (Wants::Password, vec![format!("password {PASSWORD}")]),
        (Wants::Answer, vec![answer.clone()]),
        (Wants::AnswerAmongTexts, vec!["answers []".to_owned(), answer, "answers []".to_owned()]),
    ] {
        let (checked, seen) = outcome(wants, PASSWORD).await;
        // The server opens no session: the login is all that it does.
        let error = checked.unwrap_err();
        assert!(
            !matches!(error, ConnectError::Refused { .. } | ConnectError::Local { .. }),
            "{wants:?}: {error:?}"
        );
        assert_eq!(seen, said, "{wants:?}");
    }
}

#[tokio::test]
async fn a_server_that_wants_something_else_does_not_get_it() {
    let answer = format!("answers [{PASSWORD:?}]");
    for (wants, password, expected, said) in [
        (Wants::Password, "wrong", "does not accept the password", vec!["password wrong".to_owned()]),
        (Wants::Answer, "wrong", "does not accept the password", vec!["answers [\"wrong\"]".to_owned()]),
        (Wants::Name, PASSWORD, "requires more than the password", vec![]),
        (Wants::Code, PASSWORD, "requires more than the password", vec![answer]),
        (Wants::Nothing, PASSWORD, "requires more than the password", vec!["answers []".to_owned(); 4]),
        (Wants::Key, PASSWORD, "requires more than the password", vec![format!("password {PASSWORD}")]),
    ] {
        let (checked, seen) = outcome(wants, password).await;
        let error = checked.unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{wants:?}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(expected) && !text.contains(password), "{wants:?}: {text}");
        assert_eq!(seen, said, "{wants:?}");
    }
}
