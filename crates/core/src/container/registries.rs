//! Mirrors of registries, and the engine's file of them.

use std::collections::{BTreeMap, BTreeSet};

use base64ct::{Base64, Base64Unpadded, Encoding as _};
use serde_json::Value;

use super::image::ImageName;
use super::request::Credential;
use super::spec::Login;
use super::variables::AUTH_CONFIG;
use crate::text::{Secret, clean_line};

/// A mirror's scheme, and its host with port and path.
pub fn place(mirror: &str) -> (&str, &str) {
    let (scheme, place) = mirror.split_once("://").unwrap_or(("https", mirror));
    (scheme, place.trim_end_matches('/'))
}

/// A mirror is asked first, then the registry itself.
pub fn mirrors<'a>(mirrors: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let of = |(registry, mirror): (&String, &String)| {
        let (scheme, place) = place(mirror);
        let insecure = scheme == "http";
        let registry = text(registry);
        let place = text(place);
        format!(
            "\n[[registry]]\nprefix = {registry}\nlocation = {registry}\n[[registry.mirror]]\nlocation = {place}\n\
             insecure = {insecure}\n"
        )
    };
    mirrors.into_iter().map(of).collect()
}

// Which credentials an image is pulled with.

/// Credentials by registry, or by a path in one. The first source that has some for a path wins.
#[derive(Debug, Default)]
pub struct Logins {
    by_path: BTreeMap<String, Login>,
    /// Paths of the operator's credentials that the job does not get.
    withheld: BTreeSet<String>,
    /// Sentences for the job log about what was ignored.
    pub remarks: Vec<String>,
}

impl Logins {
    /// The sources in their order: the job's `DOCKER_AUTH_CONFIG`, the operator's file, GitLab's for the job.
    pub fn new(job: Option<&str>, operator: Option<&str>, gitlab: &[Credential]) -> Self {
        let mut logins = Self::default();
        for (source, text) in [(AUTH_CONFIG, job), ("registry_auth", operator)] {
            if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
                logins.add_config(source, text);
            }
        }
        for one in gitlab {
            let pair = (one.username.clone(), one.password.clone());
            logins.add(&one.registry, pair, "the job's credentials");
        }
        logins
    }

    /// Notes the operator's credentials that the job does not get.
    pub fn withhold(&mut self, operator: &str) {
        self.withheld.extend(Self::new(None, Some(operator), &[]).by_path.into_keys());
    }

    /// The credentials of the longest path that leads to the image.
    pub fn of(&self, image: &ImageName) -> Option<&Login> {
        longest(&image.path(), |path| self.by_path.get(path))
    }

    /// True if the operator has credentials for the image that the job does not get.
    pub fn withholds(&self, image: &ImageName) -> bool {
        longest(&image.path(), |path| self.withheld.get(path)).is_some()
    }

    fn add(&mut self, registry: &str, (username, password): (String, Secret<String>), source: &'static str) {
        let scope = scope(registry);
        let login = Login { scope: scope.clone(), username, password, source };
        self.by_path.entry(scope).or_insert(login);
    }

    /// Adds the entries of a Docker `config.json`. No remark quotes more of it than the name of a registry.
    fn add_config(&mut self, source: &'static str, text: &str) {
        let Ok(Value::Object(config)) = serde_json::from_str::<Value>(text) else {
            self.remarks.push(format!("`{source}` is ignored: it is not a JSON object"));
            return;
        };
        if ["credsStore", "credHelpers"].iter().any(|key| config.get(*key).is_some_and(is_set)) {
            self.remarks.push(format!(
                "`credsStore` and `credHelpers` in `{source}` are ignored: Greenroom runs no credential helpers"
            ));
        }
        let Some(Value::Object(entries)) = config.get("auths") else { return };
        for (registry, entry) in entries {
            match pair(entry) {
                Ok(Some(pair)) => self.add(registry, pair, source),
                // `docker login` leaves an empty entry where a credential helper has the password.
                Ok(None) => {}
                Err(why) => {
                    let registry = clean_line(registry.as_bytes(), 200);
                    self.remarks.push(format!("`{source}` is ignored for `{registry}`: {why}"));
                }
            }
        }
    }
}

/// The result of `find` for the longest path that leads to an image.
fn longest<T>(path: &str, mut find: impl FnMut(&str) -> Option<T>) -> Option<T> {
    let mut prefix = path;
    loop {
        if let Some(found) = find(prefix) {
            return Some(found);
        }
        prefix = prefix.rsplit_once('/')?.0;
    }
}

fn is_set(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
        || value.as_object().is_some_and(|helpers| !helpers.is_empty())
}

/// User name and password of an entry: `auth` has both, in Base64, and wins.
fn pair(entry: &Value) -> Result<Option<(String, Secret<String>)>, &'static str> {
    let text = |name| entry.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(auth) = text("auth") {
        let auth: String = auth.split_whitespace().collect();
        let bytes = Base64::decode_vec(&auth).or_else(|_| Base64Unpadded::decode_vec(&auth));
        let decoded = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or("its `auth` is not valid Base64")?;
        let (username, password) =
            decoded.split_once(':').ok_or("its `auth` is not a user name and a password")?;
        let password = Secret::new(password.trim_matches('\0').to_owned());
        return Ok(Some((username.to_owned(), password)));
    }
    match (text("username"), text("password")) {
        (Some(username), Some(password)) => Ok(Some((username.to_owned(), Secret::new(password.to_owned())))),
        _ if text("identitytoken").or(text("registrytoken")).is_some() => Err("tokens are not supported"),
        _ => Ok(None),
    }
}

/// The path that an entry is for. Old entries are URLs, of which only the host counts; a tag counts for nothing.
fn scope(registry: &str) -> String {
    let lower = registry.to_ascii_lowercase();
    let is_url = ["https://", "http://"].iter().find(|scheme| lower.starts_with(**scheme));
    let path = match is_url {
        Some(scheme) => registry[scheme.len()..].split('/').next().unwrap_or_default(),
        None => registry.trim_end_matches('/'),
    };
    let (host, rest) = path.split_once('/').map_or((path, None), |(host, rest)| (host, Some(rest)));
    let host = match host.to_ascii_lowercase() {
        host if matches!(host.as_str(), "index.docker.io" | "registry-1.docker.io") => "docker.io".to_owned(),
        host => host,
    };
    match rest.map(|rest| rest.split_once(':').map_or(rest, |(rest, _)| rest)) {
        Some(rest) => format!("{host}/{rest}"),
        None => host,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mirror_without_tls_is_marked() {
        let one = ("docker.io".to_owned(), "http://mirror.corp:5000/".to_owned());
        let text = mirrors([(&one.0, &one.1)]);
        assert!(text.contains("location = \"mirror.corp:5000\"\ninsecure = true\n"), "{text}");
    }

    fn credential(registry: &str, username: &str) -> Credential {
        let password = Secret::new("pw".to_owned());
        Credential { registry: registry.to_owned(), username: username.to_owned(), password }
    }

    fn config(entries: &[(&str, &str)]) -> String {
        let entries: serde_json::Map<String, Value> = entries
            .iter()
            .map(|(registry, user)| {
                let auth = Base64::encode_string(format!("{user}:pw").as_bytes());
                ((*registry).to_owned(), json!({ "auth": auth }))
            })
            .collect();
        json!({ "auths": entries }).to_string()
    }

    fn user<'a>(logins: &'a Logins, image: &str) -> Option<&'a str> {
        logins.of(&ImageName::parse(image).unwrap()).map(|login| login.username.as_str())
    }

    #[test]
    fn the_first_source_wins_for_a_path_and_then_the_longest_path() {
        let job = config(&[("registry.example.com", "job"), ("registry.example.com/g/private", "deep")]);
        let operator =
            config(&[("registry.example.com", "operator"), ("other.example.com:5000", "operator")]);
        let gitlab = [
            credential("registry.example.com", "gitlab"),
            credential("other.example.com:5000", "gitlab"),
            credential("registry.example.com/g", "gitlab"),
        ];
        let logins = Logins::new(Some(&job), Some(&operator), &gitlab);
        assert_eq!(logins.remarks, [""; 0]);
        for (image, expected) in [
            ("registry.example.com/app:1", Some("job")),
            ("registry.example.com/g/app", Some("gitlab")),
            ("registry.example.com/g/private", Some("deep")),
            ("registry.example.com/g/private/app:2", Some("deep")),
            ("registry.example.com/g/privateer", Some("gitlab")),
            ("registry.example.com:5005/g/app", None),
            ("other.example.com:5000/app", Some("operator")),
            ("other.example.com/app", None),
            ("ruby", None),
        ] {
            assert_eq!(user(&logins, image), expected, "{image}");
        }
        let login = logins.of(&ImageName::parse("registry.example.com/g/private/x").unwrap()).unwrap();
        assert_eq!((login.scope.as_str(), login.source), ("registry.example.com/g/private", AUTH_CONFIG));
        assert_eq!(login.password.expose(), "pw");
    }

    #[test]
    fn a_registry_has_many_spellings() {
        for (registry, image) in [
            ("https://index.docker.io/v1/", "ruby:3.3"),
            ("index.docker.io", "ruby"),
            ("docker.io", "g/app"),
            ("docker.io/g", "g/app"),
            ("https://Registry.example.com:5005/v2/", "registry.example.com:5005/app"),
            ("http://registry.example.com", "registry.example.com/app"),
            ("registry.example.com/", "registry.example.com/app"),
            ("REGISTRY.example.com/g/app", "registry.example.com/g/app:3"),
            ("registry.example.com:5005/g/app:1", "registry.example.com:5005/g/app:2"),
        ] {
            let logins = Logins::new(Some(&config(&[(registry, "u")])), None, &[]);
            assert_eq!(user(&logins, image), Some("u"), "{registry}");
        }
    }

    #[test]
    fn an_entry_may_be_written_in_several_ways() {
        let text = json!({"auths": {
            "a.example.com": {"username": "u", "password": "p:w"},
            "b.example.com": {"auth": "dTpwOnc=", "username": "other"},
            "c.example.com": {"auth": "dTpwOnc"},
            "d.example.com": {"auth": "dTpw\nOnc=\n"},
        }});
        let logins = Logins::new(Some(&text.to_string()), None, &[]);
        assert_eq!(logins.remarks, [""; 0]);
        for host in ["a", "b", "c", "d"] {
            let image = ImageName::parse(&format!("{host}.example.com/x")).unwrap();
            let login = logins.of(&image).unwrap();
            assert_eq!((login.username.as_str(), login.password.expose().as_str()), ("u", "p:w"), "{host}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_said_and_the_rest_counts() {
        let text = json!({
            "auths": {
                "bad.example.com": {"auth": "hunter2!"},
                "half.example.com": {"auth": "aHVudGVyMg=="},
                "token.example.com": {"identitytoken": "hunter2"},
                "empty.example.com": {},
                "odd.example.com": 7,
                "good.example.com": {"auth": "dTpw"},
            },
            "credsStore": "desktop",
        });
        let gitlab = [credential("empty.example.com", "gitlab")];
        let logins = Logins::new(None, Some(&text.to_string()), &gitlab);
        assert_eq!(user(&logins, "good.example.com/x"), Some("u"));
        assert_eq!(user(&logins, "empty.example.com/x"), Some("gitlab"));
        let mut expected = vec![
            "`credsStore` and `credHelpers` in `registry_auth` are ignored: Greenroom runs no credential helpers",
            "`registry_auth` is ignored for `bad.example.com`: its `auth` is not valid Base64",
            "`registry_auth` is ignored for `half.example.com`: its `auth` is not a user name and a password",
            "`registry_auth` is ignored for `token.example.com`: tokens are not supported",
        ];
        let mut remarks: Vec<&str> = logins.remarks.iter().map(String::as_str).collect();
        expected.sort_unstable();
        remarks.sort_unstable();
        assert_eq!(remarks, expected);
        assert!(!format!("{logins:?}").contains("hunter2"));
    }

    #[test]
    fn only_credential_helpers_that_are_named_are_reported() {
        for (config, is_reported) in [
            (json!({"credsStore": "desktop"}), true),
            (json!({"credsStore": ""}), false),
            (json!({"credHelpers": {"registry.example.com": "ecr-login"}}), true),
            (json!({"credHelpers": {}}), false),
        ] {
            let logins = Logins::new(Some(&config.to_string()), None, &[]);
            assert_eq!(!logins.remarks.is_empty(), is_reported, "{config}");
        }
    }

    #[test]
    fn a_text_that_is_not_json_is_ignored_as_a_whole() {
        let gitlab = [credential("a.example.com", "gitlab")];
        for text in ["hunter2", "[]", "{\"auths\": {", "null"] {
            let logins = Logins::new(Some(text), Some("  "), &gitlab);
            assert_eq!(
                logins.remarks,
                ["`DOCKER_AUTH_CONFIG` is ignored: it is not a JSON object"],
                "{text}"
            );
            assert_eq!(user(&logins, "a.example.com/x"), Some("gitlab"));
        }
        assert!(Logins::new(Some("{\"auths\": []}"), Some("{}"), &[]).remarks.is_empty());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}", registry in "[a-zA-Z:/.ä]{0,20}|.{0,20}") {
            let logins = Logins::new(Some(&text), Some(&config(&[(&registry, "u")])), &[credential(&text, "x")]);
            logins.of(&ImageName::parse("a.b/c/d").unwrap());
        }
    }
}
