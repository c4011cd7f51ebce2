//! Image stores of machines: two stores on clones of one template, a store that is replaced, and one that is damaged.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use greenroom_harness::provider::{Fixture as _, leave_nothing, request};
use greenroom_testkit::skipped::skipped;
use serde_json::Value;

use crate::fixture::VmFixture;
use crate::images;
use crate::published::{Image, PLAIN, publish};

/// Images that differ in a word.
pub(crate) const ONE: Image = Image { name: "library/one:1", files: &[("etc/word", "the first\n")], ..PLAIN };
pub(crate) const TWO: Image =
    Image { name: "library/two:1", files: &[("etc/word", "the second\n")], ..PLAIN };

/// A folder with an image of machines that has an engine, no template, and stores; and a directory with images of
/// containers. No registry anywhere.
pub(crate) struct StoreFolder {
    dir: tempfile::TempDir,
}

impl StoreFolder {
    /// A folder of stores with these images. `None`: stores cannot be built here, and the test is skipped.
    pub(crate) fn new(contents: &[&Image]) -> Option<Self> {
        let mut skopeo = Command::new("skopeo");
        skopeo.arg("--version").stdout(Stdio::null());
        if !skopeo.status().is_ok_and(|status| status.success()) {
            skipped("image stores: skopeo or e2fsprogs is missing");
            return None;
        }
        let folder = Self { dir: tempfile::tempdir().expect("a directory") };
        fs::DirBuilder::new().mode(0o700).create(folder.images()).expect("a folder for images");
        let image = images::containers().dir.canonicalize().expect("an image");
        std::os::unix::fs::symlink(image, folder.images().join("containers"))
            .expect("a link to the test image");
        for image in contents {
            folder.put(image);
        }
        Some(folder)
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    /// Lays an image down under its name, with its manifest beside its blobs.
    pub(crate) fn put(&self, image: &Image) {
        let (registry, work) = (self.dir.path().join("registry"), self.dir.path().join("work"));
        fs::create_dir_all(&work).expect("a directory");
        publish(image, &registry, &work);
        let registry = registry.join("docker/registry/v2");
        let blob = |digest: &str| {
            let digest = digest.trim().strip_prefix("sha256:").expect("a digest").to_owned();
            (registry.join("blobs/sha256").join(&digest[..2]).join(&digest).join("data"), digest)
        };
        let (repository, tag) = image.name.split_once(':').expect("an image has a tag");
        let link = registry.join(format!("repositories/{repository}/_manifests/tags/{tag}/current/link"));
        let to = self.dir.path().join("from").join(image.name);
        fs::create_dir_all(&to).expect("a directory");
        let (manifest, _) = blob(&fs::read_to_string(link).expect("a tag"));
        let manifest = fs::read(manifest).expect("a manifest");
        let parts: Value = serde_json::from_slice(&manifest).expect("JSON");
        let layers = parts["layers"].as_array().expect("layers").iter();
        for part in layers.chain([&parts["config"]]) {
            let (from, digest) = blob(part["digest"].as_str().expect("a digest"));
            fs::copy(from, to.join(digest)).expect("a blob");
        }
        fs::write(to.join("manifest.json"), manifest).expect("a manifest");
        fs::write(to.join("version"), "Directory Transport Version: 1.1\n").expect("a version");
    }

    /// True if there is a template with this image.
    pub(crate) fn has_template_with(&self, image: &str) -> bool {
        let Ok(templates) = fs::read_dir(self.images().join(".templates")) else { return false };
        let texts =
            templates.flatten().filter_map(|one| fs::read_to_string(one.path().join("template.json")).ok());
        let done = texts.filter_map(|text| serde_json::from_str::<Value>(&text).ok());
        done.into_iter()
            .any(|done| done["images"].as_array().is_some_and(|all| all.iter().any(|i| i["name"] == image)))
    }

    pub(crate) fn call(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_greenroom"));
        command.args(["image", "store"]).args(arguments).arg("--images").arg(self.images());
        command.stdin(Stdio::null()).output().expect("the binary runs")
    }

    #[track_caller]
    pub(crate) fn build(&self, name: &str, contents: &[&Image]) {
        let from = self.dir.path().join("from").display().to_string();
        let mut arguments = vec!["build", name, "--from", &from];
        arguments.extend(contents.iter().map(|image| image.name));
        let built = self.call(&arguments);
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }

    /// The data of a store.
    fn data(&self, name: &str) -> PathBuf {
        let dir = self.images().join(".stores").join(name);
        let entries = fs::read_dir(dir).expect("a store").flatten().map(|entry| entry.path());
        let data: Vec<_> = entries.filter(|path| path.extension().is_some_and(|end| end == "img")).collect();
        assert_eq!(data.len(), 1, "{data:?}");
        data[0].clone()
    }
}

/// The record of how a machine came up.
fn boot(fixture: &VmFixture, number: u32) -> Value {
    let dir = fixture.instance_dir(&request(fixture, number).instance);
    serde_json::from_slice(&fs::read(dir.join("boot.json")).expect("it has booted")).expect("JSON")
}

/// The command that lists the images that a guest's engine finds.
const IMAGES: &str = "podman images --format '{{.Repository}}:{{.Tag}} {{.ReadOnly}}'";

/// Runs a container that reads the word.
fn word(image: &Image) -> String {
    format!("podman run --rm --network host docker.io/{} cat /etc/word", image.name)
}

fn templates(images: &Path) -> usize {
    fs::read_dir(images.join(".templates")).expect("templates").count()
}

#[tokio::test]
async fn clones_of_one_template_have_the_stores_of_their_pools() {
    let Some(folder) = StoreFolder::new(&[&ONE, &TWO]) else { return };
    folder.build("one", &[&ONE]);
    folder.build("two", &[&TWO]);
    let table = format!("images = {:?}\nimage = \"containers\"", folder.images());
    let fixture = VmFixture::with(&table);
    let (provider, first) = fixture.nth(1, "image_store = \"one\"").await;
    let (_, second) = fixture.nth(2, "image_store = \"two\"").await;
    let (_, without) = fixture.nth(3, "").await;
    assert_eq!(first.says(IMAGES), "docker.io/library/one:1 true");
    assert_eq!(second.says(IMAGES), "docker.io/library/two:1 true");
    assert_eq!(without.says(IMAGES), "");
    assert_eq!(first.says(&word(&ONE)), "the first");
    assert_eq!(second.says(&word(&TWO)), "the second");
    for number in 1..=3 {
        assert_eq!(boot(&fixture, number)["tier"], "snapshot");
    }
    assert_eq!(templates(&folder.images()), 1);
    let written = first.run("echo x >/var/lib/greenroom/image-store/x");
    assert!(!written.status.success(), "a guest cannot write to the store that it shares");

    // A machine keeps what it has while its store is replaced.
    folder.build("one", &[&TWO]);
    assert_eq!(first.says(&word(&ONE)), "the first");
    let details = provider.list(&fixture.pool()).await.expect("a list").instances;
    let detail = |number: u32| {
        let id = request(&fixture, number).instance;
        details
            .iter()
            .find(|listed| listed.id == id)
            .and_then(|listed| listed.detail.clone())
            .expect("a detail")
    };
    assert!(detail(1).contains("image store `one` ("), "{}", detail(1));
    assert!(detail(1).ends_with(", an older one than new instances get"), "{}", detail(1));
    assert!(detail(2).ends_with(')') && detail(2).contains("image store `two` ("), "{}", detail(2));
    assert!(!detail(3).contains("image store"), "{}", detail(3));
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_machine_boots_without_a_store_that_cannot_be_used() {
    let Some(folder) = StoreFolder::new(&[&ONE]) else { return };
    folder.build("ci", &[&ONE]);
    let data = folder.data("ci");
    let mut bytes = fs::read(&data).expect("its data");
    bytes[5_000_000] ^= 1;
    fs::write(&data, bytes).expect("its data");
    let checked = folder.call(&["check", "ci"]);
    assert_eq!(checked.status.code(), Some(1), "{}", String::from_utf8_lossy(&checked.stderr));
    let table = format!("images = {:?}\nimage = \"containers\"\nboot = \"direct\"", folder.images());
    let fixture = VmFixture::with(&table);
    let (provider, guest) = fixture.nth(1, "image_store = \"ci\"").await;
    assert_eq!(guest.says(IMAGES), "");
    let listed = provider.list(&fixture.pool()).await.expect("a list").instances;
    let detail = listed[0].detail.clone().expect("a detail");
    let said = "no image store: image store `ci` cannot be used: a check found it damaged";
    assert!(detail.ends_with(said), "{detail}");
    leave_nothing(&fixture).await;
}
