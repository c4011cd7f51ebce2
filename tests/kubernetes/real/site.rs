//! A pool on a real cluster, for whole jobs. Its pods share a directory with this process, which outlives them.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use greenroom_harness::place::Place;
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use serde_json::{Value, json};

use super::{Namespace, images};

pub(super) const PATIENCE: Duration = Duration::from_mins(5);
/// The path at which pods see the directory.
pub(super) const MARKS: &str = "/marks";

/// The way in which jobs reach a pod, and the server that answers there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) via: &'static str,
    /// The server is Greenroom's own, in an image without any. Otherwise it is the sshd of the image.
    pub(super) is_served: bool,
}

pub(super) const ADDRESS: Way = Way { via: "address", is_served: false };
pub(super) const ADDRESS_SERVED: Way = Way { via: "address", is_served: true };
pub(super) const FORWARD: Way = Way { via: "port-forward", is_served: false };
pub(super) const FORWARD_SERVED: Way = Way { via: "port-forward", is_served: true };

impl Way {
    /// The lines of a provider's table for this way.
    pub(super) fn lines(self) -> String {
        let Self { via, is_served } = self;
        let image = if is_served { images::PLAIN } else { super::IMAGE };
        let server = if is_served { format!("server_image = '{}'\n", images::SERVER) } else { String::new() };
        format!("via = '{via}'\nimage = '{image}'\n{server}")
    }

    /// The shell that the image of this way has.
    fn shell(self) -> &'static str {
        if self.is_served { "sh" } else { "bash" }
    }

    /// The user of its image who is not root. The user's id is 1000.
    pub(super) fn user(self) -> &'static str {
        if self.is_served { images::PLAIN_USER } else { "builder" }
    }
}

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
        Self::by(ADDRESS, namespace, pod, change)
    }

    /// A pool of at most three pods, with another way to them.
    pub(super) fn by(
        way: Way,
        namespace: Namespace,
        pod: &Value,
        change: impl FnOnce(Setting) -> Setting,
    ) -> Self {
        let mut template = json!({
            "spec": {
                "volumes": [{ "name": "marks", "hostPath": { "path": marks_on_node(&namespace), "type": "DirectoryOrCreate" } }],
                "containers": [{ "name": "job", "volumeMounts": [{ "name": "marks", "mountPath": MARKS }] }],
            },
        });
        add(&mut template, pod);
        Self::of(way, namespace, &template, change)
    }

    /// A pool of at most three pods, with exactly this pod to start from: its jobs leave no marks.
    pub(super) fn of(
        way: Way,
        namespace: Namespace,
        pod: &Value,
        change: impl FnOnce(Setting) -> Setting,
    ) -> Self {
        let mut setting = Setting::new()
            .pool("max_instances", 3)
            .pool("builds_dir", "/builds")
            .pool("cache_dir", "/cache")
            .timing("launch_timeout", "3m")
            .timing("ready_timeout", "1m")
            .timing("loss_reason_timeout", "20s")
            .timing("stockout_backoff", "1s")
            .timing("stockout_backoff_max", "2s")
            .pool("shell", way.shell())
            .provider("kind", "kubernetes");
        let table: toml::Table =
            format!("{}schedule_within = '20s'", namespace.table_by(way)).parse().unwrap();
        for (key, value) in table {
            setting = setting.provider(&key, value);
        }
        let file = namespace.state.path().join("pod.json");
        setting = setting.provider("pod", file.display().to_string());
        std::fs::write(&file, pod.to_string()).expect("a file");
        setting.patience = PATIENCE;
        Self { place: change(setting).open(), namespace }
    }

    /// The directory of marks that jobs left, which they share.
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
