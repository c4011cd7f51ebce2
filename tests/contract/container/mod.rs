//! Stages in containers, against Podman and OpenSSH's own server.
//!
//! `ends`: how they end. `stopping`: what a stop leaves. `ahead`: containers that a link starts before their stage. These
//! tests run in namespaces, where the tests below start this program again: an engine writes to `/run` and mounts.
//! Needs root, `podman`, `crun`, `busybox` and `bash`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says where")]
#![expect(clippy::print_stderr, reason = "figures for whoever reads the test's output")]

mod ahead;
mod ends;
mod figures;
mod stopping;
mod world;

#[test]
fn stages_run_in_containers() {
    for tests in ["container::ends::", "container::stopping::", "container::ahead::"] {
        world::run_inside(tests);
    }
}

#[test]
#[ignore = "figures, taken by hand on an idle machine"]
fn what_stages_in_containers_cost() {
    world::run_inside("container::figures::");
}
