//! A host with the units of the package under a real systemd, with shorter times.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use greenroom_testkit::pace::await_settled;
use greenroom_testkit::systemd::Systemd;

const GREENROOM: &str = env!("CARGO_BIN_EXE_greenroom");
pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/systemd");
/// Far more than any step needs, also on a loaded machine that emulates virtual machines.
const SOON: Duration = Duration::from_mins(4);
/// The test's own period of the watchdog.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(4);

/// A systemd with the package's units, whose keeper has one pool.
pub(crate) struct Host {
    home: tempfile::TempDir,
    provider: String,
    systemd: Option<Systemd>,
}

impl Host {
    /// Starts a host with a pool of this provider, given as the lines of its table, and a job that waits as its shell
    /// is told to: `$2` is a folder of the host, where `finish_job` makes the file `go`. `None`: the test is skipped.
    pub(crate) fn start(provider: &str, wait: &str, sandbox: Option<&str>) -> Option<Self> {
        let home = tempfile::Builder::new().prefix("greenroom-units-").tempdir().expect("a directory");
        let runner = format!(
            "\"$1\" --config \"$2/greenroom.toml\" try \
             \"echo its beginning; {wait}; echo its end\" > \"$2/job.log\" 2>&1\n"
        );
        std::fs::write(home.path().join("runner"), runner).expect("a file");
        let mut host = Self { home, provider: provider.to_owned(), systemd: None };
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
    pub(crate) fn configure(&self, lines: &str) {
        let state = self.at("state").display().to_string();
        let text = format!(
            "state_dir = {state:?}\n[timing]\nself_check_interval = \"1h\"\nhealth_interval = \"1h\"\n\
             [pool.pool]\nmax_instances = 4\nidle_time = \"1h\"\n{lines}\n\
             [pool.pool.provider]\n{}\n",
            self.provider
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
            .replace("/bin/cp /usr/bin/greenroom", &format!("/bin/cp {GREENROOM}"))
            .replace("ExecStart=/usr/bin/greenroom", &format!("ExecStart={GREENROOM} --config {config}"))
            .replace("WatchdogSec=2min", &format!("WatchdogSec={}", WATCHDOG.as_secs()))
            .replace("TimeoutAbortSec=10s", "TimeoutAbortSec=1s")
            .replace("RestartSec=2s", "RestartSec=100ms");
        let log = format!("[Service]\nStandardError=append:{}\n", self.at("keeper.log").display());
        let more = more.replace("=/var/lib/greenroom ", &format!("={} ", self.path().display()));
        text.replace("[Service]\n", &format!("{log}{more}"))
    }

    pub(crate) fn systemd(&self) -> &Systemd {
        self.systemd.as_ref().expect("it was started")
    }

    pub(crate) fn systemctl(&self, arguments: &[&str]) -> String {
        self.systemd().systemctl(arguments)
    }

    pub(crate) fn property(&self, name: &str) -> String {
        self.systemctl(&["show", "--value", &format!("--property={name}"), "greenroom"]).trim().to_owned()
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + SOON;
        while !is_so() {
            let log = self.read("keeper.log");
            assert!(Instant::now() < until, "not within {SOON:?}: {what}; the keeper's log:\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    pub(crate) fn await_idle(&self, count: u64) {
        let config = self.at("greenroom.toml").display().to_string();
        self.wait_for(&format!("{count} idle instances"), || {
            let status = self.systemd().run(&[GREENROOM, "--config", &config, "pool", "status", "--json"]);
            let status: Option<serde_json::Value> = serde_json::from_slice(&status.stdout).ok();
            status.is_some_and(|status| status["pools"][0]["idle"] == count)
        });
    }

    /// Starts a job that waits for `finish_job`.
    pub(crate) fn start_job(&self) {
        self.systemctl(&["start", "job"]);
        self.wait_for("the job's beginning", || self.read("job.log").contains("its beginning"));
    }

    pub(crate) fn finish_job(&self) {
        std::fs::write(self.at("go"), "").expect("a file");
        self.wait_for("the job's success", || self.read("job.log").contains("job succeeded"));
        assert!(self.read("job.log").contains("its end"));
    }

    /// A job goes on while its keeper hangs, is restarted by the watchdog, and is stopped.
    #[track_caller]
    pub(crate) fn serves_a_job_through_a_hang_and_a_stop(&self) {
        let pid = self.property("MainPID");
        self.start_job();
        assert!(self.systemd().run(&["kill", "-STOP", &pid]).status.success());
        self.wait_for("another keeper", || {
            self.property("MainPID") != pid && self.property("NRestarts") != "0"
        });
        self.wait_for("its readiness", || self.property("ActiveState") == "active");
        self.systemctl(&["stop", "greenroom"]);
        let end = (self.property("ActiveState"), self.property("Result"));
        assert_eq!((end.0.as_str(), end.1.as_str()), ("inactive", "success"));
        self.finish_job();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.systemd.take());
        await_settled(self.path());
    }
}
