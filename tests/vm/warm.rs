//! Images of containers in templates: pulled once for all clones, without any password.

#![cfg(test)]

use std::fs;
use std::iter::successors;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::judge::{JobContext, judge};
use greenroom_core::container::request::{ContainerRequest, ImageRequest};
use greenroom_core::container::settings::{ContainerSettings, PullPolicy};
use greenroom_core::container::spec::ContainerJob;
use greenroom_engine::warm::public_script;
use greenroom_harness::here::{command_lines, kill};
use greenroom_harness::processes::is_gone;
use greenroom_harness::provider::{leave_nothing, request, until};
use greenroom_ports::setup::{PublicPull, PullError, Pulls, Traces};
use greenroom_system::process::Stat;
use greenroom_testkit::skipped::skipped;
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::VmFixture;
use crate::images;
use crate::jobs::registry::Registries;

/// The time that a template may take that a guest pulls images for, emulated, while others keep the processors busy.
const PATIENCE: Duration = Duration::from_mins(10);

/// Registries, and a folder with an image of machines that has an engine, and no template.
struct Site {
    dir: tempfile::TempDir,
    registries: Registries,
}

impl Site {
    /// A site with registries. `None`: there can be no registries here, and the test is skipped.
    fn new() -> Option<Self> {
        if let Some(why) = Registries::obstacle() {
            skipped(why);
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let registries = Registries::serve(dir.path(), &["ash:1", "private:1"]);
        let site = Self { dir, registries };
        fs::DirBuilder::new().mode(0o700).create(site.images()).expect("a folder for images");
        let image = images::containers().dir.canonicalize().expect("an image");
        std::os::unix::fs::symlink(image, site.images().join("containers"))
            .expect("a link to the test image");
        Some(site)
    }

    fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    fn open(&self, image: &str) -> String {
        format!("{}/{image}", self.registries.open)
    }

    /// Machines that reach the registries, and whose template gets these images.
    fn fixture(&self, names: &[&str]) -> VmFixture {
        let ca = fs::read_to_string(self.dir.path().join("ca.pem")).expect("a certificate");
        let table = format!("images = {:?}\nimage = \"containers\"\nnetwork = \"open\"", self.images());
        VmFixture::with(&table).pulling(Rc::new(Public(names.iter().map(|name| pull(name, &ca)).collect())))
    }

    /// All templates that there are.
    fn templates(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(self.images().join(".templates")).expect("templates").flatten();
        let paths = all.map(|entry| entry.path());
        paths
            .filter(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')))
            .collect()
    }

    /// The record of the one template as soon as that fits.
    async fn template(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        until(what, PATIENCE, async || {
            let templates = self.templates();
            let text = fs::read(templates.first()?.join("template.json")).ok()?;
            serde_json::from_slice(&text).ok().filter(|done| fits(done))
        })
        .await
    }

    /// The number of times that the open registry was asked for data of images.
    fn blobs(&self) -> usize {
        let log = fs::read_to_string(self.dir.path().join("open.log")).expect("a log");
        log.lines()
            .filter(|line| line.contains("/blobs/sha256:") && line.contains("response completed"))
            .count()
    }
}

/// Pulls in advance, all of which need no password.
#[derive(Debug)]
struct Public(Vec<PublicPull>);

impl Pulls for Public {
    fn engine(&self) -> ContainerEngine {
        ContainerEngine::default()
    }

    /// Images are pulled for templates only.
    fn pull(&self, _: &str, _: Traces) -> Result<ContainerJob, PullError> {
        Err(PullError::NotPulled)
    }

    fn public(&self) -> Vec<PublicPull> {
        self.0.clone()
    }
}

/// A pull as the keeper would do it, without credentials.
fn pull(name: &str, ca: &str) -> PublicPull {
    let settings =
        ContainerSettings { pull_policy: vec![PullPolicy::Always], ..ContainerSettings::default() };
    let image = ImageRequest { name: name.to_owned(), ..ImageRequest::default() };
    let request = ContainerRequest { image: Some(image), ..ContainerRequest::default() };
    let about = JobContext { ca: Some(ca.to_owned()), ..JobContext::default() };
    let job = judge(&settings, &request, &about).expect("an allowed image").expect("a container");
    PublicPull { image: name.into(), script: public_script(&job).expect("no login"), within: PATIENCE }
}

fn boot(fixture: &VmFixture, number: u32) -> Value {
    let dir = fixture.instance_dir(&request(fixture, number).instance);
    serde_json::from_slice(&fs::read(dir.join("boot.json")).expect("it has booted")).expect("JSON")
}

fn count(value: &Value, field: &str) -> usize {
    value[field].as_array().map_or(0, Vec::len)
}

/// The process that holds a folder's templates.
fn holder(images: &Path) -> Option<u32> {
    let folder = images.join(".templates").display().to_string();
    let is_ours = |arguments: &[String]| arguments.iter().any(|argument| argument.starts_with(&folder));
    command_lines().into_iter().find(|(_, arguments)| is_ours(arguments)).map(|(pid, _)| pid)
}

/// The QEMU of the guest that pulls for a folder's templates: a descendant of their holder. Machines of an installation on the
/// same host have the same name.
fn pulling_guest(images: &Path) -> Option<u32> {
    let holder = holder(images)?;
    let is_named = |arguments: &[String]| arguments.iter().any(|argument| argument == "template-images");
    let named = command_lines().into_iter().filter(|(_, arguments)| is_named(arguments));
    named
        .map(|(pid, _)| pid)
        .find(|pid| successors(parent(*pid), |pid| parent(*pid)).any(|pid| pid == holder))
}

/// The process that has started another one; `None` if that is gone.
fn parent(pid: u32) -> Option<u32> {
    let stat = Stat::of(i32::try_from(pid).ok()?).ok()?;
    u32::try_from(stat.parent).ok().filter(|parent| *parent > 0)
}

#[tokio::test]
async fn clones_have_the_images_that_one_guest_has_pulled_and_no_private_one() {
    let Some(site) = Site::new() else { return };
    let (ash, private) = (site.open("ash:1"), format!("{}/private:1", site.registries.with_password));
    let fixture = site.fixture(&[&ash, &private]);
    // It resumes from a template without images: it waits for no pull.
    let (provider, first) = fixture.nth(1, "").await;
    assert_eq!(
        (boot(&fixture, 1)["tier"].as_str(), count(&boot(&fixture, 1), "images")),
        (Some("snapshot"), 0)
    );
    let done = site.template("images", |done| count(done, "images") == 1).await;
    assert_eq!(done["images"][0]["name"], ash.as_str());
    let without = done["without"][0].as_str().unwrap_or_default().to_owned();
    assert!(without.starts_with(&format!("without image `{private}`: ")), "{without}");
    assert_eq!(first.says("podman images -q"), "", "what runs keeps its disk");
    first.gone(&*provider).await;
    let pulled = site.blobs();
    assert!(pulled > 0, "the registry's log says nothing: the test judges nothing");
    let (_, second) = fixture.nth(2, "").await;
    let (_, third) = fixture.nth(3, "").await;
    for (number, guest) in [(2, &second), (3, &third)] {
        let booted = boot(&fixture, number);
        assert_eq!(booted["tier"], "snapshot", "{booted}");
        assert_eq!(booted["images"], done["images"]);
        let own = guest.says(&format!("podman image inspect --format '{{{{.Digest}}}}' {ash}"));
        assert_eq!(booted["images"][0]["digest"], own.as_str());
        assert_eq!(guest.says(&format!("podman run --rm --network host {ash} echo it runs")), "it runs");
        let found = provider.images(&guest.id).await.expect("images");
        assert_eq!((found.len(), &*found[0].name), (1, ash.as_str()));
        assert_eq!(guest.says("podman images -q | wc -l"), "1");
    }
    assert_eq!(site.blobs(), pulled, "a clone has pulled");
    // What distinguishes them is not the template's.
    for command in
        ["cat /etc/machine-id", "head -c 16 /dev/urandom | od", "cat /etc/ssh/ssh_host_ed25519_key.pub"]
    {
        let says = [&second, &third].map(|guest| guest.run(command).stdout);
        assert!(says[0] != says[1] || says[0].is_empty(), "{command}");
    }
    leave_nothing(&fixture).await;
}

#[tokio::test]
#[ignore = "in `scripts/test --full`: further templates with images"]
async fn another_list_has_another_template_and_a_registry_that_is_down_costs_an_image_only() {
    let Some(site) = Site::new() else { return };
    let ash = site.open("ash:1");
    let stopped = "10.0.2.2:9/ash:1";
    let fixture = site.fixture(&[stopped, &ash]);
    let (provider, guest) = fixture.nth(1, "").await;
    let done = site.template("images", |done| count(done, "images") == 1).await;
    let without = done["without"][0].as_str().unwrap_or_default();
    assert!(
        without.starts_with(&format!("without image `{stopped}`: ")) && without.contains("refused"),
        "{without}"
    );
    guest.gone(&*provider).await;
    leave_nothing(&fixture).await;
    drop(fixture);
    let fixture = site.fixture(&[&ash]);
    fixture.nth(1, "").await;
    assert_eq!(site.templates().len(), 2, "the list is part of the name");
    assert_eq!(count(&boot(&fixture, 1), "images"), 0, "it was built for the other list");
    leave_nothing(&fixture).await;
}

#[tokio::test]
#[ignore = "in `scripts/test --full`: further templates with images"]
async fn a_holder_killed_while_its_guest_pulls_leaves_a_template_that_is_whole() {
    let Some(site) = Site::new() else { return };
    let ash = site.open("ash:1");
    let fixture = site.fixture(&[&ash]);
    let (provider, guest) = fixture.nth(1, "").await;
    let pulling = until("a guest that pulls", PATIENCE, async || pulling_guest(&site.images())).await;
    let holder = holder(&site.images()).expect("a holder");
    kill(holder, Signal::KILL);
    until("the guest is gone", PATIENCE, async || is_gone(pulling).then_some(())).await;
    assert_eq!(guest.says("echo alive"), "alive");
    let template = site.templates().remove(0);
    assert!(template.join("pulled.qcow2").exists() && template.join("template.json").exists());
    // The next holder begins anew, and machines resume meanwhile.
    fixture.nth(2, "").await;
    assert_eq!(boot(&fixture, 2)["tier"], "snapshot", "{}", boot(&fixture, 2));
    let done = site.template("images", |done| count(done, "images") == 1).await;
    assert_eq!(done["images"][0]["name"], ash.as_str());
    assert!(!template.join("pulled.qcow2").exists());
    guest.gone(&*provider).await;
    let (_, third) = fixture.nth(3, "").await;
    assert_eq!(count(&boot(&fixture, 3), "images"), 1);
    assert_eq!(third.says("podman images -q | wc -l"), "1");
    leave_nothing(&fixture).await;
}
