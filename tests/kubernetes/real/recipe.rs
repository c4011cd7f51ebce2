//! examples/kubernetes/Containerfile.server: the image that its recipe makes brings the server into a pod.

use std::path::Path;
use std::process::Command;

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;
use serde_json::json;

use super::images::{self, root, run};
use super::site::{FORWARD_SERVED, MARK, Site, marking};
use super::{IMAGE, Namespace};

const NAME: &str = "greenroom.test/by-recipe:1";

/// The program that builds images here.
fn builder() -> Option<&'static str> {
    let has =
        |tool: &&str| Command::new(tool).arg("--version").output().is_ok_and(|said| said.status.success());
    ["podman", "buildah"].into_iter().find(has)
}

/// Builds the image in a directory that has the program, as that of a release has it; its archive.
fn build(builder: &str, dir: &Path) {
    // Podman allows 50 characters, which the path of this checkout may exceed.
    let short = tempfile::tempdir_in("/tmp").expect("a directory");
    let own = |command: &str| {
        let mut own = Command::new(builder);
        own.arg("--root").arg(dir.join("storage")).arg("--runroot").arg(short.path());
        own.args(["--storage-driver", "vfs", command]);
        own
    };
    let context = dir.join("release");
    std::fs::create_dir_all(&context).expect("a directory");
    let program = env!("CARGO_BIN_EXE_greenroom-server");
    run(Command::new("strip").arg("-o").arg(context.join("greenroom-server")).arg(program));
    let recipe = root().join("examples/kubernetes/Containerfile.server");
    run(own("build").args(["--isolation", "chroot", "-t", NAME, "-f"]).arg(recipe).arg(&context));
    run(own("push").arg(NAME).arg(format!("docker-archive:{}/image.tar:{NAME}", dir.display())));
}

#[test]
fn the_image_of_the_recipe_brings_the_server() {
    let Some(builder) = builder() else {
        skipped("Podman or Buildah is needed to build examples/kubernetes/Containerfile.server");
        return;
    };
    let Some(namespace) = Namespace::open() else { return };
    let dir = namespace.cluster.dir.join("recipe");
    build(builder, &dir);
    images::import(namespace.cluster, &dir.join("image.tar"));
    std::fs::remove_dir_all(&dir).expect("ours");
    // The image has an sshd, too, which does not run.
    let site = Site::by(FORWARD_SERVED, namespace, &json!({}), |setting| {
        setting.pool("shell", "bash").provider("server_image", NAME).provider("image", IMAGE)
    });
    let script = [vec!["tr '\\0' ' ' </proc/1/cmdline".to_owned()], marking(1)].concat();
    let result = site.run(&Job::new(1).script(script));
    result.expect_outcome(&Outcome::Success);
    assert_eq!(site.mark(1).as_deref(), Some(MARK));
    assert!(result.log_text().contains("/run/greenroom/greenroom-server"), "{}", result.describe());
    site.expect_nothing_left();
}
