//! Credentials of registries in Docker's file `config.json`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use base64ct::{Base64, Encoding as _};
use serde::Deserialize;

/// An account of a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub password: String,
}

/// What the file has for a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub account: Option<Account>,
    /// A program of Docker's that has them. Greenroom does not run it.
    pub helper: Option<String>,
}

/// The file exists, but cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the credentials file `{}` cannot be read: {cause}", path.display())]
pub struct CredentialsError {
    path: PathBuf,
    cause: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    #[serde(default)]
    creds_store: String,
}

#[derive(Default, Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// The path of Docker's file: in `DOCKER_CONFIG`, or in the home directory.
pub fn path() -> Option<PathBuf> {
    let directory = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = directory("DOCKER_CONFIG").or_else(|| Some(directory("HOME")?.join(".docker")))?;
    Some(folder.join("config.json"))
}

/// What a file has for a registry; nothing if there is no file.
pub fn read(path: &Path, registry: &str) -> Result<Credentials, CredentialsError> {
    let failed = |cause: String| CredentialsError { path: path.to_owned(), cause };
    match std::fs::read_to_string(path) {
        Ok(text) => find(&text, registry).map_err(failed),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Credentials::default()),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The error never contains a part of the text, which has passwords.
fn find(text: &str, registry: &str) -> Result<Credentials, String> {
    let file: File = serde_json::from_str(text)
        .map_err(|error| format!("line {}, column {} is not valid", error.line(), error.column()))?;
    let entry = file.auths.iter().find(|(key, _)| host(key) == registry).map(|(_, entry)| entry);
    let helper = file.cred_helpers.iter().find(|(key, _)| host(key) == registry).map(|(_, helper)| helper);
    let helper = helper.or((!file.creds_store.is_empty()).then_some(&file.creds_store));
    let account = entry.map(account).transpose()?.flatten();
    Ok(Credentials { account, helper: helper.cloned() })
}

fn account(entry: &Entry) -> Result<Option<Account>, String> {
    if entry.auth.is_empty() {
        let account = Account { name: entry.username.clone(), password: entry.password.clone() };
        return Ok((!account.name.is_empty()).then_some(account));
    }
    let decoded = Base64::decode_vec(entry.auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let decoded = decoded.as_deref().and_then(|text| text.split_once(':'));
    let (name, password) = decoded.ok_or("an `auth` is not `NAME:PASSWORD` in Base64")?;
    Ok(Some(Account { name: name.to_owned(), password: password.trim_end_matches('\0').to_owned() }))
}

/// The registry of a key, which old versions wrote as a URL.
fn host(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    key.split('/').next().unwrap_or(key)
}

/// Without the password.
impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{
        "auths": {
            "ci.example": {"auth": "cmVhZGVyOmE6Yg=="},
            "https://old.example/v1/": {"username": "u", "password": "p"},
            "helped.example": {},
            "bad.example": {"auth": "c2VjcmV0"}
        },
        "credHelpers": {"helped.example": "pass"}
    }"#;

    #[test]
    fn the_account_of_a_registry_is_found() {
        let account = |name: &str, password: &str| {
            Some(Account { name: name.to_owned(), password: password.to_owned() })
        };
        assert_eq!(find(FILE, "ci.example").unwrap().account, account("reader", "a:b"));
        assert_eq!(find(FILE, "old.example").unwrap().account, account("u", "p"));
        assert_eq!(find(FILE, "ci.example:5000").unwrap(), Credentials::default());
        let helped = find(FILE, "helped.example").unwrap();
        assert_eq!((helped.account, helped.helper.as_deref()), (None, Some("pass")));
        let store = find(r#"{"credsStore": "secretservice"}"#, "any").unwrap();
        assert_eq!(store.helper.as_deref(), Some("secretservice"));
    }

    #[test]
    fn errors_do_not_show_the_file() {
        assert!(!find(FILE, "bad.example").unwrap_err().contains("secret"));
        let error = find("{\"auths\": {\"a\": \"a secret\"}}", "a").unwrap_err();
        assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
        let account = find(FILE, "ci.example").unwrap().account;
        assert!(!format!("{account:?}").contains("a:b"));
    }

    #[test]
    fn without_a_file_there_are_no_credentials() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&dir.path().join("config.json"), "a").unwrap(), Credentials::default());
        assert!(read(dir.path(), "a").is_err());
    }
}
