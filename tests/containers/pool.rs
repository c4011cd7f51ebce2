//! A pool whose machines have an engine.

use greenroom_harness::place::Place;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::handle::Handle;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::JobResult;
use toml::{Table, Value};

use crate::engine::engine;
use crate::site::{HOST, MIRROR, Site};

/// Three machines, each for one job. Images of Docker Hub come from a mirror.
pub fn setting(site: &Site) -> Setting {
    containers(site, |_| {})
}

/// Three machines as in [`setting`], with another table of containers.
pub fn containers(site: &Site, change: impl FnOnce(&mut Table)) -> Setting {
    let mut table = Table::new();
    let mirrors = Table::from_iter([("docker.io".to_owned(), Value::String(format!("http://{MIRROR}")))]);
    table.insert("mirrors".into(), Value::Table(mirrors));
    if !engine().is_default() {
        table.insert("engine".into(), engine().program().into());
    }
    change(&mut table);
    let setting = Setting::new().pool("builds_dir", "/tmp/builds").pool("cache_dir", "/tmp/cache");
    let setting = setting.provider("server", "openssh").provider("sshd", site.sshd(false));
    setting.pool("containers", table)
}

/// A job in an image of the registry without a password.
pub fn job(id: u64, image: &str) -> Job {
    Job::new(id).image(&plain(image))
}

/// The full name of an image there.
pub fn plain(image: &str) -> String {
    format!("{HOST}:5000/{image}")
}

/// Plays jobs, as many at a time as the pool has machines.
pub fn run_all(place: &Place, jobs: impl IntoIterator<Item = Job>) -> Vec<JobResult> {
    let runner = place.runner();
    let handles: Vec<Handle> = jobs.into_iter().map(|job| runner.start(&job)).collect();
    handles.into_iter().map(Handle::finish).collect()
}
