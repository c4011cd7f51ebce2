//! The table of a pool whose machines a program creates: its keys, and what they say.

use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_keys::DefaultValue::{Described, Required, Value};
use greenroom_keys::TakesEffect::{Launch, Pass};
use greenroom_keys::ValueType::{HostPath, Map, Range, Size, Text, TextOrTexts, Texts, Values, Word};
use greenroom_keys::near::nearest_or_all;
use greenroom_keys::problem::{Place, Problem, Problems, join};
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::ValueError;
use greenroom_keys::{KeyTable, duration, key};

use super::protocol::answers::is_public_key;
use super::protocol::{ProgramSettings, Verb};
use crate::cloud::offerings::Offering;
use crate::cloud::settings::Common;
use crate::cloud::settings::{SSH_PORT, USER, USER_DATA, user_data};
use crate::program::environment::ProgramEnvironment;
use crate::{as_json, authorities};

/// The table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) directory: PathBuf,
    pub(super) environment: ProgramEnvironment,
    /// The settings for the program alone.
    pub(super) passed_on: ProgramSettings,
    pub(super) host_key: Option<String>,
    /// The certificate authorities of host keys, and the name that certificates have to have.
    pub(super) host_key_ca: Vec<String>,
    pub(super) host_key_name: Option<String>,
    /// `None`: the program says it.
    pub(super) appears_within: Option<Duration>,
    pub(super) timeouts: Vec<(Verb, Duration)>,
    pub(super) output_limit: u64,
    pub(super) concurrent_calls: usize,
    pub(super) common: Common,
}

impl Settings {
    pub(super) fn read(pool: &PoolName, values: &toml::Table) -> Result<Self, Problems> {
        table::read(TABLES, pool.as_str(), values, Self::of)
    }

    fn of(table: &Table<'_>) -> Self {
        let program =
            table.required("program", table.text("program"), "name the program that creates machines");
        let program = PathBuf::from(program.or_default());
        let beside = || program.parent().unwrap_or(Path::new("/")).to_owned();
        let texts = |name| -> Vec<String> {
            table.texts(name).or_default().into_iter().map(|(text, _)| text).collect()
        };
        let host_key = table.parsed("host_key", table.text("host_key"), |key| {
            let expected = "a public key such as `ssh-ed25519 AAAA…`";
            if is_public_key(&key) {
                Ok(key.trim().to_owned())
            } else {
                Err(ValueError::value(key, expected))
            }
        });
        Self {
            arguments: texts("arguments"),
            directory: table.text("directory").into_value().map_or_else(beside, PathBuf::from),
            environment: ProgramEnvironment::of(table, |_| true),
            passed_on: table
                .any("settings")
                .value()
                .map_or_else(ProgramSettings::new, |values| as_json::table(values)),
            host_key: host_key.into_value(),
            host_key_ca: authorities::of_table(table),
            host_key_name: authorities::name_of_table(table),
            appears_within: table.duration("appears_within").into_value(),
            timeouts: timeouts(table),
            output_limit: table.size("output_limit").or_declared(),
            concurrent_calls: table.count("concurrent_calls").or_declared(),
            common: common(table, &texts("offerings")),
            program,
        }
    }
}

fn timeouts(table: &Table<'_>) -> Vec<(Verb, Duration)> {
    let mut limits = Vec::new();
    for (name, text) in table.map("timeouts").or_default() {
        let place = Place::value_of(join(&table.path("timeouts"), &name));
        let limit = duration::parse(&text).ok().filter(|limit| *limit >= Duration::from_millis(100));
        match (Verb::of_name(&name), limit) {
            (Some(verb), Some(limit)) => limits.push((verb, limit)),
            (None, _) => {
                let title = format!("`timeouts.{name}` is not a verb");
                let help = nearest_or_all(&name, Verb::ALL.iter().map(|verb| verb.name()));
                table.report(Problem::new(title).at(place, "here").help(help));
            }
            (Some(_), None) => {
                let title = format!(
                    "`timeouts.{name}` is {text:?}, expected a duration of at least 100 ms, such as \"30s\""
                );
                table.report(Problem::new(title).at(place, "here"));
            }
        }
    }
    limits
}

fn common(table: &Table<'_>, offerings: &[String]) -> Common {
    let mut known: Vec<Offering> = Vec::new();
    for name in offerings {
        let offering = Offering::named(name.trim());
        if !known.contains(&offering) {
            known.push(offering);
        }
    }
    Common::plain(table, known, user_data(table))
}

pub(super) const TABLES: &[KeyTable] = &[KeyTable {
    header: "[pool.NAME.provider]",
    about: "Instances are machines that a program creates: a script of yours, called for one step at a time. \
            [providers/external.md](providers/external.md) describes the requests and the answers; \
            `greenroom doctor` calls it without launching anything.",
    keys: &[
        key("program", HostPath, Required, Pass)
            .doc("The program. The verb is its last argument.")
            .notes("Only the operator may be able to write it."),
        key("arguments", Texts, Described("none"), Pass).doc("Arguments before the verb."),
        key("directory", HostPath, Described("the directory of the program"), Pass)
            .doc("The program's working directory."),
        key("env", TextOrTexts, Described("none"), Pass)
            .doc("Environment variables of the keeper that the program gets, beside `PATH`, `HOME` and the language.")
            .notes("A keeper in the background does not have them; the service `greenroom keep` does. Use `secrets` \
                        for passwords and tokens."),
        key("secrets", Map, Described("none"), Pass)
            .doc("Environment variables with the contents of files: `secrets = { HCLOUD_TOKEN = \"/etc/greenroom/hcloud\" }`.")
            .notes("The files are read for each call. Only the keeper's account may be able to read them."),
        key("settings", Values, Described("none"), Launch)
            .doc("Settings of the program itself, such as an image or a list of networks: any table. Each request contains it.")
            .notes("TOML's dates and times arrive as strings."),
        key("offerings", TextOrTexts, Described("none: the program has one way to launch"), Launch)
            .doc("The program's names for ways to launch, the preferred one first.")
            .notes("A launch uses the first one with capacity."),
        key("host_key", Text, Described("none"), Launch)
            .doc("The public host key that every machine has, `ssh-ed25519 AAAA…`.")
            .notes("Required if the program answers `\"host_key\": \"operator\"`, otherwise without effect."),
        key("host_key_ca", TextOrTexts, Described("none"), Launch)
            .doc("The public keys of the SSH certificate authorities that sign the machines' host keys, `ssh-ed25519 AAAA…`.")
            .notes("Required if the program answers `\"host_key\": \"certificate\"`, otherwise without effect."),
        key("host_key_name", Text, Described("the machine's address, or the name of its launch"), Launch)
            .doc("The name that each machine's certificate must contain.")
            .notes("With one name for all machines, each of them can impersonate the others."),
        USER.notes("Idle instances with the earlier user fail their next probe and are replaced."),
        SSH_PORT.notes("A port that the program reports comes first."),
        key("user_data", Word(USER_DATA), Value("\"cloud-init\""), Launch)
            .doc("What reads the user data at the first boot: cloud-init, or an image that runs a script."),
        key("appears_within", greenroom_keys::ValueType::Duration(0), Described("`appears_within_s` of the program, or 60 s"), Pass)
            .doc("How long the program's list may lack a new machine.")
            .notes("A launch without an answer is not repeated earlier."),
        key("timeouts", Map, Described("`launch` 5 minutes, `console` 8 s, `capabilities` 20 s, `resources`, `delete` and `examine` \
                                    1 minute, others 50 s"), Pass)
            .doc("Time limits of verbs: `timeouts = { launch = \"2m\", list = \"20s\" }`.")
            .notes("The keeper gives up a call of any verb but `launch` after 2 minutes."),
        key("output_limit", Size, Value("\"4M\""), Pass)
            .doc("Limit of the output of a call. A program that prints more is killed."),
        key("concurrent_calls", Range(1, 64), Value("4"), Pass).doc("How many calls may run concurrently."),
    ],
}];

#[cfg(test)]
mod tests {
    use greenroom_testkit::key_tables;

    use super::*;

    const MINIMAL: &str = "program = \"/etc/greenroom/machines\"\n";

    fn settings(values: &toml::Table) -> Result<Settings, Problems> {
        Settings::read(&PoolName::new("linux"), values)
    }

    fn read(text: &str) -> Result<Settings, Problems> {
        settings(&format!("{MINIMAL}{text}").parse().unwrap())
    }

    #[test]
    fn a_program_is_enough() {
        let least = read("").unwrap();
        assert_eq!(least.directory, Path::new("/etc/greenroom"));
        assert_eq!((least.concurrent_calls, least.output_limit), (4, 4 << 20));
        assert_eq!((least.common.ssh_port, least.common.user.as_str()), (22, "ci"));
        let more =
            "offerings = [\"a\", \"b\", \"a\"]\ntimeouts = { list = \"20s\" }\nsecrets = { T = \"/t\" }\n";
        let more = read(more).unwrap();
        assert_eq!(more.common.offerings.len(), 2);
        assert_eq!(more.timeouts, [(Verb::List, Duration::from_secs(20))]);
        assert_eq!(more.environment.secrets, [("T".to_owned(), PathBuf::from("/t"))]);
    }

    #[test]
    fn what_is_wrong_is_said_and_no_secret_is_repeated() {
        for (text, expected) in [
            ("env = \"A-B\"", "`env` contains \"A-B\", expected the name of an environment variable"),
            ("secrets = { TOKEN = \"hunter2\" }", "`secrets.TOKEN` is not an absolute path"),
            ("secrets = { \"1\" = \"/t\" }", "`secrets` contains \"1\", expected the name"),
            ("timeouts = { lists = \"1s\" }", "`timeouts.lists` is not a verb (did you mean `list`?)"),
            ("timeouts = { list = \"soon\" }", "`timeouts.list` is \"soon\", expected a duration"),
            ("timeouts = { list = \"1ms\" }", "`timeouts.list` is \"1ms\", expected a duration"),
            ("host_key = \"AAAA\"", "`host_key` is \"AAAA\", expected a public key"),
            (
                "host_key_ca = [\"ssh-ed25519 AAAA\"]",
                "`host_key_ca` contains \"ssh-ed25519 AAAA\", expected a public",
            ),
            ("host_key_name = \"a, b\"", "`host_key_name` is \"a, b\", expected one name"),
            ("user = \"C I\"", "`user` is \"C I\", expected the name of a Linux user"),
        ] {
            let wrong = read(text).unwrap_err();
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
        key_tables::shown(TABLES, crate::external::REGISTRATION.example);
        let table: toml::Table = crate::external::REGISTRATION.example.parse().unwrap();
        assert_eq!(settings(&table).unwrap().arguments, ["--region", "fsn1"]);
    }
}
