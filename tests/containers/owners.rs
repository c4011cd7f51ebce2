//! Sources that belong to the user of the job's image.

use std::os::unix::fs::PermissionsExt as _;

use greenroom_harness::place::Place;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::gitlab_runner::repository::repository;

use crate::pool::{containers, job, setting};
use crate::site::{Site, site};

/// A script that fails if any file, the checkout or the directory of file variables belongs to another user or is open
/// to all.
const OWNED: &str = "id -u; ls -ld . .git README.md \"$KEY\" | awk '{ print $1, $3 }'";

fn checked(site: &Site, place: &Place, home: &str, job: Job) {
    // Both engines have the site.
    let mode = std::fs::Permissions::from_mode(0o755);
    let home =
        tempfile::Builder::new().prefix(home).permissions(mode).tempdir_in(&site.dir).expect("a folder");
    let job = job
        .repository(&repository(home.path()))
        .file("KEY", "content of a file")
        .script([
            OWNED,
            "git log --format=%s",
            "echo more >> README.md; git add README.md",
            "git -c user.name=a -c user.email=a@example.com commit -qm two",
            "git diff --quiet || echo changed",
            "cat $KEY; echo",
            "mkdir made; echo made >made/file",
        ])
        .after_script(["cat made/file; git log --format=%s | head -n 1"])
        .artifact("made", "always");
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    for line in ["1000", "drwxr-xr-x app", "-rw-r--r-- app", "one", "content of a file", "made", "two"] {
        assert!(log.lines().any(|said| said == line), "`{line}` in {}", result.describe());
    }
    for line in ["drwxr-xr-x root", "-rw-r--r-- root", "drwxrwxrwx app", "changed"] {
        assert!(!log.lines().any(|said| said == line), "`{line}` in {}", result.describe());
    }
    place.expect_sound();
}

#[test]
pub fn with_the_feature_flag_the_images_user_owns_the_sources() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    checked(
        site,
        &place,
        "owned-by-flag",
        job(1, "app:1").variable("FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR", "true"),
    );
}

#[test]
fn with_a_closed_umask_the_images_user_owns_the_sources() {
    let Some(site) = site() else { return };
    let setting = containers(site, |table| {
        table.insert("umask".into(), "closed".into());
    });
    let place = setting.open();
    checked(site, &place, "owned-by-umask", job(1, "app:1"));
    // Root keeps what it has made.
    let result = place.run(&job(2, "bash:1").script(["stat -c %u . || ls -ldn ."]));
    result.expect_outcome(&Outcome::Success);
}

#[test]
pub fn a_user_and_a_group_of_the_job_are_found_by_name_or_number() {
    let Some(site) = site() else { return };
    let setting = containers(site, |table| {
        table.insert("umask".into(), "closed".into());
    });
    let place = setting.open();
    let users = [
        ("app", "1000 1000"),
        ("app:root", "1000 0"),
        ("1000", "1000 1000"),
        ("4711", "4711 0"),
        ("7:8", "7 8"),
    ];
    for (id, (user, numbers)) in (1..).zip(users) {
        let options =
            serde_json::json!({"docker": {"platform": "", "user": user}, "kubernetes": {"user": ""}});
        let job = job(id, "app:1").image_option("executor_opts", options).script([
            "echo \"user $(id -u) $(id -g)\"",
            "ls -ldn . | awk '{ print \"owner\", $3, $4 }'",
            "touch made",
        ]);
        let result = place.run(&job);
        result.expect_outcome(&Outcome::Success);
        for line in [format!("user {numbers}"), format!("owner {numbers}")] {
            assert!(result.log_text().lines().any(|said| said == line), "`{line}` in {}", result.describe());
        }
    }
    place.expect_sound();
}
