//! A host: an `sshd` with an address, a file system view and a process tree of its own, out of Linux namespaces.
//!
//! Each sees /home, /tmp, /var/lib, /var/spool and its accounts for itself, and nothing of the processes of others. Its
//! account for jobs is `ci`, its disk the one that /home is on. `root` and `janitor` may log in with the same key, to clean;
//! the pristine copy of ci's home is made. It has no GitLab Runner. Everything goes with the process that holds the namespaces.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::program;
use greenroom_testkit::skipped::skipped;
use toml::{Table, Value};

/// The first subordinate id of `ci`.
pub const SUBORDINATE: u32 = 200_000;
/// The time that a host may take to answer.
const BOOT: Duration = Duration::from_secs(30);
/// Pairs of addresses in 198.18.0.0/15, which is set aside for tests (RFC 2544).
const PAIRS: u32 = 1 << 15;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The properties of a host that a test makes.
#[derive(Debug, Clone)]
pub struct Make<'a> {
    pub name: &'a str,
    /// The size of the host's disk, in MiB.
    pub disk: u32,
    /// The lines that the account's shell reads first.
    pub profile: &'a str,
    /// Further lines of `sshd_config`.
    pub config: &'a str,
    /// True if the account can run containers.
    pub containers: bool,
}

impl<'a> Make<'a> {
    pub fn named(name: &'a str) -> Self {
        Self { name, disk: 400, profile: "", config: "", containers: false }
    }
}

#[derive(Debug)]
pub struct Machine {
    pub name: String,
    pub address: String,
    /// The public half of the key it answers with.
    pub host_key: String,
    dir: tempfile::TempDir,
    namespace: String,
    /// The end of its cable on this side.
    cable: String,
    init: Child,
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

#[track_caller]
fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap_or_default()).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
    let said = [output.stdout.clone(), output.stderr].concat();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&said));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// True if hosts can be made here; if not, the test is skipped.
pub fn possible() -> bool {
    let namespaces = ["--net", "--mount", "--pid", "--fork", "true"];
    let why = if !rustix::process::getuid().is_root() {
        "this is not root"
    } else if !succeeds(Command::new("unshare").args(namespaces)) {
        "network namespaces cannot be made (`unshare --net --mount --pid --fork true`)"
    } else if !succeeds(Command::new("ip").args(["netns", "list"])) {
        "`ip` of iproute2 is missing"
    } else if !Path::new(SSHD).exists() {
        "OpenSSH's server is missing"
    } else {
        return true;
    };
    skipped(why);
    false
}

const SSHD: &str = "/usr/sbin/sshd";

/// The files that the account's containers need on a host. The machine that all hosts are on may have other control
/// groups.
const ENGINE: &str = "mount -t tmpfs -o mode=755 own /etc/containers\n\
     echo '{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}' > /etc/containers/policy.json\n\
     printf '[storage]\\ndriver = \"overlay\"\\nrunroot = \"/run/containers/storage\"\\ngraphroot = \"/var/lib/containers/storage\"\\n' > /etc/containers/storage.conf\n\
     printf '[[registry]]\\nlocation = \"127.0.0.1:5005\"\\ninsecure = true\\n' > /etc/containers/registries.conf\n\
     mknod -m 666 /run/tun c 10 200\nmount --bind /run/tun /dev/net/tun\n\
     mount -t cgroup2 none /sys/fs/cgroup\n";

/// The account's public key file and host keys lie in `dir`, which the host sees as /mnt. Its accounts read there.
fn lay_out(dir: &Path, make: &Make<'_>, login: &str) -> String {
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode can be set");
    };
    set_mode(dir, 0o755);
    let write = |name: &str, text: &str| {
        fs::write(dir.join(name), text).expect("it can be written");
        set_mode(&dir.join(name), 0o644);
    };
    let host_key = new_key(&dir.join("host_key"));
    write("authorized_keys", &format!("{login}\n"));
    write(
        "passwd",
        "root:x:0:0::/nowhere:/bin/sh\ndaemon:x:1:1::/:/usr/sbin/nologin\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\nci:x:4711:4711::/home/ci:/bin/bash\njanitor:x:4712:4712::/home/janitor:/bin/sh\n",
    );
    write("group", "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\nci:x:4711:\njanitor:x:4712:\n");
    write("shadow", "root:*:1::::::\nci:*:1::::::\njanitor:*:1::::::\n");
    for file in ["subuid", "subgid"] {
        write(file, &format!("ci:{SUBORDINATE}:65536\n"));
    }
    write("profile", make.profile);
    write(
        "sshd_config",
        &format!(
            "Port 22\nHostKey /mnt/host_key\nAuthorizedKeysFile /mnt/authorized_keys\nStrictModes no\nPidFile none\n\
             UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\nPrintLastLog no\n\
             UseDNS no\n{}\n",
            make.config
        ),
    );
    let disk = make.disk;
    write(
        "init",
        &format!(
            "set -e\numask 022\n\
             mount --make-rprivate /\n\
             mount --bind {dir} /mnt\n\
             mount -t tmpfs -o size={disk}m,mode=755 disk /home\n\
             mount -t tmpfs -o mode=1777 tmp /tmp\nmount -t tmpfs -o mode=1777 tmp /var/tmp\n\
             mount -t tmpfs -o mode=1777 tmp /dev/shm\n\
             mount -t tmpfs run /run\nmkdir /run/sshd\n\
             for d in /var/spool /var/lib /usr/local/sbin; do mount -t tmpfs -o mode=755 own $d; done\n\
             [ ! -d /etc/sudoers.d ] || mount -t tmpfs -o mode=750 own /etc/sudoers.d\n\
             for f in passwd group shadow subuid subgid; do [ ! -e /etc/$f ] || mount --bind /mnt/$f /etc/$f; done\n\
             for d in /usr/local/bin /usr/bin /bin; do\n\
             [ ! -e $d/gitlab-runner ] || mount --bind /dev/null $d/gitlab-runner\ndone\n\
             {engine}\
             mkdir /home/ci /home/janitor\ncp /mnt/profile /home/ci/.bashrc\nchown -R 4711:4711 /home/ci\n\
             mkdir -m 700 /var/lib/greenroom-homes\ncp -a /home/ci /var/lib/greenroom-homes\n\
             mkdir -p -m 1777 /var/spool/cron/crontabs /var/spool/cron/atjobs /var/lib/systemd/linger\n\
             cd /\n\
             while :; do {SSHD} -D -e -f /mnt/sshd_config </dev/null >/mnt/log 2>&1 || :; sleep 0.1; done\n",
            dir = dir.display(),
            engine = if make.containers { ENGINE } else { "" },
        ),
    );
    host_key
}

/// Makes an Ed25519 key pair at `path`, in place of one that is there; its public half.
pub fn new_key(path: &Path) -> String {
    for old in [path.to_owned(), path.with_extension("pub")] {
        let _before = fs::remove_file(old);
    }
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(path).status();
    assert!(made.is_ok_and(|status| status.success()), "ssh-keygen makes a key");
    fs::read_to_string(path.with_extension("pub")).expect("it was made").trim().to_owned()
}

impl Machine {
    /// Boots a host that lets `login` in, and waits until it answers.
    pub fn boot(make: &Make<'_>, login: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("greenroom-host-").tempdir().expect("a directory");
        let host_key = lay_out(dir.path(), make, login);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let own = format!("{:x}{number:x}", std::process::id());
        let (namespace, cable) = (format!("greenroom-{own}"), format!("gr{own}"));
        // The numbers of processes that run at the same time lie close together: they share no pair for long.
        let pair = (std::process::id() * 64 + number) % PAIRS;
        let at = |last: u32| std::net::Ipv4Addr::from(0xC612_0000 + pair * 4 + last);
        run(&format!("ip netns add {namespace}"));
        run(&format!("ip link add {cable} type veth peer name eth0 netns {namespace}"));
        run(&format!("ip addr add {}/30 dev {cable}", at(1)));
        run(&format!("ip link set {cable} up"));
        run(&format!("ip -n {namespace} addr add {}/30 dev eth0", at(2)));
        run(&format!("ip -n {namespace} link set eth0 up"));
        run(&format!("ip -n {namespace} link set lo up"));
        let init = program::command("ip", dir.path())
            .args([
                "netns",
                "exec",
                &namespace,
                "unshare",
                "--mount",
                "--pid",
                "--ipc",
                "--fork",
                "--kill-child",
            ])
            .args(["--mount-proc", "sh"])
            .arg(dir.path().join("init"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.path().join("init.log")).expect("a log"))
            .spawn()
            .expect("unshare starts");
        let machine = Self {
            name: make.name.into(),
            address: at(2).to_string(),
            host_key,
            dir,
            namespace,
            cable,
            init,
        };
        machine.wait_until_up();
        machine
    }

    fn wait_until_up(&self) {
        let answers = || std::net::TcpStream::connect((self.address.as_str(), 22)).ok().map(drop);
        wait_for("a host that answers", BOOT, answers);
    }

    /// The directory that the host sees as /mnt.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The number that the first process of the host has on this side.
    fn pid(&self) -> u32 {
        let below = |pid: u32| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            children.split_whitespace().next().and_then(|first| first.parse().ok())
        };
        below(self.init.id()).expect("it runs")
    }

    /// Runs a command there as root, beside SSH; what it printed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let output = program::command("nsenter", self.dir.path())
            .args([
                "--mount",
                "--pid",
                "--net",
                "--ipc",
                "--target",
                &self.pid().to_string(),
                "sh",
                "-c",
                script,
            ])
            .output()
            .expect("nsenter starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Pulls its cable.
    pub fn unplug(&self) {
        run(&format!("ip -n {} link set eth0 down", self.namespace));
    }

    pub fn plug_in(&self) {
        run(&format!("ip -n {} link set eth0 up", self.namespace));
        self.wait_until_up();
    }

    /// Gives the host another key, as after it was installed anew: no connection of before lives on.
    pub fn change_host_key(&mut self) {
        self.host_key = new_key(&self.dir.path().join("host_key"));
        // The old one may still listen for a moment.
        self.sh("old=$(pgrep -o -x sshd); pkill -KILL -x sshd; while kill -0 $old 2> /dev/null; do sleep 0.05; done");
        self.wait_until_up();
    }

    /// The host's table in the configuration.
    pub fn table(&self) -> Table {
        let text = |text: &str| Value::String(text.to_owned());
        Table::from_iter([
            ("name".to_owned(), text(&self.name)),
            ("address".to_owned(), text(&self.address)),
            ("host_key".to_owned(), text(&self.host_key)),
        ])
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // `unshare` takes the namespaces' first process with it, and that one everything else.
        let _gone = self.init.kill();
        let _waited = self.init.wait();
        succeeds(Command::new("ip").args(["netns", "delete", &self.namespace]));
        succeeds(Command::new("ip").args(["link", "delete", &self.cable]));
    }
}

/// Some hosts, and the key that all of them let in.
#[derive(Debug)]
pub struct Hosts {
    pub machines: Vec<Machine>,
    key: tempfile::TempDir,
}

impl Hosts {
    pub fn boot(makes: &[Make<'_>]) -> Self {
        let key = tempfile::tempdir().expect("a directory");
        let login = new_key(&key.path().join("key"));
        let machines = makes.iter().map(|make| Machine::boot(make, &login)).collect();
        Self { machines, key }
    }

    /// A pool of them; as many jobs at once as there are hosts. Cleaning unbinds, because most tests are about cleaning.
    pub fn setting(&self) -> Setting {
        self.setting_of(self.tables())
    }

    /// A pool of these tables of hosts, in which cleaning unbinds.
    pub fn setting_of(&self, hosts: Vec<Value>) -> Setting {
        self.plain_setting(hosts).pool("clean_unbinds", true)
    }

    /// A pool of the hosts, in which the account that cleans decides whether cleaning unbinds.
    pub fn cleaned_by(&self, user: &str) -> Setting {
        let setting = self.plain_setting(self.tables());
        setting.provider("dedicated_user", true).provider("clean_user", user)
    }

    fn tables(&self) -> Vec<Value> {
        self.machines.iter().map(|machine| Value::Table(machine.table())).collect()
    }

    fn plain_setting(&self, hosts: Vec<Value>) -> Setting {
        let key = self.key.path().join("key").display().to_string();
        let most = i64::try_from(self.machines.len()).expect("a few");
        let setting = Setting::new().pool("max_instances", most);
        let setting = setting.pool("builds_dir", "/home/ci/builds").pool("cache_dir", "/home/ci/cache");
        let setting = setting.timing("health_interval", "500ms").timing("launch_backoff_max", "500ms");
        let setting = setting.provider("kind", "static").provider("user", "ci").provider("key", key);
        setting.provider("host", Value::Array(hosts))
    }
}
