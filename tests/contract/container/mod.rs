//! Stages in containers, against Podman, Docker and OpenSSH's own server.
//!
//! `ends`: how they end. `stopping`: what a stop leaves. `ahead`: containers that a link starts before their stage. These
//! tests run in namespaces, where the tests below start this program again: an engine writes to `/run` and mounts.
//! Needs root, `podman`, `crun`, `busybox` and `bash`, and `dockerd` for Docker.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]
#![expect(clippy::print_stderr, reason = "figures for whoever reads the test's output")]

use greenroom_core::container::engine::ContainerEngine;

mod ahead;
mod ends;
mod figures;
#[path = "../../situations/contract/containers.rs"]
mod situation_output;
mod stopping;
mod world;

const TESTS: [&str; 4] =
    ["container::ends::", "container::stopping::", "container::ahead::", "container::situation_output::"];

#[test]
fn stages_run_in_containers() {
    for tests in TESTS {
        world::run_inside(ContainerEngine::Podman, tests);
    }
}

/// The ends of stages are left out: they depend on the runtime, and are among the tests of whole jobs.
#[test]
fn stages_run_in_containers_of_docker() {
    for tests in &TESTS[1..] {
        world::run_inside(ContainerEngine::Docker, tests);
    }
}

#[test]
#[ignore = "figures, taken by hand on an idle machine"]
fn what_stages_in_containers_cost() {
    world::run_inside(world::engine(), "container::figures::");
}
