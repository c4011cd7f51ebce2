//! The differences between the engines in the script of `prepare`. Their commands are in `podman.sh` and `docker.sh`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64ct::{Base64, Encoding as _};
use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::image::{ImageName, runs_docker_as_root};
use greenroom_core::container::name::ContainerName;
use greenroom_core::container::registries::{self, place};
use greenroom_core::container::spec::{ContainerJob, ContainerSpec, Login, starts_nothing};
use greenroom_core::text::quoted;
use serde_json::json;

/// Docker Hub in the name of an image.
const HUB: &str = "docker.io";
/// Docker Hub in Docker's file of credentials.
const HUB_LOGIN: &str = "https://index.docker.io/v1/";

/// One engine's part of the script.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineDialect(pub(super) ContainerEngine);

impl EngineDialect {
    /// The functions and variables that `prepare.sh` needs.
    pub(super) fn functions(self, containers: &[&ContainerSpec], job: &ContainerJob) -> String {
        match self.0 {
            ContainerEngine::Podman => include_str!("podman.sh").to_owned(),
            ContainerEngine::Docker => {
                let mut text = include_str!("docker.sh").to_owned();
                text.push_str("\n# The name of an image at the pool's mirror.\nmirrored() {\ncase $1 in\n");
                for (number, container) in containers.iter().enumerate() {
                    if let Some(name) = mirrored(job, &container.image) {
                        _ = writeln!(text, "{number}) echo {} ;;", quoted(&name));
                    }
                }
                text + "*) ;;\nesac\n}\n"
            }
        }
    }

    /// Commands that write what pulls need: files in memory, except certificates, which Docker's daemon reads.
    pub(super) fn registries(self, job: &ContainerJob) -> Vec<String> {
        let mut lines = Vec::new();
        match self.0 {
            ContainerEngine::Podman => {
                if let Some(ca) = &job.ca {
                    lines.push("mkdir \"$work/secret/ca\"".to_owned());
                    lines.push(file(ca, "secret/ca/ca.crt"));
                }
                if !job.mirrors.is_empty() {
                    let base =
                        "cat \"${CONTAINERS_REGISTRIES_CONF:-/etc/containers/registries.conf}\" 2>/dev/null";
                    let mirrors = job.mirrors.iter().map(|(registry, mirror)| (registry, mirror));
                    let mirrors = quoted(&registries::mirrors(mirrors));
                    lines.push(format!("{{ {base}; printf %s {mirrors}; }} >\"$work/registries.conf\""));
                }
            }
            ContainerEngine::Docker => {
                for registry in job.ca.iter().flat_map(|_| verified(job)) {
                    let at = format!("/etc/docker/certs.d/{}", quoted(&registry));
                    let ca = quoted(job.ca.as_deref().unwrap_or_default());
                    lines.push(format!("mkdir -p {at} && printf %s {ca} >{at}/greenroom.crt"));
                }
            }
        }
        lines
    }

    /// Commands that write the credentials of one image.
    pub(super) fn login(self, number: usize, image: &str, login: &Login) -> Vec<String> {
        let pair = format!("{}:{}", login.username, login.password.expose());
        let auth = Base64::encode_string(pair.as_bytes());
        let content = |scope: &str| json!({ "auths": { scope: { "auth": auth } } }).to_string();
        match self.0 {
            ContainerEngine::Podman => vec![file(&content(&login.scope), &format!("secret/{number}.json"))],
            // Docker knows credentials of registries only, not of paths.
            ContainerEngine::Docker => {
                let registry = ImageName::parse(image).map(|image| image.registry().to_owned());
                let registry = registry.unwrap_or_else(|_| login.scope.clone());
                let scope = if registry == HUB { HUB_LOGIN } else { &registry };
                let dir = format!("mkdir \"$work/secret/{number}\"");
                vec![dir, file(&content(scope), &format!("secret/{number}/config.json"))]
            }
        }
    }

    /// The options of a container that no job chooses. `own`: its name at the engine.
    pub(super) fn creation(self, own: &str, is_jobs: bool) -> String {
        let logs = match (is_jobs, self.0) {
            (true, _) => "--interactive --log-driver none",
            (false, ContainerEngine::Podman) => "--log-driver k8s-file --log-opt max-size=10mb",
            (false, ContainerEngine::Docker) => "--log-driver json-file --log-opt max-size=10m",
        };
        let file = match self.0 {
            ContainerEngine::Podman => {
                // Its timers need systemd, and nothing reads their results.
                format!("--pidfile \"$shared/{own}.pid\" --systemd=false --no-healthcheck")
            }
            ContainerEngine::Docker => format!("--cidfile \"$shared/{own}.id\""),
        };
        format!("--name {own} {file} --pull never {logs}")
    }

    /// The options of a container with a network of its own. Docker lets its users open ports below 1024, and send pings.
    pub(super) fn in_own_network(self, is_rootless: bool) -> Vec<String> {
        let mut words = vec!["$resolvers".to_owned()];
        if self.0 == ContainerEngine::Podman {
            words.push("--sysctl net.ipv4.ip_unprivileged_port_start=0".to_owned());
            if !is_rootless {
                words.push("--sysctl 'net.ipv4.ping_group_range=0 2147483647'".to_owned());
            }
        }
        words
    }

    /// The value of `--entrypoint`, and what goes before the command.
    pub(super) fn entrypoint(self, words: &[String]) -> (String, &[String]) {
        match (self.0, words) {
            (_, words) if starts_nothing(words) => (String::new(), &[]),
            (ContainerEngine::Docker, [first, rest @ ..]) => (first.clone(), rest),
            (_, words) => (json!(words).to_string(), &[]),
        }
    }

    /// The options for GPUs: names or numbers after `device=`, a count, or `all`.
    pub(super) fn gpus(self, gpus: &str) -> Vec<(&'static str, String)> {
        let names = gpus.trim_matches('"').trim_start_matches("device=");
        match self.0 {
            ContainerEngine::Podman => {
                let each = names.split(',').map(|gpu| ("--device", format!("nvidia.com/gpu={}", gpu.trim())));
                each.collect()
            }
            ContainerEngine::Docker if names.len() == gpus.len() => vec![("--gpus", gpus.to_owned())],
            ContainerEngine::Docker => vec![("--gpus", format!("\"device={names}\""))],
        }
    }
}

/// A command that writes a file in memory.
pub(super) fn file(content: &str, name: &str) -> String {
    format!("printf %s {} >\"$work/{name}\"", quoted(content))
}

/// The name of an image at the pool's mirror.
fn mirrored(job: &ContainerJob, image: &str) -> Option<String> {
    let (registry, path) = image.split_once('/')?;
    let (_, mirror) = job.mirrors.iter().find(|(of, _)| of == registry)?;
    Some(format!("{}/{path}", registries::place(mirror).1))
}

/// Registries of the job's images and their mirrors, which the pool's certificates verify.
fn verified(job: &ContainerJob) -> BTreeSet<String> {
    let own = job.registries().filter(|registry| registry != HUB);
    let mirrors = job.mirrors.iter().map(|(_, mirror)| registries::place(mirror));
    let verified = mirrors.filter(|(scheme, _)| *scheme != "http");
    own.chain(verified.filter_map(|(_, place)| place.split('/').next().map(str::to_owned))).collect()
}

// What Docker in Docker needs of the pool and its network.
//
// A Docker daemon among a job's services pulls images by itself, and makes networks. It reads mirrors and the MTU from
// `/etc/docker/daemon.json`, and the certificates that verify a registry from `/etc/docker/certs.d`.

/// The only registry for which Docker knows mirrors.
const MIRRORED: &str = "docker.io";
const SETTINGS: &str = "daemon.json";
const CERTIFICATES: &str = "certs.d";

/// The part of the settings that is used if the script knows an MTU that the daemon has to be told.
const MTU: &str = "${inner:+\"mtu\":$inner}";

/// The files of one daemon.
pub(super) struct DockerFiles {
    /// Their directory on the instance, as a word of a shell.
    dir: String,
    mirrors: Vec<String>,
    /// False if the daemon gets an MTU by its own arguments.
    takes_mtu: bool,
    /// Host and port of each registry that the pool's certificates verify.
    verified: BTreeSet<String>,
}

impl DockerFiles {
    /// `None`: the container has no Docker daemon, or files of the operator's own.
    pub(super) fn of(
        name: &ContainerName,
        job: &ContainerJob,
        (number, container): (usize, &ContainerSpec),
    ) -> Option<Self> {
        let is_daemon = number > 0 && runs_docker_as_root(&container.called);
        if !is_daemon || job.volumes.iter().any(|volume| covers_files(volume)) {
            return None;
        }
        let mut mirrors: Vec<String> =
            job.mirrors.iter().filter(|(of, _)| of == MIRRORED).filter_map(|(_, at)| url(at)).collect();
        let verified = if job.ca.is_some() { registries(job, &mirrors) } else { BTreeSet::new() };
        // Docker refuses to start with a setting from two sources.
        let has_own = |option| container.command.iter().flatten().any(|word| word.starts_with(option));
        if has_own("--registry-mirror") {
            mirrors.clear();
        }
        let dir = format!("\"$shared/{name}-{number}.docker\"");
        Some(Self { dir, mirrors, takes_mtu: !has_own("--mtu"), verified })
    }

    /// The settings, as a word of a shell, and whether the daemon always gets them; `None`: never.
    fn settings(&self) -> Option<(String, bool)> {
        let mirrors = serde_json::json!({ "registry-mirrors": self.mirrors }).to_string();
        match (self.mirrors.is_empty(), self.takes_mtu) {
            (false, false) => Some((quoted(&mirrors), true)),
            (false, true) => {
                let more = quoted(mirrors.trim_end_matches('}'));
                Some((format!("{more}\"{}}}\"", MTU.replace(":+", ":+,").replace('"', "\\\"")), true))
            }
            (true, true) => Some((format!("\"{{{}}}\"", MTU.replace('"', "\\\"")), false)),
            (true, false) => None,
        }
    }

    /// Commands that write the files.
    pub(super) fn writes(&self, ca: Option<&str>) -> Vec<String> {
        let Self { dir, verified, .. } = self;
        let mut lines = vec![format!("mkdir -p {dir}")];
        lines.extend(self.settings().map(|(text, _)| format!("printf %s {text} >{dir}/{SETTINGS}")));
        for registry in verified {
            let at = format!("{dir}/{CERTIFICATES}/{}", quoted(registry));
            let ca = quoted(ca.unwrap_or_default());
            lines.push(format!("mkdir -p {at} && printf %s {ca} >{at}/ca.crt"));
        }
        lines
    }

    /// The container's options.
    pub(super) fn options(&self) -> impl Iterator<Item = String> {
        let mount = |file: &str| format!("--volume {}/{file}:/etc/docker/{file}:ro", self.dir);
        let settings = self.settings().map(|(_, always)| {
            if always { mount(SETTINGS) } else { format!("${{inner:+{}}}", mount(SETTINGS)) }
        });
        let certificates = (!self.verified.is_empty()).then(|| mount(CERTIFICATES));
        settings.into_iter().chain(certificates)
    }
}

/// True if a volume of the pool holds the daemon's files.
fn covers_files(volume: &str) -> bool {
    let target = volume.split(':').nth(1).unwrap_or(volume);
    std::path::Path::new(target).starts_with("/etc/docker")
}

/// A mirror as Docker takes it: without a path.
fn url(mirror: &str) -> Option<String> {
    let (scheme, place) = place(mirror);
    (!place.contains('/')).then(|| format!("{scheme}://{place}"))
}

/// Registries that a daemon may meet: the mirrors, and those of the job's own images.
fn registries(job: &ContainerJob, mirrors: &[String]) -> BTreeSet<String> {
    let own = job.registries().filter(|registry| registry != MIRRORED);
    let mirrors = mirrors.iter().filter_map(|url| url.strip_prefix("https://")).map(str::to_owned);
    own.chain(mirrors).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_with_a_path_is_none_for_docker() {
        assert_eq!(url("m:5000/").as_deref(), Some("https://m:5000"));
        assert_eq!(url("http://m").as_deref(), Some("http://m"));
        assert_eq!(url("https://m/hub"), None);
    }

    #[test]
    fn files_of_the_operators_own_stand() {
        assert!(covers_files("/srv/daemon.json:/etc/docker/daemon.json:ro"));
        assert!(covers_files("/etc/docker"));
        assert!(!covers_files("/etc/docker:/run/docker"));
        assert!(!covers_files("/certs/client"));
    }
}
