//! What jobs in containers need of an image: an engine, its settings, and the kernel modules that it uses.

use std::io;

use fs_err as fs;

use super::rootfs::Rootfs;

/// Nothing that is only recommended: names need no DNS server, and root needs no helpers of other users. Without
/// `iptables` no network can be created; `catatonit` is the engine's init process.
pub(super) const PACKAGES: &[&str] = &["catatonit", "crun", "iptables", "netavark", "podman"];

/// What containers and their networks make the kernel load. Loaded before the snapshot, they cost no job any time.
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

const ENGINE: &str = r#"# Written by greenroom when the image was built.
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

const STORAGE: &str = r#"# Written by greenroom when the image was built.
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
[storage.options]
# Empty, unless the machine has an image store. The guest program mounts it.
additionalimagestores = ["/var/lib/greenroom/image-store"]
"#;

/// Where the guest program mounts an image store.
const IMAGE_STORE: &str = "var/lib/greenroom/image-store";

/// Run before the snapshot: it leaves the engine's storage, and in memory what a job's first container would have to
/// wait for.
const WARM_UP: &str = "\
#!/bin/sh
# Written by greenroom when the image was built.
set -e
name=greenroom-warm-up
tar -chf - /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*') | podman import - $name
podman network create --disable-dns $name
podman create --interactive --name $name --log-driver none --network $name localhost/$name /bin/sh
echo 'exit 0' | podman start --attach --interactive $name
podman rm $name
podman network rm $name
podman rmi localhost/$name
";

/// Units of the engine that only cost time: every container belongs to one job of this boot.
pub(super) const MASKED: &[&str] =
    &["podman-auto-update.service", "podman-auto-update.timer", "podman-restart.service"];

/// Writes the settings; the packages are installed.
pub(super) fn configure(rootfs: &Rootfs) -> io::Result<()> {
    rootfs.write(MODULES_FILE, 0o644, MODULES.join("\n") + "\n")?;
    rootfs.write("etc/containers/containers.conf", 0o644, ENGINE)?;
    rootfs.write("etc/containers/storage.conf", 0o644, STORAGE)?;
    fs::create_dir_all(rootfs.file(IMAGE_STORE))?;
    rootfs.write("usr/lib/greenroom/warm-up", 0o755, WARM_UP)
}

/// The installed engine with its version, such as `podman 4.3.1`.
pub(super) fn engine(rootfs: &Rootfs) -> io::Result<String> {
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

    #[test]
    fn the_engine_is_named_by_its_version_upstream() {
        let status = "Package: pod\nVersion: 1\n\nPackage: podman\nStatus: install ok installed\n\
                      Version: 4.3.1+ds1-8+deb12u1+b3\n\nPackage: zlib1g\nVersion: 1.2\n";
        assert_eq!(engine_in(status).as_deref(), Some("podman 4.3.1"));
        assert_eq!(engine_in("Package: podman\nVersion: 5.4.2-1\n").as_deref(), Some("podman 5.4.2"));
        assert_eq!(engine_in("Package: bash\nVersion: 5.2\n"), None);
    }
}
