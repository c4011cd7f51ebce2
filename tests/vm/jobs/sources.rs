//! Jobs that clone from a git server, through the network that the operator chose for the machines.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::gitlab_runner::repository::repository;
use greenroom_testkit::program;

use super::{Machines, machines};

/// A git server on this machine's loopback, for as long as this process lives: git takes one connection at a time from
/// us, since it cannot be asked which port it chose.
pub(super) struct GitServer {
    port: u16,
}

impl GitServer {
    pub(super) fn start(home: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let home = home.to_owned();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(&home, stream);
            }
        });
        Self { port }
    }

    /// The address at which a guest finds a repository: its gateway is this machine.
    pub(super) fn url(&self, repository: &Path) -> PathBuf {
        let name = repository.file_name().expect("a repository has a name").to_string_lossy();
        PathBuf::from(format!("git://10.0.2.2:{}/{name}", self.port))
    }
}

fn serve(home: &Path, stream: TcpStream) {
    let (input, output) = (stream.try_clone().expect("a second end"), stream);
    let mut git = program::command("git", home);
    git.args(["daemon", "--inetd", "--export-all"]).env("GIT_CONFIG_NOSYSTEM", "1");
    git.arg(format!("--base-path={}", home.display())).arg(home);
    git.stdin(Stdio::from(OwnedFd::from(input))).stdout(Stdio::from(OwnedFd::from(output)));
    git.stderr(Stdio::null()).status().expect("git runs");
}

#[test]
fn a_job_clones_from_a_git_server_where_the_network_is_open() {
    let place = Machines::open(machines().provider("network", "open"));
    let repository = repository(place.path());
    let job = Job::new(1)
        .repository(&GitServer::start(place.path()).url(&repository))
        .script(["cat README.md", "echo produced > out.txt"])
        .after_script(["cat out.txt", "echo \"status $CI_JOB_STATUS\""]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    let text = |name: &str| result.call(name).stdout_text();
    assert!(text("get_sources").contains("Checking out "), "{}", result.describe());
    assert!(text("build_script").contains("a demonstration"), "{}", result.describe());
    let after = text("after_script");
    assert!(after.contains("produced\n") && after.contains("status success"), "{}", result.describe());
    place.expect_nothing_left(0);
}

#[test]
fn the_same_job_fails_by_its_own_fault_where_machines_are_isolated() {
    let place = Machines::open(machines());
    let repository = repository(place.path());
    let job = Job::new(1).repository(&GitServer::start(place.path()).url(&repository));
    let result = place.run(&job);
    assert!(matches!(result.outcome, Outcome::ScriptFailure { .. }), "{}", result.describe());
    let sources = result.call("get_sources");
    assert!(sources.stdout_text().contains("unable to connect to 10.0.2.2"), "{}", result.describe());
    assert_eq!(super::told(sources), [""; 0], "{}", result.describe());
    place.expect_nothing_left(0);
}
