//! A pool in an emulated cloud, on which whole jobs run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use greenroom_core::event::Change;
use greenroom_core::ids::InstanceId;
use greenroom_core::pool::PoolState;
use greenroom_harness::driver;
use greenroom_harness::place::Place;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{CallRecord, Outcome};
use serde_json::Value;
use toml::Table;

use crate::cloud::{Buy, Cloud, Launch, instance_name, machine};
use crate::lab::Taken;
use crate::truth::Machine;

/// Limit for any wait: an emulated instance boots in half a second, but this machine may be busy.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Timings for an emulated cloud, which is a hundred times faster than a real one.
const TIMING: [(&str, &str); 6] = [
    ("list_interval", "300ms"),
    ("quota_backoff", "500ms"),
    ("stockout_backoff", "500ms"),
    ("stockout_backoff_max", "1s"),
    ("loss_reason_timeout", "10s"),
    ("waiter_poll_interval", "500ms"),
];

/// Fields are dropped in this order: no process of the place may reach an emulator that the next test uses.
#[derive(Debug)]
pub struct Site {
    place: Place,
    pub lab: Taken,
}

impl Deref for Site {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

/// A pool of a cloud: at most two instances, none kept idle.
pub fn pool() -> Setting {
    let mut setting = Setting::new().pool("max_instances", 2).timing("launch_timeout", "30s");
    for (key, value) in TIMING {
        setting = setting.timing(key, value);
    }
    setting.patience = PATIENCE;
    setting
}

/// Adds the provider's table of a cloud.
fn in_cloud(cloud: Cloud, setting: Setting, table: Table) -> Setting {
    let setting = setting.provider("kind", cloud.kind());
    table.into_iter().fold(setting, |setting, (key, value)| setting.provider(&key, value))
}

impl Site {
    pub fn open(cloud: Cloud, setting: Setting, buy: Buy) -> Self {
        let lab = Taken::take();
        let url = lab.url();
        Self::at(cloud, setting, buy, lab, &url)
    }

    /// A site with a gate between the pool and the emulator.
    pub fn at(cloud: Cloud, setting: Setting, buy: Buy, lab: Taken, url: &str) -> Self {
        let table = cloud.table(&lab, url, buy);
        Self { place: in_cloud(cloud, setting, table).open(), lab }
    }

    /// A site with an edited table of the provider; `edit` also gets the accounts' initial content.
    pub fn edited(cloud: Cloud, setting: Setting, edit: impl FnOnce(&mut Table, &Value)) -> Self {
        let lab = Taken::take();
        let mut table = cloud.table(&lab, &lab.url(), Buy::OnDemand);
        edit(&mut table, &lab.world);
        Self { place: in_cloud(cloud, setting, table).open(), lab }
    }

    /// A site with other keys in the provider's table.
    pub fn with(cloud: Cloud, setting: Setting, keys: &[(&str, &str)]) -> Self {
        Self::edited(cloud, setting, |table, _| {
            table.extend(keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
        })
    }

    /// A site with a second machine type, after the first.
    pub fn with_a_second_type(cloud: Cloud, setting: Setting) -> Self {
        let (key, types) = cloud.two_types();
        Self::edited(cloud, setting, |table, _| {
            table.insert(key.to_owned(), types);
        })
    }

    /// Runs a first job, which starts the keeper; then waits for so many idle instances.
    #[track_caller]
    pub fn warm_up_to(&self, idle: usize) {
        self.run(&Job::new(1_000_000)).expect_outcome(&Outcome::Success);
        self.expect_nothing_left(idle);
    }

    /// The findings of `doctor` on the cloud: code, severity, message.
    #[track_caller]
    pub fn findings(&self, cloud: Cloud) -> Vec<[String; 3]> {
        self.findings_of(Path::new(driver()), cloud)
    }

    /// The findings of `doctor`, as a script starts it that prepares something and executes the driver.
    #[track_caller]
    pub fn findings_of(&self, driver: &Path, cloud: Cloud) -> Vec<[String; 3]> {
        let findings = self.greenroom_of(driver, &["doctor", "--json"]).stdout;
        let findings: Value = serde_json::from_slice(&findings).expect("it is JSON");
        let texts = |one: &Value| {
            ["code", "severity", "message"].map(|key| one[key].as_str().expect("a text").to_owned())
        };
        let all = findings["findings"].as_array().expect("a list").iter().map(texts);
        all.filter(|[code, ..]| code.starts_with(cloud.kind())).collect()
    }

    /// The live machine of an instance.
    #[track_caller]
    pub fn machine(&self, instance: &InstanceId) -> Machine {
        let found = machine(&self.lab.truth(), instance.as_str());
        found.unwrap_or_else(|| panic!("{instance} does not live: {:#?}", self.lab.truth()))
    }

    /// The number of calls of this operation that the emulator received.
    pub fn calls(&self, operation: &str) -> usize {
        self.lab.requests().iter().filter(|request| request.operation == operation).count()
    }

    /// Every launch call that the emulator received, in order, including repeats.
    pub fn launches(&self) -> Vec<Launch> {
        self.lab.requests().iter().filter_map(Launch::read).collect()
    }

    /// The instances that `pool status` lists.
    #[track_caller]
    pub fn recorded(&self) -> BTreeSet<String> {
        let status = self.order(&["pool", "status", "--json"]);
        let status: Value = serde_json::from_str(&status).expect("it is JSON");
        let instances = status["pools"][0]["instances"].as_array().cloned().unwrap_or_default();
        let name = |instance: &Value| instance["instance"].as_str().map(str::to_owned);
        instances.iter().filter_map(name).collect()
    }

    /// Greenroom's names of all live machines. Two machines with one name count twice.
    pub fn living(&self) -> Vec<String> {
        let mut names: Vec<_> = self.lab.truth().live().map(instance_name).collect();
        names.sort();
        names
    }

    /// Expects that no repeated launch created a second machine. EC2 lists terminated machines, too.
    #[track_caller]
    fn expect_each_made_once(&self) {
        let mut made = BTreeMap::new();
        for machine in self.lab.truth().instances {
            let name = instance_name(&machine);
            if let Some(first) = made.insert(name.clone(), machine.clone()) {
                let ours = |launch: &Launch| launch.instance == name;
                let launches: Vec<_> = self.launches().into_iter().filter(ours).collect();
                panic!("a second one: {first:?}, {machine:?}; launched by {launches:#?}");
            }
        }
        self.expect_one_token_for_each_attempt();
    }

    /// Expects at most one token for each launch attempt: a repeat uses the same token, and only a refusal leads to a
    /// new one.
    #[track_caller]
    fn expect_one_token_for_each_attempt(&self) {
        let mut attempts: BTreeMap<String, usize> = BTreeMap::new();
        for event in self.events() {
            if let Change::LaunchIntended { instance, .. } = event.change {
                *attempts.entry(instance.to_string()).or_default() += 1;
            }
        }
        let mut tokens: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for launch in self.launches() {
            tokens.entry(launch.instance).or_default().insert(launch.token);
        }
        for (instance, tokens) in tokens {
            let intended = attempts.get(&instance).copied().unwrap_or_default();
            assert!(tokens.len() <= intended, "{instance} was to be launched {intended} times: {tokens:#?}");
        }
    }

    /// Waits until the pool is quiet with so many idle instances. Then the cloud has exactly the recorded instances,
    /// each once, and no orphaned volume.
    #[track_caller]
    pub fn expect_nothing_left(&self, idle: usize) {
        let settled = || {
            let state = self.state();
            let calm = is_quiet(&state) && state.instances.len() == idle && self.idle().len() == idle;
            calm && self.living().len() == idle && self.lab.truth().orphans().next().is_none()
        };
        let until = std::time::Instant::now() + PATIENCE;
        while !settled() {
            let (state, truth) = (self.state(), self.lab.truth());
            let left: Vec<_> = truth.live().collect();
            let orphans: Vec<_> = truth.orphans().collect();
            assert!(
                std::time::Instant::now() < until,
                "not settled at {idle} idle instances:\n{state:#?}\nin the cloud: {left:#?}\n{orphans:#?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.living(), self.recorded().into_iter().collect::<Vec<_>>());
        self.expect_each_made_once();
        self.expect_sound();
    }
}

fn is_quiet(state: &PoolState) -> bool {
    state.granted.is_empty() && state.waiting.is_empty()
}

/// Greenroom's own lines in the output of a call, without the prefix.
pub fn messages(call: &CallRecord) -> Vec<String> {
    let text = call.stderr_text();
    text.lines().filter_map(|line| line.strip_prefix("greenroom: ")).map(str::to_owned).collect()
}
