//! The guest's file system as a folder: Debian's packages, the configuration of a CI machine, and an engine for jobs in
//! containers.

use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt as _;

use super::tools::{Tool, ToolError, failed};
use super::{BuildError, Request};
use crate::qemu::image::{Flavour, SshServer};

/// The packages of every image: the kernel for its modules, the programs that GitLab's scripts call, and common tools.
const PACKAGES: &[&str] = &[
    "linux-image-cloud-amd64",
    "bash",
    "ca-certificates",
    "curl",
    "git",
    "git-lfs",
    "iproute2",
    "kmod",
    "netbase",
    "procps",
];
/// `dbus` and `libpam-systemd` so that `systemctl` and login sessions work as on any Debian.
const SYSTEMD_PACKAGES: &[&str] = &["systemd-sysv", "udev", "dbus", "libpam-systemd"];

/// CI machines need no documentation. Licences stay.
const DPKG: &[&str] = &[
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
];

const GUEST_PROGRAM: &str = "usr/lib/greenroom/greenroom-guest";

const SSHD_CONFIG: &str = "\
# Written by greenroom when the image was built.
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
AuthorizedKeysFile .ssh/authorized_keys
# The newest exchange takes ten times as long in an emulated machine.
KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org,sntrup761x25519-sha512@openssh.com
# The network that a machine gets has no other; asking for both at the start takes time.
AddressFamily inet
UseDNS no
PrintMotd no
PrintLastLog no
LogLevel ERROR
# One client, with many sessions and new connections at any time.
MaxSessions 20
MaxStartups 100
Subsystem sftp internal-sftp
";

/// The agent's systemd unit. The machine has booted when the agent sends its greeting.
const AGENT_UNIT: &str = "\
[Unit]
Description=Conversation with the host's greenroom
After=multi-user.target ssh.service

[Service]
ExecStart=/usr/lib/greenroom/greenroom-guest agent
StandardError=journal+console
Restart=always
RestartSec=1

[Install]
WantedBy=greenroom.target
";
/// The SSH server's unit starts with the machine, and its process waits until the machine has its identity. A start
/// through systemd only then, with Debian's trial run before it, would take longer than all the rest.
const SSH_UNIT: &str = "\
# Written by greenroom when the image was built.
[Service]
Type=exec
ExecStartPre=
ExecStart=
ExecStart=/usr/lib/greenroom/greenroom-guest ssh
";
const TARGET_UNIT: &str = "\
[Unit]
Description=A machine that waits for its identity
Requires=multi-user.target
After=multi-user.target
AllowIsolate=yes
";

/// Units that only cost time in a machine that lives for one job.
const MASKED: &[&str] = &[
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "motd-news.timer",
    "serial-getty@ttyS0.service",
    "systemd-update-utmp.service",
    "systemd-update-utmp-runlevel.service",
];

/// The folder and the files that a build works with.
#[derive(Debug)]
pub(super) struct Rootfs {
    pub(super) path: PathBuf,
    /// The output of mmdebstrap.
    log: PathBuf,
}

impl Rootfs {
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join("rootfs"), log: folder.join("mmdebstrap.log") }
    }

    /// Has mmdebstrap unpack and configure the packages. Its processes inherit `lock`: as long as any of them lives,
    /// the build is not over.
    pub(super) fn install(
        &self,
        request: &Request,
        sources: &[String],
        lock: &fs::File,
    ) -> Result<(), BuildError> {
        let tool = Tool::Mmdebstrap;
        let log =
            fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&self.log)?.into_parts().0;
        let mut command = tool.command();
        // For root, "unshare" means separate mounts and processes without a user namespace: none outlives mmdebstrap.
        command.args(["--variant=minbase", "--mode=unshare", "--architectures=amd64"]);
        command.arg(format!("--include={}", packages(request).join(",")));
        command.args(DPKG.iter().map(|option| format!("--dpkgopt={option}")));
        command.arg(&request.suite).arg(&self.path).args(sources);
        // Greenroom makes its own initrd; Debian's takes longer than all the rest of the kernel.
        command.env("INITRD", "No").env("LC_ALL", "C.UTF-8").env("DEBIAN_FRONTEND", "noninteractive");
        command.stdin(Stdio::from(lock.file().try_clone()?));
        command.stdout(Stdio::from(log.try_clone()?)).stderr(Stdio::from(log));
        let status = command.status().map_err(|source| ToolError::Start { tool, source })?;
        if status.success() { Ok(()) } else { Err(failed(tool, status, &fs::read(&self.log)?).into()) }
    }

    /// Turns the folder into a guest: the guest program, the SSH server's settings, no identity of its own.
    pub(super) fn configure(&self, request: &Request, guest: &[u8]) -> Result<(), BuildError> {
        self.write(GUEST_PROGRAM, 0o755, guest)?;
        self.write("usr/lib/greenroom/image", 0o644, format!("{} {}\n", request.flavour, request.ssh))?;
        self.write("etc/resolv.conf", 0o644, "nameserver 10.0.2.3\n")?;
        self.write("etc/fstab", 0o644, "/dev/vda / ext4 defaults,noatime 0 0\n")?;
        self.write("etc/default/locale", 0o644, "LANG=C.UTF-8\n")?;
        self.write("etc/profile.d/greenroom.sh", 0o644, "export LANG=C.UTF-8\n")?;
        self.shells_read_profile()?;
        for folder in ["builds", "cache"] {
            fs::create_dir_all(self.path.join(folder))?;
        }
        self.without_identity()?;
        if request.containers {
            configure_engine(self)?;
        }
        if request.ssh == SshServer::Openssh {
            self.write("etc/ssh/sshd_config", 0o644, self.sshd_config()?)?;
        }
        match request.flavour {
            Flavour::Light => self.as_light()?,
            Flavour::Systemd => self.as_systemd(request)?,
        }
        if let Some(helper) = &request.helper {
            self.write("usr/bin/gitlab-runner", 0o755, fs::read(&helper.path)?)?;
        }
        Ok(())
    }

    /// Newer servers penalize a client that connects often, and Greenroom's one client connects for every job.
    fn sshd_config(&self) -> io::Result<String> {
        let option = b"persourcepenalties";
        let server = fs::read(self.path.join("usr/sbin/sshd"))?;
        // A server that does not support the option would not start.
        let is_known = server.windows(option.len()).any(|window| window == option);
        Ok(format!("{SSHD_CONFIG}{}", if is_known { "PerSourcePenalties no\n" } else { "" }))
    }

    /// A command over SSH runs in a shell that is not a login shell; bash then reads `.bashrc`.
    fn shells_read_profile(&self) -> io::Result<()> {
        let bashrc = "root/.bashrc";
        let own = fs::read_to_string(self.path.join(bashrc)).unwrap_or_default();
        let first = "for file in /etc/profile.d/greenroom*.sh; do . \"$file\"; done\n";
        self.write(bashrc, 0o644, format!("{first}{own}"))
    }

    fn without_identity(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.path.join("etc/ssh")).into_iter().flatten() {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b"ssh_host_") {
                fs::remove_file(entry.path())?;
            }
        }
        self.write("etc/hostname", 0o644, "localhost\n")?;
        // Empty, not missing: systemd then makes an id for this boot and does not treat it as the first.
        self.write("etc/machine-id", 0o444, "")?;
        self.write("etc/hosts", 0o644, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
    }

    fn as_light(&self) -> io::Result<()> {
        for name in ["init", "poweroff", "halt", "reboot"] {
            let link = self.path.join("usr/sbin").join(name);
            if link.symlink_metadata().is_ok() {
                fs::remove_file(&link)?;
            }
            symlink(Path::new("/").join(GUEST_PROGRAM), &link)?;
        }
        Ok(())
    }

    fn as_systemd(&self, request: &Request) -> io::Result<()> {
        let units = self.path.join("etc/systemd/system");
        self.write("etc/systemd/system/greenroom-agent.service", 0o644, AGENT_UNIT)?;
        self.write("etc/systemd/system/ssh.service.d/greenroom.conf", 0o644, SSH_UNIT)?;
        self.write("etc/systemd/system/greenroom.target", 0o644, TARGET_UNIT)?;
        let link = |to: &str, name: &str| {
            let link = units.join(name);
            if let Some(folder) = link.parent() {
                fs::create_dir_all(folder)?;
            }
            if link.symlink_metadata().is_ok() {
                fs::remove_file(&link)?;
            }
            symlink(to, &link)
        };
        link("/etc/systemd/system/greenroom.target", "default.target")?;
        link(
            "/etc/systemd/system/greenroom-agent.service",
            "greenroom.target.wants/greenroom-agent.service",
        )?;
        link("/lib/systemd/system/ssh.service", "greenroom.target.wants/ssh.service")?;
        // The engine's service starts when something connects to its socket.
        let enabled =
            ["multi-user.target.wants/ssh.service", "sshd.service", "default.target.wants/podman.service"];
        for enabled in enabled {
            fs::remove_file(units.join(enabled)).or_else(absent_is_fine)?;
        }
        let engine = if request.containers { ENGINE_UNITS } else { &[] };
        for unit in MASKED.iter().chain(engine) {
            link("/dev/null", unit)?;
        }
        Ok(())
    }

    /// Removes files that no CI machine needs.
    pub(super) fn strip(&self) -> io::Result<()> {
        for folder in ["boot", "var/lib/apt/lists", "var/cache/apt", "var/log", "tmp"] {
            empty(&self.path.join(folder))?;
        }
        // These links lead to kernels in the folder that is empty now.
        for link in ["vmlinuz", "vmlinuz.old", "initrd.img", "initrd.img.old"] {
            fs::remove_file(self.path.join(link)).or_else(absent_is_fine)?;
        }
        // apt requires these folders.
        for folder in ["var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt"] {
            fs::create_dir_all(self.path.join(folder))?;
        }
        Ok(())
    }

    /// Removes the folder when the disk has been made from it.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(self.log)?;
        fs::remove_dir_all(self.path)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn write(&self, name: &str, mode: u32, content: impl AsRef<[u8]>) -> io::Result<()> {
        let path = self.path.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // A link would lead out of the folder.
        if path.is_symlink() {
            fs::remove_file(&path)?;
        }
        fs::write(&path, content)?;
        fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
    }
}

fn absent_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }?;
    }
    Ok(())
}

/// The packages that mmdebstrap installs, each once.
fn packages(request: &Request) -> Vec<&str> {
    let mut all = PACKAGES.to_vec();
    all.push(match request.ssh {
        SshServer::Openssh => "openssh-server",
        SshServer::Dropbear => "dropbear-bin",
    });
    if request.flavour == Flavour::Systemd {
        all.extend(SYSTEMD_PACKAGES);
    }
    if request.containers {
        all.extend(ENGINE_PACKAGES);
    }
    all.extend(request.packages.iter().map(String::as_str));
    all.sort_unstable();
    all.dedup();
    all
}

/// Nothing that is only recommended: names need no DNS server, and root needs no helpers of other users. Without
/// `iptables` no network can be created; `catatonit` is the engine's init process.
pub(super) const ENGINE_PACKAGES: &[&str] = &["catatonit", "crun", "iptables", "netavark", "podman"];

/// The modules that containers and their networks make the kernel load. Loaded before the snapshot, they cost no job any
/// time.
const MODULES: &[&str] = &[
    "overlay",
    "veth",
    "bridge",
    "br_netfilter",
    "nf_tables",
    "nft_compat",
    "xt_comment",
    "xt_addrtype",
    "xt_conntrack",
    "xt_mark",
    "xt_nat",
    "xt_MASQUERADE",
];

/// Read by systemd; the guest program of a light machine reads it, too.
const MODULES_FILE: &str = "etc/modules-load.d/greenroom.conf";

const ENGINE_SETTINGS: &str = r#"# Written by greenroom when the image was built.
[containers]
# The machine's names stay its own.
base_hosts_file = "none"
# Docker's. Debian's list lacks three of them: with it, `ping` fails.
default_capabilities = [
  "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
  "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
]
# None: the machine is the limit.
pids_limit = 0

[engine]
# Works without systemd and without its journal.
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"

[network]
network_backend = "netavark"
"#;

const STORAGE_SETTINGS: &str = r#"# Written by greenroom when the image was built.
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
[storage.options]
# Empty, unless the machine has an image store. The guest program mounts it.
additionalimagestores = ["/var/lib/greenroom/image-store"]
"#;

/// The directory on which the guest program mounts an image store.
const IMAGE_STORE: &str = "var/lib/greenroom/image-store";

/// Run before the snapshot: it leaves the engine's storage, and in memory what a job's first container would have to
/// wait for.
const WARM_UP: &str = include_str!("warm_up.sh");

/// Units of the engine that only cost time: every container belongs to one job of this boot.
pub(super) const ENGINE_UNITS: &[&str] =
    &["podman-auto-update.service", "podman-auto-update.timer", "podman-restart.service"];

/// Writes the settings; the packages are installed.
pub(super) fn configure_engine(rootfs: &Rootfs) -> io::Result<()> {
    rootfs.write(MODULES_FILE, 0o644, MODULES.join("\n") + "\n")?;
    rootfs.write("etc/containers/containers.conf", 0o644, ENGINE_SETTINGS)?;
    rootfs.write("etc/containers/storage.conf", 0o644, STORAGE_SETTINGS)?;
    fs::create_dir_all(rootfs.file(IMAGE_STORE))?;
    rootfs.write("usr/lib/greenroom/warm-up", 0o755, WARM_UP)
}

/// The installed engine with its version, such as `podman 4.3.1`.
pub(super) fn installed_engine(rootfs: &Rootfs) -> io::Result<String> {
    let status = fs::read_to_string(rootfs.file("var/lib/dpkg/status"))?;
    engine_in(&status).ok_or_else(|| io::Error::other("podman is not among the installed packages"))
}

fn engine_in(status: &str) -> Option<String> {
    let podman = status.split("\n\n").find(|package| package.starts_with("Package: podman\n"))?;
    let version = podman.lines().find_map(|line| line.strip_prefix("Version: "))?;
    // Debian's suffix: `4.3.1+ds1-8+deb12u1`.
    let upstream = version.split(['+', '-']).next()?;
    Some(format!("podman {upstream}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::image::build::tests::request;

    /// A folder with the part of Debian that the tests need.
    fn debian() -> (tempfile::TempDir, Rootfs) {
        let temporary = tempfile::tempdir().unwrap();
        let rootfs = Rootfs::in_folder(temporary.path());
        for (name, content) in [
            ("usr/sbin/sshd", "usedns\0persourcepenalties\0"),
            ("usr/sbin/reboot", "systemd's"),
            ("etc/ssh/ssh_host_rsa_key", "secret"),
            ("etc/ssh/moduli", ""),
            ("root/.bashrc", "alias ll='ls -l'\n"),
            ("etc/systemd/system/multi-user.target.wants/ssh.service", ""),
        ] {
            rootfs.write(name, 0o644, content).unwrap();
        }
        (temporary, rootfs)
    }

    fn text(rootfs: &Rootfs, name: &str) -> String {
        fs::read_to_string(rootfs.file(name)).unwrap()
    }

    #[test]
    fn a_light_guest_is_its_own_init_and_nobody_yet() {
        let (_temporary, rootfs) = debian();
        rootfs.configure(&request(), b"the program").unwrap();
        let init = fs::read_link(rootfs.file("usr/sbin/init")).unwrap();
        assert_eq!(init, Path::new("/usr/lib/greenroom/greenroom-guest"));
        assert!(rootfs.file("usr/sbin/reboot").is_symlink());
        assert_eq!(text(&rootfs, "usr/lib/greenroom/image"), "light openssh\n");
        assert_eq!(text(&rootfs, "etc/machine-id"), "");
        assert!(!rootfs.file("etc/ssh/ssh_host_rsa_key").exists() && rootfs.file("etc/ssh/moduli").exists());
        assert!(text(&rootfs, "root/.bashrc").ends_with("\nalias ll='ls -l'\n"));
    }

    #[test]
    fn a_server_is_told_not_to_punish_only_if_it_knows_how_to() {
        let (_temporary, rootfs) = debian();
        rootfs.configure(&request(), b"").unwrap();
        assert!(text(&rootfs, "etc/ssh/sshd_config").ends_with("\nPerSourcePenalties no\n"));
        rootfs.write("usr/sbin/sshd", 0o755, "usedns\0").unwrap();
        rootfs.configure(&request(), b"").unwrap();
        assert!(!text(&rootfs, "etc/ssh/sshd_config").contains("PerSourcePenalties"));
    }

    #[test]
    fn under_systemd_the_ssh_server_waits_for_the_machine_to_be_itself() {
        let (_temporary, rootfs) = debian();
        rootfs.configure(&Request { flavour: Flavour::Systemd, ..request() }, b"").unwrap();
        let units = rootfs.file("etc/systemd/system");
        assert!(units.join("greenroom.target.wants/greenroom-agent.service").is_symlink());
        assert_eq!(fs::read_link(units.join("apt-daily.timer")).unwrap(), Path::new("/dev/null"));
        assert!(units.join("greenroom.target.wants/ssh.service").is_symlink());
        assert!(text(&rootfs, "etc/systemd/system/ssh.service.d/greenroom.conf").contains(" ssh\n"));
        assert!(!units.join("multi-user.target.wants/ssh.service").exists());
        assert!(!rootfs.file("usr/sbin/init").exists(), "systemd's own stays");
    }

    #[test]
    fn an_engine_has_its_settings_and_no_units_that_run_at_boot() {
        let (_temporary, rootfs) = debian();
        let started = "etc/systemd/system/default.target.wants/podman.service";
        rootfs.write(started, 0o644, "").unwrap();
        let wanted = Request { flavour: Flavour::Systemd, containers: true, ..request() };
        rootfs.configure(&wanted, b"").unwrap();
        assert!(text(&rootfs, "etc/modules-load.d/greenroom.conf").starts_with("overlay\nveth\n"));
        assert!(text(&rootfs, "etc/containers/containers.conf").contains("cgroup_manager = \"cgroupfs\""));
        assert!(rootfs.file("usr/lib/greenroom/warm-up").exists() && !rootfs.file(started).exists());
        let masked = rootfs.file("etc/systemd/system/podman-restart.service");
        assert_eq!(fs::read_link(masked).unwrap(), Path::new("/dev/null"));
        assert!(packages(&wanted).contains(&"podman") && !packages(&request()).contains(&"podman"));
        let (_temporary, plain) = debian();
        plain.configure(&request(), b"").unwrap();
        assert!(!plain.file("etc/containers").exists() && !plain.file("etc/modules-load.d").exists());
    }

    #[test]
    fn what_no_machine_needs_goes_and_apt_still_finds_its_folders() {
        let (_temporary, rootfs) = debian();
        for name in [
            "boot/vmlinuz-6.1",
            "var/lib/apt/lists/big",
            "var/cache/apt/pkgcache.bin",
            "var/log/dpkg.log",
            "tmp/x",
        ] {
            rootfs.write(name, 0o644, "").unwrap();
        }
        symlink("boot/vmlinuz-6.1", rootfs.file("vmlinuz")).unwrap();
        rootfs.strip().unwrap();
        assert!(!rootfs.file("vmlinuz").is_symlink() && !rootfs.file("boot/vmlinuz-6.1").exists());
        assert!(!rootfs.file("var/lib/apt/lists/big").exists() && !rootfs.file("tmp/x").exists());
        assert!(rootfs.file("var/lib/apt/lists/partial").is_dir() && rootfs.file("var/log/apt").is_dir());
    }

    #[test]
    fn a_package_that_was_asked_for_twice_is_installed_once() {
        let wanted = Request { packages: vec!["git".to_owned(), "make".to_owned()], ..request() };
        let all = packages(&wanted);
        assert_eq!(all.iter().filter(|name| **name == "git").count(), 1);
        assert!(all.contains(&"make") && all.contains(&"openssh-server") && !all.contains(&"systemd-sysv"));
    }

    #[test]
    fn the_engine_is_named_by_its_version_upstream() {
        let status = "Package: pod\nVersion: 1\n\nPackage: podman\nStatus: install ok installed\n\
                      Version: 4.3.1+ds1-8+deb12u1+b3\n\nPackage: zlib1g\nVersion: 1.2\n";
        assert_eq!(engine_in(status).as_deref(), Some("podman 4.3.1"));
        assert_eq!(engine_in("Package: podman\nVersion: 5.4.2-1\n").as_deref(), Some("podman 5.4.2"));
        assert_eq!(engine_in("Package: bash\nVersion: 5.2\n"), None);
    }
}
