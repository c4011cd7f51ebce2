//! Kind: a job finds on a host what its administrator finds after a login.

use std::path::Path;

use greenroom_harness::place::Place;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::machine::{Hosts, Machine, Make, possible};

/// The output of `doctor`, without its line breaks.
fn doctor(place: &Place) -> String {
    let output = place.greenroom(&["doctor"]);
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// GitLab Runner is below /opt, and the profile of the account says so.
fn install(host: &Machine) {
    host.sh(
        "mkdir -p /home/ci/tools && printf '#!/bin/sh\\necho it runs\\n' >/home/ci/tools/gitlab-runner && \
         chmod 755 /home/ci/tools/gitlab-runner && chmod -R go+rX /home/ci/tools && \
         printf 'echo greeting; read -r x; PATH=$PATH:$HOME/tools; export PATH TOOLS=yes\\n' >/home/ci/.profile",
    );
    assert!(Path::new("/etc/profile").exists());
}

/// `PATH` of `~/.profile` was missing in jobs, and `doctor` did not find GitLab Runner.
#[test]
fn a_job_and_doctor_find_what_a_login_finds() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    install(&hosts.machines[0]);
    let place = hosts.setting().open();
    for id in 1..=2 {
        let attempt = place.prepared_as(&Job::new(id));
        for stage in ["prepare_script", "build_script", "after_script"] {
            let run = attempt.run(stage, "gitlab-runner; echo $TOOLS\n");
            assert_eq!((run.exit_code(), run.stdout_text().as_str()), (Some(0), "it runs\nyes\n"), "{stage}");
            assert_eq!(run.stderr_text(), "");
        }
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
    }
    let said = doctor(&place);
    assert!(!said.contains("[host-runner-missing]") && !said.contains("[host-login-path]"), "{said}");
    place.run(&Job::new(3)).expect_outcome(&Outcome::Success);
}

/// *"The profile exports a token. Another account of the host saw it in the list of processes."*
///
/// The account's own shell notes each command line that it gets. All stages have the token.
#[test]
fn no_command_line_has_what_a_profile_exports() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let host = &hosts.machines[0];
    install(host);
    host.sh(
        "printf 'export TOKEN=secret-of-the-profile\n' >>/home/ci/.profile; \
         printf '#!/bin/sh\nprintf \"%%s\\n\" \"$@\" >>/tmp/command-lines\nexec /bin/bash \"$@\"\n' >/home/ci/shell && \
         chmod 755 /home/ci/shell && touch /tmp/command-lines && chmod 666 /tmp/command-lines && \
         sed 's,^\\(ci:.*\\):[^:]*$,\\1:/home/ci/shell,' /etc/passwd >/tmp/passwd && cat /tmp/passwd >/etc/passwd",
    );
    let place = hosts.setting().open();
    let attempt = place.prepared_as(&Job::new(1));
    for stage in ["prepare_script", "get_sources", "build_script", "after_script"] {
        let run = attempt.run(stage, "echo $TOKEN\n");
        let said = (run.exit_code(), run.stdout_text());
        assert_eq!(said, (Some(0), "secret-of-the-profile\n".to_owned()), "{stage}: {}", run.stderr_text());
    }
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    let lines = host.sh("cat /tmp/command-lines");
    assert!(lines.contains("exec bash"), "the account's shell is used: {lines}");
    assert!(!lines.contains("secret-of-the-profile"), "{lines}");
    place.expect_sound();
}

/// A pool with `login_shell = false`: `doctor` names what only a login finds.
#[test]
fn doctor_compares_the_two_paths() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    install(&hosts.machines[0]);
    let place = hosts.setting().pool("login_shell", false).open();
    let said = doctor(&place);
    let note = "[host-login-path]: host `a` of pool `pool`: a login of `ci` also finds programs in ";
    assert!(said.contains(note) && said.contains("/home/ci/tools, stages do not"), "{said}");
    assert!(said.contains("[host-runner-missing]"), "{said}");
}
