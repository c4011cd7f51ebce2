//! Logs in with the right key or password.
//!
//! A password is sent by the method `password`, or by `keyboard-interactive` where a server has only that.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_err as fs;
use greenroom_core::endpoint::LoginKey;
use greenroom_core::ids::InstanceId;
use greenroom_core::text::clean_line;
use greenroom_ports::connector::ConnectError;
use russh::client::{AuthResult, Handle, KeyboardInteractiveAuthResponse, Prompt};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::ssh_key::Fingerprint;
use russh::keys::{self, Algorithm, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKey};
use russh::{MethodKind, MethodSet, SendError, Signer};
use tokio::net::UnixStream;

use super::client::Client;
use super::dial::plain;
use super::keys::KeyStore;
use super::rsa::{self, RsaKey};

/// Keys of an agent that are tried before servers disconnect (`MaxAuthTries` is 6).
const AGENT_TRIES: usize = 5;

/// What a login uses.
pub(super) enum Credential {
    Key(Arc<PrivateKey>),
    Rsa(Box<RsaKey>),
    Password(Password),
    Agent {
        socket: PathBuf,
        only: Option<PublicKey>,
    },
    /// No login: only the host key is read.
    None,
}

/// Why a login failed.
pub(super) enum LoginError {
    /// The instance refused the login.
    Refused(String),
    /// The session ended meanwhile.
    Gone,
    Local(String),
}

/// An ssh-agent that cannot be used.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error("cannot reach the ssh-agent at {}: {}", .socket.display(), plain(.source))]
    Unreachable { socket: PathBuf, source: std::io::Error },
    #[error("the ssh-agent does not respond: {0}")]
    Silent(#[source] keys::Error),
    #[error("the ssh-agent holds no keys")]
    Empty,
    #[error("the ssh-agent does not hold the key {0}")]
    Lacks(Fingerprint),
}

impl From<AgentError> for LoginError {
    fn from(error: AgentError) -> Self {
        Self::Local(error.to_string())
    }
}

impl Credential {
    /// The given key or password if there is one, else the instance's own key.
    pub(super) fn find(
        given: Option<&LoginKey>,
        keys: &KeyStore,
        id: &InstanceId,
    ) -> Result<Self, ConnectError> {
        match given {
            None => Ok(Self::Key(Arc::new(keys.client_key(id)?))),
            Some(given) => Self::of(given),
        }
    }

    /// A given key or password.
    pub(super) fn of(given: &LoginKey) -> Result<Self, ConnectError> {
        match given {
            LoginKey::File(path) => read_user_key(path),
            LoginKey::Password(path) => Ok(Self::Password(Password::read(path)?)),
            LoginKey::Agent { socket, key } => {
                let only = key.as_deref().map(parse_wanted).transpose()?;
                Ok(Self::Agent { socket: socket.clone(), only })
            }
        }
    }

    pub(super) async fn log_in(&self, handle: &mut Handle<Client>, user: &str) -> Result<(), LoginError> {
        match self {
            Self::Key(key) => {
                let with = PrivateKeyWithHashAlg::new(Arc::clone(key), None);
                let answer = handle.authenticate_publickey(user, with).await.map_err(|_| LoginError::Gone)?;
                judge(handle, answer, key.public_key()).await
            }
            Self::Rsa(key) => {
                let hash = rsa_hash(handle).await?;
                let (public, mut signer) = (key.public().clone(), RsaSigner(key));
                match handle.authenticate_publickey_with(user, public, Some(hash), &mut signer).await {
                    Ok(answer) => judge(handle, answer, key.public()).await,
                    Err(SignError::Gone) => Err(LoginError::Gone),
                    Err(SignError::Failed) => Err(LoginError::Local(format!(
                        "the RSA key {} does not sign: its numbers do not belong together",
                        key.public().fingerprint(HashAlg::Sha256)
                    ))),
                }
            }
            Self::Password(password) => password.log_in(handle, user).await,
            Self::Agent { socket, only } => {
                let mut agent = Agent::open(socket).await?;
                let offered = agent.keys(only.as_ref()).await?;
                let mut last = LoginError::Gone;
                for key in offered {
                    match agent.log_in(handle, user, key).await {
                        Err(LoginError::Refused(problem)) => last = LoginError::Refused(problem),
                        done => return done,
                    }
                }
                Err(last)
            }
            Self::None => Err(LoginError::Local("no key for the login".to_owned())),
        }
    }
}

fn parse_wanted(key: &str) -> Result<PublicKey, ConnectError> {
    PublicKey::from_openssh(key.trim()).map_err(|_| ConnectError::Local {
        what: "the key to select from the ssh-agent is not in OpenSSH format (`ssh-ed25519 AAAA…`)"
            .to_owned(),
    })
}

/// The hash for signatures of RSA keys that the server prefers.
async fn rsa_hash(handle: &Handle<Client>) -> Result<HashAlg, LoginError> {
    let known = handle.best_supported_rsa_hash().await.map_err(|_| LoginError::Gone)?;
    Ok(known.flatten().unwrap_or(HashAlg::Sha512))
}

/// Signs what the server has to verify.
struct RsaSigner<'a>(&'a RsaKey);

enum SignError {
    /// The session ended meanwhile.
    Gone,
    Failed,
}

impl From<SendError> for SignError {
    fn from(_: SendError) -> Self {
        Self::Gone
    }
}

impl Signer for RsaSigner<'_> {
    type Error = SignError;

    async fn auth_sign(
        &mut self,
        _: &AgentIdentity,
        hash: Option<HashAlg>,
        mut message: Vec<u8>,
    ) -> Result<Vec<u8>, SignError> {
        let signature = hash.and_then(|hash| self.0.sign(hash, &message)).ok_or(SignError::Failed)?;
        // The signature follows what it signs.
        let length = u32::try_from(signature.len()).map_err(|_| SignError::Failed)?;
        message.extend(length.to_be_bytes());
        message.extend(signature);
        Ok(message)
    }
}

/// Reads an Ed25519, ECDSA or RSA key.
fn read_user_key(path: &Path) -> Result<Credential, ConnectError> {
    let local = |what| ConnectError::Local { what };
    let text = fs::read_to_string(path).map_err(|e| local(e.to_string()))?;
    let file = path.display();
    let instead = |kind: &str, why: &str| {
        local(format!(
            "{file} is {kind}, which Greenroom cannot read from a file ({why}): add it to an ssh-agent and \
             name the agent's socket, or use an Ed25519 key (`ssh-keygen -t ed25519`)"
        ))
    };
    match rsa::read(&text) {
        Some(Ok(key)) => return Ok(Credential::Rsa(Box::new(key))),
        Some(Err(why)) => return Err(instead("an RSA key", &why.to_string())),
        None => {}
    }
    let passphrase = || instead("a key with a passphrase", "there is no terminal to type it");
    let key = match keys::decode_secret_key(&text, None) {
        Ok(key) => key,
        Err(keys::Error::KeyIsEncrypted) => return Err(passphrase()),
        Err(_) if text.contains("ENCRYPTED") => return Err(passphrase()),
        Err(error) => {
            let message = clean_line(error.to_string().as_bytes(), 120);
            return Err(local(format!("{file} is not a private key: {message}")));
        }
    };
    match key.algorithm() {
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } => Ok(Credential::Key(Arc::new(key))),
        other => Err(instead(
            &format!("a key of type `{other}`"),
            "only Ed25519, ECDSA and RSA keys are supported",
        )),
    }
}

/// A connection to an ssh-agent.
struct Agent(AgentClient<UnixStream>);

impl Agent {
    async fn open(socket: &Path) -> Result<Self, AgentError> {
        let stream = UnixStream::connect(socket).await;
        let stream =
            stream.map_err(|source| AgentError::Unreachable { socket: socket.to_owned(), source })?;
        Ok(Self(AgentClient::connect(stream)))
    }

    /// The keys to try, in the agent's order.
    async fn keys(&mut self, only: Option<&PublicKey>) -> Result<Vec<PublicKey>, AgentError> {
        let held = self.0.request_identities().await.map_err(AgentError::Silent)?;
        let held = held.iter().map(|identity| identity.public_key().into_owned());
        let keys: Vec<PublicKey> = match only {
            Some(only) => held.filter(|key| key.key_data() == only.key_data()).collect(),
            None => held.take(AGENT_TRIES).collect(),
        };
        match (keys.is_empty(), only) {
            (false, _) => Ok(keys),
            (true, None) => Err(AgentError::Empty),
            (true, Some(only)) => Err(AgentError::Lacks(only.fingerprint(HashAlg::Sha256))),
        }
    }

    async fn log_in(
        &mut self,
        handle: &mut Handle<Client>,
        user: &str,
        key: PublicKey,
    ) -> Result<(), LoginError> {
        let hash = match key.algorithm() {
            Algorithm::Rsa { .. } => Some(rsa_hash(handle).await?),
            _ => None,
        };
        match handle.authenticate_publickey_with(user, key.clone(), hash, &mut self.0).await {
            Ok(answer) => judge(handle, answer, &key).await,
            Err(error) => Err(LoginError::Local(format!(
                "the ssh-agent did not sign with {}: {error}",
                key.fingerprint(HashAlg::Sha256)
            ))),
        }
    }
}

async fn judge(handle: &Handle<Client>, answer: AuthResult, key: &PublicKey) -> Result<(), LoginError> {
    let AuthResult::Failure { remaining_methods, partial_success } = answer else {
        return Ok(());
    };
    // russh also returns a failure when the session has ended; its task may need a moment to close the handle.
    tokio::task::yield_now().await;
    if handle.is_closed() && remaining_methods.is_empty() {
        return Err(LoginError::Gone);
    }
    let key = key.fingerprint(HashAlg::Sha256);
    Err(LoginError::Refused(if partial_success {
        format!("it requires more than the key {key}")
    } else {
        format!("it does not accept the key {key}")
    }))
}

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
                AuthResult::Failure { partial_success: true, .. } => Err(more_than_password()),
                AuthResult::Failure { remaining_methods, .. } => {
                    lives(handle, &remaining_methods).await?;
                    Err(password_refused())
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
                KeyboardInteractiveAuthResponse::Failure { partial_success: true, .. } => {
                    return Err(more_than_password());
                }
                KeyboardInteractiveAuthResponse::Failure { .. } => return Err(password_refused()),
                KeyboardInteractiveAuthResponse::InfoRequest { prompts, .. } => match prompts.as_slice() {
                    [] => Vec::new(),
                    [Prompt { echo: false, .. }] if !answered => {
                        answered = true;
                        vec![self.0.clone()]
                    }
                    _ => return Err(more_than_password()),
                },
            };
            reply = handle.authenticate_keyboard_interactive_respond(answers).await.map_err(gone)?;
        }
        Err(more_than_password())
    }
}

/// russh also returns a failure without methods when the session has ended.
async fn lives(handle: &Handle<Client>, methods: &MethodSet) -> Result<(), LoginError> {
    // Its task may need a moment to close the handle.
    tokio::task::yield_now().await;
    if methods.is_empty() && handle.is_closed() { Err(LoginError::Gone) } else { Ok(()) }
}

fn password_refused() -> LoginError {
    LoginError::Refused("it does not accept the password".to_owned())
}

fn more_than_password() -> LoginError {
    LoginError::Refused("it requires more_than_password than the password".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        read_user_key(&path).err().unwrap().to_string()
    }

    #[test]
    fn an_rsa_key_that_cannot_be_used_is_refused_with_the_reason_and_the_way_out() {
        let text =
            refusal("id_rsa", "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\n");
        for part in ["id_rsa is an RSA key", "not accepted", "ssh-agent", "ssh-keygen -t ed25519"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn what_is_no_key_is_called_so() {
        let text = refusal("id", "hello");
        assert!(text.contains("id is not a private key"), "{text}");
        let text = read_user_key(Path::new("/nowhere/id")).err().unwrap().to_string();
        assert!(text.contains("/nowhere/id"), "{text}");
    }

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
