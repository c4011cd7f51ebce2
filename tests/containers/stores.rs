//! `greenroom image store …` as an operator calls it, with real registries: built, refreshed, damaged, killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use greenroom_harness::processes::wait_for;
use greenroom_testkit::skipped::skipped;
use serde_json::Value;

use crate::images::{Image, PLAIN, publish};
use crate::pool::plain;
use crate::site::{Site, has, site};

/// Names registries and their settings as machines of the site have them. Podman writes beside the settings.
const ON_THE_SITE: &str = "mount --bind \"$1/hosts\" /etc/hosts; mount -t tmpfs own /mnt; cp \"$1/etc/\"* /mnt; \
                           mount --move /mnt /etc/containers; shift; exec \"$@\"";
const PATIENCE: Duration = Duration::from_mins(5);

/// A folder of images in a directory of its own.
struct Folder<'a> {
    site: &'a Site,
    dir: tempfile::TempDir,
}

/// The folder, or none where stores cannot be built: the test is skipped then.
fn folder() -> Option<Folder<'static>> {
    let site = site()?;
    if !["skopeo", "mke2fs", "debugfs"].into_iter().all(has) {
        skipped("image stores: skopeo or e2fsprogs is missing");
        return None;
    }
    Some(Folder { site, dir: tempfile::tempdir().expect("a directory") })
}

impl Folder<'_> {
    fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    fn start(&self, arguments: &[&str]) -> Child {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", ON_THE_SITE, "sh"])
            .arg(&self.site.dir);
        command.arg(env!("CARGO_BIN_EXE_greenroom")).args(["image", "store"]).args(arguments);
        command.arg("--images").arg(self.images());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.site.inside(|| command.spawn().expect("the binary runs"))
    }

    fn call(&self, arguments: &[&str]) -> Output {
        self.start(arguments).wait_with_output().expect("the binary ends")
    }

    /// The output of a command that succeeds.
    #[track_caller]
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.call(arguments);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    }

    /// The manifest of a store.
    fn manifest(&self, name: &str) -> Value {
        let listed: Value = serde_json::from_str(&self.says(&["list", "--json"])).expect("JSON");
        let stores = listed["stores"].as_array().expect("a list");
        stores.iter().find(|store| store["name"] == name).expect("the store")["manifest"].clone()
    }

    /// Every file of the stores, locks aside.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.images().join(".stores")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            for inside in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
                found.push(format!("{name}/{}", inside.file_name().to_string_lossy()));
            }
        }
        found.sort();
        found
    }

    fn data(&self, name: &str) -> PathBuf {
        let digest = self.manifest(name)["digest"].as_str().expect("a digest").to_owned();
        self.images().join(".stores").join(name).join(format!("{digest}.img"))
    }

    /// Podman's settings with a store, once it was looked into.
    fn settings(&self) -> PathBuf {
        self.dir.path().join("storage.conf")
    }

    /// Makes Podman pull an image although a store has it; true if a layer came.
    fn pulls_a_layer(&self, image: &str) -> bool {
        let mut podman = Command::new("unshare");
        podman
            .args(["--mount", "--propagation", "private", "sh", "-c", ON_THE_SITE, "sh"])
            .arg(&self.site.dir);
        podman.args(["podman", "pull", "--quiet", image]).env("CONTAINERS_STORAGE_CONF", self.settings());
        let pulled = self.site.inside(|| podman.output().expect("podman starts"));
        assert!(pulled.status.success(), "{}", text(&pulled.stderr));
        let own = self.dir.path().join("root");
        assert!(own.join("overlay-images/images.json").exists(), "the image has a name there");
        own.join("overlay-layers/layers.json").exists()
    }

    /// The images that Podman finds in a store.
    fn seen_by_podman(&self, name: &str) -> String {
        let unpacked = self.dir.path().join("unpacked");
        fs::create_dir(&unpacked).expect("a directory");
        let mut dump = Command::new("debugfs");
        dump.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").arg("-R");
        dump.arg(format!("rdump / {}", unpacked.display())).arg(self.data(name));
        assert!(dump.stderr(Stdio::null()).status().expect("debugfs starts").success());
        let at = self.dir.path().display();
        let settings = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"{at}/root\"\nrunroot = \"{at}/run\"\n[storage.options]\n\
             additionalimagestores = [\"{}\"]\n",
            unpacked.display()
        );
        fs::write(self.settings(), settings).expect("settings");
        let mut podman = Command::new("unshare");
        podman.args(["--mount", "--propagation", "private", "podman", "images", "--format"]);
        podman.arg("{{.Repository}}:{{.Tag}} {{.ReadOnly}}").env("CONTAINERS_STORAGE_CONF", self.settings());
        text(&podman.output().expect("podman starts").stdout)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An image of this name, with this word in it.
fn publish_with(site: &Site, name: &'static str, word: &'static str) {
    let work = tempfile::tempdir().expect("a directory");
    let files: &'static [(&str, &str)] = Box::leak(Box::new([("etc/word", word)]));
    publish(&Image { name, files, ..PLAIN }, &site.dir.join("registry"), work.path());
}

#[test]
fn a_store_has_the_images_of_its_registries_and_stays_as_it_is_until_one_changes() {
    let Some(folder) = folder() else { return };
    publish_with(folder.site, "changing:1", "one");
    let (ash, changing) = (plain("ash:1"), plain("changing:1"));
    let said = folder.says(&["build", "ci", &ash, &changing, &ash]);
    assert!(said.contains("image store `ci` is complete: 2 images"), "{said}");
    let first = folder.manifest("ci");
    assert_eq!(folder.seen_by_podman("ci").lines().count(), 2);
    assert!(!folder.pulls_a_layer(&ash), "the policy `always` asks for the manifest, and finds all layers");
    assert_eq!(folder.says(&["check", "ci", "--registry"]), "image store `ci` is intact, and current\n");

    let said = folder.says(&["build", "ci"]);
    assert!(said.ends_with("image store `ci` is current: no image has changed\n"), "{said}");
    let refreshed = folder.manifest("ci");
    assert_eq!((&refreshed["digest"], &refreshed["built"]), (&first["digest"], &first["built"]));
    assert_ne!(refreshed["refreshed"], first["refreshed"]);

    publish_with(folder.site, "changing:1", "two");
    let checked = folder.call(&["check", "ci", "--registry"]);
    assert_eq!(checked.status.code(), Some(1));
    let said = text(&checked.stdout);
    assert!(said.starts_with(&format!("image store `ci`: `{changing}` is sha256:")), "{said}");
    folder.says(&["build", "ci"]);
    let second = folder.manifest("ci");
    assert_ne!(second["digest"], first["digest"]);
    assert_eq!(second["images"][0], first["images"][0], "since when it has the digest that it has");
    assert_ne!(second["images"][1]["digest"], first["images"][1]["digest"]);
    let digest = second["digest"].as_str().expect("a digest");
    assert_eq!(
        folder.files(),
        [format!("ci/{digest}.img"), "ci/store.json".to_owned()],
        "the old data is gone"
    );
}

#[test]
fn a_store_is_built_from_a_directory_without_any_registry() {
    let Some(folder) = folder() else { return };
    let from = folder.dir.path().join("from");
    for (image, place) in [
        (plain("ash:1"), format!("dir:{}/ash", from.display())),
        (plain("bash:1"), format!("oci:{}/{}", from.display(), plain("bash").replace(":5000", "")) + ":1"),
    ] {
        let mut copy = Command::new("unshare");
        copy.args(["--mount", "sh", "-c", ON_THE_SITE, "sh"]).arg(&folder.site.dir);
        copy.args(["skopeo", "copy", "--quiet", "--src-tls-verify=false"]);
        copy.arg(format!("docker://{image}")).arg(&place);
        fs::create_dir_all(from.join("registry.test")).expect("a directory");
        let copied = folder.site.inside(|| copy.output().expect("skopeo starts"));
        assert!(copied.status.success(), "{}", text(&copied.stderr));
    }
    fs::create_dir_all(from.join("library")).expect("a directory");
    fs::rename(from.join("ash"), from.join("library/ash:1")).expect("the place of its name");
    let mut build = Command::new(env!("CARGO_BIN_EXE_greenroom"));
    build.args(["image", "store", "build", "ci", "ash:1", "registry.test/bash:1", "--from"]).arg(&from);
    build.arg("--images").arg(folder.images());
    let built = build.output().expect("the binary runs");
    assert!(built.status.success(), "{}", text(&built.stderr));
    let seen = folder.seen_by_podman("ci");
    for name in ["docker.io/library/ash:1 true", "registry.test/bash:1 true"] {
        assert!(seen.lines().any(|line| line == name), "{name}: {seen}");
    }
    let missing = folder.call(&["build", "other", "zsh:1", "--from", &from.display().to_string()]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        text(&missing.stderr).contains("has no image `docker.io/library/zsh:1`"),
        "{}",
        text(&missing.stderr)
    );
}

#[test]
fn a_damaged_store_is_found_and_built_again() {
    let Some(folder) = folder() else { return };
    folder.says(&["build", "ci", &plain("ash:1")]);
    let data = folder.data("ci");
    let mut bytes = fs::read(&data).expect("its data");
    bytes[5_000_000] ^= 1;
    fs::write(&data, bytes).expect("its data");
    let checked = folder.call(&["check", "ci"]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(text(&checked.stdout).contains("its digest is "), "{}", text(&checked.stdout));
    assert!(folder.says(&["list"]).contains("a check found it damaged"));
    // The registry has nothing new, and still it is built.
    let said = folder.says(&["build", "ci"]);
    assert!(said.contains("is complete"), "{said}");
    assert_eq!(folder.says(&["check", "ci"]), "image store `ci` is intact\n");
}

#[test]
fn what_is_no_store_or_no_image_is_refused_and_leaves_nothing() {
    let Some(folder) = folder() else { return };
    let missing = plain("missing:1");
    for (arguments, said) in [
        (&["build", "../ci", "ash:1"][..], "`../ci` is not a valid name for an image store"),
        (&["build", "", "ash:1"], "is not a valid name for an image store"),
        (&["build", "ci"], "there is no image store `ci` to refresh"),
        (&["build", "ci", "A b"], "`A b` is not a valid image"),
        (&["build", "ci", ""], "is not a valid image"),
        (&["build", "ci", "ash:1; reboot"], "is not a valid image"),
        (&["build", "ci", &missing], "cannot read image `registry.test:5000/missing:1`"),
        (&["build", "ci", "registry.test:5003/ash:1"], "connection refused"),
        (&["check", "ci"], "no image store `ci`"),
        (&["remove", "ci"], "no image store `ci`"),
        (&["remove", "../images"], "is not a valid name for an image store"),
    ] {
        let output = folder.call(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = text(&output.stderr);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    assert_eq!(folder.files(), [] as [String; 0]);
    folder.says(&["build", "nightly", &plain("ash:1")]);
    let near = folder.call(&["check", "nigthly"]);
    assert!(text(&near.stderr).contains("did you mean `nightly`?"), "{}", text(&near.stderr));
}

#[test]
fn a_build_that_is_killed_leaves_the_store_that_there_was() {
    let Some(folder) = folder() else { return };
    folder.says(&["build", "ci", &plain("ash:1")]);
    let before = folder.manifest("ci");
    let mut build = folder.start(&["build", "ci", &plain("big:1"), &plain("bash:1")]);
    let storage = folder.images().join(".stores/.new-ci/storage");
    wait_for("the engine's storage", PATIENCE, || storage.is_dir().then_some(()));
    build.kill().expect("it runs");
    build.wait().expect("it ends");
    assert_eq!(folder.manifest("ci"), before);
    assert_eq!(folder.says(&["check", "ci"]), "image store `ci` is intact\n");
    // As long as a program of the killed build works in its folder, no other build does.
    let said = wait_for("the next build", PATIENCE, || {
        let output = folder.call(&["build", "ci", &plain("bash:1")]);
        let said = text(&output.stderr);
        assert!(
            output.status.success() || said.contains("another `greenroom image store build ci` is running"),
            "{said}"
        );
        output.status.success().then_some(said)
    });
    assert!(said.contains("is complete: 1 image, "), "{said}");
    assert_eq!(folder.files().len(), 2, "{:?}", folder.files());
}

#[test]
fn of_builds_that_run_concurrently_each_succeeds_or_says_that_another_one_runs() {
    let Some(folder) = folder() else { return };
    let image = plain("ash:1");
    let builds: Vec<Child> = (0..8)
        .map(|number| folder.start(&["build", if number % 2 == 0 { "one" } else { "two" }, &image]))
        .collect();
    let mut complete = 0;
    for build in builds {
        let output = build.wait_with_output().expect("it ends");
        let said = text(&output.stderr);
        assert!(output.status.success() || said.contains("is running"), "{said}");
        complete += usize::from(output.status.success());
    }
    assert!(complete >= 2, "one of each store at least");
    for name in ["one", "two"] {
        assert_eq!(folder.says(&["check", name]), format!("image store `{name}` is intact\n"));
    }
    assert_eq!(folder.files().len(), 4, "{:?}", folder.files());
}

#[test]
fn a_store_that_a_pool_names_is_not_removed() {
    let Some(folder) = folder() else { return };
    folder.says(&["build", "ci", &plain("ash:1")]);
    let config = folder.dir.path().join("greenroom.toml");
    let of_pool = |store: &str| {
        let (state, images) = (folder.dir.path().join("state"), folder.images());
        let text = format!(
            "state_dir = {state:?}\n[pool.vm]\nmax_instances = 1\n[pool.vm.provider]\nkind = \"qemu\"\n\
             images = {images:?}\nimage_store = \"{store}\"\n"
        );
        fs::write(&config, text).expect("a configuration");
    };
    let remove = |more: &[&str]| {
        let config = config.display().to_string();
        folder.call(&[&["remove", "ci", "--config", &config], more].concat())
    };
    of_pool("ci");
    let refused = remove(&[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains("image store `ci` is in use by pool `vm`"),
        "{}",
        text(&refused.stderr)
    );
    of_pool("other");
    let rehearsed = remove(&["--dry-run"]);
    assert!(text(&rehearsed.stdout).starts_with("would remove /"), "{}", text(&rehearsed.stderr));
    assert!(Path::new(&folder.data("ci")).exists());
    assert!(remove(&[]).status.success());
    assert_eq!(folder.files(), [] as [String; 0]);
    assert!(folder.says(&["list"]).starts_with("no image stores in "));
}
