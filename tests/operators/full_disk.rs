//! A full disk: what it stops, and what goes on.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use greenroom_testkit::program;
use greenroom_testkit::skipped::skipped;
use rustix::process::Signal;

use super::{Home, PROGRAM, signal};

/// A mount namespace in which the state directory is a small file system of its own. It ends with this value.
pub(super) struct SmallDisk {
    holder: Child,
    _input: ChildStdin,
    state: PathBuf,
}

impl SmallDisk {
    /// A small file system on the state directory; `None`: that is impossible here.
    fn new(state: &Path) -> Option<Self> {
        let possible = Command::new("unshare").args(["-rm", "true"]).output();
        if !possible.is_ok_and(|output| output.status.success()) {
            skipped("user and mount namespaces cannot be made (`unshare -r -m`)");
            return None;
        }
        fs::create_dir_all(state).unwrap();
        let script = "mount -t tmpfs -o size=8m,mode=700 none \"$1\" && echo mounted && cat";
        let mut holder = Command::new("unshare")
            .args(["-rm", "sh", "-c", script, "sh"])
            .arg(state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(holder.stdout.as_mut().unwrap()), &mut line)
            .unwrap();
        assert_eq!(line, "mounted\n");
        let input = holder.stdin.take().unwrap();
        let inside = PathBuf::from(format!("/proc/{}/root", holder.id()));
        let state = inside.join(state.strip_prefix("/").unwrap());
        Some(Self { holder, _input: input, state })
    }

    /// A command of Greenroom that sees the small disk.
    pub(super) fn command(&self, home: &Path) -> Command {
        let mut command = program::command("nsenter", home);
        command.args(["--preserve-credentials", "-U", "-m", "-t", &self.holder.id().to_string(), PROGRAM]);
        command
    }

    fn fill(&self) {
        let ballast = self.state.join("ballast");
        let mut file = File::options().create(true).append(true).open(ballast).unwrap();
        while file.write(&[0; 4096]).is_ok() {}
    }

    fn reserve(&self) -> PathBuf {
        self.state.join("pools/linux/reserve")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        signal(&self.holder, Signal::KILL);
        self.holder.wait().ok();
    }
}

#[test]
fn a_full_disk_holds_up_launches_and_no_termination() {
    let mut home = Home::new();
    let Some(disk) = SmallDisk::new(&home.path("state")) else { return };
    home.disk = Some(disk);
    let disk = home.disk.as_ref().unwrap();
    let keeper = home.keep();
    assert!(disk.reserve().exists(), "a pool that launches has a reserve");

    disk.fill();
    // Pages that are begun take some more records.
    for round in 0.. {
        assert!(round < 200, "the reserve is never used");
        for command in ["drain", "resume"] {
            let said = home.run(&["pool", command]);
            assert_eq!(said.code, 0, "round {round}: {said:?}");
        }
        if !disk.reserve().exists() {
            break;
        }
    }
    let drained = home.run(&["pool", "drain", "--wait"]);
    assert_eq!(drained.code, 0, "{drained:?}");
    let resumed = home.run(&["pool", "resume"]);
    assert_eq!(resumed.code, 0, "{resumed:?}");
    home.until("the status says why nothing is launched", || {
        home.json(&["pool", "status", "--json"])["pools"][0]["launch_blocked_by"]["kind"] == "disk"
    });
    let status = home.run(&["pool", "status"]).out;
    assert!(status.contains("no launch can be recorded: cannot reserve space in"), "{status}");
    assert_eq!(home.ready(), None);

    fs::remove_file(disk.state.join("ballast")).unwrap();
    home.until("an instance is ready again", || home.ready().is_some());
    assert!(disk.reserve().exists(), "the reserve is made again");
    drop(keeper);
}
