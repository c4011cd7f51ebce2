//! The table of a pool whose machines a fleeting plugin creates: its keys, and what they say.

use std::path::PathBuf;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_keys::DefaultValue::{Described, Required, Value};
use greenroom_keys::TakesEffect::{Launch, Pass};
use greenroom_keys::ValueType::{Flag, HostPath, Map, Range, Text, TextOrTexts, Values, Word};
use greenroom_keys::problem::Problems;
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::ValueError;
use greenroom_keys::{KeyTable, key};

use super::locate::PluginSource;
use crate::cloud::settings::user;
use crate::program::environment::ProgramEnvironment;
use crate::{as_json, authorities};

/// The values of `protocol` and `host_keys`.
const PROTOCOLS: &[&str] = &["ssh", "winrm", "winrm+https"];
const HOST_KEYS: &[&str] = &["ca", "command", "first-use"];

/// The verification of an instance's host key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostKeyCheck {
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
    pub(super) plugin: PluginSource,
    /// The operator's table for the plugin alone.
    pub(super) config: serde_json::Value,
    pub(super) environment: ProgramEnvironment,
    pub(super) host_keys: HostKeyCheck,
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
    /// Connector settings that plugins get.
    #[cfg(feature = "fleeting")]
    pub(super) fn connector(
        &self,
        own: &super::login::OwnLogin,
        use_static_credentials: bool,
    ) -> super::plugin::ConnectorSettings {
        let text = own.text.clone();
        let (key, password) = if own.is_password() { (String::new(), text) } else { (text, String::new()) };
        super::plugin::ConnectorSettings {
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
        let plugin = table.parsed("plugin", plugin, |text| PluginSource::parse(&text));
        Self {
            // Without it, the table is refused.
            plugin: plugin.or(PluginSource::Path(PathBuf::new())),
            config: serde_json::Value::Object(config),
            // What selects a plugin's protocol comes from Greenroom alone.
            environment: ProgramEnvironment::of(table, |name| !name.starts_with("PLUGIN_")),
            host_keys: host_keys(table),
            user,
            ssh_port: table.count("ssh_port").or_declared(),
            key_file: table.text("key_file").into_value().map(PathBuf::from),
            password_file: table.text("password_file").into_value().map(PathBuf::from),
            static_credentials,
            use_external_address: table.flag("use_external_address").or_declared(),
            os: table.text("os").into_value(),
            arch: table.text("arch").into_value(),
            adopt: table.flag("adopt").or_declared(),
            appears_within: table.duration("appears_within").or_declared(),
        }
    }
}

fn host_keys(table: &Table<'_>) -> HostKeyCheck {
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
    let authorities = authorities::of_table(table);
    let name = authorities::name_of_table(table);
    only("host_key_command", "command");
    only("host_key_ca", "ca");
    if table.has("host_key_name") && word != "ca" && !word.is_empty() {
        table.refuse("host_key_name", format!("has no effect with `host_keys = \"{word}\"`"));
    }
    match word {
        "ca" => HostKeyCheck::Certificates { authorities, name },
        "command" => HostKeyCheck::Command(PathBuf::from(command.or_default())),
        _ => HostKeyCheck::FirstUse,
    }
}

pub(super) const TABLES: &[KeyTable] = &[KeyTable {
    header: "[pool.NAME.provider]",
    about: "Instances are machines that a plugin of GitLab's autoscaler creates, unmodified: those of AWS, Google Cloud, Azure, \
            Hetzner and others. [providers/fleeting.md](providers/fleeting.md) describes how Greenroom drives them, and which \
            promises hold.",
    keys: &[
        key("plugin", Text, Required, Pass)
            .doc("The plugin: an installed one such as `googlecloud:latest`, a path, or a program in `PATH` with a plugin's name.")
            .notes("It runs with the keeper's rights: only the operator may be able to write it."),
        key("plugin_config", Values, Described("none"), Pass)
            .doc("The plugin's own configuration: the content of GitLab Runner's `[runners.autoscaler.plugin_config]`.")
            .notes("A change starts the plugin anew. If it names another group, instances of the earlier one are left alone \
                        until it is named again."),
        key("env", TextOrTexts, Described("none"), Pass)
            .doc("Environment variables of the keeper that the plugin gets, beside `PATH`, `HOME` and the language.")
            .notes("A keeper in the background does not have them; the service `greenroom keep` does. Use `secrets` \
                        for passwords and tokens."),
        key("secrets", Map, Described("none"), Pass)
            .doc("Environment variables with the contents of files: `secrets = { HCLOUD_TOKEN = \"/etc/greenroom/hcloud\" }`.")
            .notes("The files are read when the plugin starts. Only the keeper's account may be able to read them."),
        key("host_keys", Word(HOST_KEYS), Required, Launch)
            .doc("How Greenroom verifies an instance, because plugins report no host keys. `\"ca\"`: the image has a \
                    host certificate. `\"command\"`: `host_key_command` prints the fingerprint. `\"first-use\"`: the key of the first \
                    connection is recorded for the instance, and any other one is refused.")
            .notes("With `\"first-use\"`, an attacker between the runner host and a new instance can read its jobs."),
        key("host_key_command", HostPath, Described("none"), Pass)
            .doc("The program that prints the fingerprint `SHA256:…` or the public host key of an instance. Its arguments are \
                    the plugin's id of the instance, and the address.")
            .notes("Required with `host_keys = \"command\"`, otherwise refused. Its environment is that of the plugin."),
        key("host_key_ca", TextOrTexts, Described("none"), Launch)
            .doc("The public keys of the SSH certificate authorities that sign the instances' host keys, `ssh-ed25519 AAAA…`.")
            .notes("Required with `host_keys = \"ca\"`, otherwise refused."),
        key("host_key_name", Text, Described("the instance's address, or the plugin's id of it"), Launch)
            .doc("The name that each instance's certificate must contain, if all instances share one.")
            .notes("Each instance can then impersonate the others. Refused without `host_keys = \"ca\"`."),
        key("user", Text, Described("what the plugin reports"), Launch)
            .doc("The account that logs in and runs jobs.")
            .notes("The plugin gets it as `username`. If it reports another one, that one logs in."),
        key("ssh_port", Range(1, 65535), Value("22"), Pass)
            .doc("Port of the image's SSH server.")
            .notes("A port that the plugin reports comes first."),
        key("key_file", HostPath, Described("one that Greenroom creates for the pool"), Pass)
            .doc("The private key of logins, without a passphrase: Ed25519, ECDSA, or RSA of 2048 to 4096 bits.")
            .notes("The plugin gets it, in order to put its public half on the machines."),
        key("password_file", HostPath, Described("none"), Pass)
            .doc("A file with the password of `user`, for images that accept no key.")
            .notes("The plugin gets the password, and no key. Refused with `key_file`. Only the keeper's account may be able \
                        to read the file."),
        key("static_credentials", Flag, Described("`true` if the plugin makes a key of its own, `user` is set, and the plugin accepts it"), Pass)
            .doc("Whether the plugin uses `user` and the key or password as they are, and creates no credentials of its own.")
            .notes("Needs `user`. Some plugins need `true`, such as Hetzner's; others refuse it. Without the key, Greenroom starts the \
                        plugin without them until `ConnectInfo` gives another key than the pool's, and then with them."),
        key("use_external_address", Flag, Value("false"), Launch)
            .doc("Whether Greenroom connects to the external address of an instance.")
            .notes("Without it, the external address is used only where there is no internal one."),
        key("os", Text, Described("what the plugin assumes"), Launch).doc("The operating system that the plugin gets."),
        key("arch", Text, Described("what the plugin assumes"), Launch).doc("The architecture that the plugin gets."),
        key("protocol", Word(PROTOCOLS), Value("\"ssh\""), Launch)
            .doc("How Greenroom connects. Only `\"ssh\"` is supported."),
        key("adopt", Flag, Value("false"), Pass)
            .doc("Whether launches use instances of the group that Greenroom did not request, before they request others.")
            .notes("Jobs then run on machines with whatever is on them. Without it, such instances are reported only."),
        key("appears_within", greenroom_keys::ValueType::Duration(1_000), Value("\"10m\""), Pass)
            .doc("How long a requested instance may take to appear in the plugin's list.")
            .notes("Then another one is requested. If the first one appears after all, it is terminated."),
    ],
}];

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
        assert_eq!((least.host_keys, least.config), (HostKeyCheck::FirstUse, serde_json::json!({})));
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
        key_tables::shown(TABLES, crate::fleeting::REGISTRATION.example);
        let table: toml::Table = crate::fleeting::REGISTRATION.example.parse().unwrap();
        assert_eq!(Ok(settings(&table).unwrap().plugin), PluginSource::parse("googlecloud:latest"));
    }
}
