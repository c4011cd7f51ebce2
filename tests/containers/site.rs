//! The place of all tests: a network of its own with registries, and what a machine on it starts with.
//!
//! It has no trace outside its namespaces and its directory, and it ends with this process, however that ends.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use greenroom_core::container::engine::ContainerEngine;
use greenroom_testkit::skipped::skipped;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::engine::engine;
use crate::images::{self, lab};

/// The name of the site's first machine, on which all registries are.
pub const HOST: &str = "registry.test";
/// Registries by port, all without TLS but the last: without a password, with one, a mirror of the first.
pub const PLAIN: &str = "registry.test:5000";
pub const PASSWORD: &str = "registry.test:5001";
pub const MIRROR: &str = "registry.test:5002";
/// A registry's address at which nothing listens.
pub const STOPPED: &str = "registry.test:5003";
/// A registry with TLS. No machine knows its certificate, which is `ca.pem`.
pub const TLS: &str = "registry.test:5004";
/// The first port of the proxies that tests make.
const PROXIES: u16 = 6000;
/// The highest number of these proxies.
const MOST_PROXIES: u16 = 20;

/// The account of `PASSWORD`, and the line of it (`crypt`, `$2y$05$`).
pub const ACCOUNT: (&str, &str) = ("reader", "a made-up password");
const HTPASSWD: &str = "reader:$2y$05$greenroomgreenroomgreukbtVYDDmlBUYWrU.or5DiBA1rLozTP6";

#[derive(Debug)]
pub struct Site {
    pub dir: PathBuf,
    /// Ends the site when it is closed.
    _init: Child,
    network: File,
}

static SITE: OnceLock<Option<Site>> = OnceLock::new();

fn succeeds(command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

/// True if a program is installed here.
pub fn has(program: &str) -> bool {
    succeeds(&format!("PATH=$PATH:/usr/sbin:/sbin command -v {program}"))
}

/// The part of this machine that is missing for containers.
fn missing() -> Option<&'static str> {
    if !rustix::process::getuid().is_root() {
        return Some("containers: this is not root");
    }
    if !succeeds("unshare --mount --pid --net --ipc --uts --fork --mount-proc true") {
        return Some(
            "containers: namespaces cannot be made (`unshare --mount --pid --net --ipc --uts --fork`)",
        );
    }
    let programs =
        ["podman", "crun", "docker-registry", "iptables", "busybox", "ip", "sshd", "dash", "git", "openssl"];
    (!programs.into_iter().all(has)).then_some(
        "containers: one of Podman, crun, docker-registry, iptables, BusyBox, OpenSSH, OpenSSL is missing",
    )
}

/// The site, or none where it cannot be had, or the test's engine: the test is skipped then.
pub fn site() -> Option<&'static Site> {
    let site = SITE.get_or_init(|| missing().is_none().then(Site::begin)).as_ref();
    if site.is_none() {
        skipped(missing().unwrap_or("containers: the lab does not start"));
    }
    if engine() == ContainerEngine::Docker
        && !succeeds("PATH=$PATH:/usr/sbin:/sbin command -v dockerd containerd")
    {
        skipped("containers: Docker (docker.io) is missing");
        return None;
    }
    site
}

/// Makes a key and a certificate for the site's registries; their files.
fn certificate(dir: &Path) -> [String; 2] {
    let [key, ca] = ["key.pem", "ca.pem"].map(|name| dir.join(name).display().to_string());
    let made = succeeds(&format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 7 -keyout '{key}' -out '{ca}' \
         -subj '/CN={HOST}' -addext 'subjectAltName=DNS:{HOST}'"
    ));
    assert!(made, "OpenSSL makes a certificate");
    [key, ca]
}

impl Site {
    fn begin() -> Self {
        let dir = tempfile::Builder::new().prefix("greenroom-site-").tempdir().expect("a directory").keep();
        let registry = dir.join("registry");
        images::publish_all(&registry, &dir.join("work"), |_| true);
        Self::lay_out(&dir, &registry);
        let mut init = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc", "sh"])
            .arg(lab("site"))
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut line = String::new();
        BufReader::new(init.stdout.take().expect("a pipe")).read_line(&mut line).expect("its word");
        assert_eq!(line, "up\n", "the site does not start: {}", dir.display());
        let children = format!("/proc/{0}/task/{0}/children", init.id());
        let pid = fs::read_to_string(children).expect("unshare has a child").trim().to_owned();
        fs::write(dir.join("pid"), &pid).expect("the site's process");
        let network = File::open(format!("/proc/{pid}/ns/net")).expect("the site's network");
        Self { dir, _init: init, network }
    }

    /// Writes the files that the site's processes and machines read.
    fn lay_out(dir: &Path, registry: &Path) {
        let write = |name: &str, text: &str| fs::write(dir.join(name), text).expect("a file of the site");
        for name in ["sshd", "init", "gitlab-runner", "runtime"] {
            fs::copy(lab(name), dir.join(name)).expect("a file of the lab");
        }
        // `sshd -t` on the runner host needs it.
        fs::create_dir_all("/run/sshd").expect("a folder");
        fs::create_dir(dir.join("etc")).expect("a folder");
        fs::create_dir(dir.join("store")).expect("a folder");
        write("hosts", &format!("127.0.0.1 localhost\n198.18.0.1 {HOST}\n"));
        for name in ["sshd-small", "sshd-docker", "sshd-docker-small"] {
            fs::copy(lab("sshd"), dir.join(name)).expect("a file of the lab");
        }
        write("htpasswd", HTPASSWD);
        let serve = |name: &str, port: u16, storage: &Path, more: &str| {
            let text = format!(
                "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\n\
                 http:\n  addr: 198.18.0.1:{port}\n  secret: lab\n{more}",
                storage.display()
            );
            write(name, &text);
        };
        serve("plain.yml", 5000, registry, "");
        let [key, ca] = certificate(dir);
        serve("tls.yml", 5004, registry, &format!("  tls: {{certificate: {ca}, key: {key}}}\n"));
        let file = dir.join("htpasswd");
        serve(
            "password.yml",
            5001,
            registry,
            &format!("auth: {{htpasswd: {{realm: lab, path: {}}}}}\n", file.display()),
        );
        serve("mirror.yml", 5002, &dir.join("mirrored"), "proxy: {remoteurl: 'http://198.18.0.1:5000'}\n");
        write("etc/policy.json", "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}\n");
        write(
            "etc/containers.conf",
            "[containers]\ncgroups = \"disabled\"\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n[network]\nnetwork_backend = \"netavark\"\n",
        );
        write(
            "etc/storage.conf",
            "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"/var/lib/containers/storage\"\n",
        );
        let ports = (5000..=5003).chain(PROXIES..PROXIES + MOST_PROXIES);
        let registries: Vec<String> = ports.map(|port| format!("{HOST}:{port}")).collect();
        let insecure = registries
            .iter()
            .map(|registry| format!("[[registry]]\nlocation = \"{registry}\"\ninsecure = true\n"));
        write("etc/registries.conf", &insecure.collect::<String>());
        let daemon = serde_json::json!({
            "insecure-registries": registries, "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "runtimes": {"lab": {"path": dir.join("runtime")}}, "default-runtime": "lab",
        });
        write("daemon.json", &daemon.to_string());
    }

    /// The `sshd` that makes machines with the test's engine.
    pub fn sshd(&self, is_small: bool) -> String {
        let engine = if engine() == ContainerEngine::Docker { "-docker" } else { "" };
        let name = format!("sshd{engine}{}", if is_small { "-small" } else { "" });
        self.dir.join(name).display().to_string()
    }

    /// Does something in the site's network, on a thread of its own.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let moved = scope.spawn(|| {
                move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("its network");
                work()
            });
            moved.join().expect("work in the site's network")
        })
    }

    /// A listener on a port that machines reach, and the name of the registry that it plays.
    pub fn listen(&self) -> (TcpListener, String) {
        let free = |port| TcpListener::bind(("198.18.0.1", port)).ok();
        let listener = self.inside(|| (PROXIES..PROXIES + MOST_PROXIES).find_map(free)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        (listener, format!("{HOST}:{port}"))
    }
}
