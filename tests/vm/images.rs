//! The images that tests boot: built once, and again when anything that goes into them changes.
//!
//! `GREENROOM_TEST_IMAGES` names a folder with images `light` and `containers` that are taken as they are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use greenroom_providers::qemu::image::Image;
use sha2::{Digest as _, Sha256};

/// The files that an image is made by.
const INGREDIENTS: [&str; 3] =
    ["crates/providers/build.rs", "crates/providers/guest", "crates/providers/src/qemu/image/build"];

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| current("light", &[]));

/// One after the other: two builds cannot run concurrently in one folder.
static CONTAINERS: LazyLock<Image> = LazyLock::new(|| {
    assert!(folder().is_dir());
    let folder = current("containers", &["--containers", "--package", "busybox-static"]);
    Image::open(&folder, "containers").expect("an image with an engine")
});

/// Emulated machines keep a processor busy each: more than one test's at a time prove nothing but patience.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder with the image `light`.
pub(crate) fn folder() -> &'static Path {
    &FOLDER
}

/// Makes a folder of images, with the image `light` in it and no template.
pub(crate) fn link_into(images: &Path) {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(images).expect("a folder for images");
    let light = folder().join("light").canonicalize().expect("an image");
    std::os::unix::fs::symlink(light, images.join("light")).expect("a link to the test image");
}

pub(crate) fn light() -> Image {
    Image::open(folder(), "light").expect("an image that was built")
}

/// One with an engine, and with busybox for the images of its containers.
pub(crate) fn containers() -> Image {
    CONTAINERS.clone()
}

/// A program that says what GitLab's does, to be put into the image.
pub(crate) fn helper(folder: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.join("gitlab-runner");
    std::fs::write(&path, "#!/bin/sh\necho 'Version:      19.4.0'\n").expect("a helper");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
    path
}

/// The folder of images; the named one is built if it is not current.
fn current(name: &str, arguments: &[&str]) -> PathBuf {
    if let Some(given) = std::env::var_os("GREENROOM_TEST_IMAGES") {
        return PathBuf::from(given);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("state/test-images");
    let key = key();
    let note = folder.join(format!(".{name}-made-of"));
    if std::fs::read_to_string(&note).is_ok_and(|made_of| made_of == key) {
        return folder;
    }
    std::fs::create_dir_all(&folder).expect("a folder for images");
    let helper = helper(&folder);
    // With the umask of a cautious administrator, which must not reach into the guest.
    let mut build = Command::new("sh");
    build.args(["-c", "umask 077; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_greenroom"), "image", "build"]);
    build.args([name, "--images"]).arg(&folder).arg("--gitlab-runner").arg(helper).args(arguments);
    let output = build.output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(note, key).expect("a note");
    folder
}

fn key() -> String {
    let mut digest = Sha256::new();
    for name in INGREDIENTS {
        add(&mut digest, &Path::new(env!("CARGO_MANIFEST_DIR")).join(name));
    }
    let pairs: Vec<String> = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.concat()
}

fn add(digest: &mut Sha256, path: &Path) {
    if path.is_file() {
        return digest.update(std::fs::read(path).expect("a source"));
    }
    let mut inside: Vec<PathBuf> =
        std::fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    inside.sort();
    for path in &inside {
        add(digest, path);
    }
}
