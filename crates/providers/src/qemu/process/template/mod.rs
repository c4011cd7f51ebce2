//! Templates: a machine that has booted once, frozen, for clones to resume from.
//!
//! A template is a directory beside the images, named by the hash of everything it depends on: `disk.qcow2` (what the
//! boot wrote, over the image's disk), `state` (the devices), `ram.img` (the memory) and, written last,
//! `template.json`. Clones get the memory as a sealed, read-only memory file from the template's *holder*. This
//! Greenroom process builds the template if it does not exist, reads the memory once, and hands it to clones. Running
//! clones have descriptors of their own: they do not depend on the holder, and the next machine starts another.
//!
//! A template with images of containers is built twice: first without them. Then another guest pulls them into a disk
//! layer, while machines resume from what there is. A new template boots from that layer. So no clone shares the memory,
//! the network or the random numbers of the guest that pulled.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_core::images::FoundImage;
use greenroom_core::time::millis;
use greenroom_ports::setup::PublicPull;
use greenroom_system::remove;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::command::{Hardware, kernel_parameters};
use super::exec::QemuProgram;
use super::machine::BootError;
use crate::qemu::image::Image;
use crate::qemu::settings::Network;
use crate::supervised::instance_dir::{InstanceDir, make_private};
use crate::supervised::supervisor::failpoint;

pub(super) mod build;
pub(super) mod memory;

pub(super) use build::capabilities;

/// The folder of all templates, beside the images.
const FOLDER: &str = ".templates";

/// Raised whenever the assembly of a machine changes.
const FORMAT: u32 = 2;

/// Written last: without it, a template is incomplete.
pub(super) const DONE: &str = "template.json";
const RECIPE: &str = "recipe.json";
pub(super) const DISK: &str = "disk.qcow2";
pub(super) const STATE: &str = "state";
pub(super) const RAM: &str = "ram.img";
/// The disk of the guest that pulls. A template that has images boots from it.
const PULLED: &str = "pulled.qcow2";

/// After so long without a holder, a template with images goes when another one is built: its list may be an old one.
const UNUSED: Duration = Duration::from_hours(48);

/// The input of a template's build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recipe {
    pub(super) images: PathBuf,
    pub(super) image: String,
    /// The image's digest: a rebuilt image makes another template.
    pub(super) digest: String,
    /// The size of the disk in bytes.
    pub(super) disk: u64,
    pub(super) hardware: Hardware,
    pub(super) runner: QemuProgram,
    /// Greenroom's executable.
    pub(super) program: PathBuf,
    /// The time limit for the template's boot.
    #[serde(with = "millis")]
    pub(super) limit: Duration,
    /// The time for which the template's memory is kept after its last clone has ended.
    #[serde(with = "millis")]
    pub(super) kept: Duration,
    /// `None`: it gets no images of containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pulls: Option<Pulls>,
}

impl Recipe {
    fn open_image(&self) -> Result<Image, BootError> {
        let image = Image::open(&self.images, &self.image)?;
        if image.manifest.digest != self.digest {
            return Err(BootError::Rebuilt(self.image.clone()));
        }
        Ok(image)
    }
}

/// The images of containers that a template gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pulls {
    /// Reaches their registries, as the pool's machines do.
    pub(super) network: Network,
    /// The URL of the operator's proxy, as the guest reaches it.
    pub(super) proxy: Option<String>,
    pub(super) images: Vec<PublicPull>,
}

/// The record of a complete template, in `template.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TemplateRecord {
    ms: u64,
    /// Distinguishes it from the one that it replaced.
    token: String,
    pub(super) images: Vec<FoundImage>,
    /// A sentence for each image that it lacks.
    pub(super) without: Vec<String>,
    /// The time when the template's images are pulled again, in milliseconds since 1970.
    due: Option<i64>,
}

/// The files that a clone resumes from.
#[derive(Debug)]
pub(super) struct TemplateFiles {
    pub(super) disk: fs_err::File,
    pub(super) state: fs_err::File,
    pub(super) done: TemplateRecord,
}

/// The properties on which a resume depends; their hash is the name of the template.
#[derive(Serialize)]
struct Ingredients<'a> {
    format: u32,
    image: &'a str,
    disk: u64,
    hardware: &'a Hardware,
    kernel_words: String,
    qemu: &'a Path,
    /// Inode, size and time of change of QEMU's program.
    program: (u64, u64, i64),
    /// The host's kernel, and its processor, whose features the guest has detected.
    release: String,
    processor: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pulls: Option<&'a Pulls>,
}

/// A template's directory, which may not exist yet.
#[derive(Debug, Clone)]
pub(super) struct Template {
    pub(super) dir: InstanceDir,
}

impl Template {
    /// The template that a recipe makes.
    pub(super) fn of(recipe: &Recipe) -> io::Result<Self> {
        let path = recipe.images.join(FOLDER).join(key(recipe)?);
        Ok(Self { dir: InstanceDir::at(path) })
    }

    /// Writes the files that a holder needs to build it.
    pub(super) fn prepare(&self, recipe: &Recipe) -> io::Result<()> {
        make_private(&self.dir.path)?;
        if !self.dir.has("lock") {
            // RACE: two processes may both create it; it is one file, and neither has locked it.
            fs_err::OpenOptions::new().append(true).create(true).open(self.dir.file("lock"))?;
        }
        self.dir.put(RECIPE, recipe)
    }

    fn disk(&self) -> PathBuf {
        self.dir.file(DISK)
    }

    fn state(&self) -> PathBuf {
        self.dir.file(STATE)
    }

    fn done(&self) -> io::Result<Option<TemplateRecord>> {
        self.dir.read(DONE)
    }

    /// Opens the files that belong to a memory; `None`: another template has replaced it.
    pub(super) fn open(&self, token: &str) -> io::Result<Option<TemplateFiles>> {
        let open = |path| match fs_err::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        };
        let (Some(disk), Some(state)) = (open(self.disk())?, open(self.state())?) else { return Ok(None) };
        // RACE: a holder removes this file before it replaces the others. Read last, it proves that both are its own.
        let done = self.done()?.filter(|done| done.token == token);
        Ok(done.map(|done| TemplateFiles { disk, state, done }))
    }

    /// Removes a template from which a clone did not resume. Its holder exits by itself.
    pub(super) fn discard(&self) -> io::Result<()> {
        let name = self.dir.path.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.dir.path.with_file_name(format!(".{name}-{}", crate::supervised::launch::random()?));
        match fs_err::rename(&self.dir.path, &aside) {
            // RACE: another clone has discarded it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => {
                other?;
                // CRASH: the holder that builds the next template removes the renamed directory.
                failpoint("template.set-aside");
                remove::tree(&aside)
            }
        }
    }

    /// Removes templates that no machine will request again, because the image, QEMU or the host's kernel has changed.
    /// Templates with a holder stay.
    fn sweep(&self, recipe: &Recipe) -> io::Result<()> {
        let Some(folder) = self.dir.path.parent() else { return Ok(()) };
        for entry in fs_err::read_dir(folder)? {
            let entry = entry?;
            // Renamed by a clone that ended before it had removed it.
            if entry.file_name().to_string_lossy().starts_with('.') {
                remove::tree(&entry.path())?;
            }
        }
        for other in crate::supervised::launch::instances(folder)? {
            let old: Option<Recipe> = other.read(RECIPE)?;
            let is_stale = old.is_none_or(|old| {
                let rebuilt = old.image == recipe.image && old.digest != recipe.digest;
                let unused = old.pulls.is_some() && is_unused(&other);
                rebuilt || unused || key(&old).ok().is_none_or(|key| !other.path.ends_with(key))
            });
            if is_stale && other.holder()?.is_none() {
                remove::tree(&other.path)?;
            }
        }
        Ok(())
    }
}

/// The disk that a folder's templates with images may take, in bytes. One whose guest pulls counts with its whole disk.
pub(in crate::qemu) fn disk_of_all(images: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let size = |path: PathBuf| fs_err::metadata(path).map_or(0, |found| found.blocks() * 512);
    let mut sum = 0_u64;
    for dir in crate::supervised::launch::instances(&images.join(FOLDER))? {
        let Ok(Some(recipe)) = dir.read::<Recipe>(RECIPE) else { continue };
        if recipe.pulls.is_some() {
            let pulling = if dir.has(PULLED) { recipe.disk } else { 0 };
            sum = sum.saturating_add(size(dir.file(DISK))).saturating_add(pulling);
        }
    }
    Ok(sum)
}

/// True if no holder has begun or written anything for long.
fn is_unused(dir: &InstanceDir) -> bool {
    let touched =
        [RECIPE, DONE].map(|name| fs_err::metadata(dir.file(name)).and_then(|found| found.modified()));
    let ages = touched.into_iter().flatten().filter_map(|at| at.elapsed().ok());
    ages.min().is_some_and(|age| age > UNUSED)
}

/// The name of a template: a hash over all that it depends on.
fn key(recipe: &Recipe) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let program = fs_err::metadata(&recipe.runner.qemu)?;
    let ingredients = Ingredients {
        format: FORMAT,
        image: &recipe.digest,
        disk: recipe.disk,
        hardware: &recipe.hardware,
        kernel_words: kernel_parameters(recipe.hardware.engine),
        qemu: &recipe.runner.qemu,
        program: (program.ino(), program.size(), program.mtime()),
        release: rustix::system::uname().release().to_string_lossy().into_owned(),
        processor: processor(&fs_err::read_to_string("/proc/cpuinfo")?),
        pulls: recipe.pulls.as_ref(),
    };
    let hash = Sha256::digest(serde_json::to_vec(&ingredients)?);
    let mut first = [0; 16];
    first.copy_from_slice(&hash[..16]);
    Ok(format!("{:032x}", u128::from_be_bytes(first)))
}

/// Model and features of the first processor, from the text of /proc/cpuinfo.
fn processor(text: &str) -> Vec<String> {
    let first = text.lines().take_while(|line| !line.is_empty());
    let counts = |line: &&str| {
        ["vendor_id", "model name", "stepping", "microcode", "flags"].iter().any(|key| line.starts_with(key))
    };
    first.filter(counts).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::accel::Accelerator;

    fn recipe() -> Recipe {
        Recipe {
            images: PathBuf::from("/images"),
            image: "light".to_owned(),
            digest: "d1".to_owned(),
            disk: 1 << 30,
            hardware: Hardware { engine: Accelerator::Tcg, vcpus: 1, memory: 256 << 20 },
            runner: QemuProgram { qemu: PathBuf::from("/proc/self/exe"), identity: None },
            program: PathBuf::from("/greenroom"),
            limit: Duration::from_secs(1),
            kept: Duration::from_secs(1),
            pulls: None,
        }
    }

    fn pulls() -> Pulls {
        let image = "docker.io/library/ruby:3.3".into();
        let script = "pull".to_owned();
        let within = Duration::from_mins(16);
        Pulls { network: Network::Open, proxy: None, images: vec![PublicPull { image, script, within }] }
    }

    #[test]
    fn whatever_a_resume_depends_on_makes_another_key() {
        let own = key(&recipe()).unwrap();
        assert_eq!(own.len(), 32);
        let hardware = |change: fn(&mut Hardware)| {
            let mut other = recipe();
            change(&mut other.hardware);
            other
        };
        for other in [
            Recipe { digest: "d2".to_owned(), ..recipe() },
            Recipe { disk: 2 << 30, ..recipe() },
            hardware(|h| h.engine = Accelerator::Kvm),
            hardware(|h| h.vcpus = 2),
            hardware(|h| h.memory = 512 << 20),
            Recipe { runner: QemuProgram { qemu: PathBuf::from("/bin/sh"), identity: None }, ..recipe() },
        ] {
            assert_ne!(key(&other).unwrap(), own, "{other:?}");
        }
        let patient = Recipe { limit: Duration::from_secs(2), program: PathBuf::from("/other"), ..recipe() };
        assert_eq!(key(&patient).unwrap(), own, "it makes the same template");
    }

    #[test]
    fn whatever_pulls_depend_on_makes_another_key() {
        let with = |pulls: Pulls| key(&Recipe { pulls: Some(pulls), ..recipe() }).unwrap();
        let mut other = pulls();
        // Mirrors, certificates and all other settings are in it.
        other.images[0].script.push('2');
        let proxy = Pulls { network: Network::Proxy("10.0.0.1:3128".to_owned()), ..pulls() };
        let mut keys = vec![
            key(&recipe()).unwrap(),
            with(pulls()),
            with(Pulls { images: Vec::new(), ..pulls() }),
            with(other),
            with(proxy),
        ];
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 5, "{keys:?}");
        assert_eq!(with(pulls()), with(pulls()));
    }

    #[test]
    fn a_clone_opens_the_files_of_its_own_memory_only() {
        let images = tempfile::tempdir().unwrap();
        let recipe = Recipe { images: images.path().to_owned(), pulls: Some(pulls()), ..recipe() };
        let template = Template::of(&recipe).unwrap();
        template.prepare(&recipe).unwrap();
        assert!(template.open("a").unwrap().is_none(), "there are no files yet");
        for file in [template.disk(), template.state()] {
            fs_err::write(file, "x").unwrap();
        }
        assert!(template.open("a").unwrap().is_none(), "it is not complete");
        template
            .dir
            .put(DONE, &TemplateRecord { token: "a".to_owned(), ..TemplateRecord::default() })
            .unwrap();
        assert!(template.open("a").unwrap().is_some() && template.open("b").unwrap().is_none());
        template.dir.put(DONE, &serde_json::json!({ "ms": 7 })).unwrap();
        assert!(template.open("").unwrap().is_some(), "one of an earlier version");
    }

    #[test]
    fn disks_count_if_they_have_images_and_are_removed_when_their_list_is_old() {
        let images = tempfile::tempdir().unwrap();
        let plain = Recipe { images: images.path().to_owned(), ..recipe() };
        let with = Recipe { pulls: Some(pulls()), ..plain.clone() };
        for recipe in [&plain, &with] {
            let template = Template::of(recipe).unwrap();
            template.prepare(recipe).unwrap();
            fs_err::write(template.disk(), vec![1; 8192]).unwrap();
        }
        assert_eq!(disk_of_all(images.path()).unwrap(), 8192);
        let template = Template::of(&with).unwrap();
        fs_err::write(template.dir.file(PULLED), "x").unwrap();
        assert_eq!(disk_of_all(images.path()).unwrap(), 8192 + with.disk);
        Template::of(&plain).unwrap().sweep(&plain).unwrap();
        assert!(template.dir.path.exists(), "its pool may request it again");
        let long_ago = std::time::SystemTime::now() - UNUSED - Duration::from_mins(1);
        let recipe = std::fs::File::options().write(true).open(template.dir.file(RECIPE)).unwrap();
        recipe.set_modified(long_ago).unwrap();
        Template::of(&plain).unwrap().sweep(&plain).unwrap();
        assert!(!template.dir.path.exists() && Template::of(&plain).unwrap().dir.path.exists());
        assert_eq!(disk_of_all(&images.path().join("none")).unwrap(), 0);
    }

    #[test]
    fn only_the_first_processor_is_asked() {
        let text =
            "processor\t: 0\nmodel name\t: X\ncpu MHz\t: 1\nflags\t: a b\n\nprocessor\t: 1\nflags\t: c\n";
        assert_eq!(processor(text), ["model name\t: X", "flags\t: a b"]);
    }

    #[test]
    fn templates_that_nobody_will_ask_for_go_and_others_stay() {
        let images = tempfile::tempdir().unwrap();
        let recipe = Recipe { images: images.path().to_owned(), ..recipe() };
        let at = |recipe: &Recipe| Template::of(recipe).unwrap();
        let rebuilt = Recipe { digest: "d0".to_owned(), ..recipe.clone() };
        let another =
            Recipe { image: "heavy".to_owned(), digest: "d0".to_owned(), disk: 1, ..recipe.clone() };
        for recipe in [&recipe, &rebuilt, &another] {
            at(recipe).prepare(recipe).unwrap();
        }
        // The name that an older QEMU, or an older Greenroom, would have given it.
        let outdated = Template { dir: InstanceDir::at(images.path().join(FOLDER).join("0123")) };
        outdated.prepare(&another).unwrap();
        let aside = outdated.dir.path.with_file_name(".4567-89ab");
        fs_err::create_dir(&aside).unwrap();
        let is_there = |template: &Template| template.dir.path.exists();
        at(&recipe).sweep(&recipe).unwrap();
        assert!(is_there(&at(&recipe)) && is_there(&at(&another)));
        assert!(!is_there(&at(&rebuilt)) && !is_there(&outdated) && !aside.exists());
        at(&recipe).discard().unwrap();
        at(&recipe).discard().unwrap();
        assert!(!is_there(&at(&recipe)));
        assert_eq!(fs_err::read_dir(images.path().join(FOLDER)).unwrap().count(), 1);
    }
}
