//! The units of the package under a real systemd, with shorter times.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::settled::await_settled;
use crate::systemd::Systemd;

const GREENROOM: &str = env!("CARGO_BIN_EXE_greenroom");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/systemd");
/// Far more than any step needs.
const SOON: Duration = Duration::from_mins(2);
/// The test's own period of the watchdog.
const WATCHDOG: Duration = Duration::from_secs(4);

/// A systemd with the package's units, whose keeper has one `local` pool.
struct Host {
    home: tempfile::TempDir,
    systemd: Option<Systemd>,
}

impl Host {
    /// `None`: the test is skipped.
    fn start(sandbox: Option<&str>) -> Option<Self> {
        let home = tempfile::Builder::new().prefix("greenroom-units-").tempdir().expect("a directory");
        let runner = "\"$1\" --config \"$2/greenroom.toml\" try \
                      \"echo its beginning; until [ -e $2/go ]; do sleep 0.1; done; echo its end\" > \"$2/job.log\" 2>&1\n";
        std::fs::write(home.path().join("runner"), runner).expect("a file");
        let mut host = Self { home, systemd: None };
        host.configure("idle_count = 1");
        let keeper = host.unit("greenroom.service", sandbox.unwrap_or_default());
        let reap = host.unit("greenroom-reap.service", "");
        let timer = host.unit("greenroom-reap.timer", "");
        let job = format!(
            "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sh {home}/runner {GREENROOM} {home}\n",
            home = host.path().display()
        );
        let units = [
            ("greenroom.service", keeper.as_str()),
            ("greenroom-reap.service", &reap),
            ("greenroom-reap.timer", &timer),
            ("job.service", &job),
        ];
        host.systemd = Some(Systemd::start(host.path(), &units, false)?);
        Some(host)
    }

    fn path(&self) -> &Path {
        self.home.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes the configuration. A change takes effect by a reload only.
    fn configure(&self, lines: &str) {
        let state = self.at("state").display().to_string();
        let text = format!(
            "state_dir = {state:?}\n[timing]\nself_check_interval = \"1h\"\nhealth_interval = \"1h\"\n\
             [pool.pool]\nmax_instances = 4\nidle_time = \"1h\"\n{lines}\n\
             [pool.pool.provider]\nkind = \"local\"\nallow_root = true\n"
        );
        std::fs::write(self.at("greenroom.toml"), text).expect("a file");
    }

    /// A unit of the package, for this configuration, without the rest of a booting machine.
    fn unit(&self, name: &str, more: &str) -> String {
        let text = std::fs::read_to_string(format!("{FOLDER}/{name}")).expect("a unit of the package");
        let config = self.at("greenroom.toml").display().to_string();
        let text = text
            .replace("[Unit]", "[Unit]\nDefaultDependencies=no")
            .replace("Wants=network-online.target\n", "")
            .replace("/etc/greenroom/greenroom.toml\n", &format!("{config}\n"))
            .replace("ExecStart=/usr/bin/greenroom", &format!("ExecStart={GREENROOM} --config {config}"))
            .replace("WatchdogSec=2min", &format!("WatchdogSec={}", WATCHDOG.as_secs()))
            .replace("TimeoutAbortSec=10s", "TimeoutAbortSec=1s")
            .replace("RestartSec=2s", "RestartSec=100ms");
        let log = format!("[Service]\nStandardError=append:{}\n", self.at("keeper.log").display());
        let more = more.replace("=/var/lib/greenroom ", &format!("={} ", self.path().display()));
        text.replace("[Service]\n", &format!("{log}{more}"))
    }

    fn systemd(&self) -> &Systemd {
        self.systemd.as_ref().expect("it was started")
    }

    fn systemctl(&self, arguments: &[&str]) -> String {
        self.systemd().systemctl(arguments)
    }

    fn property(&self, name: &str) -> String {
        self.systemctl(&["show", "--value", &format!("--property={name}"), "greenroom"]).trim().to_owned()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + SOON;
        while !is_so() {
            let log = self.read("keeper.log");
            assert!(Instant::now() < until, "not within {SOON:?}: {what}; the keeper's log:\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    fn await_idle(&self, count: u64) {
        let config = self.at("greenroom.toml").display().to_string();
        self.wait_for(&format!("{count} idle instances"), || {
            let status = self.systemd().run(&[GREENROOM, "--config", &config, "pool", "status", "--json"]);
            let status: Option<serde_json::Value> = serde_json::from_slice(&status.stdout).ok();
            status.is_some_and(|status| status["pools"][0]["idle"] == count)
        });
    }

    /// Starts a job that waits for `finish_job`.
    fn start_job(&self) {
        self.systemctl(&["start", "job"]);
        self.wait_for("the job's beginning", || self.read("job.log").contains("its beginning"));
    }

    fn finish_job(&self) {
        std::fs::write(self.at("go"), "").expect("a file");
        self.wait_for("the job's success", || self.read("job.log").contains("job succeeded"));
        assert!(self.read("job.log").contains("its end"));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.systemd.take());
        await_settled(self.path());
    }
}

#[test]
fn the_keepers_unit_reloads_survives_a_hang_and_stops_without_the_jobs() {
    let Some(host) = Host::start(None) else { return };
    host.systemctl(&["start", "greenroom"]);
    assert_eq!(host.property("ActiveState"), "active");
    let (started, pid) = (Instant::now(), host.property("MainPID"));
    assert_eq!(host.property("StatusText"), "reconciling 1 pool: pool");
    host.await_idle(1);

    host.configure("idle_count = 2");
    host.systemctl(&["reload", "greenroom"]);
    host.await_idle(2);
    host.configure("idle_cuont = 3");
    host.systemctl(&["reload", "greenroom"]);
    let is_refused = |text: String| text.contains("remains active: ") && text.contains("idle_cuont");
    host.wait_for("the refusal", || is_refused(host.property("StatusText")));
    assert!(is_refused(host.read("keeper.log")), "{}", host.read("keeper.log"));
    host.configure("idle_count = 2");
    host.systemctl(&["reload", "greenroom"]);
    host.wait_for("the end of the refusal", || host.property("StatusText") == "reconciling 1 pool: pool");
    assert_eq!(host.property("ActiveState"), "active");
    // For longer than the watchdog's period: the keeper has pinged.
    host.wait_for("two periods", || started.elapsed() > 2 * WATCHDOG);
    assert_eq!((host.property("NRestarts").as_str(), host.property("MainPID")), ("0", pid.clone()));

    host.start_job();
    assert!(host.systemd().run(&["kill", "-STOP", &pid]).status.success());
    host.wait_for("another keeper", || host.property("MainPID") != pid && host.property("NRestarts") != "0");
    host.wait_for("its readiness", || host.property("ActiveState") == "active");
    host.systemctl(&["stop", "greenroom"]);
    let end = (host.property("ActiveState"), host.property("Result"));
    assert_eq!((end.0.as_str(), end.1.as_str()), ("inactive", "success"));
    host.finish_job();
}

/// A pool of the provider `local` stands in for those of clouds: it needs no more of the host.
#[test]
fn a_keeper_in_the_sandbox_has_instances_and_serves_jobs() {
    let sandbox = std::fs::read_to_string(format!("{FOLDER}/sandbox.conf")).expect("the drop-in");
    let (_, options) = sandbox.split_once("[Service]\n").expect("its section");
    let Some(host) = Host::start(Some(options)) else { return };
    host.systemctl(&["start", "greenroom"]);
    host.await_idle(1);
    host.start_job();
    host.configure("idle_count = 2");
    host.systemctl(&["reload", "greenroom"]);
    host.await_idle(2);
    host.finish_job();
    assert_eq!(host.property("NRestarts"), "0");
}

#[test]
fn the_timers_unit_makes_a_pass_and_ends() {
    let Some(host) = Host::start(None) else { return };
    host.systemctl(&["start", "greenroom-reap.timer"]);
    host.systemctl(&["start", "greenroom-reap.service"]);
    let shown = host.systemctl(&["show", "--property=Result,ActiveState", "greenroom-reap.service"]);
    assert!(shown.contains("Result=success") && shown.contains("ActiveState=inactive"), "{shown}");
    // Its background keeper outlives the unit, and makes the instance that the pool lacks.
    host.await_idle(1);
}
