//! A registry on loopback, a plugin directory, and the command.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use greenroom_testkit::skipped::skipped;
use serde_json::Value;

/// The program under test. `greenroom-backends` is beside it.
pub const GREENROOM: &str = env!("CARGO_BIN_EXE_greenroom");
/// The account of a registry with a password, and the line of it (`crypt`, `$2y$05$`).
pub const ACCOUNT: (&str, &str) = ("reader", "a made-up password");
const HTPASSWD: &str = "reader:$2y$05$greenroomgreenroomgreukbtVYDDmlBUYWrU.or5DiBA1rLozTP6\n";

/// A configuration without plugins: that of the machine is not read.
pub const NO_PLUGINS: &str = "[pool.other]\nmax_instances = 1\n[pool.other.provider]\nkind = \"local\"\n";

/// A directory of its own, and a running registry.
#[derive(Debug)]
pub struct Site {
    pub dir: tempfile::TempDir,
    /// Address and port.
    pub registry: String,
    process: Child,
}

/// The way in which a registry protects itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    Nothing,
    Password,
    /// HTTPS, with the certificate `ca.pem`.
    Certificate,
}

/// True if a program is installed here.
pub fn has(program: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("command -v {program}")]).stdout(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

impl Site {
    /// A site with a registry. `None`: there is no registry on this machine, and the test is skipped.
    pub fn open() -> Option<Self> {
        Self::protected(Protection::Nothing)
    }

    pub fn protected(protection: Protection) -> Option<Self> {
        if !has("docker-registry") || !has("openssl") {
            skipped("plugins: docker-registry or OpenSSL is missing");
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let more = match protection {
            Protection::Nothing => String::new(),
            Protection::Password => {
                let file = dir.path().join("htpasswd");
                fs::write(&file, HTPASSWD).expect("the accounts");
                format!("auth: {{htpasswd: {{realm: lab, path: {}}}}}\n", file.display())
            }
            Protection::Certificate => certificate(dir.path()),
        };
        let config = dir.path().join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: info, formatter: text}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp:\n  addr: 127.0.0.1:0\n{more}",
            dir.path().join("registry").display()
        );
        fs::write(&config, text).expect("the registry's file");
        let mut process = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the registry starts");
        let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let registry = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| {
                let (_, rest) = line.split_once("listening on ")?;
                Some(rest.split(|c: char| c != '.' && c != ':' && !c.is_ascii_digit()).next()?.to_owned())
            })
            .expect("the registry's address");
        // A full pipe would stop it.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let site = Self { dir, registry, process };
        site.write("greenroom.toml", NO_PLUGINS);
        Some(site)
    }

    /// Ends the registry.
    pub fn stop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }

    /// The registry's files.
    pub fn storage(&self) -> PathBuf {
        self.dir.path().join("registry")
    }

    /// The plugin directory.
    pub fn plugins(&self) -> PathBuf {
        self.dir.path().join("plugins")
    }

    /// A reference in the repository of the tests.
    pub fn own(&self, version: &str) -> String {
        format!("{}/team/own:{version}", self.registry)
    }

    /// The folder of the plugin's versions.
    pub fn folder(&self) -> PathBuf {
        self.plugins().join(&self.registry).join("team/own")
    }

    /// No version is there.
    #[track_caller]
    pub fn expect_nothing(&self) {
        let listed = self.list();
        assert_eq!(listed["plugins"], serde_json::json!([]), "{listed:#}");
        assert!(!self.folder().exists(), "{}", self.folder().display());
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(GREENROOM);
        command
            .arg("plugin")
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("FLEETING_PLUGIN_PATH", self.plugins())
            .env("GREENROOM_CONFIG", self.dir.path().join("greenroom.toml"))
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs a command that succeeds; its output.
    #[track_caller]
    pub fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("the program");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a command that fails; what it said.
    #[track_caller]
    pub fn fails(&self, arguments: &[&str], said: &[&str]) -> String {
        expect_failure(&self.command(arguments).output().expect("the program"), said)
    }

    /// `greenroom plugin list --json`, whatever its exit status.
    #[track_caller]
    pub fn list(&self) -> Value {
        let output = self.command(&["list", "--json"]).output().expect("the program");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
    }

    /// The output of an installed version.
    #[track_caller]
    pub fn run(&self, version: &str) -> String {
        let output = Command::new(self.folder().join(version).join("plugin")).output().expect("it runs");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }

    pub fn write(&self, name: &str, content: &str) {
        let file = self.dir.path().join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, content).expect("a file");
    }
}

/// A failure with status 2 that says all of these.
#[track_caller]
pub fn expect_failure(output: &Output, said: &[&str]) -> String {
    let all = text(output);
    assert_eq!(output.status.code(), Some(2), "{all}");
    for said in said {
        assert!(all.contains(said), "{said:?} is missing: {all}");
    }
    all
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// Makes a certificate; the registry's settings.
fn certificate(dir: &Path) -> String {
    let [key, ca] = ["key.pem", "ca.pem"].map(|name| dir.join(name).display().to_string());
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    openssl.args(["-days", "7", "-keyout", &key, "-out", &ca, "-subj", "/CN=registry.test"]);
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]);
    let made = openssl.stdin(Stdio::null()).output().expect("OpenSSL");
    assert!(made.status.success(), "{}", text(&made));
    format!("  tls: {{certificate: {ca}, key: {key}}}\n")
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop();
    }
}
