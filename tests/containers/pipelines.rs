//! Ordinary jobs of ordinary pipelines.

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use greenroom_testkit::gitlab_runner::repository::repository;
use serde_json::json;

use crate::engine::engine;
use crate::pool::{containers, job, plain, run_all, setting};
use crate::site::site;

/// The job passed, and its log has these lines.
#[track_caller]
fn expect_lines(result: &JobResult, lines: &[&str]) {
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    for line in lines {
        assert!(log.lines().any(|said| said == *line), "`{line}` in {}", result.describe());
    }
}

#[test]
pub fn an_image_of_docker_hub_comes_from_the_mirror() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let job = Job::new(1).image("ruby:3.3").script(["ruby -v", "ruby -e 'puts 1'"]);
    expect_lines(&place.run(&job), &["ruby 3.3.0", "ran puts 1"]);
    place.expect_sound();
}

#[test]
pub fn the_container_has_the_variables_of_the_job_and_the_directories_of_the_machine() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let job = job(1, "bash:1")
        .variable("GREETING", "grüß Gott \"$CI_PROJECT_NAME\"")
        .raw("RAW", "$NOT_EXPANDED")
        .file("SETTINGS", "two\nlines")
        .script(["echo \"$GREETING, $RAW\"", "cat \"$SETTINGS\"; echo", "pwd", "echo made here > made"])
        .after_script(["cat made"]);
    let result = place.run(&job);
    expect_lines(&result, &["grüß Gott \"demo\", $NOT_EXPANDED", "two", "lines", "made here"]);
    let log = result.log_text();
    assert!(log.lines().any(|line| line.starts_with("/tmp/builds/") && line.ends_with("/g/demo")), "{log}");
    place.expect_sound();
}

#[test]
pub fn a_job_without_an_image_runs_on_the_machine_and_hears_that_its_services_are_ignored() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let job = Job::new(1)
        .service(json!({"name": plain("backend:1")}))
        .script([format!("command -v {}", engine().program())]);
    let result = place.run(&job);
    expect_lines(&result, &[&format!("/usr/bin/{}", engine().program())]);
    assert!(result.log_text().contains("ignored"), "{}", result.describe());
}

#[test]
fn every_job_of_a_pool_that_says_so_runs_in_a_container() {
    let Some(site) = site() else { return };
    let setting = containers(site, |table| {
        table.insert("mode".into(), "always".into());
        table.insert("default_image".into(), plain("ash:1").into());
    });
    let place = setting.open();
    let job = Job::new(1).script([format!("command -v {} || echo no engine here", engine().program())]);
    expect_lines(&place.run(&job), &["no engine here"]);
}

#[test]
fn git_works_in_a_checkout_for_a_user_who_is_not_root() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let home = site.dir.join("repositories");
    std::fs::create_dir(&home).expect("a folder");
    let job = job(1, "app:1")
        .repository(&repository(&home))
        .file("KEY", "content of a file")
        .script([
            "id -u",
            "git log --format=%s",
            "echo more >> README.md",
            "git diff --stat | tail -n 1",
            "cat $KEY; echo",
        ])
        .after_script(["cat README.md"]);
    let result = place.run(&job);
    expect_lines(&result, &["1000", "one", " 1 file changed, 1 insertion(+)", "content of a file", "more"]);
    place.expect_sound();
}

#[test]
pub fn artifacts_and_caches_pass_between_jobs_on_different_machines() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let build = job(1, "app:1").artifact("out", "on_success").cache("deps", "on_success").script([
        "mkdir -p out deps",
        "echo built > out/program",
        "echo cached > deps/library",
    ]);
    expect_lines(&place.run(&build), &[]);
    let test = job(2, "ash:1")
        .dependency(1, "build")
        .cache("deps", "on_success")
        .script(["cat out/program", "cat deps/library"]);
    expect_lines(&place.run(&test), &["built", "cached"]);
    let grants = place.grants();
    assert_ne!(grants[0].1, grants[1].1, "a machine for each job");
}

#[test]
pub fn scripts_keep_their_exit_codes_and_after_script_sees_what_they_left() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let failing = |id, code: i64| {
        job(id, "ash:1")
            .script([format!("echo left > /etc/file; (exit {code})")])
            .after_script(["echo \"after $CI_JOB_STATUS\"", "cat /etc/file"])
    };
    let codes = [1, 7, 125, 126, 127, 137, 255];
    let jobs = codes.into_iter().zip(1..).map(|(code, id)| failing(id, code));
    for (code, result) in codes.into_iter().zip(run_all(&place, jobs)) {
        result.expect_outcome(&Outcome::ScriptFailure { exit_code: code });
        let log = result.log_text();
        assert!(log.contains("\nafter failed\n") && log.contains("\nleft\n"), "{}", result.describe());
    }
    place.expect_sound();
}

#[test]
fn further_steps_run_in_the_container_and_share_its_files() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let job = job(1, "ash:1")
        .script(["echo one > /etc/file"])
        .step("release", ["cat /etc/file; ls /usr/bin/podman || :"]);
    let result = place.run(&job);
    expect_lines(&result, &["one"]);
    assert!(result.log_text().contains("/usr/bin/podman: No such file"), "{}", result.describe());
}

#[test]
pub fn twenty_jobs_on_four_machines_all_run_once() {
    let Some(site) = site() else { return };
    let mut setting = setting(site).pool("max_instances", 4);
    setting.patience *= 3;
    let place = setting.open();
    let images = ["ash:1", "bash:1", "app:1", "exec:1"];
    let jobs = (1..=20).zip(images.iter().cycle()).map(|(id, image)| {
        let job = job(id, image).script([format!("echo job {id} ran")]);
        if id % 5 == 0 { job.service(json!({"name": plain("backend:1")})) } else { job }
    });
    for (id, result) in (1..).zip(run_all(&place, jobs)) {
        expect_lines(&result, &[&format!("job {id} ran")]);
    }
    assert_eq!(place.grants().len(), 20);
    place.expect_sound();
}

#[test]
pub fn the_job_and_the_pool_choose_the_user_the_volumes_and_the_options() {
    let Some(site) = site() else { return };
    let setting = containers(site, |table| {
        table.insert("volumes".into(), vec!["/shared"].into());
        table.insert("extra_hosts".into(), vec!["elsewhere.test:192.0.2.7"].into());
        table.insert("shm_size".into(), "32M".into());
        table.insert(
            "tmpfs".into(),
            toml::Table::from_iter([("/scratch".into(), "rw,size=1m".into())]).into(),
        );
        table.insert("privileged".into(), false.into());
    });
    let place = setting.open();
    let user = json!({"docker": {"platform": "", "user": "1000:1000"}, "kubernetes": {"user": ""}});
    let writer = json!({
        "name": plain("ash:1"), "alias": "writer",
        "command": ["sh", "-c", "echo from the service > /shared/file; sleep 1000"],
    });
    let job = job(1, "ash:1").image_option("executor_opts", user).service(writer).script([
        "id -u",
        "cat /shared/file",
        "grep -o '192.0.2.7.*' /etc/hosts | tr '\\t' ' '",
        "df -m /dev/shm | awk 'END { print \"shm\", $2 }'",
        "df -m /scratch | awk 'END { print \"scratch\", $2 }'",
        "mount -t tmpfs none /tmp 2>/dev/null || echo no rights",
        "echo mine > made",
    ]);
    let result = place.run(&job);
    let lines = ["1000", "from the service", "192.0.2.7 elsewhere.test", "shm 32", "scratch 1", "no rights"];
    expect_lines(&result, &lines);
    place.expect_sound();
}
