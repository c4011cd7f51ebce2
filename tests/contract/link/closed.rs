//! The callers that a link accepts, and the data that it holds.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use greenroom_testkit::skipped::skipped;

use super::caller::{Caller, Task};
use super::{only_link, place, said};
use crate::linked::sshd::Sshd;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn only_the_owner_can_reach_a_link() {
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    assert_eq!(mode(&place(&sshd)), 0o700);
    assert_eq!(mode(&place(&sshd).join("0.sock")), 0o600);
    assert_eq!(mode(&place(&sshd).join("0.lock")), 0o600);
}

#[tokio::test]
async fn another_user_is_not_heard_though_the_files_were_opened_to_all() {
    if !rustix::process::getuid().is_root() {
        skipped("only root can take another user's identity");
        return;
    }
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    let dir = place(&sshd);
    for path in [sshd.dir.path(), &sshd.path("links"), &dir, &dir.join("0.sock")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let socket = dir.join("0.sock");
    let as_user = move |uid: u32| {
        let socket = socket.clone();
        // The identity of this thread only.
        let asking = std::thread::spawn(move || {
            let uid = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            // It may close the connection first.
            let _cut = stream.write_all(b"{\"protocol\":6,\"ask\":\"show\"}\n");
            let mut answer = Vec::new();
            let _cut = stream.read_to_end(&mut answer);
            String::from_utf8(answer).unwrap()
        });
        tokio::task::spawn_blocking(move || asking.join().unwrap())
    };
    assert_eq!(as_user(65534).await.unwrap(), "");
    assert!(as_user(0).await.unwrap().contains("shown"));
}

#[tokio::test]
async fn a_link_knows_nothing_of_the_job_that_started_it() {
    let sshd = Sshd::start().await;
    let caller = Caller::start(&sshd, "secret", Task::Run("true\n".to_owned()), |command| {
        command.env("CI_JOB_TOKEN", "glcbt-secret").env("CUSTOM_ENV_CI_JOB_TOKEN", "glcbt-secret");
        command.env("SSH_AUTH_SOCK", "/nowhere").env("TZ", "UTC").env("LD_LIBRARY_PATH", "/nowhere");
    });
    assert_eq!(caller.finish().await.said, "Exited(0)");
    let link = only_link(&sshd);
    let line = std::fs::read(format!("/proc/{link}/cmdline")).unwrap();
    let line = String::from_utf8_lossy(&line).into_owned();
    assert!(line.ends_with("\0link\0"), "{line:?}");
    let limits = std::fs::read_to_string(format!("/proc/{link}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    let core: Vec<&str> = core.split_ascii_whitespace().skip(4).take(2).collect();
    assert_eq!(core, ["0", "0"]);
    let stat = std::fs::read_to_string(format!("/proc/{link}/stat")).unwrap();
    let session = stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap().to_owned();
    assert_eq!(session, link.to_string(), "a session of its own");
    let environment = std::fs::read(format!("/proc/{link}/environ"));
    if !rustix::process::getuid().is_root() {
        assert!(environment.is_err(), "it cannot be looked into");
        skipped("only root can look into a link");
        return;
    }
    assert_eq!(String::from_utf8_lossy(&environment.unwrap()), "TZ=UTC\0");
    assert_eq!(std::fs::read_link(format!("/proc/{link}/cwd")).unwrap(), Path::new("/"));
    // Without the descriptors that this test was started with: `tests/jobs/link.rs` checks that they are closed.
    let own = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let of_this_test: Vec<String> = own
        .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
        .filter(|target| !target.contains(".lock"))
        .collect();
    let (mut streams, mut files) = (0, Vec::new());
    for entry in std::fs::read_dir(format!("/proc/{link}/fd")).unwrap().flatten() {
        let number: u32 = entry.file_name().to_str().unwrap().parse().unwrap();
        let target = std::fs::read_link(entry.path()).unwrap().to_str().unwrap().to_owned();
        if number < 3 {
            assert_eq!(target, "/dev/null");
            streams += 1;
        } else if !of_this_test.contains(&target)
            && !target.starts_with("socket:")
            && !target.starts_with("anon_inode:")
        {
            files.push(target);
        }
    }
    assert_eq!(streams, 3);
    let lock = place(&sshd).join("0.lock");
    assert_eq!(files, [lock.to_str().unwrap()], "nothing of the stage that is over");
}
