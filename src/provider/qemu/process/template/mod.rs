//! Templates: a machine that has booted once, frozen, for clones to resume from.
//!
//! A template is a directory beside the images, named by the hash of everything it depends on: `disk.qcow2` (what the
//! boot wrote, over the image's disk), `state` (the devices), `ram.img` (the memory) and, written last,
//! `template.json`. Clones get the memory as a sealed, read-only memory file from the template's *holder*. This
//! Greenroom process builds the template if it does not exist, reads the memory once, and hands it to clones. Running
//! clones have descriptors of their own: they do not depend on the holder, and the next machine starts another.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::command::Hardware;
use super::exec::Runner;
use super::rig::kernel_parameters;
use crate::core::time::millis;
use crate::provider::halt::halt_point;
use crate::provider::instance_dir::{InstanceDir, make_private};
use crate::remove;

mod build;
pub(super) mod client;
pub(super) mod holder;
mod memory;

pub(super) use build::capabilities;

/// The folder of all templates, beside the images.
const FOLDER: &str = ".templates";

/// Raised whenever the assembly of a machine changes.
const FORMAT: u32 = 2;

/// Written last: without it, a template is incomplete.
const DONE: &str = "template.json";
const RECIPE: &str = "recipe.json";
const DISK: &str = "disk.qcow2";
const STATE: &str = "state";
const RAM: &str = "ram.img";

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
    pub(super) runner: Runner,
    /// Greenroom's executable.
    pub(super) program: PathBuf,
    /// How long its boot may take.
    #[serde(with = "millis")]
    pub(super) limit: Duration,
    /// How long its memory is kept after its last clone has ended.
    #[serde(with = "millis")]
    pub(super) kept: Duration,
}

/// Everything that a resume depends on.
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
    fn prepare(&self, recipe: &Recipe) -> io::Result<()> {
        make_private(&self.dir.path)?;
        if !self.dir.has("lock") {
            // RACE: two processes may both create it; it is one file, and neither has locked it.
            fs_err::OpenOptions::new().append(true).create(true).open(self.dir.file("lock"))?;
        }
        self.dir.put(RECIPE, recipe)
    }

    pub(super) fn disk(&self) -> PathBuf {
        self.dir.file(DISK)
    }

    pub(super) fn state(&self) -> PathBuf {
        self.dir.file(STATE)
    }

    /// Removes a template from which a clone did not resume. Its holder exits by itself.
    pub(super) fn discard(&self) -> io::Result<()> {
        let name = self.dir.path.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.dir.path.with_file_name(format!(".{name}-{}", crate::provider::launch::random()?));
        match fs_err::rename(&self.dir.path, &aside) {
            // RACE: another clone has discarded it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => {
                other?;
                // CRASH: the holder that builds the next template removes the renamed directory.
                halt_point("template.set-aside");
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
        for other in crate::provider::launch::instances(folder)? {
            let old: Option<Recipe> = other.read(RECIPE)?;
            let is_stale = old.is_none_or(|old| {
                let rebuilt = old.image == recipe.image && old.digest != recipe.digest;
                rebuilt || key(&old).ok().is_none_or(|key| !other.path.ends_with(key))
            });
            if is_stale && other.holder()?.is_none() {
                remove::tree(&other.path)?;
            }
        }
        Ok(())
    }
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
    use crate::provider::qemu::accel::Engine;

    fn recipe() -> Recipe {
        Recipe {
            images: PathBuf::from("/images"),
            image: "light".to_owned(),
            digest: "d1".to_owned(),
            disk: 1 << 30,
            hardware: Hardware { engine: Engine::Tcg, vcpus: 1, memory: 256 << 20 },
            runner: Runner { qemu: PathBuf::from("/proc/self/exe"), identity: None },
            program: PathBuf::from("/greenroom"),
            limit: Duration::from_secs(1),
            kept: Duration::from_secs(1),
        }
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
            hardware(|h| h.engine = Engine::Kvm),
            hardware(|h| h.vcpus = 2),
            hardware(|h| h.memory = 512 << 20),
            Recipe { runner: Runner { qemu: PathBuf::from("/bin/sh"), identity: None }, ..recipe() },
        ] {
            assert_ne!(key(&other).unwrap(), own, "{other:?}");
        }
        let patient = Recipe { limit: Duration::from_secs(2), program: PathBuf::from("/other"), ..recipe() };
        assert_eq!(key(&patient).unwrap(), own, "it makes the same template");
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
