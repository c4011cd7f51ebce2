//! A machine for one test: namespaces in which Podman works, with registries on its loopback.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking, in helpers too")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output as Ended, Stdio};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::StageShell;
use greenroom_core::ids::InstanceId;
use greenroom_ports::connector::{
    ConnectError, Connector, Mark, Output, RemoteCommand, Stage, StageEnd, Stop, Stream,
};
use greenroom_ports::provider::InstanceKeys;
use greenroom_testkit::skipped::skipped;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// `joe` with the password `geheim`.
const ACCOUNT: &str = "joe:$2y$05$S7IevFEGNKXUkgfJgcXbe.dkmWQAT5RK5uyFn/5of0W6cxTMr61eC\n";

/// Registries listen on 5001 (open), 5002 (with password). Nothing listens on 5009.
const SETUP: &str = r#"
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup 2>/dev/null || :
mount -t cgroup2 none /sys/fs/cgroup
ip link set lo up
for dir in /run /dev/shm /var/tmp "$DIR/storage"; do mount -t tmpfs none "$dir"; done
mkdir /run/lock
docker-registry serve "$DIR/open.yml" >"$DIR/open.log" 2>&1 &
docker-registry serve "$DIR/closed.yml" >"$DIR/closed.log" 2>&1 &
root=$DIR/root
mkdir -p "$root/bin" "$root/tmp" "$root/etc"
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in sh cat env id ls nc sleep true; do ln -s busybox "$root/bin/$applet"; done
echo 'app:x:1000:1000::/tmp:/bin/sh' >"$root/etc/passwd"
import() { tar -C "$root" -c . | podman import -q "$@" >/dev/null; }
import - 127.0.0.1:5001/bb:1
import -c 'USER app' -c 'ENTRYPOINT ["/bin/env"]' - 127.0.0.1:5001/app:1
import -c 'EXPOSE 5432' - 127.0.0.1:5001/db:1
tries=0
until podman push -q 127.0.0.1:5001/bb:1; do tries=$((tries + 1)); [ "$tries" -lt 50 ]; sleep 0.1; done
podman push -q 127.0.0.1:5001/app:1
podman push -q 127.0.0.1:5001/db:1
podman rmi -af >/dev/null
echo ready
exec sleep 600
"#;

pub(super) struct Machine {
    holder: Child,
    init: String,
    dir: tempfile::TempDir,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The first process of the namespaces takes all others with it.
        let _gone = Command::new("kill").args(["-KILL", &self.init]).status();
        let _gone = self.holder.kill();
        let _gone = self.holder.wait();
    }
}

impl Machine {
    /// Starts a machine with an engine; `None`: this system cannot run Podman.
    pub(super) fn start() -> Option<Self> {
        for program in ["podman", "docker-registry", "busybox", "unshare", "nsenter", "ip", "iptables"] {
            let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
            if !found.is_ok_and(|found| found.status.success()) {
                skipped(format_args!("{program} is missing"));
                return None;
            }
        }
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "-n", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", SETUP]);
        let log = fs::File::create(dir.path().join("setup.log")).unwrap();
        let errors = log.try_clone().unwrap();
        let mut holder = environment(&mut unshare, dir.path())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_mins(1);
        loop {
            let log = fs::read_to_string(dir.path().join("setup.log")).unwrap();
            if log.ends_with("ready\n") {
                break;
            }
            if holder.try_wait().unwrap().is_some() || Instant::now() > until {
                let _gone = holder.kill();
                let _gone = holder.wait();
                skipped(format_args!("Podman does not work in namespaces here: {log}"));
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let children = format!("/proc/{0}/task/{0}/children", holder.id());
        let init = fs::read_to_string(children).unwrap().trim().to_owned();
        Some(Self { holder, init, dir })
    }

    fn enter(&self) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["-t", &self.init, "-m", "-n", "-p", "sh", "-c"]);
        environment(&mut nsenter, self.dir.path());
        nsenter
    }

    /// Runs a command to its end, with this input.
    pub(super) fn sh(&self, command: &str, input: &str) -> Ended {
        let pipes = |command: &mut Command| {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut child = pipes(self.enter().arg(command));
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// The standard output of a command that succeeds.
    pub(super) fn text(&self, command: &str) -> String {
        let ended = self.sh(command, "");
        assert!(ended.status.success(), "{command}: {}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8(ended.stdout).unwrap()
    }

    /// A server on port 5003 that answers every request with this status, or not at all.
    pub(super) fn answer(&self, status: &str) {
        let reply = match status {
            "" => "sleep 60".to_owned(),
            status => format!(
                "while IFS= read -r line; do line=${{line%?}}; [ -n \"$line\" ] || break; done\n\
                 printf 'HTTP/1.1 {status}\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n'"
            ),
        };
        let serve = "cat >/run/answer && chmod +x /run/answer && \
                     { busybox nc -ll -p 5003 -e /run/answer </dev/null >/dev/null 2>&1 & } && sleep 0.2";
        assert!(self.sh(serve, &format!("#!/bin/sh\n{reply}\n")).status.success());
    }
}

fn prepare(dir: &Path) {
    let write = |name: &str, text: String| fs::write(dir.join(name), text).unwrap();
    let place = dir.display();
    fs::create_dir(dir.join("storage")).unwrap();
    write("accounts", ACCOUNT.to_owned());
    let registry = |port: u16| {
        format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {place}/registry}}}}\n\
             http: {{addr: \"127.0.0.1:{port}\"}}\n"
        )
    };
    write("open.yml", registry(5001));
    write(
        "closed.yml",
        registry(5002) + &format!("auth: {{htpasswd: {{realm: x, path: {place}/accounts}}}}\n"),
    );
    // A user namespace or a small machine allows neither cgroups nor high limits.
    let limits = "default_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]";
    write(
        "containers.conf",
        format!(
            "[containers]\ncgroups = \"disabled\"\n{limits}\n[engine]\ncgroup_manager = \"cgroupfs\"\n\
             events_logger = \"file\"\n[network]\nnetwork_backend = \"netavark\"\n\
             network_config_dir = \"{place}/storage/networks\"\n"
        ),
    );
    write(
        "storage.conf",
        format!(
            "[storage]\ndriver = \"vfs\"\nrunroot = \"{place}/storage/run\"\ngraphroot = \"{place}/storage/graph\"\n"
        ),
    );
    let insecure = |port: u16| format!("[[registry]]\nlocation = \"127.0.0.1:{port}\"\ninsecure = true\n");
    write("registries.conf", [5001, 5002, 5003, 5009].map(insecure).concat());
}

fn environment<'a>(command: &'a mut Command, dir: &Path) -> &'a mut Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("DIR", dir)
        .env("CONTAINERS_CONF", dir.join("containers.conf"))
        .env("CONTAINERS_STORAGE_CONF", dir.join("storage.conf"))
        .env("CONTAINERS_REGISTRIES_CONF", dir.join("registries.conf"))
}

/// Commands only: what comes before and after is not the engine's part.
#[async_trait(?Send)]
impl Connector for Machine {
    async fn keys(&self, _: &InstanceId) -> Result<InstanceKeys, ConnectError> {
        Err(ConnectError::Local { what: "this machine runs commands only".to_owned() })
    }

    async fn discard_keys(&self, _: &InstanceId) {}

    async fn check(&self, _: &InstanceId, _: &Endpoint, _: Duration) -> Result<(), ConnectError> {
        Ok(())
    }

    async fn run(
        &self,
        _: &InstanceId,
        _: &Endpoint,
        _: Stage,
        _: &mut dyn Output,
        _: Stop<'_>,
    ) -> Result<StageEnd, ConnectError> {
        Err(ConnectError::Local { what: "this machine runs commands only".to_owned() })
    }

    async fn begins_stage(
        &self,
        _: &InstanceId,
        _: &Endpoint,
        _: (StageShell, Option<&Mark>),
        _: Duration,
    ) -> Result<(), ConnectError> {
        Ok(())
    }

    async fn command(
        &self,
        _: &InstanceId,
        _: &Endpoint,
        command: RemoteCommand<'_>,
        output: &mut dyn Output,
    ) -> Result<StageEnd, ConnectError> {
        let mut child = tokio::process::Command::from(self.enter())
            .arg(command.text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        input.write_all(command.input.as_bytes()).await.unwrap();
        drop(input);
        let mut buffer = vec![0; 4096];
        loop {
            let read = stdout.read(&mut buffer).await.unwrap();
            if read == 0 {
                break;
            }
            output.write(Stream::Stdout, &buffer[..read]).await.unwrap();
        }
        let mut errors = Vec::new();
        stderr.read_to_end(&mut errors).await.unwrap();
        output.write(Stream::Stderr, &errors).await.unwrap();
        let status = child.wait().await.unwrap().code().unwrap();
        Ok(StageEnd::Exited(u32::try_from(status).unwrap()))
    }
}
