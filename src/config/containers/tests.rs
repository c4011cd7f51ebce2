//! Settings of jobs in containers, and the messages about mistakes.

use std::time::Duration;

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::settings::{ContainerSettings, Mode, Privileged, PullPolicy, Umask};
use greenroom_core::glob::Glob;

use crate::config::{Config, ProviderFacts};

const POOL: &str = "[pool.a]\nmax_instances = 1\nprovider.kind = \"x\"\n";

fn parse(pool: &str, table: &str) -> Result<ContainerSettings, String> {
    let text = format!("{POOL}{pool}\n[pool.a.containers]\n{table}\n");
    let config = Config::parse(&text, "x").map_err(|wrong| wrong.to_string())?;
    Ok(config.pools.into_values().next().unwrap().containers.unwrap())
}

#[track_caller]
fn good(pool: &str, table: &str) -> ContainerSettings {
    parse(pool, table).unwrap_or_else(|wrong| panic!("{wrong}"))
}

#[test]
fn jobs_run_on_the_instance_itself_unless_there_is_the_table() {
    let config = Config::parse(POOL, "x").unwrap();
    assert!(config.pools.values().all(|pool| pool.containers.is_none()));
    assert_eq!(good("", ""), ContainerSettings::default());
}

#[test]
fn every_key_arrives() {
    let settings = good(
        "",
        r#"
engine = "docker"
mode = "always"
default_image = "debian:12"
images = "ruby:*"
services = ["postgres:*", "redis"]
services_limit = 2
pull_policy = ["if-not-present", "always"]
allowed_pull_policies = ["always", "if-not-present", "never"]
mirrors = { "docker.io" = "https://mirror.example.com/hub/", "quay.io" = "http://10.0.0.7:5000" }
registry_auth = "/etc/auth.json"
ca = "/etc/ca.pem"
privileged = ["docker:*"]
volumes = ["/scratch", "/opt/sdk:/sdk:ro"]
wait_for_services = 0
pull_timeout = "5m"
umask = "closed"
user = "1000:1000"
allowed_users = ["1000", "www-*"]
shm_size = "256M"
extra_hosts = ["db:10.0.0.7", "six:fe80::1"]
dns = ["10.0.0.53"]
cap_add = ["SYS_PTRACE"]
cap_drop = ["NET_RAW"]
devices = ["/dev/kvm", "/dev/fuse:/dev/fuse:rw"]
gpus = "all"
ulimit = { nofile = "4096:8192", core = "-1" }
tmpfs = { "/run" = "rw,noexec" }
memory = "4G"
cpus = 2
pids_limit = 4096
network_mtu = 1400
"#,
    );
    let globs = |texts: &[&str]| Some(texts.iter().map(|text| Glob::new(text)).collect::<Vec<Glob>>());
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
    let map = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<(String, String)>>()
    };
    assert_eq!((settings.engine, settings.mode), (ContainerEngine::Docker, Mode::Always));
    assert_eq!(settings.default_image.as_deref(), Some("debian:12"));
    assert_eq!(settings.images, globs(&["ruby:*"]));
    assert_eq!(settings.services, globs(&["postgres:*", "redis"]));
    assert_eq!(settings.services_limit, Some(2));
    assert_eq!(settings.pull_policy, [PullPolicy::IfNotPresent, PullPolicy::Always]);
    assert_eq!(settings.allowed_pull_policies, PullPolicy::ALL);
    let mirrors = [("docker.io", "mirror.example.com/hub"), ("quay.io", "http://10.0.0.7:5000")];
    assert_eq!(settings.mirrors.into_iter().collect::<Vec<_>>(), map(&mirrors));
    assert_eq!(settings.registry_auth, Some("/etc/auth.json".into()));
    assert_eq!(settings.ca, Some("/etc/ca.pem".into()));
    assert_eq!(settings.privileged, Privileged::Images(vec![Glob::new("docker:*")]));
    assert_eq!(settings.volumes, ["/scratch", "/opt/sdk:/sdk:ro"]);
    assert_eq!(settings.wait_for_services, None);
    assert_eq!(settings.pull_timeout, Duration::from_mins(5));
    assert_eq!(settings.umask, Umask::Closed);
    assert_eq!(settings.user.as_deref(), Some("1000:1000"));
    assert_eq!(settings.allowed_users, globs(&["1000", "www-*"]));
    let options = settings.options;
    assert_eq!((options.shm_size, options.memory), (Some(256 << 20), Some(4 << 30)));
    assert_eq!(options.extra_hosts, ["db:10.0.0.7", "six:fe80::1"]);
    assert_eq!(
        [options.dns, options.cap_add, options.cap_drop].concat(),
        ["10.0.0.53", "SYS_PTRACE", "NET_RAW"]
    );
    assert_eq!(options.devices, texts(&["/dev/kvm", "/dev/fuse:/dev/fuse:rw"]));
    assert_eq!(options.gpus.as_deref(), Some("all"));
    let limits = [("core", "-1"), ("nofile", "4096:8192")];
    assert_eq!(options.ulimit.into_iter().collect::<Vec<_>>(), map(&limits));
    assert_eq!(options.tmpfs.into_iter().collect::<Vec<_>>(), map(&[("/run", "rw,noexec")]));
    assert_eq!(options.cpus, Some(2.0));
    assert_eq!((options.pids_limit, options.network_mtu), (Some(4096), Some(1400)));
}

#[test]
fn an_image_stays_on_an_instance_only_for_the_trust_domain_that_pulled_it() {
    use PullPolicy::{Always, IfNotPresent};
    for (pool, expected) in [
        ("", [Always, IfNotPresent].as_slice()),
        ("reuse = \"any\"", &[Always, IfNotPresent]),
        ("max_use_count = 0", &[Always, IfNotPresent]),
        ("max_use_count = 5\nreuse = \"namespace\"", &[Always, IfNotPresent]),
        ("max_use_count = 5\nreuse = \"any\"", &[Always]),
        ("max_use_count = 0\nreuse = \"any\"", &[Always]),
    ] {
        let settings = good(pool, "");
        assert_eq!(settings.pull_policy, expected, "{pool}");
        assert_eq!(settings.allowed_pull_policies, expected, "{pool}");
    }
    let settings = good("", "pull_policy = \"never\"");
    assert_eq!(
        (settings.pull_policy, settings.allowed_pull_policies),
        (vec![PullPolicy::Never], vec![PullPolicy::Never])
    );
}

#[test]
fn privileged_is_a_flag_a_word_or_patterns() {
    for (text, expected) in [
        ("true", Privileged::All),
        ("false", Privileged::None),
        ("\"single-use\"", Privileged::SingleUse),
        ("[\"a\"]", Privileged::Images(vec![Glob::new("a")])),
    ] {
        assert_eq!(good("", &format!("privileged = {text}")).privileged, expected);
    }
}

/// Mistake and message, without its position.
const MISTAKES: &[(&str, &str)] = &[
    ("mode = \"always\"", "`mode` = \"always\" requires `default_image` (name the image"),
    (
        "pull_policy = \"allways\"",
        "one of \"always\", \"if-not-present\", \"never\", or a list of them (did you mean \"always\"?)",
    ),
    ("pull_policy = [\"always\", \"Never\"]", "or a list of them"),
    (
        "allowed_pull_policies = \"never\"",
        "`allowed_pull_policies` lacks \"always\" of the default of `pull_policy`",
    ),
    (
        "pull_policy = \"never\"\nallowed_pull_policies = \"always\"",
        "`allowed_pull_policies` lacks \"never\" of `pull_policy` (add it, or set `pull_policy`",
    ),
    ("images = \"\"", "`images` contains an empty pattern, which matches no image"),
    (
        "images = [\"ruby:*\", \"deb{ian,oot}:*\"]",
        "`images` contains `{`, but patterns know only `*`, `**` and `?`",
    ),
    ("services = \"^postgres\"", "`services` contains `^`, but"),
    ("services = \"my image\"", "`services` contains ' ', which image names cannot have"),
    ("images = \"https://registry.example.com/**\"", "`images` contains ':', which"),
    ("privileged = [\"a b\"]", "`privileged` contains ' '"),
    ("default_image = \"ruby:*\"", "`default_image` contains '*', which image names cannot have"),
    ("default_image = \"$IMAGE\"", "`default_image` contains '$'"),
    ("allowed_users = [\"\"]", "`allowed_users` contains \"\", expected a pattern for users"),
    ("registry_auth = \"auth.json\"", "`registry_auth` in `[pool.a.containers]` must be an absolute path"),
    ("ca = \"ca.pem\"", "`ca` in `[pool.a.containers]` must be an absolute path"),
    (
        "mirrors = { \"docker.io\" = \"docker.io\" }",
        "`mirrors` must have another mirror for `docker.io` than itself",
    ),
    (
        "mirrors = { \"quay.io\" = \"https://quay.io/\" }",
        "`mirrors` must have another mirror for `quay.io` than itself",
    ),
    (
        "mirrors = { \"index.docker.io\" = \"m\" }",
        "contains \"index.docker.io\", Docker Hub, which images name `docker.io`",
    ),
    (
        "mirrors = { \"docker.io/library\" = \"m\" }",
        "contains \"docker.io/library\", expected the name of a registry",
    ),
    (
        "mirrors = { \"docker.io\" = \"ftp://m\" }",
        "must have HOST, HOST:PORT or one of these with a path for `docker.io`",
    ),
    ("mirrors = { \"docker.io\" = \"m:0\" }", "must have HOST,"),
    ("mirrors = { \"docker.io\" = \"m//x y\" }", "must have HOST,"),
    ("mirrors.docker.io = \"m\"", "must be a table of strings (a name with a dot needs quotes)"),
    ("volumes = [\"cache\"]", "`volumes` contains \"cache\", in which `cache` is not an absolute path"),
    ("volumes = [\"data:/data\"]", "in which `data` is not an absolute path"),
    ("volumes = [\"/a:b\"]", "in which `b` is not an absolute path"),
    ("volumes = [\"/a:/b:r o\"]", "in which `r o` are not mount options"),
    ("volumes = [\"/a:/b:ro:x\"]", "expected PATH or HOST_PATH:PATH[:OPTIONS]"),
    ("volumes = [\"/\"]", "in which `/` is not an absolute path"),
    ("volumes = [\"/cache\"]", "all containers have `/cache` without a volume (remove the entry)"),
    ("volumes = [\"/a\", \"/b:/a/\"]", "two volumes have the path `/a`"),
    ("pull_timeout = \"100ms\"", "`pull_timeout` in"),
    ("wait_for_services = -1", "`wait_for_services` in"),
    ("shm_size = 300000", "must be a size like \"512M\""),
    ("memory = \"128m\"", "must be a size like \"512M\""),
    ("cpus = 0", "`cpus` must be greater than 0"),
    ("extra_hosts = [\"db\"]", "`extra_hosts` contains \"db\", expected NAME:ADDRESS"),
    ("extra_hosts = [\"db:elsewhere\"]", "expected NAME:ADDRESS"),
    ("dns = [\"ns.example.com\"]", "`dns` contains \"ns.example.com\", expected an IP address"),
    ("cap_add = [\"NET ADMIN\"]", "expected a capability"),
    ("devices = [\"kvm\"]", "`devices` contains \"kvm\", expected PATH"),
    ("devices = [\"/dev/kvm:/dev/kvm:all\"]", "expected PATH"),
    (
        "ulimit = { nofile = \"many\" }",
        "`ulimit` contains \"many\", expected a number, or SOFT:HARD, for `nofile`",
    ),
    ("ulimit = { \"no file\" = \"1\" }", "expected a limit such as `nofile`"),
    ("tmpfs = { run = \"rw\" }", "`tmpfs` contains \"run\", expected an absolute path"),
    ("umask = \"0000\"", "`umask` in"),
    ("engine = \"containerd\"", "`engine` in"),
    ("allowed_images = [\"a\"]", "(the name of this key is `images`)"),
];

#[test]
fn each_mistake_is_one_sentence_about_its_key() {
    for (table, expected) in MISTAKES {
        let wrong = parse("", table).expect_err(table);
        assert!(wrong.contains(expected) && !wrong.ends_with("more"), "{table}\n found: {wrong}");
    }
}

#[test]
fn a_mistake_is_shown_with_its_line() {
    let text = format!("{POOL}[pool.a.containers]\nvolumes = [\"/scratch\", \"/builds\"]\n");
    let wrong = Config::parse(&text, "greenroom.toml").unwrap_err().render(false);
    let expected = r#"error: all containers have `/builds` without a volume
 --> greenroom.toml:5:24
  |
5 | volumes = ["/scratch", "/builds"]
  |                        ^^^^^^^^^ a directory of the pool's jobs
  |
  = help: remove the entry"#;
    assert_eq!(wrong, expected, "{wrong}");
}

#[test]
fn power_shell_reads_no_script_in_a_container() {
    let wrong = parse("shell = \"pwsh\"", "").unwrap_err();
    assert_eq!(wrong, "x:4:9: containers need `shell` \"bash\" or \"sh\"");
    good("shell = \"sh\"", "");
}

#[test]
fn static_hosts_run_containers_without_root() {
    let objection = |key: &str, disposable| {
        let config = Config::parse(&format!("{POOL}[pool.a.containers]\n{key}\n"), "x").unwrap();
        let pool = config.pools.values().next().unwrap();
        let provider = ProviderFacts { disposable, suspends: false, engines: true, stays_bound: false };
        config.objection(pool, provider).map(|wrong| wrong.to_string())
    };
    for allowed in ["", "privileged = false", "privileged = \"single-use\"", "ulimit = { nproc = \"100\" }"] {
        assert_eq!(objection(allowed, false), None, "{allowed}");
    }
    for (key, why) in [
        ("engine = \"docker\"", "`engine` must be Podman, because Docker's daemon is root's"),
        ("privileged = true", "`privileged` would give jobs no right that they lack"),
        ("privileged = [\"docker:*\"]", "`privileged` would give jobs no right that they lack"),
        ("memory = \"1G\"", "`memory` needs a control group, which the account of jobs cannot make"),
        ("pids_limit = 9", "`pids_limit` needs a control group, which the account of jobs cannot make"),
        ("cpus = 2", "`cpus` needs a control group, which the account of jobs cannot make"),
    ] {
        let expected = format!(
            "x:5:1: static hosts run containers without root: {why} (remove it, or use a provider that launches \
             instances)"
        );
        assert_eq!(objection(key, false), Some(expected));
        assert_eq!(objection(key, true), None, "{key}");
    }
}
