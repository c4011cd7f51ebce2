//! Docker in Docker: Debian's Docker as a service, with and without TLS.
//!
//! The image takes minutes to make and to unpack in emulated machines, so this test is for `scripts/test --full`.

use std::process::{Command, Stdio};

use serde_json::json;

use super::containers::{expect, report};
use super::registry::Registries;
use super::{Machines, machines};
use crate::published::{Image, PLAIN, publish};
use crate::skipped::skipped;
use crate::support::job::Job;
use crate::support::record::Outcome;

const ENTRY: &[(&str, &str)] = &[("entry", include_str!("docker-entry"))];

const DAEMON: Image = Image {
    name: "library/docker:dind",
    tree: &[
        "%docker.io,bash,ca-certificates,coreutils,dash,grep,iptables,openssl,sed",
        "-usr/bin/ctr",
        "-usr/bin/dnet",
        "-usr/bin/docker",
        "-usr/bin/containerd-shim",
        "-usr/bin/containerd-shim-runc-v1",
        "-usr/sbin/ovrouter",
        "-usr/lib/*/perl*",
        "-usr/share",
    ],
    files: ENTRY,
    entrypoint: &["/entry"],
    command: &[],
    port: Some(2376),
    volumes: &["/var/lib/docker"],
    ..PLAIN
};

const CLIENT: Image = Image {
    name: "library/docker:27",
    tree: &[
        "%docker.io,bash,coreutils,dash",
        "-usr/bin/containerd*",
        "-usr/bin/ctr",
        "-usr/bin/dnet",
        "-usr/lib/*/perl*",
        "-usr/sbin",
        "-usr/share",
    ],
    files: ENTRY,
    entrypoint: &["/entry"],
    ..PLAIN
};

fn is_missing(program: &str) -> bool {
    let mut version = Command::new(program);
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    !version.status().is_ok_and(|status| status.success())
}

#[test]
#[ignore = "in `scripts/test --full`: makes images of 300 MB"]
fn a_job_builds_and_runs_an_image_with_docker_in_docker() {
    let missing = is_missing("mmdebstrap").then_some("an image with Docker needs mmdebstrap");
    if let Some(why) = Registries::obstacle().or(missing) {
        return skipped(why);
    }
    crate::images::containers();
    let dir = tempfile::tempdir().expect("a directory");
    let registries = Registries::serve(dir.path(), &["library/alpine:3.20"]);
    let work = dir.path().join("docker");
    std::fs::create_dir(&work).expect("a folder");
    for image in [&DAEMON, &CLIENT] {
        publish(image, &dir.path().join("registry"), &work);
    }
    std::fs::remove_dir_all(work).expect("it was made here");
    let mut keys = registries.keys();
    // An emulated machine makes the daemon's certificates first.
    keys.insert("wait_for_services".into(), "4m".into());
    // The second job has the images of the first one.
    keys.insert("privileged".into(), true.into());
    let setting = machines().provider("image", "containers").provider("network", "open");
    let mut setting = setting.provider("memory", "1G").pool("containers", keys).pool("max_use_count", 2);
    setting.patience *= 5;
    let place = Machines::open(setting);
    // Docker asks the pool's mirror for the base image, and verifies both registries with the pool's certificate.
    let pushed = format!("{}/built:1", registries.open);
    let build = [
        "printf 'FROM alpine:3.20\\nRUN echo made inside >/made\\n' >Dockerfile".to_owned(),
        format!("docker build --quiet --tag {pushed} . >/dev/null"),
        format!("docker run --rm {pushed} cat /made"),
        format!("docker push --quiet {pushed} >/dev/null && echo pushed"),
        "echo \"at $DOCKER_HOST\"".to_owned(),
    ];
    let job = |id, certificates: &str, kit: &str| {
        let job = Job::new(id).image("docker:27").service(json!({"name": "docker:dind", "alias": "docker"}));
        let job = job.variable("DOCKER_TLS_CERTDIR", certificates).variable("DOCKER_BUILDKIT", kit);
        let job = job.variable("CI_DEBUG_SERVICES", "true");
        job.variable("HEALTHCHECK_TCP_PORT", if certificates.is_empty() { "2375" } else { "2376" })
    };
    let runner = place.runner();
    let with_tls = runner.run(&job(1, "/certs", "1").script(&build));
    report("with TLS, by BuildKit", &with_tls);
    expect(&with_tls, &Outcome::Success, &["made inside", "pushed", "at tcp://docker:2376"]);
    let without = runner.run(&job(2, "", "0").script(&build));
    report("without TLS", &without);
    expect(&without, &Outcome::Success, &["made inside", "pushed", "at tcp://docker:2375"]);
    place.expect_nothing_left(0);
}
