//! Whole jobs on machines of a plugin, while its calls fail and processes are killed.
//!
//! `GREENROOM_JOBS` sets the number of jobs. `GREENROOM_SEED` replays the faults of calls, and with `GREENROOM_KILLS` the kills. A
//! test that fails prints both.

#![cfg(test)]

use std::ops::Deref;
use std::time::Duration;
use std::{fs, process};

use greenroom_harness::onslaught::Onslaught;
use greenroom_harness::place::Place;
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::dice::number;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;
use toml::Value;

use crate::fixture::TEST_PLUGIN;
use crate::platform::Platform;

const PASSWORD: &str = "hunter2 and more";

/// The account that runs the tests.
fn account() -> String {
    let output = process::Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Fields are dropped in this order: the platform outlives all processes of the place.
pub struct Site {
    place: Place,
    pub platform: Platform,
}

impl Deref for Site {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Site {
    /// A pool of at most three machines, with so many idle ones. Each machine serves one job.
    fn new(idle: i64, keys: &[(&str, Value)]) -> Self {
        Self::on(Platform::new(), idle, keys, &[])
    }

    /// A site on this platform; `config` is for the plugin.
    fn on(platform: Platform, idle: i64, keys: &[(&str, Value)], config: &[(&str, &str)]) -> Self {
        let config: Vec<_> = config.iter().map(|(key, value)| (*key, Value::from(*value))).collect();
        Self::made(platform, [idle, 0], keys, &config, &[])
    }

    /// A site with suspended machines, and a plugin that can suspend them or not.
    fn with_tier(idle: i64, stopped: i64, suspends: bool, timing: &[(&str, &str)]) -> Self {
        Self::made(Platform::new(), [idle, stopped], &[], &[("suspends", suspends.into())], timing)
    }

    /// A site with these numbers of idle and suspended machines.
    pub fn made(
        platform: Platform,
        [idle, stopped]: [i64; 2],
        keys: &[(&str, Value)],
        config: &[(&str, Value)],
        timing: &[(&str, &str)],
    ) -> Self {
        let path = |name: &str| platform.dir.path().join(name).display().to_string();
        let own = [("dir".to_owned(), path("").into()), ("platform".to_owned(), true.into())];
        let config =
            own.into_iter().chain(config.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        let mut setting = Setting::new()
            .pool("idle_count", idle)
            .pool("idle_stopped", stopped)
            .pool("builds_dir", path("builds"))
            .pool("cache_dir", path("cache"))
            .timing("launch_timeout", "30s")
            .provider("kind", "fleeting")
            .provider("plugin", TEST_PLUGIN)
            .provider("plugin_config", config.collect::<toml::Table>())
            .provider("host_keys", "first-use")
            .provider("user", account());
        for (key, value) in keys {
            setting = setting.provider(key, value.clone());
        }
        for (key, value) in timing {
            setting = setting.timing(key, *value);
        }
        setting.patience = Duration::from_mins(2);
        Self { place: setting.open(), platform }
    }

    /// Ends a fault.
    pub fn repair(&self, fault: &str) {
        fs::remove_file(self.platform.dir.path().join("faults").join(fault)).unwrap();
    }

    /// A job succeeds, and its machine goes.
    #[track_caller]
    pub fn expect_a_job(&self) {
        self.run(&Job::new(1).script(["true"])).expect_outcome(&Outcome::Success);
        self.expect_nothing_left(0);
    }

    /// Calls of the plugin fail in so many of a hundred, by a seed.
    fn faulty(percent: u32) -> Self {
        let site = Self::new(0, &[("appears_within", "5s".into())]);
        let seed = number("GREENROOM_SEED", 1);
        eprintln!("replay the faults of calls: GREENROOM_SEED={seed}");
        fs::create_dir(site.platform.dir.path().join("calls")).unwrap();
        site.platform.fault("chance", &format!("{seed} {percent}"));
        site
    }

    /// Waits for so many stopped machines, and nothing else.
    #[track_caller]
    fn expect_stopped(&self, count: usize) {
        wait_for("the tier of stopped machines", Duration::from_mins(1), || {
            let state = self.state();
            let stopped = state.instances.values().filter(|i| i.phase.is_stopped()).count();
            (stopped == count && state.instances.len() == count).then_some(())
        });
    }

    /// The output of a command, in one line.
    pub fn told(&self, command: &[&str]) -> String {
        let told = String::from_utf8(self.greenroom(command).stdout).unwrap();
        told.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The machines that Greenroom no longer needs are gone.
    #[track_caller]
    fn expect_nothing_left(&self, idle: usize) {
        self.wait_until_settled(idle);
        wait_for("the end of all other machines", Duration::from_mins(1), || {
            (self.platform.remains().len() == idle).then_some(())
        });
    }

    /// The calls in which something went wrong.
    fn faults(&self) -> Vec<String> {
        let calls = fs::read_dir(self.platform.dir.path().join("calls")).unwrap().map(Result::unwrap);
        let fault = |call: fs::DirEntry| {
            let fault = fs::read_to_string(call.path()).ok().filter(|fault| !fault.is_empty())?;
            Some(format!("{} {fault}", call.file_name().display()))
        };
        let mut faults: Vec<_> = calls.filter_map(fault).collect();
        faults.sort();
        faults
    }
}

#[test]
fn a_job_runs_on_a_machine_of_the_plugin_and_explain_tells_its_way() {
    let site = Site::new(0, &[]);
    let result = site.run(&Job::new(1).script(["true"]));
    result.expect_outcome(&Outcome::Success);
    let prepared = result.call("prepare").stderr_text() + &result.call("prepare").stdout_text();
    assert!(
        prepared.contains("presented host key SHA256:") && prepared.contains("nothing verified it"),
        "{prepared}"
    );
    let explained = String::from_utf8(site.greenroom(&["explain", "1"]).stdout).unwrap();
    assert!(explained.contains("boot"), "{explained}");
    site.expect_nothing_left(0);
}

#[test]
fn a_job_runs_with_an_rsa_key_of_the_plugins() {
    let platform = Platform::new();
    let key = platform.dir.path().join("rsa_key");
    let mut keygen = process::Command::new("ssh-keygen");
    keygen.args(["-q", "-N", "", "-t", "rsa", "-b", "2048", "-m", "PEM", "-f"]).arg(&key);
    assert!(keygen.status().unwrap().success());
    let key = key.display().to_string();
    Site::on(platform, 0, &[], &[("key_file", &key)]).expect_a_job();
}

#[test]
fn a_job_runs_with_a_password_that_is_in_no_file_of_the_state() {
    if !rustix::process::getuid().is_root() {
        return skipped("passwords: this is not root, which may give sshd a shadow file of its own");
    }
    let platform = Platform::new();
    // The machines' accounts and passwords.
    let hashed = process::Command::new("openssl").args(["passwd", "-6", PASSWORD]).output().unwrap();
    let hash = String::from_utf8(hashed.stdout).unwrap();
    let shadow = format!("{}:{}:19000:0:99999:7:::\n", account(), hash.trim());
    fs::write(platform.dir.path().join("shadow"), shadow).unwrap();
    let file = platform.dir.path().join("password");
    fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let keys = [("password_file", file.display().to_string().into()), ("static_credentials", true.into())];
    let site = Site::on(platform, 0, &keys, &[]);
    site.expect_a_job();
    let found = process::Command::new("grep").args(["-rlF", PASSWORD]).arg(&site.state_dir).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[test]
fn jobs_succeed_while_calls_of_the_plugin_fail() {
    let site = Site::faulty(5);
    let jobs = number("GREENROOM_JOBS", 12);
    let runner = site.runner();
    for first in (1..=jobs).step_by(3) {
        let running: Vec<_> = (first..first + 3)
            .map(|id| runner.start(&Job::new(id).script(["for i in 1 2 3; do sleep 0.05; done"])))
            .collect();
        for job in running {
            job.finish().expect_outcome(&Outcome::Success);
        }
    }
    site.expect_nothing_left(0);
    let faults = site.faults();
    eprintln!("{faults:#?}");
    assert!(!faults.is_empty(), "the seed fails no call");
}

#[test]
fn a_keeper_and_its_plugin_killed_at_any_moment_leak_nothing() {
    let site = Site::faulty(3);
    let onslaught = Onslaught {
        test: "--features fleeting,test-plugin --test fleeting killed",
        kills: 8,
        kinds: &[Kind::Keeper, Kind::Plugin],
        script: "for i in 1 2 3; do sleep 0.05; done",
        blows: 3,
        pause: 0..400,
        patience: Duration::from_secs(20),
    };
    let last = onslaught.on(&site);
    site.reap();
    site.run(&Job::new(last + 1).script(["true"])).expect_outcome(&Outcome::Success);
    site.expect_nothing_left(0);
}

#[test]
fn a_plugin_that_fails_is_a_sentence_of_its_pool() {
    let site = Site::new(1, &[]);
    site.platform.fault("init-error", "the credentials have expired");
    site.reap();
    for command in [&["pool", "status"], &["explain", "pool"]] {
        let told = String::from_utf8(site.greenroom(command).stdout).unwrap();
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(told.contains("the credentials have expired"), "{told}");
    }
}

#[test]
fn a_job_resumes_a_stopped_machine_and_the_tier_is_filled_again() {
    // As many as the pool may have: a launch for the tier could otherwise serve the job first.
    let site = Site::with_tier(0, 3, true, &[]);
    site.reap();
    site.expect_stopped(3);
    assert!(site.told(&["pool", "status"]).contains("launched, checked and suspended"));
    site.run(&Job::new(1).script(["true"])).expect_outcome(&Outcome::Success);
    let explained = site.told(&["explain", "1"]);
    assert!(explained.contains("resumed a stopped instance in "), "{explained}");
    assert!(site.told(&["history"]).contains("resumed"), "{}", site.told(&["history"]));
    site.expect_stopped(3);
    site.order(&["pool", "drain", "pool", "--wait"]);
    site.expect_nothing_left(0);
}

#[test]
fn a_machine_that_is_not_resumed_costs_its_job_nothing_but_time() {
    for (fault, why) in [("resume-error", "the plugin did not resume"), ("resume-hang", "not within")] {
        let site = Site::with_tier(0, 1, true, &[("resume_timeout", "4s")]);
        site.reap();
        site.expect_stopped(1);
        site.platform.fault(fault, "the cloud says no");
        site.run(&Job::new(1).script(["true"])).expect_outcome(&Outcome::Success);
        // The job may end before the resume does: a new machine served it.
        wait_for("the reason of the failed resume", Duration::from_mins(1), || {
            site.reap();
            let explained = site.told(&["explain", "pool"]);
            (explained.contains("could not be resumed") || explained.contains(why)).then_some(())
        });
    }
}

#[test]
fn a_plugin_that_cannot_suspend_is_a_sentence_and_jobs_boot() {
    let site = Site::with_tier(0, 1, false, &[]);
    site.run(&Job::new(1).script(["true"])).expect_outcome(&Outcome::Success);
    let told = site.told(&["pool", "status"]);
    assert!(told.contains("the provider cannot suspend instances: `idle_stopped` has no effect"), "{told}");
    let found = site.told(&["doctor"]);
    assert!(found.contains("fleeting-suspends"), "{found}");
    site.expect_nothing_left(0);
}

#[test]
fn an_idle_machine_that_the_plugin_finds_unhealthy_is_replaced() {
    let site = Site::with_tier(1, 0, true, &[("health_interval", "1s")]);
    site.reap();
    site.wait_until_idle(1);
    let first = site.idle();
    site.platform.fault("heartbeat-error", "the disk is broken");
    wait_for("the end of the unhealthy machine", Duration::from_mins(1), || {
        site.reap();
        (!site.state().instances.contains_key(&first[0])).then_some(())
    });
    fs::remove_file(site.platform.dir.path().join("faults/heartbeat-error")).unwrap();
    let explained = site.told(&["explain", first[0].as_str()]);
    let is_told =
        explained.contains("the plugin finds it unhealthy") && explained.contains("the disk is broken");
    assert!(is_told, "{explained}");
}
