//! Caches of jobs whose machines are terminated, in an S3-compatible store.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use greenroom_harness::place::SOON;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;
use serde_json::Value;

use crate::images::lab;
use crate::pool::{job, setting};
use crate::site::{Site, site};

/// GitLab Runner's key for the cache of these jobs.
const KEY: &str = "runner/lab-rec/project/1/k";

/// A store that machines of the site reach. It ends with this value.
struct Store {
    server: Child,
    life: Option<ChildStdin>,
    lines: Receiver<String>,
    /// The signed URLs of `KEY`.
    urls: BTreeMap<String, String>,
}

impl Drop for Store {
    fn drop(&mut self) {
        drop(self.life.take());
        let _ended = self.server.wait();
    }
}

impl Store {
    /// The libraries are those of the cloud emulator; without them, the test is skipped.
    fn start(site: &Site) -> Option<Self> {
        let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let installed = Command::new(here.join("tests/lab/install")).output();
        if !installed.is_ok_and(|ended| ended.status.success()) {
            skipped("an S3-compatible store: `tests/lab/install` fails");
            return None;
        }
        let mut python = Command::new(here.join("state/lab/bin/python"));
        python.arg(lab("s3")).args(["198.18.0.1", KEY]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = site.inside(|| python.spawn()).expect("Python starts");
        let life = server.stdin.take();
        let output = BufReader::new(server.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).all(|line| send.send(line).is_ok());
        });
        let hello = lines.recv_timeout(5 * SOON).expect("the store says where it is");
        let mut urls: BTreeMap<String, BTreeMap<String, String>> =
            serde_json::from_str(&hello).unwrap_or_else(|error| panic!("{error}: {hello}"));
        let urls = urls.remove(KEY).expect("the key was asked for");
        Some(Self { server, life, lines, urls })
    }

    /// The requests since the last call: method and status.
    fn requests(&self) -> Vec<(String, u64)> {
        let lines =
            self.lines.try_iter().map(|line| serde_json::from_str::<Value>(&line).expect("a request"));
        lines
            .map(|line| (line[0].as_str().expect("a method").to_owned(), line[1].as_u64().expect("a status")))
            .collect()
    }
}

fn requests(of: &[(&str, u64)]) -> Vec<(String, u64)> {
    of.iter().map(|(method, status)| ((*method).to_owned(), *status)).collect()
}

#[test]
fn a_cache_in_a_store_outlives_the_machine() {
    let Some(site) = site() else { return };
    let Some(store) = Store::start(site) else { return };
    let place = setting(site).open();
    let mut runner = place.runner();
    // The runner signs URLs; machines get nothing else of the store.
    runner.cache_urls = Some([store.urls["GET"].clone(), store.urls["PUT"].clone()]);
    let cached =
        |id, image: &str, line: &str| -> Job { job(id, image).cache("deps", "on_success").script([line]) };
    let fill = "cat deps/library || mkdir -p deps && echo cached in $CI_JOB_ID > deps/library";
    let first = runner.run(&cached(1, "app:1", fill));
    first.expect_outcome(&Outcome::Success);
    assert_eq!(store.requests(), requests(&[("GET", 404), ("PUT", 200)]), "{}", first.describe());
    let second = runner.run(&cached(2, "ash:1", "cat deps/library"));
    second.expect_outcome(&Outcome::Success);
    assert!(second.log_text().contains("\ncached in 1\n"), "{}", second.describe());
    assert_eq!(store.requests(), requests(&[("GET", 200), ("PUT", 200)]), "{}", second.describe());
    let grants = place.grants();
    assert_ne!(grants[0].1, grants[1].1, "a machine for each job");
    // A URL that was not signed opens nothing, and a job does not fail for its cache.
    runner.cache_urls =
        runner.cache_urls.map(|urls| urls.map(|url| url.replace("Signature=", "Signature=0")));
    let third = runner.run(&cached(3, "ash:1", "ls deps 2>&1 || :"));
    third.expect_outcome(&Outcome::Success);
    assert!(third.log_text().contains("deps: No such file"), "{}", third.describe());
    assert_eq!(store.requests().first(), Some(&("GET".to_owned(), 403)), "{}", third.describe());
    place.expect_sound();
}
