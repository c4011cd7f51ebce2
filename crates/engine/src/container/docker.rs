//! What Docker in Docker needs of the pool and its network.
//!
//! A Docker daemon among a job's services pulls images by itself, and makes networks. It reads mirrors and the MTU from
//! `/etc/docker/daemon.json`, and the certificates that verify a registry from `/etc/docker/certs.d`.

use std::collections::BTreeSet;

use greenroom_core::container::daemon::runs_docker_as_root;
use greenroom_core::container::name::ContainerName;
use greenroom_core::container::registries::place;
use greenroom_core::container::spec::{ContainerJob, ContainerSpec};
use greenroom_core::text::quoted;

/// The only registry for which Docker knows mirrors.
const MIRRORED: &str = "docker.io";
const SETTINGS: &str = "daemon.json";
const CERTIFICATES: &str = "certs.d";

/// Goes into the settings if the script knows an MTU that the daemon has to be told.
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
