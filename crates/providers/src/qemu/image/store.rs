//! The folder of images: lists, adds and removes them.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use rustix::fs::{CWD, RenameFlags};

use super::{Image, ImageError, Manifest, is_name};

/// The prefixes of images that are being built, and of those that are being removed.
const UNFINISHED: &str = ".new-";
const REMOVING: &str = ".old-";
const LOCK: &str = ".lock";

/// The reason an operation of [`Images`] failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("another `greenroom image build` is running in {}", .0.display())]
    Busy(PathBuf),
    /// A program of a killed build still uses it.
    #[error("{} is a mount point: run `umount -R {}`, then retry", .0.display(), .0.display())]
    Mounted(PathBuf),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A folder with one folder for each image.
#[derive(Debug, Clone)]
pub struct Images {
    path: PathBuf,
}

/// An entry of the folder.
#[derive(Debug)]
pub struct ListedImage {
    pub name: String,
    pub image: Result<Image, ImageError>,
}

/// A build that is under way. The next build removes it if it is not finished.
#[derive(Debug)]
pub(super) struct UnfinishedImage {
    images: Images,
    name: String,
    pub(super) folder: PathBuf,
    /// The lock of the build, held until the last process that has it exits.
    pub(super) lock: fs::File,
}

impl Images {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn open(&self, name: &str) -> Result<Image, ImageError> {
        Image::open(&self.path, name)
    }

    /// All images by name, damaged ones included.
    pub fn list(&self) -> io::Result<Vec<ListedImage>> {
        let mut found = Vec::new();
        for name in names(&self.path)? {
            if is_name(&name) && self.path.join(&name).is_dir() {
                found.push(ListedImage { image: self.open(&name), name });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Removes an image, even a damaged one. Machines that run on it keep their open files.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        match self.open(name) {
            Err(ImageError::Missing { .. } | ImageError::Name(_)) if !self.has_folder(name) => {
                return Err(self.missing(name).into());
            }
            _ => {}
        }
        let removing = self.path.join(format!("{REMOVING}{name}-{}", std::process::id()));
        fs::rename(self.path.join(name), &removing)?;
        Ok(remove_tree(&removing)?)
    }

    fn has_folder(&self, name: &str) -> bool {
        is_name(name) && self.path.join(name).is_dir()
    }

    fn missing(&self, name: &str) -> ImageError {
        if is_name(name) {
            ImageError::Missing { name: name.to_owned(), images: self.path.clone() }
        } else {
            ImageError::Name(name.to_owned())
        }
    }

    /// Takes the lock, removes the folders of killed builds, and creates one for a new image.
    pub(super) fn begin(&self, name: &str) -> Result<UnfinishedImage, StoreError> {
        if !is_name(name) {
            return Err(ImageError::Name(name.to_owned()).into());
        }
        self.make()?;
        let lock = lock(&self.path.join(LOCK))?.ok_or_else(|| StoreError::Busy(self.path.clone()))?;
        self.sweep()?;
        let folder = self.path.join(format!("{UNFINISHED}{name}"));
        std::fs::DirBuilder::new().mode(0o755).create(&folder)?;
        Ok(UnfinishedImage { images: self.clone(), name: name.to_owned(), folder, lock })
    }

    /// Creates the folder with the owner of its parent: root builds images, the keeper's user uses them.
    fn make(&self) -> io::Result<()> {
        if self.path.is_dir() {
            return Ok(());
        }
        if let Some(above) = self.path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
        }
        std::fs::DirBuilder::new().mode(0o755).create(&self.path)?;
        self.give_away(&self.path, self.path.parent())
    }

    /// Gives a path the owner of a folder; only root can, and only root has to.
    fn give_away(&self, path: &Path, like: Option<&Path>) -> io::Result<()> {
        let like = fs::metadata(like.unwrap_or(&self.path))?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(path, Some(like.uid()), Some(like.gid()))?;
        }
        Ok(())
    }

    fn sweep(&self) -> Result<(), StoreError> {
        for name in names(&self.path)? {
            if name.starts_with(UNFINISHED) || name.starts_with(REMOVING) {
                let path = self.path.join(name);
                let device = fs::symlink_metadata(&path)?.dev();
                refuse_mounts(&path, device)?;
                remove_tree(&path)?;
            }
        }
        Ok(())
    }
}

impl UnfinishedImage {
    /// Puts the finished image in its place, in one step even if it replaces one of that name.
    pub(super) fn finish(self, manifest: Manifest) -> Result<Image, StoreError> {
        let dir = self.images.path.join(&self.name);
        for entry in fs::read_dir(&self.folder)? {
            self.images.give_away(&entry?.path(), None)?;
        }
        self.images.give_away(&self.folder, None)?;
        match rustix::fs::renameat_with(CWD, &self.folder, CWD, &dir, RenameFlags::EXCHANGE) {
            Ok(()) => fs::remove_dir_all(&self.folder)?,
            Err(rustix::io::Errno::NOENT) => fs::rename(&self.folder, &dir)?,
            Err(error) => return Err(io::Error::from(error).into()),
        }
        Ok(Image { dir, manifest })
    }
}

impl Drop for UnfinishedImage {
    /// A build that failed leaves nothing; one that was killed leaves its folder to the next.
    fn drop(&mut self) {
        let mounts = fs::symlink_metadata(&self.folder).map(|own| refuse_mounts(&self.folder, own.dev()));
        if matches!(mounts, Ok(Ok(()))) {
            fs::remove_dir_all(&self.folder).ok();
        }
    }
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        // RACE: a removal and the sweep of a build may run concurrently.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Fails if there is a mount point below the path: files of other file systems are never removed.
fn refuse_mounts(path: &Path, device: u64) -> Result<(), StoreError> {
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let own = fs::symlink_metadata(&path)?;
        if own.dev() != device {
            return Err(StoreError::Mounted(path));
        }
        if own.is_dir() {
            refuse_mounts(&path, device)?;
        }
    }
    Ok(())
}

/// Every entry whose name is UTF-8; Greenroom creates no others. A missing folder has none.
pub(in crate::qemu) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// Takes a build's lock; `None`: another build has it.
pub(in crate::qemu) fn lock(path: &Path) -> io::Result<Option<fs::File>> {
    let lock = fs::OpenOptions::new().read(true).write(true).create(true).mode(0o600).open(path)?;
    match lock.file().try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::image::MANIFEST;
    use crate::qemu::image::tests::manifest;

    fn folder() -> (tempfile::TempDir, Images) {
        let temporary = tempfile::tempdir().unwrap();
        let images = Images::at(temporary.path().join("state/images"));
        (temporary, images)
    }

    /// Begins a build after another one. A process that another test starts has the lock file, too, until it executes
    /// its program.
    fn begin(images: &Images, name: &str) -> UnfinishedImage {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            match images.begin(name) {
                Err(StoreError::Busy(_)) if std::time::Instant::now() < until => std::thread::yield_now(),
                begun => return begun.unwrap(),
            }
        }
    }

    /// A build that gets as far as its manifest.
    fn build(images: &Images, name: &str, suite: &str) -> Image {
        let work = begin(images, name);
        let manifest = Manifest { name: name.to_owned(), suite: suite.to_owned(), ..manifest() };
        fs::write(work.folder.join(MANIFEST), serde_json::to_string(&manifest).unwrap()).unwrap();
        work.finish(manifest).unwrap()
    }

    #[test]
    fn images_are_listed_by_name_damaged_ones_too() {
        let (_temporary, images) = folder();
        assert!(images.list().unwrap().is_empty(), "not even a folder");
        build(&images, "b", "bookworm");
        build(&images, "a", "bookworm");
        fs::write(images.path().join("a").join(MANIFEST), "{").unwrap();
        fs::create_dir(images.path().join(".templates")).unwrap();
        let listed = images.list().unwrap();
        let names: Vec<(&str, bool)> = listed.iter().map(|e| (e.name.as_str(), e.image.is_ok())).collect();
        assert_eq!(names, [("a", false), ("b", true)]);
    }

    #[test]
    fn a_finished_build_replaces_the_one_before_it() {
        let (_temporary, images) = folder();
        build(&images, "light", "bookworm");
        let image = build(&images, "light", "trixie");
        assert_eq!(images.open("light").unwrap(), image);
        assert_eq!(names(images.path()).unwrap().len(), 2, "the image and the lock");
    }

    #[test]
    fn one_builds_at_a_time_and_what_is_not_finished_goes() {
        let (_temporary, images) = folder();
        let work = images.begin("light").unwrap();
        assert!(matches!(images.begin("other"), Err(StoreError::Busy(_))));
        drop(work);
        assert_eq!(names(images.path()).unwrap(), [LOCK], "a build that fails leaves nothing");
        fs::create_dir_all(images.path().join(".new-killed/rootfs/etc")).unwrap();
        drop(begin(&images, "light"));
        assert_eq!(names(images.path()).unwrap(), [LOCK], "one that was killed is swept away");
    }

    #[test]
    fn only_what_is_there_is_removed() {
        let (_temporary, images) = folder();
        build(&images, "light", "bookworm");
        assert!(matches!(images.remove("heavy"), Err(StoreError::Image(ImageError::Missing { .. }))));
        assert!(matches!(images.remove("../state"), Err(StoreError::Image(ImageError::Name(_)))));
        fs::write(images.path().join("light").join(MANIFEST), "{").unwrap();
        images.remove("light").unwrap();
        assert!(images.list().unwrap().is_empty());
    }
}
