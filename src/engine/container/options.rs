//! The options of a container, as words of a shell.

use super::dialect::Dialect;
use crate::core::container::name::ContainerName;
use crate::core::container::spec::{ContainerJob, ContainerSpec};
use crate::core::text::quoted;

/// Variables that a shell or the engine's program would take for its own.
const TAKEN: &[&str] = &[
    "PATH",
    "HOME",
    "TMPDIR",
    "IFS",
    "ENV",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "OPTIND",
    "OPTARG",
    "OPTERR",
    "PPID",
    "UID",
    "EUID",
    "GROUPS",
    "SHELLOPTS",
    "DIRSTACK",
    "FUNCNAME",
    "HISTCMD",
    "LINENO",
    "RANDOM",
    "SRANDOM",
    "SECONDS",
    "EPOCHSECONDS",
    "EPOCHREALTIME",
    "PS4",
    "POSIXLY_CORRECT",
    "NOTIFY_SOCKET",
    "REGISTRY_AUTH_FILE",
    "DOCKER_API_VERSION",
    "DOCKER_CERT_PATH",
    "DOCKER_CONFIG",
    "DOCKER_CONTEXT",
    "DOCKER_DEFAULT_PLATFORM",
    "DOCKER_HOST",
    "DOCKER_TLS",
    "DOCKER_TLS_VERIFY",
    "CGO_ENABLED",
    "GODEBUG",
    "GOGC",
    "GOMAXPROCS",
    "GOMEMLIMIT",
    "GOTRACEBACK",
    "TZ",
    "_",
];
const TAKEN_BEGINNINGS: &[&str] = &[
    "BASH",
    "LD_",
    "LC_",
    "XDG_",
    "CONTAINER",
    "_CONTAINERS_",
    "DOCKER_CLI_",
    "DOCKER_CONTENT_TRUST",
    "STORAGE_",
    "PODMAN_",
    "BUILDAH_",
    "LISTEN_",
];

/// True if the engine gets a variable by its environment. The others come from a file with a line for each.
pub(super) fn exports(key: &str, value: &str) -> bool {
    let starts = key.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    let is_name = starts && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let is_taken = TAKEN.contains(&key) || TAKEN_BEGINNINGS.iter().any(|begin| key.starts_with(begin));
    is_name && !is_taken && !value.contains('\0')
}

/// True if a line of a file can carry a variable. No container gets one that neither way carries.
pub(super) fn fits_a_file(key: &str, value: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c == '=' || c == '\0' || c == '#' || c == '*';
    !key.is_empty() && !key.contains(odd) && !value.contains(['\n', '\r', '\0'])
}

/// What job and pool choose for a container.
pub(super) fn of(job: &ContainerJob, container: &ContainerSpec) -> Vec<String> {
    let (options, dialect) = (&job.options, Dialect(job.engine));
    let mut words = Vec::new();
    let mut put = |option: &str, value: &str| words.push(format!("{option} {}", quoted(value)));
    if let Some(entrypoint) = &container.entrypoint {
        put("--entrypoint", &dialect.entrypoint(entrypoint).0);
    }
    if let Some(user) = &container.user {
        put("--user", user);
    }
    if let Some(bytes) = options.shm_size {
        put("--shm-size", &format!("{bytes}b"));
    }
    if let Some(bytes) = options.memory {
        put("--memory", &format!("{bytes}b"));
    }
    if let Some(cpus) = options.cpus {
        put("--cpus", &cpus.to_string());
    }
    for (option, values) in [
        ("--add-host", &options.extra_hosts),
        ("--dns", &options.dns),
        ("--cap-add", &options.cap_add),
        ("--cap-drop", &options.cap_drop),
        ("--device", &options.devices),
    ] {
        for value in values {
            put(option, value);
        }
    }
    for (option, value) in options.gpus.iter().flat_map(|gpus| dialect.gpus(gpus)) {
        put(option, &value);
    }
    for (limit, value) in &options.ulimit {
        put("--ulimit", &format!("{limit}={value}"));
    }
    for (path, how) in &options.tmpfs {
        put("--tmpfs", &if how.is_empty() { path.clone() } else { format!("{path}:{how}") });
    }
    if container.privileged {
        words.push("--privileged".to_owned());
    }
    if job.init {
        words.push("--init $init".to_owned());
    }
    words
}

/// Directories of the guest, and volumes that all containers of the job share. A volume without a source is the job's.
pub(super) fn volumes(name: &ContainerName, job: &ContainerJob, dirs: &[&str]) -> Vec<String> {
    let dirs = dirs.iter().map(|dir| format!("{dir}:{dir}"));
    let volumes = job.volumes.iter().enumerate().map(|(number, volume)| {
        if volume.contains(':') { volume.clone() } else { format!("{name}-volume-{number}:{volume}") }
    });
    dirs.chain(volumes).map(|volume| format!("--volume {}", quoted(&volume))).collect()
}
