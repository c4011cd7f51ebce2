//! Whole jobs on machines that programs make, while calls fail and Greenroom's processes are killed.
//!
//! `GREENROOM_JOBS` sets the number of jobs. `GREENROOM_SEED` replays the faults of calls, and with `GREENROOM_KILLS` the kills of
//! keepers. A test that fails prints both.

#![cfg(test)]

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use greenroom_harness::onslaught::Onslaught;
use greenroom_harness::place::Place;
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::dice::number;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::fixture::program;
use crate::platform::Platform;

/// Fields are dropped in this order: the platform outlives all processes of the place.
struct Site {
    place: Place,
    platform: Platform,
}

impl Deref for Site {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Site {
    /// A pool of at most three machines, whose program fails in five of a hundred calls, and is killed in `kills` more. A call is a
    /// new process of an interpreter, which a busy machine takes ten seconds to start: the time limits leave room for that.
    fn faulty(name: &str, kills: u32, settings: &[(&str, &str)]) -> Self {
        let platform = Platform::new();
        let seed = number("GREENROOM_SEED", 1);
        eprintln!("replay the faults of calls: GREENROOM_SEED={seed}");
        fs::create_dir(platform.dir.path().join("calls")).unwrap();
        let path = |name: &str| platform.dir.path().join(name).display().to_string();
        let mut passed = toml::Table::from_iter([("platform".to_owned(), path("").into())]);
        passed.extend(settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
        let account = String::from_utf8(std::process::Command::new("id").arg("-un").output().unwrap().stdout);
        let mut setting = Setting::new()
            .pool("builds_dir", path("builds"))
            .pool("cache_dir", path("cache"))
            .timing("launch_timeout", "3m")
            .provider("kind", "external")
            .provider("program", program("faulty.sh").display().to_string())
            .provider(
                "arguments",
                vec![program(name).display().to_string(), seed.to_string(), kills.to_string(), path("calls")],
            )
            .provider("user", account.unwrap().trim())
            .provider("settings", passed);
        setting.patience = Duration::from_mins(10);
        Self { place: setting.open(), platform }
    }

    /// Checks that nothing was made twice, and that what Greenroom no longer needs is gone.
    #[track_caller]
    fn expect_nothing_left(&self, idle: usize) {
        self.wait_until_settled(idle);
        wait_for("the end of all other machines", Duration::from_mins(1), || {
            (self.platform.remains().len() == idle).then_some(())
        });
        let twice: Vec<_> = self.platform.made().into_iter().filter(|(_, count)| *count > 1).collect();
        assert_eq!(twice, [], "made twice");
    }

    /// The calls in which something went wrong, and what.
    fn faults(&self) -> Vec<String> {
        let calls = fs::read_dir(self.platform.dir.path().join("calls")).unwrap().map(Result::unwrap);
        let fault = |call: fs::DirEntry| {
            let fault = fs::read_to_string(call.path().join("fault")).ok()?;
            Some(format!("{} {}", call.file_name().display(), fault.trim()))
        };
        let mut faults: Vec<_> = calls.filter_map(fault).collect();
        faults.sort();
        faults
    }

    fn run_jobs(&self) {
        for id in 1..=number("GREENROOM_JOBS", 6) {
            self.run(&Job::new(id).script(["true"])).expect_outcome(&Outcome::Success);
        }
        self.expect_nothing_left(0);
    }
}

#[test]
fn jobs_succeed_while_a_shell_program_fails() {
    Site::faulty("machines.sh", 0, &[]).run_jobs();
}

#[test]
fn jobs_succeed_while_a_python_program_fails_that_makes_a_machine_with_each_call() {
    let settings = [("careless", "yes"), ("appears_within_s", "1"), ("hidden_s", "0.5")];
    Site::faulty("machines.py", 0, &settings).run_jobs();
}

#[test]
fn a_keeper_and_its_program_killed_at_any_moment_leak_nothing_and_make_nothing_twice() {
    let settings = [("careless", "yes"), ("appears_within_s", "1"), ("hidden_s", "0.5")];
    let site = Site::faulty("machines.py", 15, &settings);
    let onslaught = Onslaught {
        test: "--features external --test external killed",
        kills: 6,
        kinds: &[Kind::Keeper],
        script: "for i in 1 2 3; do sleep 0.05; done",
        blows: 3,
        pause: 0..400,
        patience: Duration::from_mins(2),
    };
    let last = onslaught.on(&site);
    site.reap();
    site.run(&Job::new(last + 1).script(["true"])).expect_outcome(&Outcome::Success);
    site.expect_nothing_left(0);
    let faults = site.faults();
    eprintln!("{faults:#?}");
    assert!(faults.iter().any(|fault| fault.contains("is killed")), "the seed kills no call: {faults:?}");
}

/// The faults that a seed brings to the first calls of a verb, without a keeper.
fn faults_of(seed: u64) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let run = |_| {
        let (name, dir) = (program("faulty.sh"), dir.path());
        let line =
            ["/bin/true", &seed.to_string(), "20", &dir.display().to_string(), "list"].map(str::to_owned);
        std::process::Command::new(name).args(line).output().unwrap();
    };
    (1..=40).for_each(run);
    let fault =
        |call: u32| fs::read_to_string(dir.path().join(format!("list-{call}/fault"))).unwrap_or_default();
    (1..=40).map(fault).collect()
}

#[test]
fn a_seed_gives_the_same_faults_to_the_same_calls() {
    let first = faults_of(7);
    assert_eq!(first, faults_of(7));
    assert_ne!(first, faults_of(8));
    let killed = first.iter().filter(|fault| fault.contains("is killed after")).count();
    assert!((4..=16).contains(&killed), "a fifth of 40 calls: {first:?}");
}

#[test]
fn a_program_that_fails_is_a_sentence_of_its_pool() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let script = "#!/bin/sh\ncase $1 in capabilities) echo '{\"protocol\": 1, \"name\": \"mine\"}' ;;\n\
                  *) echo 'no route to host' >&2; exit 7 ;; esac\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let setting =
        Setting::new().provider("kind", "external").provider("program", program.display().to_string());
    let place = setting.pool("idle_count", 1).open();
    place.reap();
    for command in [&["pool", "status"], &["explain", "pool"]] {
        let told = String::from_utf8(place.greenroom(command).stdout).unwrap();
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        let sentence = "list ended with exit code 7; the program's log ends: no route to host";
        assert!(
            told.contains("the provider's instances cannot be listed") && told.contains(sentence),
            "{told}"
        );
    }
}
