//! A stand-in for a cloud, of `tests/external/clouds/`: a process of this test, which ends with it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A running stand-in.
#[derive(Debug)]
pub(super) struct StandIn {
    pub(super) url: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// A file of the stand-ins.
pub(super) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/external/clouds").join(name)
}

impl StandIn {
    pub(super) fn start(name: &str) -> Self {
        let mut child = Command::new("python3")
            .arg("-B")
            .arg(file(&format!("{name}.py")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut this = Self { url: String::new(), child, input, output: BufReader::new(output) };
        this.url = this.line();
        this
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line of the stand-in");
        assert!(!line.is_empty(), "the stand-in has ended");
        line.trim_end().to_owned()
    }

    fn command(&mut self, command: &Value) -> Value {
        writeln!(self.input, "{command}").expect("the stand-in reads");
        serde_json::from_str(&self.line()).expect("JSON")
    }

    /// Changes settings of the stand-in.
    pub(super) fn set(&mut self, settings: &Value) {
        self.command(&json!({ "set": settings }));
    }

    /// Orders a fault for the next request that begins with these words.
    pub(super) fn fault(&mut self, request: &str, fault: &Value) {
        let mut fault = fault.clone();
        fault["request"] = request.into();
        self.command(&json!({ "fault": fault }));
    }

    /// The machines that really exist.
    pub(super) fn machines(&mut self) -> Vec<Value> {
        self.command(&json!({ "show": "machines" })).as_array().expect("a list").clone()
    }

    /// The number of requests that began with these words.
    pub(super) fn requests(&mut self, beginning: &str) -> usize {
        let all = self.command(&json!({ "show": "requests" }));
        let text = |one: &Value| {
            format!("{} {}", one["method"].as_str().unwrap_or(""), one["path"].as_str().unwrap_or(""))
        };
        all.as_array().expect("a list").iter().filter(|one| text(one).starts_with(beginning)).count()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
