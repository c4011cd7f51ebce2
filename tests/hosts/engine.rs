//! Hosts whose account runs containers, with an image in the pristine copy of its home.

use greenroom_harness::setting::Setting;
use greenroom_testkit::skipped::skipped;
use toml::Table;

use crate::machine::{Hosts, Machine, Make};

/// The image that the pristine copy has: BusyBox, a user `app`, and this file.
pub const IMAGE: &str = "localhost/tool:1";
pub const CONTENT: &str = "the operator's";

/// Makes the image as the account, as an operator would, and then the copy of the home.
const PREPARE: &str = r#"
set -e
PATH=$PATH:/usr/sbin
t=/tmp/tree
mkdir -p $t/bin $t/tmp $t/etc $t/serve
chmod 1777 $t/tmp
cp "$(command -v busybox)" $t/bin/busybox
for a in $(busybox --list | grep -vx busybox); do ln -sf /bin/busybox $t/bin/$a; done
printf 'root:x:0:0::/:/bin/sh\napp:x:1000:1000::/tmp:/bin/sh\n' >$t/etc/passwd
printf "the operator's\n" >$t/content
tar -C $t -cf /tmp/tool.tar .
rm -rf $t
chmod 644 /tmp/tool.tar
cat >/tmp/prepare <<'END'
export XDG_RUNTIME_DIR=$HOME/run
mkdir -p $XDG_RUNTIME_DIR
podman --cgroup-manager=cgroupfs import /tmp/tool.tar localhost/tool:1
[ ! -e /tmp/old.tar ] || podman --cgroup-manager=cgroupfs import /tmp/old.tar localhost/old:1
END
cd /
setpriv --reuid=4711 --regid=4711 --clear-groups env -i HOME=/home/ci PATH=$PATH sh /tmp/prepare >/tmp/prepared 2>&1 ||
  { cat /tmp/prepared; exit 1; }
pkill -KILL -u 4711 || :
rm -rf /tmp/tool.tar /tmp/old.tar /tmp/prepare /tmp/prepared /tmp/podman-run-4711 /home/ci/run /var/lib/greenroom-homes/ci
cp -a /home/ci /var/lib/greenroom-homes
echo prepared
"#;

/// Another image of the host, of 60 MB, that no job uses.
pub const OLD: &str = "localhost/old:1";

/// Hosts without an image; none where Podman is missing: the test is skipped then.
pub fn bare_hosts(makes: &[Make<'_>]) -> Option<Hosts> {
    if !crate::machine::possible() {
        return None;
    }
    let has = |program: &&str| {
        ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
            .iter()
            .any(|dir| std::path::Path::new(dir).join(program).exists())
    };
    let wanted = ["podman", "crun", "newuidmap", "slirp4netns", "iptables", "busybox"];
    if !wanted.iter().all(has) {
        skipped(
            "containers without root: one of Podman, crun, newuidmap, slirp4netns, iptables, BusyBox is missing",
        );
        return None;
    }
    let makes: Vec<Make<'_>> = makes.iter().map(|make| Make { containers: true, ..make.clone() }).collect();
    Some(Hosts::boot(&makes))
}

/// Hosts as of [`bare_hosts`] that have the image of the jobs.
pub fn hosts(makes: &[Make<'_>]) -> Option<Hosts> {
    let hosts = bare_hosts(makes)?;
    hosts.machines.iter().for_each(prepare);
    Some(hosts)
}

/// One host with both images.
pub fn host_with_old() -> Option<Hosts> {
    let hosts = bare_hosts(&[Make::named("a")])?;
    let tar = "mkdir /tmp/old; head -c 60000000 /dev/zero >/tmp/old/file; tar -C /tmp/old -cf /tmp/old.tar .; rm -r /tmp/old";
    hosts.machines[0].sh(tar);
    hosts.machines.iter().for_each(prepare);
    Some(hosts)
}

#[track_caller]
fn prepare(machine: &Machine) {
    let said = machine.sh(PREPARE);
    assert!(said.ends_with("prepared\n"), "{said}");
}

/// A pool of them that root cleans.
pub fn setting(hosts: &Hosts, change: impl FnOnce(&mut Table)) -> Setting {
    let mut table = Table::new();
    table.insert("pull_policy".into(), "if-not-present".into());
    table.insert("min_free_space".into(), "1M".into());
    change(&mut table);
    hosts.cleaned_by("root").pool("containers", table).timing("health_interval", "1h")
}
