//! What `greenroom init` asks about a first pool of provider `static`.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::ssh_config::{self, SshHost};
use crate::first_pool::{FirstPool, Found, Given, RunnerHost, Suits, few};

pub(super) const FIRST_POOL: FirstPool = FirstPool {
    name: "hosts",
    about: "hosts over SSH",
    comments: &[("dedicated_user", "false"), ("clean_user", "\"root\"")],
    look: |host| Box::new(Known::look(host)),
};

#[derive(Debug, Default)]
struct Known {
    hosts: Vec<SshHost>,
    home: Option<PathBuf>,
}

impl Known {
    fn look(host: &RunnerHost<'_>) -> Self {
        let hosts = host.read_at_home(".ssh/config").map(|text| ssh_config::hosts(&text));
        Self { hosts: hosts.unwrap_or_default(), home: host.home() }
    }
}

impl Found for Known {
    fn text(&self) -> Option<String> {
        let names: Vec<&str> = self.hosts.iter().map(|host| host.alias.as_str()).collect();
        Some(match names.as_slice() {
            [] => "no hosts in ~/.ssh/config".to_owned(),
            names => format!("in ~/.ssh/config: {}", few(names)),
        })
    }

    fn suits(&self) -> Suits {
        if self.hosts.is_empty() { Suits::Unknown } else { Suits::Now }
    }

    fn asks_for(&self) -> &'static [&'static str] {
        &["user", "key"]
    }

    fn likely(&self, key: &str, _given: &Given<'_>) -> Option<String> {
        match key {
            "user" => Some("ci".to_owned()),
            "key" => Some("/etc/greenroom/hosts_key".to_owned()),
            _ => None,
        }
    }

    fn replaces(&self, key: &str, given: &Given<'_>) -> bool {
        let in_each_host = !given.hosts.is_empty() && given.hosts.iter().all(|host| host.contains_key(key));
        in_each_host || key == "key" && given.has("agent")
    }

    /// Below the home of the account that all hosts share: it may create nothing elsewhere.
    fn follows_for_pool(&self, given: &Given<'_>) -> Vec<(&'static str, Value)> {
        let Some(user) = given.text("user").filter(|user| *user != "root") else { return Vec::new() };
        let below = |folder: &str| Value::String(format!("/home/{user}/{folder}"));
        vec![("builds_dir", below("builds")), ("cache_dir", below("cache"))]
    }

    /// Its name is what the operator calls it. The rest is what the operator, or the host's section, says.
    fn host(&self, text: &str) -> Option<Table> {
        let (user, rest) = match text.split_once('@') {
            Some((user, rest)) => (Some(user.to_owned()), rest),
            None => (None, text),
        };
        let (name, port) = match rest.rsplit_once(':') {
            // An address of IPv6 has several colons and no port.
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
                (name, Some(port.parse::<u16>().ok()?))
            }
            _ => (rest, None),
        };
        let name = name.trim_matches(['[', ']']);
        if name.is_empty() || name.contains(char::is_whitespace) || user.as_deref() == Some("") {
            return None;
        }
        let known = self.hosts.iter().find(|host| host.alias == name).cloned().unwrap_or_default();
        let SshHost { alias: _, address, user: usual, port: usual_port, key } = known;
        let own = |key: String| match (key.strip_prefix("~/"), &self.home) {
            (Some(rest), Some(home)) => Some(home.join(rest).display().to_string()),
            _ => key.starts_with('/').then_some(key),
        };
        let plain = name.replace(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c), "-");
        let values = [
            ("name", Some(Value::String(plain))),
            ("address", Some(Value::String(address.unwrap_or_else(|| name.to_owned())))),
            ("user", user.or(usual).map(Value::String)),
            ("port", port.or(usual_port).map(|port| Value::Integer(port.into()))),
            ("key", key.and_then(own).map(Value::String)),
        ];
        Some(values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
    }

    fn instances(&self, given: &Given<'_>) -> Option<u32> {
        Some(u32::try_from(given.hosts.len()).unwrap_or(u32::MAX))
    }

    fn steps(&self, _pool: &str, given: &Given<'_>, program: &str) -> Vec<String> {
        let shared = |name: &str| given.text(name).unwrap_or_default();
        let mut lines = Vec::new();
        if !shared("key").is_empty() && !Path::new(shared("key")).exists() {
            lines.push(format!("ssh-keygen -q -t ed25519 -N '' -f {}", shared("key")));
        }
        for host in given.hosts {
            let text = |name: &str| host.get(name).and_then(Value::as_str);
            let (key, user) = (text("key").unwrap_or(shared("key")), text("user").unwrap_or(shared("user")));
            let port = host.get("port").map(|port| format!(" -p {port}")).unwrap_or_default();
            if !key.is_empty() {
                let address = text("address").unwrap_or_default();
                lines.push(format!("ssh-copy-id -i {key}.pub{port} {user}@{address}"));
            }
            lines.push(format!("{program} doctor --pin {}", text("name").unwrap_or_default()));
        }
        lines
    }
}
