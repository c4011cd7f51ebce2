//! A keeper that delivers over HTTPS, and one that cannot.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_testkit::pace::await_settled;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::SECRET;
use crate::server::{Certificates, Reply, Server};

const GREENROOM: &str = env!("CARGO_BIN_EXE_greenroom");
const DEADLINE: Duration = Duration::from_mins(1);

/// A pool whose first launch fails, so that the circuit breaker opens.
struct Home {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Drop for Home {
    fn drop(&mut self) {
        await_settled(self.dir.path());
    }
}

impl Home {
    fn new(url: &str) -> Self {
        let home = Self { dir: tempfile::tempdir().unwrap(), program: GREENROOM.into() };
        let config = format!(
            "state_dir = \"{}\"\n[pool.linux]\nmax_instances = 2\nidle_count = 1\n[pool.linux.provider]\n\
             kind = \"local\"\nallow_root = true\nfail_launch = {{ class = \"invalid\", first = 3 }}\n\
             [timing]\nlaunch_backoff = \"1ms\"\nlaunch_backoff_max = \"1h\"\nbreaker_failures = 1\n\
             [notify]\nwebhook = \"{url}\"\n",
            home.path("state").display()
        );
        fs::write(home.path("greenroom.toml"), config).unwrap();
        fs::set_permissions(home.path("greenroom.toml"), fs::Permissions::from_mode(0o600)).unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(self.path("greenroom.toml")).args(arguments).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", self.dir.path());
        command
    }

    fn keep(&self, authorities: &Path) -> Keeper<'_> {
        let log = fs::File::create(self.path("keep.log")).unwrap();
        let mut command = self.command(&["keep"]);
        command.env("SSL_CERT_FILE", authorities).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Keeper { home: self, child: command.spawn().unwrap() }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("keep.log")).unwrap_or_default()
    }

    fn until<T>(&self, what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(seen) = seen() {
                return seen;
            }
            assert!(begun.elapsed() < DEADLINE, "waited for: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The output of `doctor`.
    fn doctor(&self) -> String {
        let runner = self.path("no-such-config.toml").display().to_string();
        let output = self.command(&["doctor", "--runner-config", &runner]).output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        told.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

struct Keeper<'a> {
    home: &'a Home,
    child: Child,
}

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        let drained = self.home.command(&["pool", "drain", "--wait"]).output();
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
        self.child.wait().unwrap();
        drop(drained);
    }
}

/// The process that posts for a keeper.
fn helper(keeper: &Child) -> Option<(Pid, PathBuf)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.map(|entry| entry.path()).find_map(|process| {
        let stat = fs::read_to_string(process.join("stat")).ok()?;
        let parent: u32 = stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?;
        let command = fs::read_to_string(process.join("cmdline")).ok()?;
        let pid = process.file_name()?.to_str()?.parse().ok().and_then(Pid::from_raw)?;
        (parent == keeper.id() && command.ends_with("\0post-notice\0")).then_some((pid, process))
    })
}

#[test]
fn a_keeper_posts_again_after_its_helper_was_killed_and_shows_no_secret() {
    let Some(certificates) = Certificates::new() else { return };
    let server = Server::start(&certificates, "good", vec![Reply::Nothing, Reply::Status("204 No Content")]);
    let home = Home::new(&format!("https://localhost:{}/hook?key={SECRET}", server.port));
    let keeper = home.keep(&certificates.authority());
    home.until("the first notice arrives", || (server.requests().len() == 1).then_some(()));
    let (pid, process) = helper(&keeper.child).unwrap();
    for file in ["cmdline", "environ"] {
        let text = String::from_utf8_lossy(&fs::read(process.join(file)).unwrap()).into_owned();
        assert!(!text.contains(SECRET), "{file}: {text}");
    }
    kill_process(pid, Signal::KILL).unwrap();
    home.until("the failure is told", || {
        home.log().contains("`greenroom-backends`: signal: 9").then_some(())
    });
    home.until("it is delivered", || {
        home.log().contains("notice 1 (breaker-open) is delivered").then_some(())
    });
    let requests = server.requests();
    assert_eq!(requests.len(), 2, "{requests:#?}");
    for request in &requests {
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let notice: Value = serde_json::from_str(body).unwrap();
        assert_eq!((notice["event"].as_str(), notice["number"].as_u64()), (Some("breaker-open"), Some(1)));
    }
    assert!(!home.log().contains(SECRET), "{}", home.log());
    let notices = fs::read_to_string(home.path("state/notices.json")).unwrap();
    assert!(!notices.contains(SECRET), "{notices}");
    assert!(home.command(&["pool", "resume"]).status().unwrap().success());
}

#[test]
fn doctor_says_why_a_certificate_is_refused_and_what_helps() {
    let Some(certificates) = Certificates::new() else { return };
    let server = Server::start(&certificates, "good", vec![Reply::Status("204 No Content")]);
    let home = Home::new(&format!("https://127.0.0.1:{}/hook?key={SECRET}", server.port));
    let keeper = home.keep(&certificates.other_authority());
    home.until("the failure is told", || home.log().contains("is not delivered: ").then_some(()));
    let told = home.doctor();
    for part in ["[notify-undelivered]", "/…: invalid peer certificate", "SSL_CERT_FILE"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!told.contains(SECRET) && !told.contains("notify-backends"), "{told}");
    assert!(home.command(&["pool", "resume"]).status().unwrap().success());
    drop(keeper);
}

#[test]
fn without_the_second_program_the_keeper_works_and_doctor_names_it() {
    let mut home = Home::new(&format!("https://127.0.0.1:9/{SECRET}"));
    let alone = home.path("greenroom");
    if fs::hard_link(GREENROOM, &alone).is_err() {
        fs::copy(GREENROOM, &alone).unwrap();
    }
    home.program = alone;
    let told = home.doctor();
    let missing =
        "`https://` in `webhook` of `[notify]` needs the program `greenroom-backends`, which is not in";
    assert!(
        told.contains("error [notify-backends]") && told.contains(missing) && !told.contains(SECRET),
        "{told}"
    );
    let keeper = home.keep(Path::new("/nowhere"));
    home.until("the failure is told", || home.log().contains("is not delivered: ").then_some(()));
    assert!(home.log().contains(missing) && !home.log().contains(SECRET), "{}", home.log());
    assert!(home.command(&["pool", "resume"]).status().unwrap().success());
    drop(keeper);
}
