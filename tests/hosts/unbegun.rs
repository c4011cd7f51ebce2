//! A host that responds and begins no stages: jobs of two trust domains take it out of service.

use greenroom_core::instance::Phase;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::machine::{Hosts, Make, possible};

const LOGIN: &str = "cat > /mnt/login <<'END'
[ ! -e /mnt/broken ] || case \"$SSH_ORIGINAL_COMMAND\" in *greenroom-session-*) exit 97;; esac
exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"
END";

#[test]
fn a_host_that_begins_no_stages_of_two_projects_serves_no_third() {
    if !possible() {
        return;
    }
    let make = Make { config: "ForceCommand exec /bin/sh /mnt/login", ..Make::named("a") };
    let hosts = Hosts::boot(&[make]);
    let host = &hosts.machines[0];
    host.sh(LOGIN);
    let place = hosts.setting().pool("clean_unbinds", true).open();
    // Its first cleaning begins a stage, too.
    place.run(&Job::new(9)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    let nexts = ["if the next job meets this too, ", "it is out of service and gets no more jobs"];
    for (id, next) in (1..).zip(nexts) {
        // Before the job gets the host, because the shell of its first stage starts then.
        host.sh("touch /mnt/broken");
        let attempt = place.prepared_as(&Job::new(id).project(id, &format!("g/{id}")));
        let run = attempt.run("build_script", "echo it ran\n");
        // Before the job leaves: what is decided about the host does not wait for that.
        let state = place.state();
        host.sh("rm /mnt/broken");
        assert_eq!(run.exit_code(), Some(2), "{}", run.stderr_text());
        let text = run.stderr_text();
        assert!(text.contains("instance a did not begin the stage: "), "{text}");
        assert!(text.contains(next), "{text}");
        let phase = state.instances.values().next().map(|i| i.phase.clone());
        match (id, phase) {
            (1, Some(Phase::Ready)) => {}
            (2, Some(Phase::OutOfService { reason })) => {
                assert!(reason.starts_with("it responds, but begins no stages: "), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
        if id == 1 {
            place.wait_until_idle(1);
        }
    }
    let status = place.order(&["pool", "status"]);
    let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(status.contains("begins no stages"), "{status}");
    assert!(status.contains("pool resume pool --instance a"), "{status}");
    place.order(&["pool", "resume", "--instance", "a"]);
    place.wait_until_idle(1);
    place.run(&Job::new(3)).expect_outcome(&Outcome::Success);
    place.expect_sound();
}
