//! The pool's registries for Docker in Docker.
//!
//! A Docker daemon among a job's services pulls images by itself. It reads mirrors from `/etc/docker/daemon.json`, and
//! the certificates that verify a registry from `/etc/docker/certs.d`.

use std::collections::BTreeSet;

use crate::core::container::daemon::runs_docker_as_root;
use crate::core::container::name::ContainerName;
use crate::core::container::registries::place;
use crate::core::container::spec::{ContainerJob, ContainerSpec};
use crate::core::text::quoted;

/// The only registry for which Docker knows mirrors.
const MIRRORED: &str = "docker.io";
const SETTINGS: &str = "daemon.json";
const CERTIFICATES: &str = "certs.d";

/// The files of one daemon.
pub(super) struct DockerFiles {
    /// Their directory on the instance, as a word of a shell.
    dir: String,
    settings: Option<String>,
    /// Host and port of each registry that the pool's certificates verify.
    verified: BTreeSet<String>,
}

impl DockerFiles {
    /// `None`: the container has no Docker daemon, or the pool has nothing for it, or files of the operator's own.
    pub(super) fn of(
        name: &ContainerName,
        job: &ContainerJob,
        (number, container): (usize, &ContainerSpec),
    ) -> Option<Self> {
        let is_daemon = number > 0 && runs_docker_as_root(&container.called);
        if !is_daemon || job.volumes.iter().any(|volume| covers_files(volume)) {
            return None;
        }
        let mirrors: Vec<String> =
            job.mirrors.iter().filter(|(of, _)| of == MIRRORED).filter_map(|(_, at)| url(at)).collect();
        // Docker refuses to start with mirrors from two sources.
        let has_own = container.command.iter().flatten().any(|word| word.starts_with("--registry-mirror"));
        let settings = (!mirrors.is_empty() && !has_own)
            .then(|| serde_json::json!({ "registry-mirrors": mirrors }).to_string());
        let verified = if job.ca.is_some() { registries(job, &mirrors) } else { BTreeSet::new() };
        let dir = format!("\"$shared/{name}-{number}.docker\"");
        (settings.is_some() || !verified.is_empty()).then_some(Self { dir, settings, verified })
    }

    /// Commands that write the files.
    pub(super) fn writes(&self, ca: Option<&str>) -> Vec<String> {
        let Self { dir, settings, verified } = self;
        let mut lines = vec![format!("mkdir -p {dir}")];
        lines.extend(settings.iter().map(|text| format!("printf %s {} >{dir}/{SETTINGS}", quoted(text))));
        for registry in verified {
            let at = format!("{dir}/{CERTIFICATES}/{}", quoted(registry));
            let ca = quoted(ca.unwrap_or_default());
            lines.push(format!("mkdir -p {at} && printf %s {ca} >{at}/ca.crt"));
        }
        lines
    }

    /// The container's options.
    pub(super) fn options(&self) -> impl Iterator<Item = String> {
        let settings = self.settings.is_some().then_some(SETTINGS);
        let certificates = (!self.verified.is_empty()).then_some(CERTIFICATES);
        let all = settings.into_iter().chain(certificates);
        all.map(|file| format!("--volume {}/{file}:/etc/docker/{file}:ro", self.dir))
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
