//! Cleaning by an account that a rule of `sudo` makes root for one script, as `doctor` prints rule and script.

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;

use crate::machine::{Hosts, Make, possible};

#[test]
fn the_rule_that_doctor_prints_is_enough_and_allows_nothing_else() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let host = &hosts.machines[0];
    if host.sh("command -v sudo; ls -d /etc/sudoers.d").lines().count() < 2 {
        skipped("sudo is missing");
        return;
    }
    let place = hosts.cleaned_by("janitor").open();
    let remedy = || {
        let examined = place.greenroom(&["doctor", "--json"]);
        let examined: serde_json::Value = serde_json::from_slice(&examined.stdout).expect("JSON");
        let findings = examined["findings"].as_array().expect("a list").clone();
        findings.into_iter().find(|finding| finding["code"] == "host-clean-user")
    };
    let found = remedy().expect("nothing is installed yet");
    let (message, remedy_text) = (found["message"].as_str().unwrap(), found["remedy"].as_str().unwrap());
    assert!(message.contains("greenroom-clean-ci is missing or differs"), "{message}");
    let (_, rule) = remedy_text.split_once("/etc/sudoers.d/greenroom: ").expect("the rule comes last");
    let script = place.order(&["doctor", "--clean-script", "a"]);
    let program = "/usr/local/sbin/greenroom-clean-ci";
    host.sh(&format!(
        "umask 022; cat > {program} <<'END-OF-SCRIPT'\n{script}END-OF-SCRIPT\nchmod 755 {program}\n\
         cat > /etc/sudoers.d/greenroom <<'END-OF-RULE'\n{rule}\nEND-OF-RULE\nchmod 440 /etc/sudoers.d/greenroom"
    ));
    assert_eq!(remedy(), None, "the rule and the script are installed");

    let as_janitor = |command: &str| {
        let janitor = "setpriv --reuid=4712 --regid=4712 --clear-groups";
        host.sh(&format!("cd /; {janitor} sudo -n {command} >/dev/null 2>&1 </dev/null; echo $?"))
    };
    assert_eq!(as_janitor(&format!("{program} --check")), "0\n");
    for refused in
        [&format!("{program} --other"), &format!("{program} --check more"), "/bin/sh -c true", "-u ci true"]
    {
        assert_ne!(as_janitor(refused), "0\n", "{refused}");
    }

    let job = Job::new(1).script(["touch ~/left /tmp/left; setsid sleep 1000 >/dev/null 2>&1 </dev/null &"]);
    place.run(&job).expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    assert_eq!(host.sh("ls /home/ci /tmp; pgrep -x sleep -u 4711"), "/home/ci:\n\n/tmp:\n");
    place.expect_sound();
}
