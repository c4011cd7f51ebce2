//! Images that tests bring to the node, beside those that the cluster is built with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use crate::cluster::Cluster;

/// An image with `greenroom-server`, which `tests/cluster/serve` makes.
pub(super) const SERVER: &str = "greenroom.test/greenroom-server:1";
/// A shell and its commands. Its only user is root.
pub(super) const PLAIN: &str = "greenroom.test/plain:1";
/// The user of that image who is not root.
pub(super) const PLAIN_USER: &str = "ci";
/// The commands that add that user, in the unpacked image. Its home belongs to root there.
const ADD_USER: &str =
    "echo ci:x:1000:1000::/home/ci:/bin/sh >>etc/passwd; mkdir -p home/ci; chmod 1777 home/ci";

static BROUGHT: Once = Once::new();

pub(super) fn run(command: &mut Command) {
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The layer of one of the cluster's images, in a new directory below the cluster's.
pub(super) fn layer_of(cluster: &Cluster, image: &str, dir: &str) -> PathBuf {
    let dir = cluster.dir.join(dir);
    std::fs::create_dir_all(&dir).expect("a directory");
    let archive = root().join("state/cluster/images").join(format!("{image}.tar"));
    run(Command::new("tar").arg("-C").arg(&dir).arg("-xf").arg(archive).arg("layer.tar"));
    dir.join("layer.tar")
}

/// Adds an image to the node, with an archive of the machine that the node sees.
pub(super) fn import(cluster: &Cluster, archive: &Path) {
    let inside = archive.strip_prefix(&cluster.dir).expect("in the cluster's directory").display();
    cluster.on_node(&format!(
        "ctr --address /run/containerd/containerd.sock --namespace k8s.io images import /mnt/own/{inside}"
    ));
}

/// Makes an image of a layer and adds it, as `greenroom.test/NAME:1`.
pub(super) fn import_layer(cluster: &Cluster, layer: &Path, name: &str, entrypoint: &str) {
    let image = layer.with_file_name("image.tar");
    let archive = root().join("tests/cluster/images/archive");
    run(Command::new(archive).arg(layer).arg(&image).args([name, entrypoint]));
    import(cluster, &image);
}

/// Adds `SERVER` and `PLAIN`.
pub(super) fn bring(cluster: &Cluster) {
    BROUGHT.call_once(|| {
        let serve = root().join("tests/cluster/serve");
        run(Command::new(serve).arg(&cluster.dir).arg(env!("CARGO_BIN_EXE_greenroom-server")));
        let layer = layer_of(cluster, "busybox", "plain");
        let dir = layer.with_file_name("tree");
        std::fs::create_dir_all(&dir).expect("a directory");
        run(Command::new("tar").arg("-C").arg(&dir).arg("-xf").arg(&layer));
        run(Command::new("sh").args(["-ec", ADD_USER]).current_dir(&dir));
        run(Command::new("tar")
            .arg("-C")
            .arg(&dir)
            .args(["--owner=0", "--group=0", "-cf"])
            .arg(&layer)
            .arg("."));
        import_layer(cluster, &layer, "plain", "/bin/sh");
        std::fs::remove_dir_all(cluster.dir.join("plain")).expect("ours");
    });
}
