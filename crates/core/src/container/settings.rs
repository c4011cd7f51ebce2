//! The settings of a pool's configuration for containers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::ContainerEngine;
use super::image::ImageName;
use crate::glob::Glob;
use crate::images::WarmPolicy;

/// `[pool.NAME.containers]`.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerSettings {
    /// The engine of the pool's instances.
    pub engine: ContainerEngine,
    pub mode: Mode,
    /// The image for jobs that name none; required by [`Mode::Always`].
    pub default_image: Option<String>,
    /// Images that jobs may name; `None`: any.
    pub images: Option<Vec<Glob>>,
    /// Images that services may have; `None`: any.
    pub services: Option<Vec<Glob>>,
    pub services_limit: Option<usize>,
    /// Tried in this order.
    pub pull_policy: Vec<PullPolicy>,
    /// The pull policies that jobs may request.
    pub allowed_pull_policies: Vec<PullPolicy>,
    /// Mirrors: from a registry to the one that is used in its place.
    pub mirrors: BTreeMap<String, String>,
    /// A Docker `config.json` on the runner host.
    pub registry_auth: Option<PathBuf>,
    /// True if jobs get these credentials where other jobs could read them.
    pub registry_auth_shared: bool,
    /// Certificates that the registries' own are verified with, on the runner host.
    pub ca: Option<PathBuf>,
    pub privileged: Privileged,
    /// Volumes that all containers of a job share, in Docker's syntax.
    pub volumes: Vec<String>,
    /// `None`: services are not waited for.
    pub wait_for_services: Option<Duration>,
    pub pull_timeout: Duration,
    /// Free space to keep on static hosts, in bytes.
    pub min_free_space: u64,
    /// Images that idle instances have: complete names, the most important one first.
    pub images_warm: Vec<ImageName>,
    /// The most bytes of all images that are learned from the jobs; `None`: none are.
    pub images_learned: Option<u64>,
    pub umask: Umask,
    /// The user of jobs' containers; `None`: the job's or the image's.
    pub user: Option<String>,
    /// Users that jobs may name; `None`: any.
    pub allowed_users: Option<Vec<Glob>>,
    pub options: EngineOptions,
}

impl ContainerSettings {
    /// The images that the keeper pulls on idle instances.
    pub fn warm(&self) -> WarmPolicy {
        let images = self.images_warm.iter().map(|image| image.to_string().into()).collect();
        WarmPolicy { images, learn: self.images_learned, pull_timeout: self.pull_timeout }
    }
}

/// The jobs that run in containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Only jobs that name an image.
    #[default]
    Image,
    Always,
}

/// The condition on which an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    pub const ALL: [Self; 3] = [Self::Always, Self::IfNotPresent, Self::Never];
    /// The names of [`ALL`](Self::ALL).
    pub const NAMES: [&str; 3] = ["always", "if-not-present", "never"];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::IfNotPresent => "if-not-present",
            Self::Never => "never",
        }
    }
}

/// The containers that get all of the guest's rights.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Privileged {
    /// All, where an instance is terminated after one job.
    #[default]
    SingleUse,
    All,
    None,
    /// Containers of these images.
    Images(Vec<Glob>),
}

/// The umask of the runner's own stages in a job with a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Umask {
    /// 0 if the image's user is not root, or if there are services; else 022.
    #[default]
    Auto,
    /// 0.
    Open,
    /// 022.
    Closed,
}

/// Options of the job's container and its services, as in `[runners.docker]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineOptions {
    /// Size of the shared memory, in bytes.
    pub shm_size: Option<u64>,
    /// Further hosts, each `NAME:ADDRESS`.
    pub extra_hosts: Vec<String>,
    pub dns: Vec<String>,
    pub cap_add: Vec<String>,
    pub cap_drop: Vec<String>,
    pub devices: Vec<String>,
    pub gpus: Option<String>,
    /// Limits of processes: from a limit's name to `SOFT` or `SOFT:HARD`.
    pub ulimit: BTreeMap<String, String>,
    /// Temporary file systems: from a path to its mount options.
    pub tmpfs: BTreeMap<String, String>,
    /// Limit for the memory, in bytes.
    pub memory: Option<u64>,
    /// Limit for processors, as a decimal number, such as `1.5`.
    pub cpus: Option<f64>,
    /// Processes of each container; `None`: no limit.
    pub pids_limit: Option<u64>,
    /// The MTU of the networks of containers, in bytes; `None`: the MTU of the instance's default route.
    pub network_mtu: Option<u64>,
}

impl Default for ContainerSettings {
    fn default() -> Self {
        Self {
            engine: ContainerEngine::default(),
            mode: Mode::default(),
            default_image: None,
            images: None,
            services: None,
            services_limit: None,
            pull_policy: vec![PullPolicy::Always, PullPolicy::IfNotPresent],
            allowed_pull_policies: vec![PullPolicy::Always, PullPolicy::IfNotPresent],
            mirrors: BTreeMap::new(),
            registry_auth: None,
            registry_auth_shared: false,
            ca: None,
            privileged: Privileged::default(),
            volumes: vec!["/certs/client".to_owned()],
            wait_for_services: Some(Duration::from_secs(30)),
            pull_timeout: Duration::from_mins(15),
            min_free_space: 2 << 30,
            images_warm: Vec::new(),
            images_learned: None,
            umask: Umask::default(),
            user: None,
            allowed_users: None,
            options: EngineOptions::default(),
        }
    }
}
