//! Logs in with the right key or password.
//!
//! A password is sent by the method `password`, or by `keyboard-interactive` where a server has only that.

use std::fmt;
use std::io;
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
use russh::{AgentAuthError, MethodKind, MethodSet, SendError, Signer};
use tokio::net::UnixStream;

use super::client::Client;
use super::dial::plain;
use super::keys::KeyStore;
use super::rsa::{self, RsaKey, RsaKeyError};

/// Keys of an agent that are tried before servers disconnect (`MaxAuthTries` is 6).
const AGENT_TRIES: usize = 5;

/// The key, password or agent of a login.
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

/// The reason a login with a [`Credential`] failed.
pub(super) enum LoginError {
    /// The host refused it.
    Refused(LoginRefusal),
    /// The session ended meanwhile.
    Gone,
    /// The runner host cannot use the credential.
    Credential(CredentialError),
}

/// The reason a host refused a login.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginRefusal {
    #[error("it does not accept the key {0}")]
    Key(Fingerprint),
    #[error("it requires more than the key {0}")]
    MoreThanKey(Fingerprint),
    #[error("it does not accept the password")]
    Password,
    #[error("it requires more than the password")]
    MoreThanPassword,
    #[error("it accepts no passwords")]
    NoPasswords,
}

/// The reason a key, a password or an ssh-agent of the runner host cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error(
        "{} is {why}: add it to an ssh-agent and name the agent's socket, or use an Ed25519 key (`ssh-keygen -t ed25519`)",
        .file.display()
    )]
    Unsupported {
        file: PathBuf,
        #[source]
        why: UnsupportedKey,
    },
    #[error("{} is not a private key: {}", .file.display(), clean_line(.source.to_string().as_bytes(), 120))]
    NotAKey { file: PathBuf, source: Box<keys::Error> },
    #[error("{} has no password", .file.display())]
    NoPassword { file: PathBuf },
    #[error("the RSA key {0} does not sign: its numbers do not belong together")]
    RsaNumbers(Fingerprint),
    #[error("no key for the login")]
    None,
    #[error("the key to select from the ssh-agent is not in OpenSSH format (`ssh-ed25519 AAAA…`)")]
    SelectedKey,
    #[error("cannot reach the ssh-agent at {}: {}", .socket.display(), plain(.source))]
    AgentUnreachable { socket: PathBuf, source: io::Error },
    #[error("the ssh-agent does not respond: {0}")]
    AgentSilent(#[source] Box<keys::Error>),
    #[error("the ssh-agent holds no keys")]
    AgentEmpty,
    #[error("the ssh-agent does not hold the key {0}")]
    AgentLacks(Fingerprint),
    #[error("the ssh-agent did not sign with {key}: {source}")]
    AgentRefused { key: Fingerprint, source: Box<AgentAuthError> },
}

/// The kind of a private key that is not read from a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnsupportedKey {
    #[error("an RSA key, which Greenroom cannot read from a file ({0})")]
    Rsa(#[source] RsaKeyError),
    #[error(
        "a key with a passphrase, which Greenroom cannot read from a file (there is no terminal to type it)"
    )]
    Passphrase,
    #[error(
        "a key of type `{0}`, which Greenroom cannot read from a file (only Ed25519, ECDSA and RSA keys are supported)"
    )]
    Algorithm(Algorithm),
}

impl From<CredentialError> for ConnectError {
    fn from(error: CredentialError) -> Self {
        Self::Local { what: error.to_string() }
    }
}

impl From<CredentialError> for LoginError {
    fn from(error: CredentialError) -> Self {
        Self::Credential(error)
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
            Some(given) => Ok(Self::of(given)?),
        }
    }

    /// A given key or password.
    pub(super) fn of(given: &LoginKey) -> Result<Self, CredentialError> {
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
                let public = key.public().clone();
                let mut signer = RsaSigner(key);
                match handle.authenticate_publickey_with(user, public, Some(hash), &mut signer).await {
                    Ok(answer) => judge(handle, answer, key.public()).await,
                    Err(SignError::Gone) => Err(LoginError::Gone),
                    Err(SignError::Failed) => {
                        let fingerprint = key.public().fingerprint(HashAlg::Sha256);
                        Err(CredentialError::RsaNumbers(fingerprint).into())
                    }
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
            Self::None => Err(CredentialError::None.into()),
        }
    }
}

fn parse_wanted(key: &str) -> Result<PublicKey, CredentialError> {
    PublicKey::from_openssh(key.trim()).map_err(|_| CredentialError::SelectedKey)
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
fn read_user_key(path: &Path) -> Result<Credential, CredentialError> {
    let text = fs::read_to_string(path)?;
    let file = || path.to_owned();
    let unsupported = |why| CredentialError::Unsupported { file: file(), why };
    match rsa::read(&text) {
        Some(Ok(key)) => return Ok(Credential::Rsa(Box::new(key))),
        Some(Err(why)) => return Err(unsupported(UnsupportedKey::Rsa(why))),
        None => {}
    }
    let key = match keys::decode_secret_key(&text, None) {
        Ok(key) => key,
        Err(keys::Error::KeyIsEncrypted) => return Err(unsupported(UnsupportedKey::Passphrase)),
        Err(_) if text.contains("ENCRYPTED") => return Err(unsupported(UnsupportedKey::Passphrase)),
        Err(source) => return Err(CredentialError::NotAKey { file: file(), source: Box::new(source) }),
    };
    match key.algorithm() {
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } => Ok(Credential::Key(Arc::new(key))),
        other => Err(unsupported(UnsupportedKey::Algorithm(other))),
    }
}

/// A connection to an ssh-agent.
struct Agent(AgentClient<UnixStream>);

impl Agent {
    async fn open(socket: &Path) -> Result<Self, CredentialError> {
        let stream = UnixStream::connect(socket).await;
        let stream = stream
            .map_err(|source| CredentialError::AgentUnreachable { socket: socket.to_owned(), source })?;
        Ok(Self(AgentClient::connect(stream)))
    }

    /// The keys to try, in the agent's order.
    async fn keys(&mut self, only: Option<&PublicKey>) -> Result<Vec<PublicKey>, CredentialError> {
        let held = self
            .0
            .request_identities()
            .await
            .map_err(|error| CredentialError::AgentSilent(Box::new(error)))?;
        let held = held.iter().map(|identity| identity.public_key().into_owned());
        let keys: Vec<PublicKey> = match only {
            Some(only) => held.filter(|key| key.key_data() == only.key_data()).collect(),
            None => held.take(AGENT_TRIES).collect(),
        };
        match (keys.is_empty(), only) {
            (false, _) => Ok(keys),
            (true, None) => Err(CredentialError::AgentEmpty),
            (true, Some(only)) => Err(CredentialError::AgentLacks(only.fingerprint(HashAlg::Sha256))),
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
            Err(source) => {
                let key = key.fingerprint(HashAlg::Sha256);
                Err(CredentialError::AgentRefused { key, source: Box::new(source) }.into())
            }
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
        LoginRefusal::MoreThanKey(key)
    } else {
        LoginRefusal::Key(key)
    }))
}

/// Questions of a server that are answered before it is given up: some ask none first, or show a text.
const ROUNDS: usize = 4;

/// A password, which is never shown.
pub(super) struct Password(String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

impl Password {
    pub(super) fn read(path: &Path) -> Result<Self, CredentialError> {
        let text = fs::read_to_string(path)?;
        let password = text.strip_suffix('\n').unwrap_or(&text);
        let password = password.strip_suffix('\r').unwrap_or(password);
        if password.is_empty() {
            return Err(CredentialError::NoPassword { file: path.to_owned() });
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
                AuthResult::Failure { partial_success: true, .. } => {
                    Err(LoginError::Refused(LoginRefusal::MoreThanPassword))
                }
                AuthResult::Failure { remaining_methods, .. } => {
                    lives(handle, &remaining_methods).await?;
                    Err(LoginError::Refused(LoginRefusal::Password))
                }
            };
        }
        if offered.contains(&MethodKind::KeyboardInteractive) {
            return self.answer(handle, user).await;
        }
        lives(handle, &offered).await?;
        Err(LoginError::Refused(LoginRefusal::NoPasswords))
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
                    return Err(LoginError::Refused(LoginRefusal::MoreThanPassword));
                }
                KeyboardInteractiveAuthResponse::Failure { .. } => {
                    return Err(LoginError::Refused(LoginRefusal::Password));
                }
                KeyboardInteractiveAuthResponse::InfoRequest { prompts, .. } => match prompts.as_slice() {
                    [] => Vec::new(),
                    [Prompt { echo: false, .. }] if !answered => {
                        answered = true;
                        vec![self.0.clone()]
                    }
                    _ => return Err(LoginError::Refused(LoginRefusal::MoreThanPassword)),
                },
            };
            reply = handle.authenticate_keyboard_interactive_respond(answers).await.map_err(gone)?;
        }
        Err(LoginError::Refused(LoginRefusal::MoreThanPassword))
    }
}

/// russh also returns a failure without methods when the session has ended.
async fn lives(handle: &Handle<Client>, methods: &MethodSet) -> Result<(), LoginError> {
    // Its task may need a moment to close the handle.
    tokio::task::yield_now().await;
    if methods.is_empty() && handle.is_closed() { Err(LoginError::Gone) } else { Ok(()) }
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
