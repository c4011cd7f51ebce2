//! A pool from options, answers and what is on this machine, as each provider sees it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use greenroom_core::ids::{NameError, PoolName};
use greenroom_keys::{DefaultValue, ValueType, schema};
use greenroom_providers::first_pool::{Found, Nothing, RunnerHost, Suits};
use greenroom_providers::registration::Registration;
use toml::Value;

use super::InitOptions;
use super::draft::{self, Draft, KeyError};
use crate::cli::error::CliError;
use crate::cli::prompt::Questions;
use crate::provider;

/// Jobs of a first pool that run beside one another, where nothing else bounds it.
const INSTANCES: u32 = 4;

/// Asks for what the options do not say.
pub(super) fn draft(
    options: &InitOptions,
    surroundings: &FoundHere,
    ask: Questions,
) -> Result<Draft, CliError> {
    let known = provider(options, surroundings, ask)?;
    let found = surroundings.of(known.kind).unwrap_or(&Nothing);
    let name = match &options.pool {
        Some(name) => {
            checked_name(name).map_err(|why| CliError::system(why).help("name it with `--pool NAME`"))?
        }
        None => ask.text("Name of the pool", Some(known.first_pool.name), "--pool NAME", checked_name)?,
    };
    let mut draft = Draft::new(name, known);
    if !known.launches() {
        hosts(&mut draft, options, found, ask)?;
    } else if !options.hosts.is_empty() {
        let problem = format!("`--host` names static hosts, but the provider is \"{}\"", known.kind);
        let adopting: Vec<&str> =
            provider::all().iter().filter(|other| !other.launches()).map(|other| other.kind).collect();
        return Err(CliError::say(problem)
            .help(format!("add `--provider {}`, or leave `--host` out", adopting.join("` or `"))));
    }
    follow(&mut draft, found);
    let key_of = |given: &str| given.split('=').next().unwrap_or_default().to_owned();
    for (at, given) in options.keys.iter().enumerate() {
        if options.keys[..at].iter().any(|other| key_of(other) == key_of(given)) {
            return Err(CliError::say(format!("`--set {given}` sets a key that is set already"))
                .help("set each key once; the values of a list are separated by commas"));
        }
        draft.set(given).map_err(|why| {
            CliError::say(format!("`--set`: {why}")).help("docs/configuration.md describes each key")
        })?;
    }
    missing(&mut draft, found, ask)?;
    accepted(&mut draft, found, ask)?;
    // Again, because more may follow from the options and the answers since.
    follow(&mut draft, found);
    for (key, value) in found.follows_for_pool(&draft.given()) {
        draft.put_of_pool(key, value);
    }
    counts(&mut draft, options, found, ask)?;
    Ok(draft)
}

fn provider(
    options: &InitOptions,
    surroundings: &FoundHere,
    ask: Questions,
) -> Result<&'static Registration, CliError> {
    if let Some(kind) = &options.provider {
        return provider::find(kind)
            .map_err(|why| CliError::system(why).help("name one with `--provider KIND`"));
    }
    if !ask.possible() {
        let kinds: Vec<&str> = provider::all().iter().map(|known| known.kind).collect();
        return Err(CliError::say("no provider is named, and there is no terminal to ask").help(format!(
            "add `--provider KIND`, with one of: {}; `greenroom init --help` shows examples",
            kinds.join(", ")
        )));
    }
    ask.text(&question(), surroundings.suggestion(), "--provider KIND", provider::find)
}

/// The question for the provider, with a few words about each.
fn question() -> String {
    let each = |known: &Registration| format!("  {:<10} {}\n", known.kind, known.first_pool.about);
    let lines: String = provider::all().iter().map(each).collect();
    format!("Providers of instances:\n{lines}Provider")
}

/// The reasons for which an answer, or the option in its place, cannot be used.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    #[error("`{text}` cannot be the name of a pool: {rule}")]
    PoolName { text: String, rule: &'static str },
    #[error("`{0}` is not a host: write it as `[USER@]HOST[:PORT]`")]
    NotAHost(String),
    #[error("name at least one host")]
    NoHost,
    #[error("`{0}` cannot be the name of an account")]
    Account(String),
    #[error("not a whole number")]
    Count,
    #[error(transparent)]
    Key(#[from] KeyError),
}

fn checked_name(text: &str) -> Result<String, AnswerError> {
    let wrong = |wrong: NameError| AnswerError::PoolName { text: text.to_owned(), rule: wrong.rule };
    PoolName::parse(text).map(|name| name.to_string()).map_err(wrong)
}

/// Keys of the provider that follow from what is set.
fn follow(draft: &mut Draft, found: &dyn Found) {
    for (key, value) in found.follows(&draft.given()) {
        draft.provider.push((key.to_owned(), value));
    }
}

/// The hosts, with what this machine says about them.
fn hosts(
    draft: &mut Draft,
    options: &InitOptions,
    found: &dyn Found,
    ask: Questions,
) -> Result<(), CliError> {
    let split = |text: &str| -> Result<Vec<String>, AnswerError> {
        let names: Vec<String> =
            text.split([' ', ',']).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        match names.iter().find(|name| found.host(name).is_none()) {
            Some(wrong) => Err(AnswerError::NotAHost(wrong.clone())),
            None if names.is_empty() => Err(AnswerError::NoHost),
            None => Ok(names),
        }
    };
    let given = if options.hosts.is_empty() {
        let question = "Hosts, separated by spaces, each as [USER@]HOST[:PORT]";
        ask.text(question, None, "--host [USER@]HOST[:PORT]", split)?
    } else {
        options.hosts.clone()
    };
    for text in &given {
        let host = found.host(text).ok_or_else(|| {
            CliError::say(format!("`{text}` is not a host")).help("write it as `[USER@]HOST[:PORT]`")
        })?;
        if draft.hosts.iter().any(|other| other["name"] == host["name"]) {
            return Err(CliError::say(format!("host `{text}` is named twice")).help("name each host once"));
        }
        draft.hosts.push(host);
    }
    Ok(())
}

/// Asks for required keys of the provider, and for a few that it can hardly do without.
fn missing(draft: &mut Draft, found: &dyn Found, ask: Questions) -> Result<(), CliError> {
    let keys = draft.own_keys().iter().filter(|key| {
        let is_required = key.default == DefaultValue::Required && !matches!(key.ty, ValueType::Tables);
        is_required || found.asks_for().contains(&key.name)
    });
    for key in keys {
        let given = draft.given();
        if given.has(key.name) || found.replaces(key.name, &given) {
            continue;
        }
        let likely = found.likely(key.name, &given);
        let doc = schema::plain(key.doc);
        let question = doc.trim_end_matches('.');
        let flag = format!("--set {}=VALUE", key.name);
        let checked = |text: &str| match key.name {
            "user" if !is_account(text) => Err(AnswerError::Account(text.to_owned())),
            _ => Ok(draft::value(key, text)?),
        };
        let value = ask.text(question, likely.as_deref(), &flag, checked)?;
        draft.provider.push((key.name.to_owned(), value));
    }
    Ok(())
}

/// Asks whether the operator accepts a danger.
fn accepted(draft: &mut Draft, found: &dyn Found, ask: Questions) -> Result<(), CliError> {
    let Some(danger) = found.danger(&draft.given()) else { return Ok(()) };
    let mut letters = danger.what.chars();
    let sentence: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    if !ask.yes(&format!("{sentence}. Allow it?"), false)? {
        let help = format!("add `--set {}=true` to try it all the same, or {}", danger.key, danger.otherwise);
        return Err(CliError::say(danger.what).help(help));
    }
    draft.provider.push((danger.key.to_owned(), Value::Boolean(true)));
    Ok(())
}

/// True if a login could have this name: no host, and no path.
fn is_account(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || "@:/".contains(c))
}

fn counts(
    draft: &mut Draft,
    options: &InitOptions,
    found: &dyn Found,
    ask: Questions,
) -> Result<(), CliError> {
    let likely = found.instances(&draft.given()).unwrap_or(INSTANCES);
    let number = |text: &str| text.parse::<u32>().map_err(|_| AnswerError::Count);
    let is_static = !draft.known.launches();
    let most = match options.max_instances {
        Some(count) => count,
        None if is_static => likely,
        None => ask.text("Instances at most", Some(&likely.to_string()), "--max-instances COUNT", number)?,
    };
    draft.put_of_pool("max_instances", Value::Integer(most.into()));
    let idle = match options.idle_count {
        Some(count) => Some(count),
        None if is_static => None,
        None => Some(ask.text(
            "Spare job slots, kept ready",
            Some(&found.spare().to_string()),
            "--idle-count COUNT",
            number,
        )?),
    };
    if let Some(count) = idle {
        draft.put_of_pool("idle_count", Value::Integer(count.into()));
    }
    Ok(())
}

/// The facts that each provider has [`Found`] on this machine, as far as this user may see them.
#[derive(Debug)]
pub(super) struct FoundHere(Vec<(&'static Registration, Box<dyn Found>)>);

impl FoundHere {
    pub(super) fn look(state_dir: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let host = RunnerHost { state_dir, variable: &variable };
        Self(provider::all().iter().map(|known| (known, (known.first_pool.look)(&host))).collect())
    }

    /// The findings of a provider.
    pub(super) fn of(&self, kind: &str) -> Option<&dyn Found> {
        self.0.iter().find(|(known, _)| known.kind == kind).map(|(_, found)| &**found)
    }

    /// The provider that suits what is here; the first of those that suit alike.
    pub(super) fn suggestion(&self) -> Option<&'static str> {
        let suits = |found: &dyn Found| Some(found.suits()).filter(|suits| *suits > Suits::Unknown);
        let all = self.0.iter().rev().filter_map(|(known, found)| Some((suits(&**found)?, known.kind)));
        all.max_by_key(|(suits, _)| *suits).map(|(_, kind)| kind)
    }

    /// A line for each provider that needs something of this machine.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("Found on this machine:\n");
        for (known, found) in &self.0 {
            if let Some(what) = found.text() {
                writeln!(text, "  {:<10} {what}", known.kind).ok();
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::init::InitOptions;
    use crate::config::Config;

    fn options(words: &[&str]) -> InitOptions {
        use clap::Parser as _;
        let words = ["greenroom", "init"].iter().chain(words);
        let crate::cli::args::Command::Operator(crate::cli::args::OperatorCommand::Init(options)) =
            crate::cli::args::Cli::try_parse_from(words).unwrap().command
        else {
            panic!("another command")
        };
        options
    }

    /// A home with these files, and the findings there.
    fn home(files: &[(&str, &str)]) -> (tempfile::TempDir, FoundHere) {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let variable = |name: &str| (name == "HOME").then(|| home.path().into());
        let surroundings = FoundHere::look(&home.path().join("state"), variable);
        (home, surroundings)
    }

    const SSH_CONFIG: (&str, &str) =
        (".ssh/config", "Host mac\nHostName 192.0.2.7\nUser admin\nIdentityFile ~/.ssh/mac\n");

    fn drafted(words: &[&str]) -> Result<Draft, String> {
        let (_home, surroundings) = home(&[SSH_CONFIG]);
        draft(&options(words), &surroundings, Questions::new(true)).map_err(|wrong| wrong.for_operator())
    }

    #[test]
    fn flags_alone_make_a_valid_pool_of_each_provider() {
        let cloud = ["--set", "image=i", "--set"];
        for words in [
            &["--provider", "qemu"][..],
            &["--provider", "static", "--host", "ci@build-1:2222", "--host", "mac"],
            &["--provider", "local", "--set", "allow_root=true"],
            &["--provider", "kubernetes", "--set", "context=ci", "--set", "image=ci:12"],
            &[
                &[
                    "--provider",
                    "gce",
                    "--set",
                    "project=p",
                    "--set",
                    "machine_types=a,b",
                    "--set",
                    "zones=z",
                ],
                &cloud[..2],
            ]
            .concat(),
            &[
                &[
                    "--provider",
                    "aws-ec2",
                    "--set",
                    "region=r",
                    "--set",
                    "instance_types=a",
                    "--set",
                    "zones=z",
                ],
                &cloud[..],
                &["security_groups=sg-1"],
            ]
            .concat(),
        ] {
            let draft = drafted(words).unwrap();
            let text = draft.file(None);
            let config =
                Config::parse(&text, "greenroom.toml").unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));
            let pool = config.pools.values().next().unwrap();
            assert_eq!(pool.provider.kind, words[1]);
            let instances = home(&[]).1.of(words[1]).unwrap().instances(&draft.given());
            assert_eq!(pool.policy.max_instances, instances.unwrap_or(INSTANCES), "{words:?}");
        }
    }

    #[test]
    fn a_pool_of_pods_names_the_context_its_file_and_its_namespace() {
        let contexts = "contexts:\n- context:\n    namespace: jobs\n  name: prod\n- context:\n    user: a\n  name: test\n";
        let (dir, surroundings) = home(&[(".kube/config", &format!("{contexts}current-context: prod\n"))]);
        let path = dir.path().join(".kube/config");
        let pods = |words: &[&str]| {
            let words = [&["--provider", "kubernetes", "--set", "image=ci:12"][..], words].concat();
            let draft = draft(&options(&words), &surroundings, Questions::new(true));
            draft.map(|draft| draft.tables()).map_err(|wrong| wrong.for_operator())
        };
        let file = format!("\nkubeconfig = \"{}\"\n", path.display());
        let usual = pods(&[]).unwrap();
        for line in [
            "[pool.pods.provider]\n",
            "\ncontext = \"prod\"\n",
            "\nnamespace = \"jobs\"\n",
            file.as_str(),
            "\n#memory = \"4Gi\"\n",
        ] {
            assert!(usual.contains(line), "{line}: {usual}");
        }
        let other = pods(&["--set", "context=test"]).unwrap();
        assert!(other.contains("\nnamespace = \"ci-jobs\"\n") && other.contains(&file), "{other}");
        let unknown = pods(&["--set", "context=mine", "--set", "namespace=n"]).unwrap();
        assert!(!unknown.contains("\nkubeconfig"), "{unknown}");
        let none = drafted(&["--provider", "kubernetes", "--set", "image=ci:12"]).unwrap_err();
        assert!(none.contains("--set context=VALUE"), "{none}");
    }

    #[test]
    fn hosts_have_what_the_operator_or_their_section_says() {
        let (dir, surroundings) = home(&[SSH_CONFIG]);
        let words = "--provider static --host ci@build-1:2222 --host mac --host [2001:db8::1]:22";
        let words: Vec<&str> = words.split(' ').collect();
        let tables = draft(&options(&words), &surroundings, Questions::new(true)).unwrap().tables();
        let key = dir.path().join(".ssh/mac");
        let mac = format!(
            "address = \"192.0.2.7\"\nkey = \"{}\"\nname = \"mac\"\nuser = \"admin\"\n",
            key.display()
        );
        for part in [
            "[[pool.hosts.provider.host]]\naddress = \"build-1\"\nname = \"build-1\"\nport = 2222\nuser = \"ci\"\n",
            mac.as_str(),
            "address = \"2001:db8::1\"\nname = \"2001-db8--1\"\nport = 22\n",
            "\nuser = \"ci\"\n",
            "\nkey = \"/etc/greenroom/hosts_key\"\n",
        ] {
            assert!(tables.contains(part), "{part}\n{tables}");
        }
    }

    #[test]
    fn what_is_missing_without_a_terminal_is_named_with_its_flag() {
        for (words, expected) in [
            (&[][..], "help: add `--provider KIND`"),
            (&["--provider", "qmeu"], "did you mean `qemu`?"),
            (&["--provider", "static"], "help: add `--host [USER@]HOST[:PORT]`"),
            (&["--provider", "static", "--host", "a@"], "`a@` is not a host"),
            (&["--provider", "static", "--host", "a", "--host", "ci@a"], "named twice"),
            (&["--provider", "qemu", "--host", "a"], "add `--provider static`"),
            (&["--provider", "qemu", "--pool", "VM"], "lower-case letters"),
            (&["--provider", "qemu", "--set", "vcpus=1", "--set", "vcpus=2"], "set already"),
            (&["--provider", "gce"], "help: add `--set project=VALUE`"),
            (&["--provider", "aws-ec2", "--set", "region=r"], "help: add `--set image=VALUE`"),
        ] {
            let said = drafted(words).unwrap_err();
            assert!(said.contains(expected), "{words:?}: {said}");
        }
    }

    #[test]
    fn credentials_hosts_and_places_are_found_where_their_tools_keep_them() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let look = || {
            let variable = |name: &str| (name == "HOME").then(|| home.path().into());
            FoundHere::look(&home.path().join("state"), variable)
        };
        let nothing = look();
        let text = nothing.text();
        for line in [
            "  kubernetes no kubeconfig\n",
            "  static     no hosts in ~/.ssh/config\n",
            "  aws-ec2    no credentials of this user; the machine itself may have some\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(nothing.suggestion(), Some("qemu"));
        write(".ssh/config", "Host build-1\n");
        write(".aws/credentials", "[default]\naws_secret_access_key = hunter2\n");
        write(".aws/config", "[default]\noutput = json\nregion = eu-west-1\n");
        write(".config/gcloud/application_default_credentials.json", "{}");
        write(".config/gcloud/configurations/config_default", "[core]\nproject = my-project\n");
        let found = look();
        let text = found.text();
        assert!(text.contains("/.aws/credentials, eu-west-1\n") && !text.contains("hunter2"), "{text}");
        assert!(text.contains("credentials.json, my-project\n"), "{text}");
        assert!(text.contains("  static     in ~/.ssh/config: build-1\n"), "{text}");
        let without_qemu = FoundHere(found.0.into_iter().filter(|(known, _)| known.kind != "qemu").collect());
        assert_eq!(without_qemu.suggestion(), Some("static"));
    }
}
