//! The cluster of all tests of this process: it ends with the process, however that ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use greenroom_testkit::skipped::skipped;

/// The longest time of a wait. Each wait ends with its event, so the limit only finds events that never come.
pub const PATIENCE: Duration = Duration::from_mins(2);

#[derive(Debug)]
pub struct Cluster {
    /// The directory with the files that `tests/cluster/up` describes.
    pub dir: PathBuf,
    /// Ends the cluster when its standard input is closed. `None`: it is not of this process.
    _up: Option<Child>,
}

/// Names the directory of a cluster that runs already, for repeated runs of one test.
const RUNNING: &str = "GREENROOM_REAL_CLUSTER";
static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster").join(name)
}

/// The reason for which this machine cannot have a cluster, in one line.
fn obstacle() -> Option<String> {
    let say = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        (!output.status.success()).then(|| String::from_utf8_lossy(&text).trim().to_owned())
    };
    say(&mut Command::new(script("missing")))
        .or_else(|| say(Command::new(script("build")).arg("--check")))
        .map(|why| format!("a Kubernetes cluster: {}", why.trim_start_matches("tests/cluster/build: ")))
}

/// The cluster, or none where it cannot be had: the test is skipped then.
pub fn cluster() -> Option<&'static Cluster> {
    let cluster = CLUSTER.get_or_init(|| match (std::env::var_os(RUNNING), obstacle()) {
        (Some(dir), _) => Ok(Cluster { dir: dir.into(), _up: None }),
        (None, Some(why)) => Err(why),
        (None, None) => Ok(Cluster::start("shared")),
    });
    cluster.as_ref().inspect_err(|why| skipped(why)).ok()
}

impl Cluster {
    /// Another cluster, for a test that harms it.
    pub fn of_its_own(name: &str) -> Option<Self> {
        let obstacle = obstacle();
        obstacle.iter().for_each(skipped);
        obstacle.is_none().then(|| Self::start(name))
    }

    fn start(name: &str) -> Self {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clusters");
        // The logs of earlier runs were kept until now.
        for earlier in fs::read_dir(&home).into_iter().flatten().flatten() {
            let name = earlier.file_name().to_string_lossy().into_owned();
            let process = name.split('-').next().unwrap_or_default();
            if !Path::new("/proc").join(process).exists() {
                fs::remove_dir_all(earlier.path()).ok();
            }
        }
        let dir = home.join(format!("{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory for the cluster");
        let mut up = Command::new(script("up"))
            .arg(&dir)
            .arg("--attached")
            // Since 1.34, an API server can answer pages of versions that etcd has forgotten. Others say that they expired.
            .arg("--feature-gates=ListFromCacheSnapshot=false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tests/cluster/up starts");
        let mut line = String::new();
        BufReader::new(up.stdout.take().expect("a pipe")).read_line(&mut line).expect("its word");
        let mut errors = up.stderr.take().expect("a pipe");
        if line != "ready\n" {
            errors.read_to_string(&mut line).expect("its errors");
            panic!("the cluster does not start:\n{line}");
        }
        Self { dir, _up: Some(up) }
    }

    /// A command in the cluster's network, with the files of this machine.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(script("enter"));
        command.arg(&self.dir).arg(program);
        command
    }

    /// Gives the cluster a second node, which is healthy and gets no pods.
    pub fn neighbour(&self) -> Child {
        let mut command = Command::new(script("neighbour"));
        command.arg(&self.dir).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut neighbour = command.spawn().expect("tests/cluster/neighbour starts");
        let mut line = String::new();
        BufReader::new(neighbour.stdout.take().expect("a pipe")).read_line(&mut line).expect("its word");
        assert_eq!(line, "ready\n");
        neighbour
    }

    /// Runs a shell's line among the node's processes and mounts.
    pub fn on_node(&self, line: &str) -> String {
        let mut command = Command::new(script("enter"));
        command.arg("--node").arg(&self.dir).args(["sh", "-c", line]).stdin(Stdio::null());
        let output = command.output().expect("a shell on the node");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }
}

/// Waits until there is something, at most as long as any wait lasts.
pub fn try_for<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let began = Instant::now();
    loop {
        let found = look();
        if found.is_some() || began.elapsed() > PATIENCE {
            return found;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits for a value that has to come.
#[track_caller]
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    try_for(look).unwrap_or_else(|| panic!("{what}: not after {PATIENCE:?}"))
}
