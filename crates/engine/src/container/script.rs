//! The script that prepares a job's containers on its instance.

use std::fmt::Write as _;
use std::iter::once;

use greenroom_core::container::engine::EnginePlace;
use greenroom_core::container::failure::Cause;
use greenroom_core::container::name::ContainerName;
use greenroom_core::container::settings::Umask;
use greenroom_core::container::spec::{ContainerJob, ContainerSpec, ServiceSpec};
use greenroom_core::text::quoted;

use super::check::SOUND;
use super::debug::{MOST, RECENT};
use super::dialect::{DockerFiles, EngineDialect, file};
use super::leftovers::ENDING;
use super::options::{self, Carrier, carrier};

/// GitLab's search for a shell in the job's image.
const SHELLS: [&str; 7] = [
    "/usr/local/bin/bash",
    "/usr/bin/bash",
    "/bin/bash",
    "/usr/local/bin/sh",
    "/usr/bin/sh",
    "/bin/sh",
    "/busybox/sh",
];

/// Functions of a shell that find what containers take over from their machine.
pub const TAKEN_OVER: &str = include_str!("machine.sh");

/// The option for a container in the machine's network.
const MACHINES: &str = "--network host";

/// The network of a job's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobNetwork {
    /// The instance's own.
    Shared,
    /// A network that only containers of the job are in.
    Own,
}

impl JobNetwork {
    /// `capacity`: of the job's instance. A job that is alone there has the instance's network, unless it has services.
    pub fn of(job: &ContainerJob, capacity: u32) -> Self {
        if job.services.is_empty() && capacity <= 1 { Self::Shared } else { Self::Own }
    }
}

/// The script for POSIX shells. It has secrets in it, and is read from standard input only.
///
/// `dirs`: directories of the guest that all containers have at the same path.
pub fn script(name: &ContainerName, job: &ContainerJob, dirs: &[&str], network: JobNetwork) -> String {
    written(name, job, dirs, (network, ""))
}

/// The script that only pulls the images of a job.
pub(crate) fn pulling(name: &ContainerName, job: &ContainerJob) -> String {
    written(name, job, &[], (JobNetwork::Shared, "yes"))
}

fn written(
    name: &ContainerName,
    job: &ContainerJob,
    dirs: &[&str],
    (network, only_pulls): (JobNetwork, &str),
) -> String {
    let containers: Vec<&ContainerSpec> = job.containers().collect();
    let mut text = String::new();
    let wait = job.wait_for_services.map_or(0, |wait| wait.as_secs().max(1));
    _ = writeln!(
        text,
        "name={name} engine={} shared=\"{}\" rootless={} last={} pull_within={} wait_within={wait} most={MOST} debug={} \
         closed={} own_network={} only_pulls={only_pulls} mtu={} dns={} limit=60",
        job.engine.program(),
        EnginePlace::of(name).dir(),
        if name.is_rootless() { "yes" } else { "" },
        job.services.len(),
        job.pull_timeout.as_secs().max(1),
        if job.debug_services { "yes" } else { "" },
        if job.umask == Umask::Closed { "yes" } else { "" },
        if network == JobNetwork::Own { "yes" } else { "" },
        job.options.network_mtu.map(|mtu| mtu.to_string()).unwrap_or_default(),
        if job.options.dns.is_empty() { "" } else { "yes" },
    );
    _ = writeln!(text, "added={}", quoted(&job.options.extra_hosts.join(" ")));
    text.push_str("write_files() {\n:\n");
    files(&mut text, name, job, &containers);
    text.push_str("}\n");
    function(&mut text, "pull_each", &pulls(&containers));
    let texts = |holds: fn(Cause) -> bool| {
        let arms = Cause::texts().map(|(part, cause)| {
            (format!("*{}*", quoted(part)), format!("return {}", i32::from(!holds(cause))))
        });
        [choice("$1", arms), "return 1".to_owned()]
    };
    function(&mut text, "may_pass", &texts(Cause::may_pass));
    function(&mut text, "explains", &texts(Cause::explains));
    let shared: Vec<String> = dirs.iter().map(|dir| format!("share {}", quoted(dir))).collect();
    function(&mut text, "share_all", &shared);
    function(&mut text, "ports", &[choice("$1", probes(&job.services))]);
    text.push_str("create() {\n:\ncase $1 in\n");
    for (number, container) in containers.iter().enumerate() {
        _ = write!(text, "{number}) ");
        creation(&mut text, name, job, (dirs, network), (number, container));
        text.push_str(" ;;\n");
    }
    text.push_str("esac\n}\n");
    if name.is_rootless() {
        let references: Vec<String> =
            containers.iter().map(|container| format!("echo {}", quoted(&container.image))).collect();
        function(&mut text, "wanted", &references);
        _ = writeln!(text, "min_free={}", job.min_free_space.div_ceil(1024));
        text.push_str(include_str!("room.sh"));
    } else {
        for name in ["stamp", "make_room"] {
            function(&mut text, name, &[]);
        }
    }
    text.push_str(RECENT);
    text.push_str(SOUND);
    text.push_str(&EngineDialect(job.engine).functions(&containers, job));
    text.push_str(TAKEN_OVER);
    text.push_str(ENDING);
    text.push_str(include_str!("prepare.sh"));
    // The shell has read all of it before the first command runs, and no command reads from it.
    text.push_str("main </dev/null\n");
    text
}

/// A function of these lines.
fn function(text: &mut String, name: &str, lines: &[String]) {
    _ = writeln!(text, "{name}() {{\n:\n{}\n}}", lines.join("\n"));
}

/// A choice by patterns.
fn choice(of: &str, arms: impl IntoIterator<Item = (String, String)>) -> String {
    let mut text = format!(
        "case {of} in
"
    );
    for (pattern, command) in arms {
        _ = writeln!(text, "{pattern}) {command} ;;");
    }
    text + "esac"
}

/// Adds the commands that write files in memory: credentials, certificates, mirrors, and what the environment of the
/// engine cannot carry.
fn files(text: &mut String, name: &ContainerName, job: &ContainerJob, containers: &[&ContainerSpec]) {
    let mut add = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    for (number, container) in containers.iter().enumerate() {
        if let Some(login) = &container.login {
            for line in EngineDialect(job.engine).login(number, &container.image, login) {
                add(&line);
            }
        }
        let held: Vec<String> = environment(job, (number, container))
            .filter(|(key, value)| carrier(job.engine, key, value) == Carrier::File)
            .map(|(key, value)| format!("{key}={value}\n"))
            .collect();
        add(&file(&held.concat(), &format!("{number}.env")));
        let docker = DockerFiles::of(name, job, (number, container));
        for line in docker.iter().flat_map(|docker| docker.writes(job.ca.as_deref())) {
            add(&line);
        }
    }
    for line in EngineDialect(job.engine).registries(job) {
        add(&line);
    }
}

/// All pulls run concurrently. Containers that want the same image in the same way share one.
fn pulls(containers: &[&ContainerSpec]) -> Vec<String> {
    let mut pulls: Vec<(&ContainerSpec, Vec<String>)> = Vec::new();
    for (number, container) in containers.iter().enumerate() {
        match pulls.iter_mut().find(|(other, _)| container.shares_pull(other)) {
            Some((_, numbers)) => numbers.push(number.to_string()),
            None => pulls.push((container, vec![number.to_string()])),
        }
    }
    let pull = |(container, numbers): (&ContainerSpec, Vec<String>)| {
        let policies: Vec<&str> = container.policies.iter().map(|policy| policy.as_str()).collect();
        let platform = container.platform.as_deref().unwrap_or_default();
        format!(
            "pull '{}' {} {} {} & children=\"$children $!\"",
            numbers.join(" "),
            quoted(&container.image),
            quoted(platform),
            policies.join(" ")
        )
    };
    pulls.into_iter().map(pull).collect()
}

/// The ports of which one has to answer.
fn probes(services: &[ServiceSpec]) -> Vec<(String, String)> {
    let chosen = services.iter().enumerate().filter_map(|(at, service)| {
        service.probe.map(|port| ((at + 1).to_string(), format!("echo {port}/tcp")))
    });
    chosen.chain(once(("*".to_owned(), "cat \"$work/$1.ports\"".to_owned()))).collect()
}

/// The environment of a container.
fn environment<'a>(
    job: &ContainerJob,
    (number, container): (usize, &'a ContainerSpec),
) -> impl Iterator<Item = (&'a str, &'a str)> {
    const SAFE: [(&str, &str); 3] =
        [("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "safe.directory"), ("GIT_CONFIG_VALUE_0", "*")];
    let all = container.environment.iter().map(|(key, value)| (&**key, &**value.expose()));
    // The sources belong to the user of the guest: git denies them to other users otherwise.
    let is_safe = number == 0 && !job.job.environment.iter().any(|(key, _)| **key == *"GIT_CONFIG_COUNT");
    all.chain(SAFE.into_iter().filter(move |_| is_safe))
}

/// Adds the commands that create a container. Values of variables reach the engine by its environment or a file, never as arguments.
fn creation(
    text: &mut String,
    name: &ContainerName,
    job: &ContainerJob,
    (dirs, network): (&[&str], JobNetwork),
    (number, container): (usize, &ContainerSpec),
) {
    let exported = || {
        environment(job, (number, container))
            .filter(|(key, value)| carrier(job.engine, key, value) == Carrier::Environment)
    };
    let own = if number == 0 { name.to_string() } else { format!("{name}-{number}") };
    let dialect = EngineDialect(job.engine);
    let mut words = vec![dialect.creation(&own, number == 0)];
    words.push(format!("--env-file \"$work/{number}.env\""));
    if name.is_rootless() {
        words.push("--cgroups=disabled".to_owned());
    } else {
        words.push(job.engine.pids_option(job.options.pids_limit));
    }
    // `named` and `resolvers` are variables of the script.
    if network == JobNetwork::Shared {
        words.push("$named".to_owned());
    } else {
        words.extend(dialect.in_own_network(name.is_rootless()));
    }
    words.push(network_options(name, network, &job.services, number));
    words.extend(options::of(job, container));
    words.extend(options::volumes(name, job, dirs));
    let docker = DockerFiles::of(name, job, (number, container));
    words.extend(docker.iter().flat_map(DockerFiles::options));
    words.extend(exported().map(|(key, _)| format!("--env {key}")));
    words.push(format!("\"$(cat \"$work/{number}.id\")\""));
    let entrypoint = container.entrypoint.iter().flat_map(|words| dialect.entrypoint(words).1);
    words.extend(entrypoint.map(|word| quoted(word)));
    if number == 0 {
        words.push(format!("sh -c {}", quoted(&search())));
    } else {
        words.extend(container.command.iter().flatten().map(|word| quoted(word)));
    }
    // The arguments are complete before a variable of the job is set.
    _ = writeln!(text, "set -- {}", words.join(" \\\n  "));
    for (key, value) in exported() {
        _ = writeln!(text, "export {key}={}", quoted(value));
    }
    _ = write!(text, "exec {} create \"$@\"", job.engine.program());
}

/// The options for the network. In a network of the job's own, all containers have all names.
fn network_options(
    name: &ContainerName,
    network: JobNetwork,
    services: &[ServiceSpec],
    number: usize,
) -> String {
    if network == JobNetwork::Shared {
        return MACHINES.to_owned();
    }
    // The first address of the network is the guest's.
    let address = |number: usize| format!("\"$net.{}\"", number + 2);
    let host = |name: &str, number| format!(" --add-host {}:{}", quoted(name), address(number));
    let mut words = format!("--network {name} --ip {}", address(number));
    words.push_str(&host("build", 0));
    for (at, service) in services.iter().enumerate() {
        words.extend(service.names.iter().map(|name| host(name, at + 1)));
    }
    words
}

fn search() -> String {
    let starts: Vec<String> =
        SHELLS.iter().map(|shell| format!("if [ -x {shell} ]; then\n\texec {shell}\n")).collect();
    format!("{}else\n\techo shell not found\n\texit 1\nfi\n", starts.join("el"))
}
