//! A pool on a real cluster, for whole jobs. Its pods share a directory with this process, which outlives them.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::Namespace;
use crate::place::Place;
use crate::processes::wait_for;
use crate::setting::Setting;

pub(super) const PATIENCE: Duration = Duration::from_mins(5);
/// Where pods see the directory.
pub(super) const MARKS: &str = "/marks";

/// Fields are dropped in this order: the cluster outlives all processes of the place.
pub(super) struct Site {
    place: Place,
    pub(super) namespace: Namespace,
}

impl Deref for Site {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Site {
    /// A pool of at most three pods. `pod` is merged into the pod to start from.
    pub(super) fn open(namespace: Namespace, pod: &Value, change: impl FnOnce(Setting) -> Setting) -> Self {
        let setting = Setting::new()
            .pool("max_instances", 3)
            .pool("builds_dir", "/builds")
            .pool("cache_dir", "/cache")
            .timing("launch_timeout", "3m")
            .timing("ready_timeout", "1m")
            .timing("loss_reason_timeout", "20s")
            .timing("stockout_backoff", "1s")
            .timing("stockout_backoff_max", "2s")
            .provider("kind", "kubernetes");
        let mut setting = setting;
        let table: toml::Table = format!("{}schedule_within = '20s'", namespace.table()).parse().unwrap();
        for (key, value) in table {
            setting = setting.provider(&key, value);
        }
        let file = namespace.state.path().join("pod.json");
        setting = setting.provider("pod", file.display().to_string());
        let mut template = json!({
            "spec": {
                "volumes": [{ "name": "marks", "hostPath": { "path": marks_on_node(&namespace), "type": "DirectoryOrCreate" } }],
                "containers": [{ "name": "job", "volumeMounts": [{ "name": "marks", "mountPath": MARKS }] }],
            },
        });
        add(&mut template, pod);
        std::fs::write(&file, template.to_string()).expect("a file");
        setting.patience = PATIENCE;
        Self { place: change(setting).open(), namespace }
    }

    /// What jobs left in the directory that they share.
    pub(super) fn marks(&self) -> PathBuf {
        self.namespace.cluster.dir.join("marks").join(&self.namespace.name)
    }

    /// The mark of a job, if its script has ended.
    pub(super) fn mark(&self, id: u64) -> Option<String> {
        let text = std::fs::read_to_string(self.marks().join(format!("job-{id}"))).ok()?;
        Some(text.trim().to_owned())
    }

    pub(super) fn pod_names(&self) -> BTreeSet<String> {
        let pods = self.namespace.pods();
        pods.iter().map(|pod| pod["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Waits until no job holds or waits for a pod, and exactly this many pods are recorded and exist, all idle.
    #[track_caller]
    pub(super) fn wait_until_calm(&self, idle: usize) {
        wait_for("calm", PATIENCE, || {
            let state = self.state();
            let quiet = state.granted.is_empty() && state.waiting.is_empty();
            (quiet && state.instances.len() == idle && self.idle().len() == idle).then_some(())
        });
        wait_for("the end of all other pods", PATIENCE, || (self.pod_names().len() == idle).then_some(()));
    }

    /// After a drain nothing is left: no record, no pod, and no leak.
    #[track_caller]
    pub(super) fn expect_nothing_left(&self) {
        self.order(&["pool", "drain", "--wait"]);
        self.wait_until_calm(0);
        let leaks: Value = serde_json::from_str(&self.order(&["pool", "leaks", "--json"])).expect("JSON");
        let resources =
            leaks["pools"].as_array().into_iter().flatten().filter_map(|pool| pool["resources"].as_array());
        assert_eq!(resources.map(Vec::len).sum::<usize>(), 0, "{leaks:#}");
        self.expect_sound();
    }
}

fn marks_on_node(namespace: &Namespace) -> String {
    format!("/mnt/own/marks/{}", namespace.name)
}

/// Merges objects; containers by their position.
fn add(to: &mut Value, more: &Value) {
    match (to, more) {
        (Value::Object(to), Value::Object(more)) => {
            for (key, value) in more {
                add(to.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(to), Value::Array(more)) => {
            for (known, value) in to.iter_mut().zip(more) {
                add(known, value);
            }
        }
        (to, more) => *to = more.clone(),
    }
}

/// A script of eight steps whose last act leaves a mark that only its end can leave: the mark has a trace of each step.
pub(super) fn marking(id: u64) -> Vec<String> {
    vec![
        "trace=".to_owned(),
        "for step in 1 2 3 4 5 6 7 8; do sleep 0.25; trace=\"$trace$step.\"; done".to_owned(),
        format!("echo \"$trace\" >{MARKS}/.job-{id}"),
        format!("mv {MARKS}/.job-{id} {MARKS}/job-{id}"),
    ]
}

/// The mark of a script that has ended.
pub(super) const MARK: &str = "1.2.3.4.5.6.7.8.";
