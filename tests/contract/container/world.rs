//! Namespaces with an engine, images and containers.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::name::{ContainerName, EngineContainer};
use greenroom_core::execution::Shell;
use greenroom_ports::connector::{ConnectError, Connector as _, Reader, Stage, StageEnd, Stop};
use greenroom_testkit::skipped::skipped;

use crate::linked::sshd::{Set, Sshd};
use crate::linked::support::{Kept, never, stage};

/// The variable that is set in the namespaces: the directory of this world, and its engine.
const INSIDE: &str = "GREENROOM_TEST_CONTAINERS";
const ENGINE: &str = "GREENROOM_TEST_ENGINE";
/// A runtime that lets Docker start containers in namespaces.
const RUNTIME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/containers/lab/runtime");

/// Runs its arguments where an engine works: crun needs one hierarchy of control groups.
const INIT: &str = r#"
mount --make-rprivate / && mount -t tmpfs none /run && mkdir /run/greenroom && ip link set lo up || exit 97
cd "$GREENROOM_TEST_CONTAINERS" && mount --bind etc /etc/containers || exit 97
for file in passwd shadow sudoers; do [ ! -e /etc/$file ] || mount --bind $file /etc/$file || exit 97; done
umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup
engine=$GREENROOM_TEST_ENGINE
if [ "$engine" = docker ]; then
  mount -t tmpfs none /etc/docker && cp daemon.json /etc/docker || exit 97
  dockerd --data-root "$PWD/docker" >dockerd.log 2>&1 &
  until docker version >/dev/null 2>&1; do kill -0 $! && sleep 0.05 || exit 97; done
fi
for image in ash bash dash none; do
  tar -C "$image" -c . | $engine import - "localhost/$image:1" || exit 97
done >/dev/null 2>&1
$engine run --rm --network host localhost/ash:1 true || exit 97
"$@"
exit $?
"#;
const NO_ENGINE: i32 = 97;

const CONTAINERS_CONF: &str = r#"
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"#;

/// A script that searches for a shell as GitLab Runner does.
const SEARCH: &str =
    "for sh in /bin/bash /bin/sh; do [ ! -x $sh ] || exec $sh; done; echo shell not found; exit 1";

/// The engine of the namespaces.
pub(super) fn engine() -> ContainerEngine {
    match std::env::var(ENGINE).as_deref() {
        Ok("docker") => ContainerEngine::Docker,
        _ => ContainerEngine::Podman,
    }
}

/// While it lives, Docker's runtime creates a container, and does not start it.
pub(super) struct HeldStart {
    number: String,
    file: PathBuf,
}

impl HeldStart {
    pub(super) fn begin(name: &ContainerName) -> Self {
        let asked =
            Command::new("docker").args(["inspect", "--format={{.Id}}", name.as_str()]).output().unwrap();
        let number = String::from_utf8(asked.stdout).unwrap().trim().to_owned();
        let file = Path::new(&std::env::var_os(INSIDE).unwrap()).join(format!("held-{number}"));
        fs::write(&file, "").unwrap();
        Self { number, file }
    }

    /// A check that the container has a first process, which waits for the start.
    pub(super) fn waits(&self) -> impl Fn() -> bool + use<> {
        let number = self.number.clone();
        move || {
            let mut runtimes = fs::read_dir("/run/docker").into_iter().flatten().flatten();
            runtimes.any(|runtime| runtime.path().join("moby").join(&number).join("exec.fifo").exists())
        }
    }
}

impl Drop for HeldStart {
    fn drop(&mut self) {
        fs::remove_file(&self.file).unwrap();
    }
}

/// Runs tests of this program in namespaces.
pub(super) fn run_inside(engine: ContainerEngine, tests: &str) {
    if !rustix::process::getuid().is_root() {
        return skipped("this is not root");
    }
    if !Path::new("/etc/containers/policy.json").exists() {
        return skipped("Podman is missing");
    }
    if engine == ContainerEngine::Docker && !Path::new("/usr/sbin/dockerd").exists() {
        return skipped("containers: Docker (docker.io) is missing");
    }
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let etc = dir.path().join("etc");
    fs::create_dir(&etc).unwrap();
    fs::copy("/etc/containers/policy.json", etc.join("policy.json")).unwrap();
    fs::write(etc.join("containers.conf"), CONTAINERS_CONF).unwrap();
    let storage =
        format!("[storage]\ndriver = \"vfs\"\nrunroot = \"{at}/run\"\ngraphroot = \"{at}/graph\"\n");
    fs::write(etc.join("storage.conf"), storage).unwrap();
    let daemon = serde_json::json!({
        "runtimes": {"lab": {"path": RUNTIME}}, "default-runtime": "lab", "bridge": "none", "iptables": false,
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
    });
    fs::write(dir.path().join("daemon.json"), daemon.to_string()).unwrap();
    for (file, mode, lines) in [
        ("passwd", 0o644, "ci:x:4711:4711::/tmp:/bin/sh\n"),
        ("shadow", 0o640, "ci:*:1::::::\n"),
        // As on Debian.
        ("sudoers", 0o440, "Defaults env_reset, use_pty\nci ALL=(ALL:ALL) NOPASSWD: ALL\n"),
    ] {
        let own = fs::read_to_string(Path::new("/etc").join(file)).unwrap_or_default();
        fs::write(dir.path().join(file), own + lines).unwrap();
        fs::set_permissions(dir.path().join(file), fs::Permissions::from_mode(mode)).unwrap();
    }
    for image in ["ash", "bash", "dash", "none"] {
        make_image(&dir.path().join(image), image);
    }
    let ended = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", INIT, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args([tests, "--ignored", "--test-threads=2", "--nocapture"])
        .env(INSIDE, dir.path())
        .env(ENGINE, engine.program())
        .env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
    if ended.status.code() == Some(NO_ENGINE) {
        let why = said.lines().last().unwrap_or_default();
        return skipped(format!("an engine does not run in namespaces here: {why}"));
    }
    eprintln!("{said}");
    assert!(ended.status.success() && !said.contains(" 0 passed"), "{tests}");
}

/// The files of an image: busybox, except in `none`, and the shell that it is named after.
fn make_image(root: &Path, name: &str) {
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::create_dir_all(root.join("tmp")).unwrap();
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    copy_program(root, "busybox", "bin/tool");
    if name == "none" {
        return;
    }
    for applet in ["cat", "echo", "env", "head", "id", "ls", "sleep", "tr", "true", "wc", "yes"] {
        symlink("tool", root.join("bin").join(applet)).unwrap();
    }
    match name {
        "dash" => copy_program(root, "dash", "bin/sh"),
        _ => symlink("tool", root.join("bin/sh")).unwrap(),
    }
    if name == "bash" {
        copy_program(root, "bash", "bin/bash");
    }
    for (name, script) in [
        ("entry", "#!/bin/sh\nENTERED=yes; export ENTERED; exec \"$@\"\n"),
        ("three", "#!/bin/sh\necho Error: unknown command sh >&2; exit 3\n"),
        ("counts", "#!/bin/sh\necho once >>/count/times; exit 1\n"),
        ("bad", "#!/nowhere/sh\n"),
        ("six", "#!/bin/sh\nfor n in 1 2 3 4 5 6; do read -r line; done; [ $# = 0 ] || exec \"$@\"\n"),
        ("slow", "#!/bin/sh\nsleep 2; exec \"$@\"\n"),
        ("quits", "exit 0\n"),
    ] {
        let path = root.join("bin").join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Copies a program and its libraries.
fn copy_program(root: &Path, program: &str, to: &str) {
    let found = ["/bin", "/usr/bin"].map(|dir| Path::new(dir).join(program));
    let found = found.iter().find(|path| path.exists()).unwrap_or_else(|| panic!("no {program}"));
    fs::copy(found, root.join(to)).unwrap();
    let libraries = Command::new("ldd").arg(found).output().unwrap();
    for word in
        String::from_utf8_lossy(&libraries.stdout).split_whitespace().filter(|word| word.starts_with('/'))
    {
        let library = root.join(word.trim_start_matches('/'));
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        fs::copy(word, library).unwrap();
    }
}

/// True in the namespaces. Elsewhere, their tests have nothing to do.
pub(super) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// The way in which a stage reaches its container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Link,
    Connection,
}

pub(super) const WAYS: [Way; 2] = [Way::Link, Way::Connection];

/// A guest with an engine.
pub(super) struct Guest {
    pub(super) sshd: Sshd,
}

impl Guest {
    pub(super) async fn start() -> Self {
        Self::with(Set::default()).await
    }

    pub(super) async fn with(set: Set<'_>) -> Self {
        Self { sshd: Sshd::with(set).await }
    }

    /// A guest whose login is not root.
    pub(super) async fn start_as_user() -> Self {
        let mut guest = Self::start().await;
        for (path, mode) in
            [(guest.sshd.dir.path().to_owned(), 0o755), (guest.sshd.path("authorized_keys"), 0o644)]
        {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        "ci".clone_into(&mut guest.sshd.at.user);
        guest
    }

    /// Creates a container as `prepare` does.
    pub(super) fn create(image: &str, options: &[&str]) -> ContainerName {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = ContainerName::parse(&format!("greenroom-{image}-{number}")).unwrap();
        let mut create = Command::new(engine().program());
        create.args(["create", "--interactive", "--log-driver", "none", "--network", "host"]);
        let mut rest = Vec::new();
        match engine() {
            ContainerEngine::Podman => {
                create.arg(format!("--pidfile=/run/greenroom/{name}.pid")).args(options);
            }
            ContainerEngine::Docker => {
                fs::create_dir_all("/run/greenroom").unwrap();
                create.arg(format!("--cidfile=/run/greenroom/{name}.id"));
                for option in options {
                    let list = option.strip_prefix("--entrypoint=").filter(|list| list.starts_with('['));
                    let Some(list) = list else {
                        create.arg(option);
                        continue;
                    };
                    let words: Vec<String> = serde_json::from_str(list).unwrap();
                    create.arg(format!("--entrypoint={}", words[0]));
                    rest = words[1..].to_vec();
                }
            }
        }
        create.args(["--name", name.as_str()]).arg(format!("localhost/{image}:1")).args(rest);
        let created = create.args(["sh", "-c", SEARCH]).output().unwrap();
        assert!(created.status.success(), "{created:?}");
        name
    }

    pub(super) async fn run(
        &self,
        way: Way,
        stage: Stage,
        stop: Stop<'_>,
    ) -> (Result<StageEnd, ConnectError>, Kept) {
        match way {
            Way::Link => self.sshd.run(stage, stop).await,
            Way::Connection => {
                let mut kept = Kept::default();
                let end = self.sshd.ssh.run(&self.sshd.id, &self.sshd.at, stage, &mut kept, stop).await;
                (end, kept)
            }
        }
    }

    /// Runs a script in a container to its end.
    pub(super) async fn run_in(&self, way: Way, name: &ContainerName, script: &str) -> (StageEnd, Kept) {
        let (end, kept) = self.run(way, inside(name, script), never()).await;
        (end.unwrap_or_else(|error| panic!("{way:?} {name}: {error}: {}", kept.err())), kept)
    }

    /// Runs a script on the guest itself, while `ahead` may start.
    pub(super) async fn beside(&self, ahead: &ContainerName, script: &str) {
        let stage = Stage { ahead: Some(at_engine(ahead)), ..stage(Shell::Bash, script) };
        let (end, kept) = self.run(Way::Link, stage, never()).await;
        assert_eq!(end.unwrap(), StageEnd::Exited(0), "{kept:?}");
    }
}

pub(super) fn at_engine(name: &ContainerName) -> EngineContainer {
    EngineContainer { engine: engine(), name: name.clone() }
}

pub(super) fn inside(name: &ContainerName, script: impl AsRef<[u8]>) -> Stage {
    Stage {
        reader: Reader::Container(at_engine(name)),
        start_within: Duration::from_secs(30),
        stop_grace: Duration::from_secs(3),
        ..stage(Shell::Sh, script)
    }
}

/// The number of a container's first process, when it was last started.
pub(super) fn first_process(name: &ContainerName) -> Option<u32> {
    if engine() == ContainerEngine::Podman {
        return fs::read_to_string(format!("/run/greenroom/{name}.pid")).ok()?.trim().parse().ok();
    }
    let inspected = Command::new("docker").args(["inspect", "--format", PID, name.as_str()]).output().ok()?;
    String::from_utf8_lossy(&inspected.stdout).trim().parse().ok().filter(|pid| *pid != 0)
}

const PID: &str = "{{.State.Pid}}";

/// A command that succeeds if the container has started.
pub(super) fn has_started(name: &ContainerName) -> String {
    match engine() {
        ContainerEngine::Podman => format!("[ -s /run/greenroom/{name}.pid ]"),
        ContainerEngine::Docker => format!("[ \"$(docker inspect --format '{PID}' {name})\" != 0 ]"),
    }
}

/// The engine's processes of a container: its clients and its monitor.
pub(super) fn engines(name: &ContainerName) -> Vec<String> {
    let mut all = processes(name.as_str());
    if let Ok(id) = fs::read_to_string(format!("/run/greenroom/{name}.id")) {
        all.extend(processes(id.trim()));
    }
    all
}

/// The command lines of living processes that contain a text.
pub(super) fn processes(text: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let lines = entries.filter_map(|process: PathBuf| {
        let line = fs::read(process.join("cmdline")).ok()?;
        // A zombie has none.
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(text)).collect()
}
