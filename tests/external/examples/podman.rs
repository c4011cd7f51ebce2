//! `podman` with real containers, in namespaces of this test, and a real login.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use greenroom_testkit::skipped::skipped;
use serde_json::{Value, json};

use super::program::{Program, example, launch};
use super::promises::keeps;

/// Namespaces with Podman's own storage and an image; they end with this value.
pub(super) struct Site {
    pub(super) directory: tempfile::TempDir,
    init: Child,
}

/// The first process of the namespaces: site DIR. Says `up`, and ends with its standard input.
const SITE: &str = r#"set -eu
mount --make-rprivate /
for dir in /run /var/lib; do mount -t tmpfs -o mode=755 own $dir; done
mount -t cgroup2 none /sys/fs/cgroup
ip link set lo up
tar -C "$1/tree" -c . | podman --log-level error import --quiet - ci:1 >/dev/null
echo up
read -r _ || :
"#;

fn missing() -> Option<&'static str> {
    if !rustix::process::getuid().is_root() {
        return Some("containers: this is not root");
    }
    let all = "unshare --mount --pid --net --fork --mount-proc true && PATH=$PATH:/usr/sbin && for p in podman crun iptables \
               busybox ip sshd; do command -v $p || exit; done && [ -x /usr/lib/podman/netavark ]";
    let status = Command::new("sh").args(["-c", all]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let there = status.is_ok_and(|status| status.success());
    (!there).then_some(
        "containers: namespaces, or one of Podman, crun, netavark, iptables, BusyBox, OpenSSH is missing",
    )
}

impl Site {
    pub(super) fn begin() -> Option<Self> {
        if let Some(reason) = missing() {
            skipped(reason);
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path();
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/containers/lab/tree");
        let words = ["busybox", "+/bin/bash", "+/usr/sbin/sshd", "@ci"];
        let made = Command::new("sh").arg(tree).arg(dir.join("tree")).args(words).status();
        assert!(made.is_ok_and(|status| status.success()), "the files of the image");
        fs::create_dir_all(dir.join("tree/etc/ssh")).expect("a folder");
        fs::write(dir.join("tree/etc/ssh/sshd_config"), "").expect("a file");
        let passwd = fs::read_to_string(dir.join("tree/etc/passwd")).expect("accounts");
        let passwd = passwd + "sshd:x:100:65534::/run/sshd:/bin/false\n";
        fs::write(dir.join("tree/etc/passwd"), passwd).expect("accounts");
        fs::write(dir.join("tree/etc/shadow"), "root:*:::::::\nci:*:::::::\n").expect("a file");
        fs::write(
            dir.join("containers.conf"),
            "[containers]\ncgroups = \"disabled\"\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
             [network]\nnetwork_backend = \"netavark\"\n",
        )
        .expect("a file");
        let storage = format!(
            "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"{}\"\n",
            dir.join("store").display()
        );
        fs::write(dir.join("storage.conf"), storage).expect("a file");
        let mut init = Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--net",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "sh",
                "-c",
                SITE,
                "site",
            ])
            .arg(dir)
            .envs(environment(dir))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut line = String::new();
        BufReader::new(init.stdout.take().expect("a pipe")).read_line(&mut line).expect("its word");
        assert_eq!(line, "up\n", "the site does not start");
        Some(Self { directory, init })
    }

    /// A command inside.
    pub(super) fn enter(&self) -> Vec<std::ffi::OsString> {
        let children = format!("/proc/{0}/task/{0}/children", self.init.id());
        let pid = fs::read_to_string(children).expect("unshare has a child").trim().to_owned();
        ["nsenter", "--mount", "--pid", "--net", "--target", &pid].map(Into::into).to_vec()
    }

    pub(super) fn program(&self) -> Program {
        let mut program = Program::new(&example("podman"), json!({ "image": "ci:1" }));
        program.command = [self.enter(), program.command].concat();
        for (name, value) in environment(self.directory.path()) {
            program = program.with(name, value);
        }
        let [host, user] = ["host", "user"].map(|name| key(&self.directory.path().join(name)));
        let private = fs::read_to_string(self.directory.path().join("host")).expect("a key");
        program.keys = json!({ "host_key": private, "host_key_public": host, "authorized_key": user });
        program
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        drop(self.init.stdin.take());
        drop(self.init.wait());
    }
}

fn environment(dir: &Path) -> [(&'static str, String); 2] {
    let file = |name: &str| dir.join(name).display().to_string();
    [("CONTAINERS_CONF", file("containers.conf")), ("CONTAINERS_STORAGE_CONF", file("storage.conf"))]
}

fn key(path: &Path) -> String {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
    assert!(made.is_ok_and(|status| status.success()), "a key");
    fs::read_to_string(path.with_extension("pub")).expect("its public half").trim().to_owned()
}

/// One site for all of it: an image of its own takes seconds.
#[test]
fn podman_keeps_the_promises_of_a_provider_and_lets_the_pools_key_in() {
    let Some(site) = Site::begin() else { return };
    let program = site.program();
    keeps(&program, site.directory.path());
    lets_the_pools_key_in(&site, &program);
    goes_on_where_a_killed_launch_stopped(&site, program);
}

/// A login with the pool's key reaches the container, which presents the host key that it was given.
fn lets_the_pools_key_in(site: &Site, program: &Program) {
    let dir = site.directory.path();
    let id = program.launch(1);
    let found = program.list().into_iter().next().expect("a machine");
    assert_eq!(
        (&found["machine"], &found["address"], &found["state"]),
        (&json!(id), &json!("127.0.0.1"), &json!("running"))
    );
    let port = found["port"].as_u64().expect("a port").to_string();
    let known = format!("[127.0.0.1]:{port} {}\n", program.keys["host_key_public"].as_str().expect("a key"));
    fs::write(dir.join("known"), known).expect("a file");
    for user in ["root", "ci"] {
        let enter = site.enter();
        let options = [
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "ConnectionAttempts=20",
        ];
        let output = Command::new(&enter[0])
            .args(&enter[1..])
            .arg("ssh")
            .args(options)
            .args(["-o", &format!("UserKnownHostsFile={}", dir.join("known").display()), "-p", &port, "-i"])
            .arg(dir.join("user"))
            .args([&format!("{user}@127.0.0.1"), "whoami; echo $0"])
            .output()
            .expect("ssh starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.starts_with(user), "{output:?}");
    }
    let console = program.ask("console", &json!({ "machine": id }));
    assert!(console["text"].as_str().is_some_and(|text| text.contains("Accepted publickey")), "{console}");
    program.ask("terminate", &json!({ "machine": id }));
}

fn goes_on_where_a_killed_launch_stopped(site: &Site, mut program: Program) {
    let (dir, fields) = (site.directory.path(), program.fields(1));
    // What a launch leaves that is killed between its two steps.
    let enter = site.enter();
    let name = fields["name"].as_str().expect("a name").to_owned();
    let labels = fields["tags"].as_object().expect("tags").iter();
    let labels = labels.map(|(name, value)| format!("--label={name}={}", value.as_str().expect("a text")));
    let made = Command::new(&enter[0])
        .args(&enter[1..])
        .args(["podman", "create", "--name", &name, "--publish", "127.0.0.1::22"])
        .args(labels)
        .args(["--entrypoint", "[\"/bin/sleep\", \"1000\"]", "ci:1"])
        .envs(environment(dir))
        .stdout(Stdio::null())
        .status();
    assert!(made.is_ok_and(|status| status.success()), "podman create");
    assert_eq!(program.list()[0]["state"], "starting");
    program.ask("launch", &fields);
    let all = program.list();
    assert_eq!((all.len(), &all[0]["state"]), (1, &json!("running")));

    program.settings = json!({ "image": "localhost/unknown:1", "options": "--pull never" });
    let called = program.call("launch", &launch(2));
    assert_eq!(called.code, Some(14), "{called:?}");
    // Podman itself fails, which is not the same as a container that is missing.
    let storage = std::mem::replace(&mut program.environment[1].1, "/dev/null/storage.conf".to_owned());
    for (verb, fields) in
        [("list", json!({})), ("terminate", json!({ "machine": name })), ("launch", launch(2))]
    {
        let called = program.call(verb, &fields);
        assert!(!matches!(called.code, Some(0 | 10..=16)), "{verb}: {called:?}");
    }
    let none: Vec<Value> = Vec::new();
    program.environment[1].1 = storage;
    program.ask("terminate", &json!({ "machine": name }));
    assert_eq!(program.list(), none);
}
