//! Greenroom's configuration: whether it can be read, is valid, and is protected against changes.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use greenroom_ports::finding::Finding;

use super::code;
use crate::config::{Config, ConfigError};

/// Reads the file the way every call does.
pub(super) fn check(path: &Path) -> (Option<Config>, Vec<Finding>) {
    let mut found: Vec<Finding> = writable(path).into_iter().chain(readable(path)).collect();
    match Config::read(path) {
        Ok((config, _)) => (Some(config), found),
        Err(error) => {
            found.push(refused(path, &error));
            (None, found)
        }
    }
}

fn refused(path: &Path, error: &ConfigError) -> Finding {
    match error {
        ConfigError::Read(cause) => {
            let what = format!("the configuration cannot be read: {cause}");
            let remedy = match cause.kind() {
                std::io::ErrorKind::NotFound => {
                    "run `greenroom init`, which writes one, or name it with `--config` or GREENROOM_CONFIG"
                }
                _ => "name it with `--config` or GREENROOM_CONFIG, or run doctor as a user who may read it",
            };
            code::CONFIG_UNREADABLE.found(what, remedy)
        }
        ConfigError::Invalid(diagnostics) => {
            // Shown without the lines themselves: a provider's table may contain a secret, and findings are shared.
            let what = format!("the configuration is invalid: {diagnostics}");
            let remedy =
                format!("correct `{}`; run `greenroom pool status` to see the lines", path.display());
            code::CONFIG_INVALID.found(what, remedy)
        }
    }
}

/// Commands of the configuration run as Greenroom's user.
fn writable(path: &Path) -> Option<Finding> {
    let mode = std::fs::metadata(path).ok()?.mode() & 0o7777;
    (mode & 0o022 != 0).then(|| {
        let path = path.display();
        let what = format!(
            "other users can change `{path}` (mode {mode:04o}), and so run commands as Greenroom's user"
        );
        code::CONFIG_WRITABLE.found(what, format!("run `chmod go-w {path}`"))
    })
}

/// A webhook's URL is often its own password.
fn readable(path: &Path) -> Option<Finding> {
    let mode = std::fs::metadata(path).ok()?.mode() & 0o7777;
    if mode & 0o044 == 0 {
        return None;
    }
    let table: toml::Table = std::fs::read_to_string(path).ok()?.parse().ok()?;
    let key = table.iter().find_map(|(key, value)| secret(key, value))?;
    let path = path.display();
    let what = format!("other users can read `{path}` (mode {mode:04o}), and so the secret in `{key}`");
    let remedy = format!(
        "run `chmod go-r {path}`; if GitLab Runner runs as another user, `chown` the file to that user"
    );
    Some(code::CONFIG_READABLE.found(what, remedy))
}

/// The path of a key whose text is likely to be a secret. The names of files are none.
fn secret(key: &str, value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::Table(table) => {
            let below = table.iter().find_map(|(name, value)| secret(name, value))?;
            Some(format!("{key}.{below}"))
        }
        toml::Value::Array(all) => all.iter().find_map(|value| secret(key, value)),
        toml::Value::String(text) => {
            let name = key.to_ascii_lowercase();
            let is_secret = ["webhook", "token", "password", "secret"].iter().any(|part| name.contains(part));
            (is_secret && !text.is_empty() && !text.starts_with('/')).then(|| key.to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const RIGHT: &str = "[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\nkind = \"local\"\n";

    fn checked(text: &str, mode: u32) -> (Option<Config>, Vec<Finding>) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("greenroom.toml");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        check(&path)
    }

    #[test]
    fn a_right_configuration_has_no_finding() {
        let (config, found) = checked(RIGHT, 0o644);
        assert_eq!(found, []);
        assert_eq!(config.unwrap().pools.len(), 1);
    }

    #[test]
    fn a_mistake_is_named_with_its_line_and_no_secret() {
        let (config, found) = checked(&format!("{RIGHT}password = \"hunter2\"\nkind = 3\n"), 0o600);
        assert!(config.is_none());
        assert_eq!(found[0].code, "config-invalid");
        assert!(found[0].message.contains("greenroom.toml:"), "{}", found[0].message);
        assert!(!found[0].message.contains("hunter2"), "{}", found[0].message);
    }

    #[test]
    fn a_configuration_that_others_may_write_is_a_warning() {
        let (config, found) = checked(RIGHT, 0o664);
        assert!(config.is_some());
        assert!(found[0].message.contains("(mode 0664)"), "{}", found[0].message);
    }

    #[test]
    fn a_secret_that_others_may_read_is_a_warning_and_not_shown() {
        let hook = format!("{RIGHT}[notify]\nwebhook = \"https://chat.example.com/hooks/hunter2\"\n");
        let found = checked(&hook, 0o644).1;
        assert_eq!(found[0].code, "config-readable");
        assert!(
            found[0].message.ends_with("(mode 0644), and so the secret in `notify.webhook`"),
            "{found:?}"
        );
        assert!(!format!("{found:?}").contains("hunter2"));
        assert_eq!(checked(&hook, 0o600).1, []);
        for (text, path) in [
            ("[a.b]\ntoken = \"x\"", Some("a.b.token")),
            ("[[a]]\n[a.env]\nHCLOUD_TOKEN = \"x\"", Some("a.env.HCLOUD_TOKEN")),
            ("[a]\ntoken_file = \"/etc/token\"\npassword = 7", None),
            ("[a]\nkey = \"/k\"\nname = \"x\"", None),
        ] {
            let table: toml::Table = text.parse().unwrap();
            let found = table.iter().find_map(|(key, value)| secret(key, value));
            assert_eq!(found.as_deref(), path, "{text}");
        }
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        let missing = check(Path::new("/no/such/greenroom.toml")).1;
        let hook = format!("{RIGHT}[notify]\nwebhook = \"http://relay.corp/x\"\n");
        [missing, checked("", 0o600).1, checked(RIGHT, 0o666).1, checked(&hook, 0o644).1].concat()
    }
}
