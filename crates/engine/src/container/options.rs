//! The options of a container, as words of a shell.

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::name::ContainerName;
use greenroom_core::container::spec::{ContainerJob, ContainerSpec};
use greenroom_core::text::{clean_line, quoted};

use super::dialect::EngineDialect;

/// The longest name of a variable in a sentence, in characters.
const NAME: usize = 100;

/// Variables that the shell which runs the engine's program, its libraries or its language take for their own.
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
    "BASH",
    "BASHOPTS",
    "BASHPID",
    "BASH_ALIASES",
    "BASH_ARGC",
    "BASH_ARGV",
    "BASH_ARGV0",
    "BASH_CMDS",
    "BASH_COMMAND",
    "BASH_COMPAT",
    "BASH_ENV",
    "BASH_EXECUTION_STRING",
    "BASH_LINENO",
    "BASH_LOADABLES_PATH",
    "BASH_MONOSECONDS",
    "BASH_REMATCH",
    "BASH_SOURCE",
    "BASH_SUBSHELL",
    "BASH_TRAPSIG",
    "BASH_VERSINFO",
    "BASH_VERSION",
    "BASH_XTRACEFD",
    "LC_ADDRESS",
    "LC_ALL",
    "LC_COLLATE",
    "LC_CTYPE",
    "LC_IDENTIFICATION",
    "LC_MEASUREMENT",
    "LC_MESSAGES",
    "LC_MONETARY",
    "LC_NAME",
    "LC_NUMERIC",
    "LC_PAPER",
    "LC_TELEPHONE",
    "LC_TIME",
    "NOTIFY_SOCKET",
    "CGO_ENABLED",
    "GODEBUG",
    "GOGC",
    "GOMAXPROCS",
    "GOMEMLIMIT",
    "GOTRACEBACK",
    "TZ",
    "_",
];
const TAKEN_BEGINNINGS: &[&str] = &["LD_", "LISTEN_"];

/// Names of variables and beginnings of names that an engine's own program reads.
fn taken_by(engine: ContainerEngine) -> (&'static [&'static str], &'static [&'static str]) {
    match engine {
        ContainerEngine::Podman => (
            &[
                "REGISTRY_AUTH_FILE",
                "CONTAINER_CONNECTION",
                "CONTAINER_HOST",
                "CONTAINER_PASSPHRASE",
                "CONTAINER_SSHKEY",
                "DOCKER_CONFIG",
                "STORAGE_DRIVER",
                "STORAGE_OPTS",
                "XDG_CACHE_HOME",
                "XDG_CONFIG_DIRS",
                "XDG_CONFIG_HOME",
                "XDG_DATA_DIRS",
                "XDG_DATA_HOME",
                "XDG_RUNTIME_DIR",
                "XDG_STATE_HOME",
            ],
            &["CONTAINERS_", "_CONTAINERS_", "CONTAINER_TLS_", "PODMAN_", "BUILDAH_"],
        ),
        ContainerEngine::Docker => (
            &[
                "DOCKER_API_VERSION",
                "DOCKER_CERT_PATH",
                "DOCKER_CONFIG",
                "DOCKER_CONTEXT",
                "DOCKER_DEFAULT_PLATFORM",
                "DOCKER_HOST",
                "DOCKER_TLS",
                "DOCKER_TLS_VERIFY",
            ],
            &["DOCKER_CLI_", "DOCKER_CONTENT_TRUST"],
        ),
    }
}

/// The beginnings of variables' names that programs look for beside those known here. A line of a file carries these
/// wherever it can.
const DOUBTED_BEGINNINGS: &[&str] =
    &["BASH", "LC_", "XDG_", "CONTAINER", "STORAGE_", "PODMAN_", "BUILDAH_", "DOCKER_"];

/// The longest variable that a program can get by its environment, with `=` and the byte at its end.
const LONGEST_EXPORTED: usize = 128 << 10;
/// The longest line of a file that engines read.
const LONGEST_LINE: usize = (64 << 10) - 1;

/// Number of variables that a sentence names.
const MOST_NAMED: usize = 10;

/// The way in which a variable reaches the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    /// The environment of its program.
    Environment,
    /// A file with a line for each variable.
    File,
    /// None: the container does not get it.
    Nothing,
}

/// The way in which a variable reaches this engine.
pub(super) fn carrier(engine: ContainerEngine, key: &str, value: &str) -> Carrier {
    let begins = |beginnings: &[&str]| beginnings.iter().any(|begin| key.starts_with(begin));
    let (names, beginnings) = taken_by(engine);
    let is_taken =
        TAKEN.contains(&key) || names.contains(&key) || begins(TAKEN_BEGINNINGS) || begins(beginnings);
    let length = key.len() + value.len();
    let exports = is_name(key) && !is_taken && !value.contains('\0') && length + 2 <= LONGEST_EXPORTED;
    match (exports, fits_a_file(key, value)) {
        (true, fits) if !fits || !begins(DOUBTED_BEGINNINGS) => Carrier::Environment,
        (_, true) => Carrier::File,
        (_, false) => Carrier::Nothing,
    }
}

/// True for what a shell can export.
fn is_name(key: &str) -> bool {
    let starts = key.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    starts && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// True if a line of a file can carry a variable.
fn fits_a_file(key: &str, value: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c == '=' || c == '\0' || c == '#' || c == '*';
    let is_line = !value.contains(['\n', '\r', '\0']) && key.len() + value.len() < LONGEST_LINE;
    !key.is_empty() && !key.contains(odd) && is_line
}

/// A sentence for each container that does not get all its variables.
pub(super) fn lost(job: &ContainerJob) -> Vec<String> {
    let sentence = |(number, container): (usize, &ContainerSpec)| {
        let all = container.environment.iter();
        let lost = all.filter(|(key, value)| carrier(job.engine, key, value.expose()) == Carrier::Nothing);
        let mut names: Vec<String> = lost
            .take(MOST_NAMED + 1)
            .map(|(key, _)| format!("`{}`", clean_line(key.as_bytes(), NAME)))
            .collect();
        if names.len() > MOST_NAMED {
            "others".clone_into(&mut names[MOST_NAMED]);
        }
        let role = if number == 0 { "image" } else { "service" };
        (!names.is_empty()).then(|| {
            format!(
                "{role} `{}` does not get {}: {} takes no line breaks in a variable of such a name, and at most 64 KiB",
                container.called,
                names.join(", "),
                job.engine.called()
            )
        })
    };
    job.containers().enumerate().filter_map(sentence).collect()
}

/// The options that job and pool choose for a container.
pub(super) fn of(job: &ContainerJob, container: &ContainerSpec) -> Vec<String> {
    let options = &job.options;
    let dialect = EngineDialect(job.engine);
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
