//! Credentials of registries, from Docker's file `config.json` and the helpers that it names.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, io};

use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use greenroom_core::text::clean_line;
use greenroom_core::time::Pretty;
use serde::de::IgnoredAny;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Limit for a helper, which may ask a key ring or a cloud.
const HELPER: Duration = Duration::from_mins(1);
/// Limit of a helper's own words in an error.
const MAX_WORDS: usize = 200;
/// Helpers' answer if they have no account for a registry. Part of Docker's protocol.
const NOT_FOUND: &str = "credentials not found in native keychain";

/// Credentials of an account.
#[derive(Clone, PartialEq, Eq)]
pub enum RegistryAccount {
    Password {
        name: String,
        password: String,
    },
    /// A token of the registry's token server, which gives others for it.
    IdentityToken(String),
}

/// The file's credentials for a registry.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    pub account: Option<RegistryAccount>,
    /// The reason a helper, which the file names for the registry, gave no account. The registry may need none.
    pub problem: Option<HelperError>,
}

/// The file exists, but cannot be used. Never has a part of the text, in which passwords stand.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("the credentials file `{}` cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the credentials file `{}` is not valid JSON in line {line}, column {column}", path.display())]
    Json { path: PathBuf, line: usize, column: usize },
    #[error("the credentials file `{}` has other entries than Docker writes", path.display())]
    Entries { path: PathBuf },
    #[error("the credentials file `{}` has an `auth` that is not `NAME:PASSWORD` in Base64", path.display())]
    Auth { path: PathBuf },
    #[error("the credentials file `{}` has an `auth` for another account than `username` and `password`", path.display())]
    TwoAccounts { path: PathBuf },
}

/// The reason a credential helper gave no account.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelperError {
    #[error("the credential helper that Docker's file names cannot be started")]
    Start,
    #[error("the credential helper that Docker's file names answers with something else than an account")]
    Answer,
    #[error("`{helper}` fails: {words}")]
    Failure { helper: String, words: String },
    #[error("the credential helper that Docker's file names gives no answer within {}", Pretty(HELPER))]
    Late,
}

/// The path of Docker's file: in `DOCKER_CONFIG`, or in the home directory.
pub fn path() -> Option<PathBuf> {
    let directory = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = directory("DOCKER_CONFIG").or_else(|| Some(directory("HOME")?.join(".docker")))?;
    Some(folder.join("config.json"))
}

/// A file's credentials for a registry; none if there is no file.
pub async fn read(path: &Path, registry: &str) -> Result<Credentials, CredentialsError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Credentials::default()),
        Err(cause) => return Err(CredentialsError::Read { path: path.to_owned(), cause }),
    };
    if let Err(wrong) = serde_json::from_slice::<IgnoredAny>(&text) {
        let line = wrong.line();
        let column = wrong.column();
        return Err(CredentialsError::Json { path: path.to_owned(), line, column });
    }
    let registry = registry.to_owned();
    match timeout(HELPER, beside(move || get_credential_from_reader(text.as_slice(), &registry))).await {
        Ok(found) => understood(found, path),
        Err(_) => Ok(Credentials { account: None, problem: Some(HelperError::Late) }),
    }
}

/// Runs it in a thread of its own, which the end of the process does not wait for.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, result) = oneshot::channel();
    std::thread::spawn(move || sender.send(work()).ok());
    match result.await {
        Ok(result) => result,
        // Without a result the thread has panicked, and said why.
        Err(_) => std::future::pending().await,
    }
}

fn understood(
    found: Result<DockerCredential, CredentialRetrievalError>,
    path: &Path,
) -> Result<Credentials, CredentialsError> {
    let path = || path.to_owned();
    let problem = match found {
        Ok(DockerCredential::UsernamePassword(name, password)) => {
            // Docker pads some passwords.
            let password = password.trim_end_matches('\0').to_owned();
            let account = Some(RegistryAccount::Password { name, password });
            return Ok(Credentials { account, problem: None });
        }
        Ok(DockerCredential::IdentityToken(token)) => {
            return Ok(Credentials { account: Some(RegistryAccount::IdentityToken(token)), problem: None });
        }
        Err(CredentialRetrievalError::NoCredentialConfigured | CredentialRetrievalError::ConfigNotFound) => {
            return Ok(Credentials::default());
        }
        Err(CredentialRetrievalError::ConfigReadError) => {
            return Err(CredentialsError::Entries { path: path() });
        }
        Err(CredentialRetrievalError::CredentialDecodingError) => {
            return Err(CredentialsError::Auth { path: path() });
        }
        Err(CredentialRetrievalError::CredentialMismatchError) => {
            return Err(CredentialsError::TwoAccounts { path: path() });
        }
        Err(CredentialRetrievalError::HelperFailure { stdout, .. }) if stdout.trim() == NOT_FOUND => {
            return Ok(Credentials::default());
        }
        Err(CredentialRetrievalError::HelperFailure { helper, stdout, stderr }) => {
            let words = if stdout.trim().is_empty() { stderr } else { stdout };
            HelperError::Failure { helper, words: clean_line(words.as_bytes(), MAX_WORDS) }
        }
        Err(CredentialRetrievalError::HelperCommunicationError) => HelperError::Start,
        Err(CredentialRetrievalError::MalformedHelperResponse) => HelperError::Answer,
    };
    Ok(Credentials { account: None, problem: Some(problem) })
}

/// Shows the account as an error names it.
impl fmt::Display for RegistryAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { name, .. } => write!(f, "the account `{name}`"),
            Self::IdentityToken(_) => f.write_str("the identity token of Docker's file"),
        }
    }
}

/// Shows the account without the secret.
impl fmt::Debug for RegistryAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{
        "auths": {
            "ci.example": {"auth": "cmVhZGVyOmE6Yg=="},
            "https://old.example/v1/": {"username": "u", "password": "p"},
            "two.example": {"auth": "dTpw", "username": "u", "password": "q"},
            "token.example": {"identitytoken": "t0"},
            "empty.example": {},
            "bad.example": {"auth": "c2VjcmV0"}
        },
        "credHelpers": {"helped.example": "of-no-machine"}
    }"#;

    async fn find(text: &str, registry: &str) -> Result<Credentials, CredentialsError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, text).unwrap();
        read(&path, registry).await
    }

    #[tokio::test]
    async fn the_account_of_a_registry_is_found() {
        let password = |name: &str, password: &str| {
            Some(RegistryAccount::Password { name: name.to_owned(), password: password.to_owned() })
        };
        for (registry, account) in [
            ("ci.example", password("reader", "a:b")),
            ("old.example", password("u", "p")),
            ("token.example", Some(RegistryAccount::IdentityToken("t0".to_owned()))),
            ("empty.example", None),
            ("ci.example:5000", None),
        ] {
            let found = find(FILE, registry).await.unwrap();
            assert!(found.account == account && found.problem.is_none(), "{registry}: {found:?}");
        }
    }

    #[tokio::test]
    async fn a_helper_without_an_account_is_no_error_of_the_file() {
        let found = find(FILE, "helped.example").await.unwrap();
        assert_eq!((found.account, found.problem), (None, Some(HelperError::Start)));
        let failure = |stdout: &str, stderr: &str| {
            let [stdout, stderr] = [stdout, stderr].map(str::to_owned);
            let helper = "docker-credential-pass".to_owned();
            let failed = CredentialRetrievalError::HelperFailure { helper, stdout, stderr };
            understood(Err(failed), Path::new("/config.json")).unwrap().problem.map(|it| it.to_string())
        };
        assert_eq!(failure("credentials not found in native keychain\n", ""), None);
        let expected = Some("`docker-credential-pass` fails: no key ring".to_owned());
        assert_eq!(failure("", "no key ring\n"), expected);
        assert_eq!(failure("no key ring\n", "usage"), expected);
    }

    #[tokio::test]
    async fn errors_do_not_show_the_file() {
        let bad = find(FILE, "bad.example").await.unwrap_err();
        assert!(matches!(bad, CredentialsError::Auth { .. }) && !bad.to_string().contains("secret"), "{bad}");
        let entries = find("{\"auths\": {\"a\": \"a secret\"}}", "a").await.unwrap_err();
        assert!(matches!(entries, CredentialsError::Entries { .. }), "{entries}");
        let two = find(FILE, "two.example").await.unwrap_err();
        assert!(matches!(two, CredentialsError::TwoAccounts { .. }), "{two}");
        let json = find("{\"auths\":\n 7", "a").await.unwrap_err();
        assert!(json.to_string().contains("line 2"), "{json}");
        let account = find(FILE, "ci.example").await.unwrap().account;
        assert!(!format!("{account:?}").contains("a:b"));
    }

    #[tokio::test]
    async fn without_a_file_there_are_no_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let found = read(&dir.path().join("config.json"), "a").await.unwrap();
        assert!(found.account.is_none() && found.problem.is_none());
        assert!(matches!(read(dir.path(), "a").await, Err(CredentialsError::Read { .. })));
    }
}
