//! A pool from options, answers and what is on this machine.

use greenroom_core::ids::PoolName;
use greenroom_keys::{Takes, Unset, schema};
use toml::{Table, Value};

use super::args::InitOptions;
use super::ask::Questions;
use super::draft::{self, Draft};
use super::found::Found;
use super::ssh_config::SshHost;
use crate::cli::error::CliError;
use crate::provider;

/// Jobs of a first pool that run beside one another, where nothing else bounds it.
const INSTANCES: u32 = 4;

/// Keys that stand in a new file as comments, by provider.
pub(super) fn hints(kind: &str) -> &'static [(&'static str, &'static str)] {
    match kind {
        "qemu" => &[("vcpus", "1"), ("memory", "\"1G\""), ("allow", "[\"git.corp:443\"]")],
        "static" => &[("dedicated_user", "false"), ("clean_user", "\"root\"")],
        "aws-ec2" => &[("market", "\"on-demand\""), ("address", "\"private\""), ("user", "\"ci\"")],
        "gce" => &[("market", "\"on-demand\""), ("address", "\"private\""), ("network", "\"default\"")],
        "kubernetes" => &[
            ("server_image", "\"registry.example.com/ci/greenroom-server:0.1.0\""),
            ("cpu", "\"2\""),
            ("memory", "\"4Gi\""),
            ("service_account", "\"jobs\""),
        ],
        _ => &[],
    }
}

/// Keys of a provider that are asked for although they are not required, and what they are likely to be.
fn asked(kind: &str, found: &Found) -> Vec<(&'static str, Option<String>)> {
    match kind {
        "static" => {
            vec![("user", Some("ci".to_owned())), ("key", Some("/etc/greenroom/hosts_key".to_owned()))]
        }
        "aws-ec2" => vec![("region", found.region.clone()), ("subnets", None)],
        "gce" => vec![("project", found.project.clone())],
        // In a pod of the cluster, its own account will do.
        "kubernetes" if found.clusters.files.is_empty() && found.clusters.own_namespace.is_some() => {
            Vec::new()
        }
        "kubernetes" => vec![("context", found.clusters.likely_context())],
        _ => Vec::new(),
    }
}

/// The usual name of a pool.
pub(super) fn name_of(kind: &str) -> &'static str {
    match kind {
        "qemu" => "vm",
        "static" => "hosts",
        "aws-ec2" => "ec2",
        "gce" => "gce",
        "kubernetes" => "pods",
        "external" | "fleeting" => "machines",
        _ => "local",
    }
}

/// Asks for what the options do not say.
pub(super) fn draft(options: &InitOptions, found: &Found, ask: Questions) -> Result<Draft, CliError> {
    let kind = kind(options, found, ask)?;
    let name = match &options.pool {
        Some(name) => {
            checked_name(name).map_err(|why| CliError::say(why).help("name it with `--pool NAME`"))?
        }
        None => ask.text("Name of the pool", Some(name_of(kind)), "--pool NAME", checked_name)?,
    };
    let mut draft =
        Draft { name, kind, pool: Vec::new(), provider: Vec::new(), hosts: Vec::new(), hints: hints(kind) };
    if kind == "qemu" {
        draft.provider.push(("network".to_owned(), Value::String("internet".to_owned())));
    }
    if kind == "static" {
        hosts(&mut draft, options, found, ask)?;
    } else if !options.hosts.is_empty() {
        return Err(CliError::say(format!("`--host` names static hosts, but the provider is \"{kind}\""))
            .help("add `--provider static`, or leave `--host` out"));
    }
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
    kubeconfig(&mut draft, found);
    directories(&mut draft);
    counts(&mut draft, options, found, ask)?;
    Ok(draft)
}

fn kind(options: &InitOptions, found: &Found, ask: Questions) -> Result<&'static str, CliError> {
    let check = |text: &str| provider::find(text).map(|known| known.kind).map_err(|wrong| wrong.to_string());
    if let Some(kind) = &options.provider {
        return check(kind).map_err(|why| CliError::say(why).help("name one with `--provider KIND`"));
    }
    if !ask.possible() {
        let kinds: Vec<&str> = provider::all().iter().map(|known| known.kind).collect();
        return Err(CliError::say("no provider is named, and there is no terminal to ask").help(format!(
            "add `--provider KIND`, with one of: {}; `greenroom init --help` shows examples",
            kinds.join(", ")
        )));
    }
    let question = "Provider of instances: qemu (virtual machines here), static (hosts over SSH),\n  local (processes here, \
                    to try it), aws-ec2 or gce (clouds), kubernetes (pods),\n  external (machines by a program of yours), \
                    or fleeting (by a plugin of GitLab's)";
    ask.text(question, Some(found.suggestion()), "--provider KIND", check)
}

fn checked_name(text: &str) -> Result<String, String> {
    let wrong = |wrong: greenroom_core::ids::NameError| {
        format!("`{text}` cannot be the name of a pool: {}", wrong.rule)
    };
    PoolName::parse(text).map(|name| name.to_string()).map_err(wrong)
}

/// The hosts, with what `~/.ssh/config` says about them.
fn hosts(draft: &mut Draft, options: &InitOptions, found: &Found, ask: Questions) -> Result<(), CliError> {
    let split = |text: &str| -> Result<Vec<String>, String> {
        let names: Vec<String> =
            text.split([' ', ',']).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        match names.iter().find(|name| host(name, found).is_none()) {
            Some(wrong) => Err(format!("`{wrong}` is not a host: write it as `[USER@]HOST[:PORT]`")),
            None if names.is_empty() => Err("name at least one host".to_owned()),
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
        let host = host(text, found).ok_or_else(|| {
            CliError::say(format!("`{text}` is not a host")).help("write it as `[USER@]HOST[:PORT]`")
        })?;
        if draft.hosts.iter().any(|other| other["name"] == host["name"]) {
            return Err(CliError::say(format!("host `{text}` is named twice")).help("name each host once"));
        }
        draft.hosts.push(host);
    }
    Ok(())
}

/// The table of a host: its name is what the operator calls it.
fn host(text: &str, found: &Found) -> Option<Table> {
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
    let known = found.hosts.iter().find(|host| host.alias == name).cloned().unwrap_or_default();
    let SshHost { alias: _, address, user: usual, port: usual_port, key } = known;
    let own = |key: String| match (key.strip_prefix("~/"), &found.home) {
        (Some(rest), Some(home)) => Some(home.join(rest).display().to_string()),
        _ => key.starts_with('/').then_some(key),
    };
    let mut table = Table::new();
    let mut put = |name: &str, value: Option<Value>| value.map(|value| table.insert(name.to_owned(), value));
    put(
        "name",
        Some(Value::String(name.replace(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c), "-"))),
    );
    put("address", Some(Value::String(address.unwrap_or_else(|| name.to_owned()))));
    put("user", user.or(usual).map(Value::String));
    put("port", port.or(usual_port).map(|port| Value::Integer(port.into())));
    put("key", key.and_then(own).map(Value::String));
    Some(table)
}

/// Asks for required keys of the provider, and for a few that it can hardly do without.
fn missing(draft: &mut Draft, found: &Found, ask: Questions) -> Result<(), CliError> {
    let likely = asked(draft.kind, found);
    let keys = draft.own_keys().iter().filter(|key| {
        let is_required = key.unset == Unset::Required && !matches!(key.takes, Takes::Tables);
        is_required || likely.iter().any(|(name, _)| *name == key.name)
    });
    for key in keys {
        let in_each_host =
            !draft.hosts.is_empty() && draft.hosts.iter().all(|host| host.contains_key(key.name));
        let otherwise =
            key.name == "subnets" && draft.has("zones") || key.name == "key" && draft.has("agent");
        if draft.has(key.name) || in_each_host || otherwise {
            continue;
        }
        let default = match key.name {
            "namespace" if draft.kind == "kubernetes" => namespace(draft, found),
            name => likely.iter().find(|(known, _)| *known == name).and_then(|(_, value)| value.clone()),
        };
        let means = schema::plain(key.means);
        let question = means.trim_end_matches('.');
        let flag = format!("--set {}=VALUE", key.name);
        let checked = |text: &str| match key.name {
            "user" if !is_account(text) => Err(format!("`{text}` cannot be the name of an account")),
            _ => draft::value(key, text),
        };
        let value = ask.text(question, default.as_deref(), &flag, checked)?;
        draft.provider.push((key.name.to_owned(), value));
    }
    if draft.kind == "local" && rustix::process::geteuid().is_root() && !draft.has("allow_root") {
        let question = "Jobs of provider `local` would run as root on this machine. Allow it?";
        if !ask.yes(question, false)? {
            return Err(CliError::say("jobs of provider `local` would run as root on this machine")
                .help("add `--set allow_root=true` to try it all the same, or name another provider"));
        }
        draft.provider.push(("allow_root".to_owned(), Value::Boolean(true)));
    }
    Ok(())
}

/// The namespace that is likely: that of the context, that of this pod, or the one of the example manifests.
fn namespace(draft: &Draft, found: &Found) -> Option<String> {
    let named = match text(draft, "context") {
        Some(context) => found.clusters.find(context).and_then(|(_, namespace)| namespace).map(str::to_owned),
        None => found.clusters.own_namespace.clone(),
    };
    named.or_else(|| Some("ci-jobs".to_owned()))
}

/// Names the file of the context: a service has another environment and another home.
fn kubeconfig(draft: &mut Draft, found: &Found) {
    let path = text(draft, "context")
        .and_then(|context| found.clusters.find(context))
        .map(|(path, _)| path.display().to_string());
    if let Some(path) = path.filter(|_| draft.kind == "kubernetes" && !draft.has("kubeconfig")) {
        draft.provider.push(("kubeconfig".to_owned(), Value::String(path)));
    }
}

/// The value of a provider's key.
fn text<'a>(draft: &'a Draft, key: &str) -> Option<&'a str> {
    draft.provider.iter().find(|(name, _)| name == key).and_then(|(_, value)| value.as_str())
}

/// True if a login could have this name: no host, and no path.
fn is_account(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || "@:/".contains(c))
}

/// Below the home of the account that all hosts share: it may create nothing elsewhere.
fn directories(draft: &mut Draft) {
    let user = draft.provider.iter().find(|(name, _)| name == "user").and_then(|(_, value)| value.as_str());
    let Some(user) = user.filter(|user| draft.kind == "static" && *user != "root").map(str::to_owned) else {
        return;
    };
    for (key, folder) in [("builds_dir", "builds"), ("cache_dir", "cache")] {
        if !draft.pool.iter().any(|(name, _)| name == key) {
            draft.pool.push((key.to_owned(), Value::String(format!("/home/{user}/{folder}"))));
        }
    }
}

fn counts(draft: &mut Draft, options: &InitOptions, found: &Found, ask: Questions) -> Result<(), CliError> {
    let hosts = u32::try_from(draft.hosts.len()).unwrap_or(u32::MAX);
    let likely = match draft.kind {
        "static" => hosts,
        "qemu" => found.machines.min(found.processors.saturating_mul(2)).max(1),
        _ => INSTANCES,
    };
    let mut put = |name: &str, count: u32| {
        if !draft.pool.iter().any(|(known, _)| known == name) {
            draft.pool.push((name.to_owned(), Value::Integer(count.into())));
        }
    };
    let number = |text: &str| text.parse::<u32>().map_err(|_| "not a whole number".to_owned());
    let is_static = draft.kind == "static";
    let most = match options.max_instances {
        Some(count) => count,
        None if is_static => likely,
        None => ask.text("Instances at most", Some(&likely.to_string()), "--max-instances COUNT", number)?,
    };
    put("max_instances", most);
    let spare = u32::from(matches!(draft.kind, "qemu" | "local"));
    let idle = match options.idle_count {
        Some(count) => Some(count),
        None if is_static => None,
        None => Some(ask.text(
            "Spare job slots, kept ready",
            Some(&spare.to_string()),
            "--idle-count COUNT",
            number,
        )?),
    };
    if let Some(count) = idle {
        put("idle_count", count);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::init::args::InitOptions;
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

    fn drafted(words: &[&str]) -> Result<Draft, String> {
        let home = Some("/home/kim".into());
        let hosts = super::super::ssh_config::hosts(
            "Host mac\nHostName 192.0.2.7\nUser admin\nIdentityFile ~/.ssh/mac\n",
        );
        let found = Found { hosts, home, processors: 8, machines: 5, ..Found::default() };
        draft(&options(words), &found, Questions::new(true)).map_err(|wrong| wrong.for_operator())
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
            assert_eq!(
                pool.policy.max_instances,
                match words[1] {
                    "qemu" => 5,
                    "static" => 2,
                    _ => 4,
                }
            );
        }
    }

    #[test]
    fn a_pool_of_pods_names_the_context_its_file_and_its_namespace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        let contexts = "contexts:\n- context:\n    namespace: jobs\n  name: prod\n- context:\n    user: a\n  name: test\n";
        std::fs::write(&path, format!("{contexts}current-context: prod\n")).unwrap();
        let variable = |name: &str| (name == "KUBECONFIG").then(|| path.clone().into_os_string());
        let clusters = super::super::kubeconfig::Clusters::look(None, variable);
        let found = Found { clusters, ..Found::default() };
        let pods = |words: &[&str]| {
            let words = [&["--provider", "kubernetes", "--set", "image=ci:12"][..], words].concat();
            let draft = draft(&options(&words), &found, Questions::new(true));
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
        let own = super::super::kubeconfig::Clusters {
            own_namespace: Some("here".to_owned()),
            ..Default::default()
        };
        let inside = Found { clusters: own, ..Found::default() };
        let words = options(&["--provider", "kubernetes", "--set", "image=ci:12"]);
        let tables = draft(&words, &inside, Questions::new(true)).map(|draft| draft.tables()).unwrap();
        assert!(tables.contains("\nnamespace = \"here\"\n") && !tables.contains("\ncontext"), "{tables}");
    }

    #[test]
    fn hosts_have_what_the_operator_or_their_section_says() {
        let draft = drafted(&[
            "--provider",
            "static",
            "--host",
            "ci@build-1:2222",
            "--host",
            "mac",
            "--host",
            "[2001:db8::1]:22",
        ]);
        let tables = draft.unwrap().tables();
        for part in [
            "[[pool.hosts.provider.host]]\naddress = \"build-1\"\nname = \"build-1\"\nport = 2222\nuser = \"ci\"\n",
            "address = \"192.0.2.7\"\nkey = \"/home/kim/.ssh/mac\"\nname = \"mac\"\nuser = \"admin\"\n",
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
}
