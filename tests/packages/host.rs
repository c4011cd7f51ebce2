//! The Debian package on a host with systemd: installed, upgraded while a job runs, removed, purged.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use greenroom_testkit::pace::await_settled;
use greenroom_testkit::systemd::Systemd;

use crate::{STUB, cannot_package, package, programs, text};

/// Far more than any step needs.
const SOON: Duration = Duration::from_mins(2);

/// A keeper's configuration as an operator writes it.
const CONFIG: &str = "[timing]\nself_check_interval = \"200ms\"\n[pool.pool]\nmax_instances = 2\nidle_count = 1\n\
                      idle_time = \"1h\"\n[pool.pool.provider]\nkind = \"local\"\nallow_root = true\n";

/// The command of dpkg without what other packages do meanwhile, such as an index of all man pages, and without syncs
/// of a copy in memory.
const DPKG: &str = "dpkg --no-triggers --force-unsafe-io";

/// GitLab Runner's part of one job, whose script waits for the file `go`.
const JOB: &str =
    "greenroom try \"echo its beginning; until [ -e $1/go ]; do sleep 0.1; done; echo its end\"";

struct Host {
    home: tempfile::TempDir,
    systemd: Option<Systemd>,
}

impl Host {
    fn path(&self) -> &Path {
        self.home.path()
    }

    fn systemd(&self) -> &Systemd {
        self.systemd.as_ref().expect("it was started")
    }

    /// Runs a line of shell on the host; returns whether job succeeded, and its output.
    fn try_sh(&self, line: &str) -> (bool, String) {
        let output = self.systemd().run(&[
            "env",
            "DEBIAN_FRONTEND=noninteractive",
            "sh",
            "-c",
            &format!("exec 2>&1; {line}"),
        ]);
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[track_caller]
    fn sh(&self, line: &str) -> String {
        let (succeeded, text) = self.try_sh(line);
        assert!(succeeded, "{line}: {text}\n{}", self.reports());
        text
    }

    /// The output of the host's processes, and the state of the keeper's unit.
    fn reports(&self) -> String {
        self.try_sh(&format!("cat {}/*.log; systemctl status greenroom", self.path().display())).1
    }

    fn property(&self, name: &str) -> String {
        self.systemd()
            .systemctl(&["show", "--value", &format!("--property={name}"), "greenroom"])
            .trim()
            .to_owned()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + SOON;
        while !is_so() {
            assert!(Instant::now() < until, "not within {SOON:?}: {what}: {}", self.reports());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn has_idle(&self) -> bool {
        let status: Option<serde_json::Value> =
            serde_json::from_str(&self.try_sh("greenroom pool status --json").1).ok();
        status.is_some_and(|status| status["pools"][0]["idle"] == 1)
    }

    fn deb(&self, version: &str) -> String {
        self.path().join(format!("out/greenroom_{version}_amd64.deb")).display().to_string()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.systemd.take());
        await_settled(self.path());
    }
}

/// A host on which packages of this kind of the versions 1.0 and 2.0 lie ready; `None`: the test is skipped.
fn host(kind: &str, greenroom: impl FnOnce(&Path)) -> Option<Host> {
    if cannot_package() {
        return None;
    }
    let home = tempfile::Builder::new().prefix("greenroom-package-").tempdir().expect("a directory");
    let shown = home.path().display().to_string();
    // A unit that would pull in those of a booting machine.
    let alone = "[Unit]\nDefaultDependencies=no\n";
    let keeper = format!("{alone}[Service]\nStandardError=append:{shown}/keeper.log\n");
    let job = format!(
        "{alone}[Service]\nExecStart=/bin/sh {shown}/run {shown}\nStandardOutput=append:{shown}/job.log\n\
         StandardError=append:{shown}/job.log\n"
    );
    let units = [
        ("greenroom.service.d/test.conf", keeper.as_str()),
        ("greenroom-reap.service.d/test.conf", alone),
        ("greenroom-reap.timer.d/test.conf", alone),
        ("network-online.target", alone),
        ("job.service", &job),
    ];
    let systemd = Some(Systemd::start(home.path(), &units, true)?);
    let host = Host { home, systemd };
    std::fs::write(host.path().join("run"), JOB).expect("a file");
    let from = programs(host.path(), greenroom);
    for version in ["1.0", "2.0"] {
        text(&package(&from, &host.path().join("out"), &["--only", kind, "--version", version], &[]));
    }
    // Of the machine that the test runs on, the copy has what must not decide, such as an installed package.
    host.sh(
        "rm -rf /usr/sbin/policy-rc.d /etc/greenroom /var/lib/greenroom /var/lib/dpkg/info/greenroom.p*; \
         dpkg --purge --force-all greenroom >/dev/null 2>&1; rm -rf /var/lib/systemd/deb-systemd-helper-*/greenroom*",
    );
    Some(host)
}

fn built(path: &Path) {
    let strip = Command::new("strip").arg("-o").arg(path).arg(env!("CARGO_BIN_EXE_greenroom")).status();
    assert!(strip.expect("strip runs").success());
}

/// Debian's systemd stands in for that of a distribution with RPM.
#[test]
fn the_scripts_of_the_rpm_enable_the_units_and_disable_them() {
    let Some(host) = host("rpm", |path| std::fs::write(path, STUB).expect("a file")) else { return };
    let rpm = |action: &str, version: &str| {
        let file = host.path().join(format!("out/greenroom-{version}-1.x86_64.rpm"));
        host.sh(&format!("rpm --dbpath /var/rpmdb --nodeps {action} {}", file.display()))
    };
    let enabled = || host.try_sh("systemctl is-enabled greenroom.service greenroom-reap.timer").1;
    rpm("--install", "1.0");
    assert_eq!(enabled(), "enabled\nenabled\n");
    assert_eq!(host.sh("stat -c '%U %a' /var/lib/greenroom"), "root 700\n");
    host.sh("systemctl disable --quiet greenroom-reap.timer");
    rpm("--upgrade", "2.0");
    assert_eq!(enabled(), "enabled\ndisabled\n");
    host.sh("mkdir -p /var/lib/greenroom/instances/pool/pool-0123abcd-1");
    let said = host.sh("rpm --dbpath /var/rpmdb --erase greenroom");
    assert!(
        said.contains("these instances are still recorded") && said.contains("pool-0123abcd-1"),
        "{said}"
    );
    assert!(!enabled().contains("enabled\n") && host.try_sh("test -e /var/lib/greenroom/instances").0);
}

#[test]
fn init_enables_and_starts_the_units_of_the_package() {
    let Some(host) = host("deb", built) else { return };
    host.sh(&format!("{DPKG} --install {}", host.deb("1.0")));
    host.sh("systemctl disable --quiet --now greenroom.service greenroom-reap.timer");
    let init = "greenroom init --enable-units --no-questions";
    let said = host.sh(&format!("{init} --provider local --pool pool --set allow_root=true"));
    assert!(said.contains("Enabled the keeper and the timer of `reap`."), "{said}");
    assert_eq!(host.sh("systemctl is-enabled greenroom.service greenroom-reap.timer"), "enabled\nenabled\n");
    assert_eq!(host.sh("systemctl is-active greenroom.service greenroom-reap.timer"), "active\nactive\n");
    host.wait_for("an idle instance", || host.has_idle());
    let again = host.sh(init);
    assert!(again.contains("exists and is not changed"), "{again}");
}

#[test]
fn a_host_survives_installation_upgrade_removal_and_purge() {
    let Some(host) = host("deb", built) else { return };
    let said = host.sh(&format!("{DPKG} --install {}", host.deb("1.0")));
    assert!(said.contains("describe your pools in /etc/greenroom/greenroom.toml"), "{said}");
    assert_eq!(host.sh("stat -c '%U %a' /var/lib/greenroom"), "root 700\n");
    assert_eq!(host.sh("systemctl is-enabled greenroom.service greenroom-reap.timer"), "enabled\nenabled\n");
    assert_eq!(host.property("ActiveState"), "inactive");

    host.sh(&format!("cat > /etc/greenroom/greenroom.toml <<'END'\n{CONFIG}END"));
    host.sh("echo NO_PROXY=mine > /etc/greenroom/environment; systemctl start greenroom");
    host.wait_for("an idle instance", || host.has_idle());
    host.sh("systemctl start job");
    let log = |name: &str| std::fs::read_to_string(host.path().join(name)).unwrap_or_default();
    host.wait_for("the job's beginning", || log("job.log").contains("its beginning"));

    let keeper = host.property("MainPID");
    host.sh(&format!("{DPKG} --install {}", host.deb("2.0")));
    host.wait_for("the new program's keeper", || {
        host.property("ActiveState") == "active" && host.property("MainPID") != keeper
    });
    assert!(log("keeper.log").contains("the executable was replaced"), "{}", log("keeper.log"));
    assert_eq!(host.sh("cat /etc/greenroom/environment"), "NO_PROXY=mine\n");
    std::fs::write(host.path().join("go"), "").expect("a file");
    host.wait_for("the job's success", || log("job.log").contains("job succeeded"));
    assert!(log("job.log").contains("its end"), "{}", log("job.log"));
    host.wait_for("the next instance", || host.has_idle());

    let said = host.sh(&format!("{DPKG} --remove greenroom"));
    assert!(said.contains("these instances are still recorded") && said.contains("pool-"), "{said}");
    assert!(host.sh("systemctl show --value --property=ActiveState greenroom").contains("inactive"));
    host.sh("test ! -e /usr/bin/greenroom; test -e /etc/greenroom/greenroom.toml; test -e /var/lib/greenroom/owner");

    // In place of a machine in a cloud.
    let cloud = "/var/lib/greenroom/launches/pool/pool-0123abcd-1.json";
    host.sh(&format!("mkdir -p $(dirname {cloud}); echo {{}} > {cloud}"));
    let (purged, said) = host.try_sh(&format!("{DPKG} --purge greenroom"));
    assert!(
        !purged && said.contains("pool-0123abcd-1") && said.contains("delete /var/lib/greenroom"),
        "{said}"
    );
    host.sh(&format!("test -e /etc/greenroom/greenroom.toml; rm {cloud}"));
    let said = host.sh(&format!("{DPKG} --purge greenroom"));
    assert!(said.contains("/var/lib/greenroom is kept"), "{said}");
    host.sh("test ! -e /etc/greenroom; test -e /var/lib/greenroom/owner");
}
