//! The table of a pool whose machines a fleeting plugin creates.

use std::path::PathBuf;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_keys::problem::Problems;
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::ValueError;

use super::keys::TABLES;
use super::locate::Source;
use crate::as_json;
use crate::authorities;
use crate::cloud::settings::user;
use crate::environment::Environment;

/// How an instance's host key is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostKeys {
    /// Certificates of these authorities, for this name; `None`: for the address, or the plugin's id of the instance.
    Certificates {
        authorities: Vec<String>,
        name: Option<String>,
    },
    /// A program that prints it.
    Command(PathBuf),
    FirstUse,
}

/// The table, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) plugin: Source,
    /// For the plugin alone.
    pub(super) config: serde_json::Value,
    pub(super) environment: Environment,
    pub(super) host_keys: HostKeys,
    /// `None`: the plugin says it.
    pub(super) user: Option<String>,
    pub(super) ssh_port: u16,
    /// `None`: the pool's own.
    pub(super) key_file: Option<PathBuf>,
    /// Instead of a key.
    pub(super) password_file: Option<PathBuf>,
    /// `None`: true for a plugin that would make a key of its own (`own_keys.rs`).
    pub(super) static_credentials: Option<bool>,
    pub(super) use_external_address: bool,
    pub(super) os: Option<String>,
    pub(super) arch: Option<String>,
    pub(super) adopt: bool,
    pub(super) appears_within: Duration,
}

impl Settings {
    /// What plugins get about the instances.
    #[cfg(feature = "fleeting")]
    pub(super) fn connector(
        &self,
        own: &super::login::OwnLogin,
        use_static_credentials: bool,
    ) -> super::plugin::Connector {
        let text = own.text.clone();
        let (key, password) = if own.is_password() { (String::new(), text) } else { (text, String::new()) };
        super::plugin::Connector {
            os: self.os.clone().unwrap_or_default(),
            arch: self.arch.clone().unwrap_or_default(),
            protocol: "ssh".to_owned(),
            username: self.user.clone().unwrap_or_default(),
            key: key.into_bytes(),
            password,
            use_static_credentials,
            port: Some(self.ssh_port).filter(|port| *port != 22),
            ..Default::default()
        }
    }

    pub(super) fn read(pool: &PoolName, values: &toml::Table) -> Result<Self, Problems> {
        table::read(TABLES, pool.as_str(), values, Self::of)
    }

    fn of(table: &Table<'_>) -> Self {
        let plugin = table.required(
            "plugin",
            table.text("plugin"),
            "name the plugin, such as `googlecloud:latest`, or its path",
        );
        table.parsed("protocol", table.word("protocol"), |protocol| match protocol {
            "ssh" => Ok(()),
            _ => Err(ValueError::unusable(
                protocol,
                "and Greenroom connects with SSH only: set up an SSH server in the image",
            )),
        });
        let static_credentials = table.flag("static_credentials").into_value();
        let user = table.parsed("user", table.text("user"), user).into_value();
        if static_credentials == Some(true) && user.is_none() && !table.has("user") {
            table.refuse("user", "is missing: `static_credentials = true` needs the account that logs in");
        }
        if table.has("password_file") && table.has("key_file") {
            table.refuse(
                "password_file",
                "has no effect with `key_file`: where there is a key, it alone logs in",
            );
        }
        let config =
            table.any("plugin_config").value().map(|values| as_json::table(values)).unwrap_or_default();
        let plugin = table.parsed("plugin", plugin, |text| Source::parse(&text));
        Self {
            // Without it, the table is refused.
            plugin: plugin.or(Source::Path(PathBuf::new())),
            config: serde_json::Value::Object(config),
            // What selects a plugin's protocol comes from Greenroom alone.
            environment: Environment::of(table, |name| !name.starts_with("PLUGIN_")),
            host_keys: host_keys(table),
            user,
            ssh_port: table.count("ssh_port").or(22),
            key_file: table.text("key_file").into_value().map(PathBuf::from),
            password_file: table.text("password_file").into_value().map(PathBuf::from),
            static_credentials,
            use_external_address: table.flag("use_external_address").or(false),
            os: table.text("os").into_value(),
            arch: table.text("arch").into_value(),
            adopt: table.flag("adopt").or(false),
            appears_within: table.duration("appears_within").or(Duration::from_mins(10)),
        }
    }
}

fn host_keys(table: &Table<'_>) -> HostKeys {
    let word = table.required(
        "host_keys",
        table.word("host_keys"),
        "plugins report no host keys, so say how Greenroom verifies an instance: \"ca\" (the image has a host certificate), \
         \"command\" (a program of yours prints the fingerprint), or \"first-use\" (the key of the first connection is recorded)",
    );
    let command = table.text("host_key_command");
    let word = word.value().copied().unwrap_or_default();
    let only = |name: &str, needed: &str| {
        if table.has(name) && word != needed && !word.is_empty() {
            table.refuse(name, format!("has no effect with `host_keys = \"{word}\"`"));
        }
        if !table.has(name) && word == needed {
            table.refuse(name, format!("is missing: `host_keys = \"{needed}\"` needs it"));
        }
    };
    let (authorities, name) = (authorities::of_table(table), authorities::name_of_table(table));
    only("host_key_command", "command");
    only("host_key_ca", "ca");
    if table.has("host_key_name") && word != "ca" && !word.is_empty() {
        table.refuse("host_key_name", format!("has no effect with `host_keys = \"{word}\"`"));
    }
    match word {
        "ca" => HostKeys::Certificates { authorities, name },
        "command" => HostKeys::Command(PathBuf::from(command.or_default())),
        _ => HostKeys::FirstUse,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_testkit::key_tables;

    use super::*;

    const MINIMAL: &str = "plugin = \"/usr/bin/fleeting-plugin-x\"\nhost_keys = \"first-use\"\n";

    fn settings(values: &toml::Table) -> Result<Settings, Problems> {
        Settings::read(&PoolName::new("linux"), values)
    }

    fn read(text: &str) -> Result<Settings, Problems> {
        settings(&text.parse().unwrap())
    }

    #[test]
    fn a_plugin_and_the_way_to_verify_instances_are_enough() {
        let least = read(MINIMAL).unwrap();
        assert_eq!((least.host_keys, least.config), (HostKeys::FirstUse, serde_json::json!({})));
        assert!(!least.adopt && least.static_credentials.is_none() && !least.use_external_address);
        let more =
            read(&format!("{MINIMAL}plugin_config = {{ name = \"g\", size = 2, deep = {{ a = [1] }} }}"));
        assert_eq!(more.unwrap().config, serde_json::json!({ "name": "g", "size": 2, "deep": { "a": [1] } }));
    }

    #[test]
    fn nothing_verifies_an_instance_by_default() {
        let wrong = read("plugin = \"x\"").unwrap_err().0;
        let help = wrong[0].help.clone().unwrap_or_default();
        assert!(
            wrong.len() == 1 && ["\"ca\"", "\"command\"", "\"first-use\""].iter().all(|w| help.contains(w))
        );
    }

    #[test]
    fn what_is_wrong_is_said_and_no_secret_is_repeated() {
        let command = "plugin = \"x\"\nhost_keys = \"command\"\n";
        let authority = "plugin = \"x\"\nhost_keys = \"ca\"\n";
        for (start, text, expected) in [
            (
                MINIMAL,
                "protocol = \"winrm\"",
                "`protocol` is \"winrm\", and Greenroom connects with SSH only",
            ),
            (MINIMAL, "env = \"PLUGIN_CLIENT_CERT\"", "`env` contains \"PLUGIN_CLIENT_CERT\""),
            (MINIMAL, "secrets = { TOKEN = \"hunter2\" }", "`secrets.TOKEN` is not an absolute path"),
            (MINIMAL, "static_credentials = true", "`user` is missing"),
            (MINIMAL, "key_file = \"/k\"\npassword_file = \"/p\"", "`password_file` has no effect"),
            (MINIMAL, "host_key_command = \"/c\"", "`host_key_command` has no effect"),
            (MINIMAL, "user = \"C I\"", "`user` is \"C I\", expected the name of a Linux user"),
            (command, "", "`host_key_command` is missing"),
            (authority, "", "`host_key_ca` is missing"),
            (MINIMAL, "host_key_name = \"a\"", "`host_key_name` has no effect"),
        ] {
            let wrong = read(&format!("{start}{text}")).unwrap_err();
            assert!(wrong.to_string().contains(expected) && wrong.0.len() == 1, "{text}: {wrong}");
            assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
        }
    }

    #[test]
    fn the_table_of_keys_is_the_one_that_is_read() {
        key_tables::hold(TABLES, MINIMAL, settings);
    }

    #[test]
    fn the_example_shows_every_key() {
        key_tables::shown(TABLES, super::super::REGISTRATION.example);
        let table: toml::Table = super::super::REGISTRATION.example.parse().unwrap();
        assert_eq!(Ok(settings(&table).unwrap().plugin), Source::parse("googlecloud:latest"));
    }
}
