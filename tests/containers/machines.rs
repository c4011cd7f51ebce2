//! The lab itself: Podman works on its machines, and finds the registries.

use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;

use crate::site::{ACCOUNT, MIRROR, PASSWORD, PLAIN, site};

#[test]
fn a_machine_of_the_lab_has_podman_registries_and_a_network() {
    let Some(site) = site() else { return };
    let sshd = site.dir.join("sshd").display().to_string();
    let place = Setting::new().provider("server", "openssh").provider("sshd", sshd).open();
    let attempt = place.prepared_as(&Job::new(1));
    let (account, password) = ACCOUNT;
    let script = format!(
        "set -ex\nhostname\npodman run --rm --network host {PLAIN}/ash:1 echo from the image\n\
         podman network create --disable-dns services\n\
         podman run --detach --network services --name backend --env NAME=one {PLAIN}/backend:1\n\
         at=$(podman inspect --format '{{{{.NetworkSettings.Networks.services.IPAddress}}}}' backend)\n\
         podman run --rm --network services {PLAIN}/ash:1 sh -c \"nc -w 5 $at 8080 </dev/null\"\n\
         podman pull {MIRROR}/library/alpine:3.20\n! podman pull {PASSWORD}/private:1\n\
         podman pull --creds '{account}:{password}' {PASSWORD}/private:1\npodman images\n",
    );
    let ran = attempt.run("build_script", &script);
    assert_eq!(ran.exit_code(), Some(0), "{}{}", ran.stdout_text(), ran.stderr_text());
    let said = ran.stdout_text();
    for line in ["machine", "from the image", "hello from one"] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}{}", ran.stderr_text());
    }
    assert!(said.contains("authentication required"), "{said}");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    place.expect_sound();
}
