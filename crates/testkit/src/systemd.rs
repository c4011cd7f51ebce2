//! A systemd of the test's own, in namespaces: for tests that need a real one.
//!
//! It sees the runner host's files, but none of its units, and has a /run, a process table and a control group of its own.
//! Everything that it starts ends with it. Needs root, systemd and version 2 of control groups.

use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::program;
use crate::skipped::skipped;

const WITHIN: Duration = Duration::from_secs(20);

/// Becomes systemd in namespaces: `$1` is a directory for it, `$2` holds its units. `$3`: a directory that it shares with
/// the host; of all other files it sees a copy, which ends with it.
const BEGIN: &str = r#"
set -eu
mount --make-rprivate /
mkdir "$1/cgroups"
mount -t cgroup2 none "$1/cgroups"
group="$1/cgroups/greenroom-test-$$"
mkdir "$group"
echo "$group" > "$1/group"
echo $$ > "$group/cgroup.procs"
if [ -n "$3" ]; then
  copy="$1/copy"
  mkdir "$copy"
  mount -t tmpfs none "$copy"
  mkdir "$copy/upper" "$copy/work" "$copy/root"
  mount -t overlay none -o "lowerdir=/,upperdir=$copy/upper,workdir=$copy/work" "$copy/root"
  mkdir -p "$copy/root$3" "$copy/root/.host"
  for folder in /dev /proc /sys; do mount --rbind "$folder" "$copy/root$folder"; done
  mount --bind "$3" "$copy/root$3"
  rm -rf "$copy/root/etc/systemd/system"
  mkdir "$copy/root/etc/systemd/system"
  cd "$copy/root"
  pivot_root . .host
  cd /
  umount --lazy /.host
fi
exec unshare --cgroup --pid --fork --kill-child --mount-proc sh -c '
  set -eu
  umount -R /sys/fs/cgroup
  mount -t cgroup2 none /sys/fs/cgroup
  mount -t tmpfs none /run
  # Units of the host come before those of the test: a real runner would start, and take jobs.
  for units in /etc/systemd/system /usr/local/lib/systemd/system; do
    [ -n "$3" ] || [ ! -d "$units" ] || mount -t tmpfs none "$units"
  done
  mkdir -p /run/systemd/system
  cp -R "$2"/. /run/systemd/system/
  exec env container=test /lib/systemd/systemd --system --unit=test.target --log-target=console --log-level=warning
' sh "$1" "$2" "$3"
"#;

#[derive(Debug)]
pub struct Systemd {
    unshare: Child,
    pid: u32,
    home: PathBuf,
}

impl Systemd {
    /// Starts one with these units beside an empty `test.target`; `None` if that is impossible: the test is skipped.
    ///
    /// `in_copy`: it sees a copy of the host's files instead of the files, except for those below `home`. What it changes
    /// there ends with it.
    pub fn start(home: &Path, units: &[(&str, &str)], in_copy: bool) -> Option<Self> {
        if let Some(why) = missing(in_copy) {
            skipped(format_args!("systemd cannot be started in namespaces: {why}"));
            return None;
        }
        let place = home.join("systemd");
        let folder = home.join("systemd/units");
        std::fs::create_dir_all(&folder).expect("a directory for the units");
        let target = ("test.target", "[Unit]\nDefaultDependencies=no\n");
        for (name, text) in units.iter().chain([&target]) {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().expect("it is in the folder")).expect("a directory");
            std::fs::write(path, text).expect("a unit");
        }
        let log = std::fs::File::create(place.join("log")).expect("a log");
        let mut command = program::command("unshare", home);
        command.args(["--mount", "--uts", "--ipc", "--kill-child", "--fork", "sh", "-c", BEGIN, "sh"]);
        command.arg(&place).arg(&folder).arg(if in_copy { home } else { Path::new("") });
        command.stdout(Stdio::null()).stderr(log);
        let unshare = command.spawn().expect("unshare runs");
        let mut systemd = Self { unshare, pid: 0, home: place };
        let until = Instant::now() + WITHIN;
        while !systemd.is_up() {
            let log = || std::fs::read_to_string(systemd.home.join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "systemd does not come up: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(systemd)
    }

    /// Runs a program beside it, in all its namespaces.
    pub fn run(&self, arguments: &[&str]) -> Output {
        let mut command = program::command("nsenter", &self.home);
        command.args(["--target", &self.pid.to_string(), "--all"]).args(arguments);
        command.output().expect("nsenter runs")
    }

    /// `systemctl`, which must succeed; returns its output.
    #[track_caller]
    pub fn systemctl(&self, arguments: &[&str]) -> String {
        let output = self.run(&[&["systemctl", "--no-pager"], arguments].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "systemctl {arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn is_up(&mut self) -> bool {
        // unshare, a shell, unshare, and below them systemd.
        let mut pid = self.unshare.id();
        while name(pid) != "systemd" {
            let Some(child) = only_child(pid) else { return false };
            pid = child;
        }
        self.pid = pid;
        self.run(&["systemctl", "is-active", "--quiet", "test.target"]).status.success()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // The first process of a process namespace takes all others with it.
        drop(self.unshare.kill());
        drop(self.unshare.wait());
        remove_groups(&self.home);
    }
}

/// The part of this machine that is missing.
fn missing(in_copy: bool) -> Option<&'static str> {
    let exists = |path: &str| Path::new(path).exists();
    let knows = |kind: &str| std::fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains(kind));
    match () {
        () if !rustix::process::geteuid().is_root() => Some("this is not root"),
        () if !exists("/lib/systemd/systemd") => Some("no /lib/systemd/systemd"),
        () if !knows("cgroup2") => Some("no control groups of version 2"),
        () if in_copy && !knows("overlay") => Some("no overlay file system"),
        () => None,
    }
}

fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn only_child(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let mut children = children.split_ascii_whitespace();
    children.next()?.parse().ok().filter(|_| children.next().is_none())
}

/// Control groups do not disappear with a namespace. Those of a running test stay: one that it has just made for a unit has no
/// process for a moment, and would disappear.
fn remove_groups(home: &Path) {
    let script = r#"
        mount --make-rprivate /
        mount -t cgroup2 none "$1/cgroups" || exit 0
        for tries in $(seq 50); do
            for group in "$1"/cgroups/greenroom-test-*; do
                [ -e "/proc/${group##*-}" ] || find "$group" -depth -type d -exec rmdir {} +
            done
            [ -e "$(cat "$1/group")" ] || break
            sleep 0.1
        done
    "#;
    let mut command = program::command("unshare", home);
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(home);
    drop(command.stdout(Stdio::null()).stderr(Stdio::null()).status());
}
