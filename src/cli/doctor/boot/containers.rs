//! Checks inside a booted instance whether jobs can run in containers there.

use std::collections::BTreeSet;
use std::time::Duration;

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::settings::ContainerSettings;
use greenroom_core::ids::PoolName;
use greenroom_core::text::quoted;
use greenroom_engine::container::script::TAKEN_OVER;
use greenroom_ports::connector::RemoteCommand;
use greenroom_ports::finding::Finding;
use serde_json::Value;

use crate::cli::doctor::code;
use crate::cli::error::CliError;
use crate::config::PoolConfig;

const GUEST: &str = include_str!("guest.sh");
/// The command that becomes a root shell: only root runs an engine that all containers share.
const AS_ROOT: &str = "if [ \"$(id -u)\" = 0 ]; then exec sh; else exec sudo -n sh; fi";
/// An emulated machine takes a second for each call of the engine, and a registry that does not answer takes ten.
const WITHIN: Duration = Duration::from_mins(3);

const HUB: &str = "docker.io";
/// The hub's registry has another name than its images.
const HUB_ADDRESS: &str = "registry-1.docker.io";

/// The check of one pool.
pub(super) struct ContainerCheck {
    /// The engine that the instances are to have.
    pub(super) engine: ContainerEngine,
    /// The pool's own limit of processes.
    pub(super) limit: Option<u64>,
    /// The script of the check, which contains passwords.
    script: String,
}

impl ContainerCheck {
    /// Reads the pool's files; `None`: its jobs do not run in containers.
    pub(super) fn of(pool: &PoolConfig) -> Result<Option<Self>, CliError> {
        let Some(settings) = &pool.containers else { return Ok(None) };
        let read = |path: &Option<std::path::PathBuf>| {
            let Some(path) = path else { return Ok(String::new()) };
            let named = |error| CliError::say(format!("cannot read {}: {error}", path.display()));
            std::fs::read_to_string(path).map_err(named)
        };
        let auth = read(&settings.registry_auth)?;
        let ca = read(&settings.ca)?;
        let script = script(settings, &auth, &ca);
        Ok(Some(Self { engine: settings.engine, limit: settings.options.pids_limit, script }))
    }

    pub(super) fn command(&self) -> RemoteCommand<'_> {
        RemoteCommand {
            text: AS_ROOT,
            input: &self.script,
            within: WITHIN,
            start_within: WITHIN,
            shared: false,
        }
    }
}

fn script(settings: &ContainerSettings, auth: &str, ca: &str) -> String {
    let mut logins = logins(auth);
    // Behind a mirror, the registry itself may be out of reach.
    logins.retain(|login| !login.split('/').next().is_some_and(|host| settings.mirrors.contains_key(host)));
    let mut names: BTreeSet<&str> = logins.iter().filter_map(|login| login.split('/').next()).collect();
    names.extend(settings.default_image.as_deref().map(registry_of));
    // Jobs may name any image, and most are there.
    names.extend(settings.images.is_none().then_some(HUB));
    names.retain(|name| !settings.mirrors.contains_key(*name));
    names.extend(settings.mirrors.values().map(String::as_str));
    let registries: Vec<String> = names.iter().map(|name| format!("{name} {}", address(name))).collect();
    let registries = registries.join("\n");
    let program = settings.engine.program();
    let values = [
        ("program", program),
        ("registries", registries.as_str()),
        ("logins", &logins.join(" ")),
        ("auth", auth),
        ("ca", ca),
        ("limit", &settings.engine.pids_option(settings.options.pids_limit)),
        ("dns", if settings.options.dns.is_empty() { "" } else { "yes" }),
    ];
    let values = values.map(|(name, value)| format!("{name}={}\n", quoted(value)));
    format!("{}{TAKEN_OVER}{GUEST}", values.concat())
}

/// The registries that a `config.json` has passwords for.
fn logins(auth: &str) -> Vec<String> {
    let read: Value = serde_json::from_str(auth).unwrap_or_default();
    let names = read["auths"].as_object().into_iter().flat_map(|auths| auths.keys());
    names
        .map(|name| match name.trim_start_matches("https://").trim_end_matches('/') {
            "index.docker.io" | "index.docker.io/v1" => HUB.to_owned(),
            other => other.to_owned(),
        })
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_graphic()))
        .collect()
}

/// The registry of an image: what stands before the first `/`, if it is a host's name.
fn registry_of(image: &str) -> &str {
    let first = image.split('/').next().filter(|first| first.len() < image.len());
    first.filter(|first| first.contains(['.', ':']) || *first == "localhost").unwrap_or(HUB)
}

/// The URL at which a registry answers, or a mirror, which may be named with or without `http://`.
fn address(registry: &str) -> String {
    let (scheme, rest) = registry.split_once("://").unwrap_or(("https", registry));
    let host = rest.split('/').next().unwrap_or(rest);
    format!("{scheme}://{}/v2/", if host == HUB { HUB_ADDRESS } else { host })
}

/// The oldest version of an engine that was tested.
fn oldest(engine: ContainerEngine) -> (u32, u32) {
    match engine {
        ContainerEngine::Podman => (4, 3),
        ContainerEngine::Docker => (20, 10),
    }
}

/// The help that installs an engine.
fn install(engine: ContainerEngine) -> &'static str {
    match engine {
        ContainerEngine::Podman => {
            "build the image with `greenroom image build --containers`, or install `podman`, `crun`, `netavark` and `iptables`"
        }
        ContainerEngine::Docker => {
            "install Docker, such as Debian's `docker.io`, and let it start at boot; or set `engine = \"podman\"`"
        }
    }
}

/// Builds with many threads and their tests reach the default limit of Podman, 2048.
const PROCESSES_WANTED: u64 = 4096;
/// A usual image with its layers unpacked.
const SPACE_WANTED: u64 = 2 << 20;
/// Certificates and tokens are checked by the guest's clock, in seconds.
const CLOCK_TOLERANCE: u64 = 60;

/// The answers, as they came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::cli::doctor) struct EngineFacts {
    /// The engine that the pool's instances are to have.
    wanted: ContainerEngine,
    /// The guest's clock, in seconds since 1970.
    clock: Option<u64>,
    cgroups: Option<String>,
    /// Programs and modules that networks need.
    missing: Vec<String>,
    engine: Option<String>,
    runtime: Option<String>,
    driver: Option<String>,
    free_kib: Option<u64>,
    /// The number of processes that a container may have; `None`: no limit.
    processes: Option<u64>,
    /// Name servers that no container with a network of its own reaches; `None`: it reaches one.
    unreached: Option<String>,
    /// The reason for which no container runs.
    broken: Option<String>,
    /// The reason for which no container with a network of its own runs.
    network_broken: Option<String>,
    /// The registries that do not answer, each with the reason.
    unreachable: Vec<String>,
    denied: Vec<String>,
}

impl EngineFacts {
    /// Reads the output; a line that is no fact is skipped.
    pub(in crate::cli::doctor) fn read(wanted: ContainerEngine, output: &str) -> Self {
        let mut facts = Self { wanted, ..Self::default() };
        for (word, value) in output.lines().filter_map(|line| line.split_once(' ')) {
            let value = value.trim().to_owned();
            match word {
                "clock" => facts.clock = value.parse().ok(),
                "cgroups" => facts.cgroups = Some(value),
                "missing" => facts.missing.push(value),
                "engine" => facts.engine = Some(value),
                "runtime" => facts.runtime = Some(value),
                "driver" => facts.driver = Some(value),
                "free-kib" => facts.free_kib = value.parse().ok(),
                "processes" => facts.processes = value.parse().ok(),
                "unreached" => facts.unreached = Some(value),
                "broken" => facts.broken = Some(value),
                "network-broken" => facts.network_broken = Some(value),
                "unreachable" => facts.unreachable.push(value),
                "denied" => facts.denied.push(value),
                _ => {}
            }
        }
        facts
    }

    /// A row of the timeline: `containers: podman 4.3.1, crun, overlay, 7.3 GiB free`.
    pub(in crate::cli::doctor) fn row(&self) -> String {
        let Some(engine) = &self.engine else { return "containers: no engine".to_owned() };
        let tenths = self.free_kib.map(|kib| kib * 10 / (1 << 20));
        let parts = [
            Some(format!("{} {engine}", self.wanted.program())),
            self.runtime.clone(),
            self.driver.clone(),
            tenths.map(|tenths| format!("{}.{} GiB free", tenths / 10, tenths % 10)),
        ];
        format!("containers: {}", parts.into_iter().flatten().collect::<Vec<String>>().join(", "))
    }

    /// The findings about the facts. `now`: seconds since 1970 on the runner host. `said`: the output, for an instance
    /// that said no fact. `limit`: the pool's own limit of processes.
    pub(in crate::cli::doctor) fn judge(
        &self,
        pool: &PoolName,
        now: u64,
        said: &str,
        limit: Option<u64>,
    ) -> Vec<Finding> {
        // Without this fact, the script has not run as root, and nothing else is known.
        let Some(clock) = self.clock else {
            let what = format!("instances of pool `{pool}` do not let Greenroom act as root: {said}");
            let remedy = "log in as root, or let that user run `sudo -n sh`";
            return vec![code::CONTAINERS_ROOT_DENIED.found(what, remedy)];
        };
        let mut found: Vec<Finding> = self.engine(pool).into_iter().collect();
        if let Some(kib) = self.free_kib.filter(|kib| *kib < SPACE_WANTED) {
            let what = format!("instances of pool `{pool}` have {} MiB left for images", kib >> 10);
            found.push(code::CONTAINERS_SPACE.found(what, "give them a larger disk"));
        }
        if self.driver.as_deref() == Some("vfs") {
            let what = format!("instances of pool `{pool}` copy each image whole for each container (`vfs`)");
            let remedy = match self.wanted {
                ContainerEngine::Podman => {
                    "set `driver = \"overlay\"` in their /etc/containers/storage.conf, and keep /var/lib/containers on \
                     ext4 or xfs"
                }
                ContainerEngine::Docker => {
                    "set `\"storage-driver\": \"overlay2\"` in their /etc/docker/daemon.json, and keep /var/lib/docker on \
                     ext4 or xfs"
                }
            };
            found.push(code::CONTAINERS_STORAGE_SLOW.found(what, remedy));
        }
        found.extend(self.processes(pool, limit));
        if let Some(servers) = &self.unreached {
            let what = format!(
                "containers of jobs with services on instances of pool `{pool}` use other name servers: only the instances \
                 themselves reach their own ({})",
                servers.replace(' ', ", ")
            );
            let remedy = "set `dns` to name servers that containers reach";
            found.push(code::CONTAINERS_NAME_SERVERS.found(what, remedy));
        }
        for why in &self.unreachable {
            let what = format!("a registry does not answer an instance of pool `{pool}`: {why}");
            let remedy = "check the pool's network, `mirrors` and `ca`";
            found.push(code::CONTAINERS_REGISTRY_UNREACHABLE.found(what, remedy));
        }
        for why in &self.denied {
            let what = format!("a registry denies a login with the passwords of pool `{pool}`: {why}");
            found.push(
                code::CONTAINERS_LOGIN_DENIED.found(what, "correct the file that `registry_auth` names"),
            );
        }
        if clock.abs_diff(now) > CLOCK_TOLERANCE {
            let by = clock.abs_diff(now);
            let direction = if clock > now { "fast" } else { "slow" };
            let what = format!("the clock of an instance of pool `{pool}` is {by} s {direction}");
            found.push(code::CONTAINERS_CLOCK.found(what, "set the clocks of instances when they boot"));
        }
        found
    }

    /// A limit that builds reach, unless it is the pool's own.
    fn processes(&self, pool: &PoolName, limit: Option<u64>) -> Option<Finding> {
        let least = self.processes.filter(|least| *least < limit.unwrap_or(PROCESSES_WANTED))?;
        let what =
            format!("containers on instances of pool `{pool}` may have only {least} processes and threads");
        let remedy = "raise `pids.max` of the engine's control groups there, such as `TasksMax` of `machine.slice` and \
                      `DefaultTasksMax`; or set `pids_limit`";
        Some(code::CONTAINERS_PROCESSES.found(what, remedy))
    }

    /// The first thing that is wrong with the engine; the others may be consequences.
    fn engine(&self, pool: &PoolName) -> Option<Finding> {
        let on = format!("instances of pool `{pool}`");
        let Some(engine) = &self.engine else {
            let what = format!("{on} have no `{}`", self.wanted.program());
            return Some(code::CONTAINERS_ENGINE_MISSING.found(what, install(self.wanted)));
        };
        if let Some(kind) = self.cgroups.as_deref().filter(|kind| *kind != "cgroup2fs") {
            let what = format!("{on} have no unified cgroup hierarchy: /sys/fs/cgroup is {kind}");
            let remedy = "boot them with `systemd.unified_cgroup_hierarchy=1`, or mount cgroup2 there";
            return Some(code::CONTAINERS_CGROUPS.found(what, remedy));
        }
        if let Some(why) = &self.broken {
            let what = format!("no container runs on {on}: {why}");
            let remedy = if why.contains("Cannot connect to the Docker daemon") {
                "let the daemon start at boot: `systemctl enable docker`; if it is, read its log there: `journalctl -u docker`"
            } else {
                "log in there and correct that"
            };
            return Some(code::CONTAINERS_ENGINE_BROKEN.found(what, remedy));
        }
        if let Some(why) = &self.network_broken {
            let what = format!("no container with a network of its own runs on {on}: {why}");
            let remedy = if self.missing.is_empty() {
                "log in there and correct that: services need it".to_owned()
            } else {
                format!("services need it; add what is missing there: {}", self.missing.join(", "))
            };
            return Some(code::CONTAINERS_NETWORK_BROKEN.found(what, remedy));
        }
        let oldest = oldest(self.wanted);
        is_old(engine, oldest).then(|| {
            let (program, (major, minor)) = (self.wanted.program(), oldest);
            let what =
                format!("{on} have {program} {engine}; versions before {major}.{minor} were never tested");
            code::CONTAINERS_ENGINE_OLD.found(what, "install a newer one")
        })
    }
}

fn is_old(version: &str, oldest: (u32, u32)) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    numbers.next().map(|major| (major, numbers.next().unwrap_or(0))).is_some_and(|it| it < oldest)
}

#[cfg(test)]
pub(in crate::cli::doctor) mod tests {
    use super::*;

    #[test]
    fn each_registry_is_tried_once_and_a_mirror_in_its_place() {
        let mut settings = ContainerSettings::default();
        let head = |settings: &ContainerSettings, auth: &str| {
            let script = script(settings, auth, "");
            script.split("\nauth=").next().unwrap().trim_start_matches("program='podman'\n").to_owned()
        };
        let hub = "docker.io https://registry-1.docker.io/v2/";
        assert_eq!(head(&settings, ""), format!("registries='{hub}'\nlogins=''"));
        settings.default_image = Some("registry.example.com:5005/g/ruby:3".to_owned());
        settings.mirrors.insert(HUB.to_owned(), "http://mirror.example.com/hub".to_owned());
        let auth = r#"{"auths":{"https://index.docker.io/v1/":{},"registry.example.com:5005/g":{}}}"#;
        let expected = "registries='http://mirror.example.com/hub http://mirror.example.com/v2/\n\
                        registry.example.com:5005 https://registry.example.com:5005/v2/'\n\
                        logins='registry.example.com:5005/g'";
        assert_eq!(head(&settings, auth), expected);
        settings.images = Some(Vec::new());
        settings.mirrors.clear();
        settings.default_image = None;
        assert_eq!(head(&settings, "{"), "registries=''\nlogins=''");
    }

    #[test]
    fn an_image_without_a_host_is_the_hubs() {
        for (image, registry) in [
            ("ruby:3.3", HUB),
            ("library/ruby", HUB),
            ("registry.example.com/ruby", "registry.example.com"),
            ("localhost/ruby", "localhost"),
            ("host:5000/ruby", "host:5000"),
        ] {
            assert_eq!(registry_of(image), registry, "{image}");
        }
    }

    const NOW: u64 = 1_795_000_000;
    const SOUND: &str = "clock 1795000002\ncgroups cgroup2fs\nengine 4.3.1\nruntime crun\ndriver overlay\n\
                         free-kib 7717232\n";

    fn judged(output: &str) -> Vec<Finding> {
        let said = "sudo: a password is required";
        read(output).judge(&PoolName::new("linux"), NOW, said, None)
    }

    fn read(output: &str) -> EngineFacts {
        EngineFacts::read(ContainerEngine::Podman, output)
    }

    #[test]
    fn docker_has_its_own_name_versions_and_remedies() {
        let judged = |output: &str| {
            let facts = EngineFacts::read(ContainerEngine::Docker, output);
            facts
                .judge(&PoolName::new("linux"), NOW, "", None)
                .iter()
                .map(ToString::to_string)
                .collect::<String>()
        };
        let sound =
            "clock 1795000002\nengine 20.10.24+dfsg1\nruntime runc\ndriver overlay2\nfree-kib 7717232\n";
        assert_eq!(judged(sound), "");
        let row = EngineFacts::read(ContainerEngine::Docker, sound).row();
        assert_eq!(row, "containers: docker 20.10.24+dfsg1, runc, overlay2, 7.3 GiB free");
        for (from, to, said) in [
            ("engine 20.10.24+dfsg1\n", "", "have no `docker`"),
            ("engine 20.10.24", "engine 19.03.15", "docker 19.03.15+dfsg1; versions before 20.10"),
            (
                "runtime runc\n",
                "broken Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?\n",
                "systemctl enable docker",
            ),
            ("driver overlay2", "driver vfs", "/etc/docker/daemon.json"),
        ] {
            let found = judged(&sound.replacen(from, to, 1));
            assert!(found.contains(said), "{said}: {found}");
        }
    }

    /// An output with one line more, or changed, and the code that it leads to.
    const TABLE: &[(&str, &str, &str)] = &[
        ("clock 1795000002\n", "", "containers-root-denied"),
        ("engine 4.3.1\n", "", "containers-engine-missing"),
        ("engine 4.3.1", "engine 3.4.4", "containers-engine-old"),
        ("engine 4.3.1", "engine 4.3.1\nbroken Error: no space left", "containers-engine-broken"),
        ("cgroup2fs", "tmpfs\nbroken Error: crun: unified only", "containers-cgroups"),
        ("engine 4.3.1", "engine 4.3.1\nnetwork-broken Error: netavark", "containers-network-broken"),
        ("driver overlay", "driver vfs", "containers-storage-slow"),
        ("free-kib 7717232", "free-kib 2000000", "containers-space"),
        ("engine", "unreachable docker.io: time-out\nengine", "containers-registry-unreachable"),
        ("engine", "denied docker.io: unauthorized\nengine", "containers-login-denied"),
        ("engine 4.3.1", "engine 4.3.1\nprocesses 2048", "containers-processes"),
        ("engine 4.3.1", "engine 4.3.1\nunreached 127.0.0.1 ::1", "containers-name-servers"),
        ("1795000002", "1795000062", "containers-clock"),
    ];

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        TABLE.iter().flat_map(|(from, to, _)| judged(&SOUND.replacen(from, to, 1))).collect()
    }

    #[test]
    fn a_sound_instance_has_no_finding_and_a_row() {
        assert_eq!(judged(SOUND), []);
        assert_eq!(read(SOUND).row(), "containers: podman 4.3.1, crun, overlay, 7.3 GiB free");
        assert_eq!(judged(&format!("{SOUND}missing iptables\n")), [], "what works needs nothing");
        assert_eq!(judged(&format!("Warning: motd\nlast 7\n{SOUND}")), [], "other lines are skipped");
    }

    #[test]
    fn each_fact_leads_to_one_finding() {
        for (from, to, code) in TABLE {
            let found = judged(&SOUND.replacen(from, to, 1));
            assert_eq!(found.iter().map(|f| f.code).collect::<Vec<_>>(), [*code], "{from} -> {to}");
        }
    }

    #[test]
    fn a_limit_of_processes_is_reported_below_the_pools_own_or_where_builds_reach_it() {
        for (least, own, is_found) in
            [(2048, None, true), (4096, None, false), (2048, Some(2048), false), (2047, Some(9000), true)]
        {
            let facts = read(&format!("{SOUND}processes {least}\n"));
            let found = facts.judge(&PoolName::new("linux"), NOW, "", own);
            assert_eq!(!found.is_empty(), is_found, "{least} {own:?}: {found:?}");
        }
    }

    #[test]
    fn what_networks_lack_is_in_the_remedy() {
        let output = format!("{SOUND}missing iptables\nmissing the module veth\nnetwork-broken Error: no\n");
        let remedy = judged(&output)[0].remedy.clone().unwrap();
        assert_eq!(remedy, "services need it; add what is missing there: iptables, the module veth");
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (version, old) in
            [("3.4.4", true), ("4.2", true), ("4.3.1", false), ("5.4.2+ds1", false), ("?", false)]
        {
            assert_eq!(is_old(version, (4, 3)), old, "{version}");
        }
    }
}
