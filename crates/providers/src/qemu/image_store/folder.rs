//! The folder of image stores: opens, lists, replaces and removes them.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::{ImageStoreError, MANIFEST, Manifest, Store, beside, is_name};
use crate::qemu::image::store::{lock, names};

/// The prefixes of what is not a store: work of builds, and locks.
const WORK: &str = ".new-";
const LOCK: &str = ".lock-";

/// The number of times a store may be replaced while a machine opens it.
const TRIES: u32 = 3;

/// A folder with one folder for each store.
#[derive(Debug, Clone)]
pub struct Stores {
    folder: PathBuf,
}

/// An entry of the folder.
#[derive(Debug)]
pub struct ListedStore {
    pub name: String,
    pub store: Result<Store, ImageStoreError>,
}

/// A build that is under way. The next build of that store removes its folder if it is not finished.
#[derive(Debug)]
pub(super) struct UnfinishedStore {
    stores: Stores,
    name: String,
    pub(super) folder: PathBuf,
    /// The lock of the build, held until the last process that has it exits.
    pub(super) lock: fs::File,
}

impl Stores {
    /// The stores that belong to a folder of images of virtual machines.
    pub fn beside(images: &Path) -> Self {
        Self { folder: beside(images) }
    }

    pub fn path(&self) -> &Path {
        &self.folder
    }

    pub fn open(&self, name: &str) -> Result<Store, ImageStoreError> {
        Store::open(self.folder.join(name), name)
    }

    /// Opens a store and its data for a machine.
    pub fn attach(&self, name: &str) -> Result<(Store, fs::File), ImageStoreError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let store = self.open(name)?;
            let problem = match store.damage()? {
                Some(damage) => ImageStoreError::Damaged { name: name.to_owned(), damage },
                // RACE: a build may replace the store, and remove this file, in between.
                None => match fs::File::open(store.file()) {
                    Ok(file) => return Ok((store, file)),
                    Err(error) => ImageStoreError::Unreadable { name: name.to_owned(), error },
                },
            };
            if tries == TRIES {
                return Err(problem);
            }
        }
    }

    /// All stores by name, those that cannot be opened included.
    pub fn list(&self) -> io::Result<Vec<ListedStore>> {
        let mut found = Vec::new();
        for name in names(&self.folder)? {
            if is_name(&name) && self.folder.join(&name).is_dir() {
                found.push(ListedStore { store: self.open(&name), name });
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Removes a store, even one that cannot be opened. Machines keep the file that they have open.
    pub fn remove(&self, name: &str) -> Result<(), ImageStoreError> {
        let dir = self.folder.join(name);
        if !is_name(name) {
            return Err(ImageStoreError::Name(name.to_owned()));
        }
        if !dir.is_dir() {
            return Err(ImageStoreError::Missing { name: name.to_owned(), folder: self.folder.clone() });
        }
        let work = self.begin(name)?;
        fs::rename(dir, work.folder.join("removed"))?;
        Ok(())
    }

    /// Takes the lock of a store, removes what a killed build has left, and creates a folder to work in.
    pub(super) fn begin(&self, name: &str) -> Result<UnfinishedStore, ImageStoreError> {
        if !is_name(name) {
            return Err(ImageStoreError::Name(name.to_owned()));
        }
        make(&self.folder)?;
        let lock = lock(&self.folder.join(format!("{LOCK}{name}")))?;
        let lock = lock.ok_or_else(|| ImageStoreError::Busy(name.to_owned()))?;
        let folder = self.folder.join(format!("{WORK}{name}"));
        greenroom_system::remove::tree(&folder)?;
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(UnfinishedStore { stores: self.clone(), name: name.to_owned(), folder, lock })
    }
}

impl UnfinishedStore {
    /// Makes this the current store in one step, and removes the data of the one before it.
    pub(super) fn finish(self, data: Option<&Path>, manifest: Manifest) -> Result<Store, ImageStoreError> {
        let store = Store { dir: self.stores.folder.join(&self.name), manifest };
        if !store.dir.is_dir() {
            std::fs::DirBuilder::new().mode(0o755).create(&store.dir)?;
        }
        if let Some(data) = data {
            fs::set_permissions(data, std::fs::Permissions::from_mode(0o444))?;
            fs::File::open(data)?.sync_all()?;
            fs::rename(data, store.file())?;
            // The same data may have been damaged before.
            greenroom_system::remove::tree(&store.mark())?;
        }
        let text = serde_json::to_vec_pretty(&store.manifest).map_err(io::Error::from)?;
        let new = self.folder.join(MANIFEST);
        fs::write(&new, text)?;
        fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644))?;
        fs::File::open(&new)?.sync_all()?;
        // CRASH: until here the store is what it was. What is left over goes with the next build.
        fs::rename(new, store.dir.join(MANIFEST))?;
        let own = store.manifest.digest.as_str();
        for name in names(&store.dir)? {
            if name != MANIFEST && !name.starts_with(own) {
                greenroom_system::remove::tree(&store.dir.join(name))?;
            }
        }
        Ok(store)
    }
}

impl Drop for UnfinishedStore {
    /// A build that failed leaves nothing; one that was killed leaves its folder to the next.
    fn drop(&mut self) {
        greenroom_system::remove::tree(&self.folder).ok();
    }
}

/// Creates the folder of stores, for other users to read: root builds stores, the keeper's user reads them.
fn make(folder: &Path) -> io::Result<()> {
    if let Some(images) = folder.parent()
        && !images.is_dir()
    {
        if let Some(state) = images.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
        }
        created(std::fs::DirBuilder::new().mode(0o755).create(images))?;
    }
    created(std::fs::DirBuilder::new().mode(0o755).create(folder))
}

/// RACE: two builds may both create a folder.
fn created(made: io::Result<()>) -> io::Result<()> {
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::image_store::tests::{manifest, store};

    /// Begins a build after another one. A process that another test starts has the lock file, too, until it executes
    /// its program.
    fn begin(stores: &Stores) -> UnfinishedStore {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            match stores.begin("ci") {
                Err(ImageStoreError::Busy(_)) if std::time::Instant::now() < until => {
                    std::thread::yield_now();
                }
                begun => return begun.unwrap(),
            }
        }
    }

    fn build(stores: &Stores, data: &[u8]) -> Store {
        let work = begin(stores);
        let file = work.folder.join("data");
        fs::write(&file, data).unwrap();
        work.finish(Some(&file), manifest("ci", data)).unwrap()
    }

    #[test]
    fn a_store_is_replaced_in_one_step_and_who_has_it_open_keeps_it() {
        use io::Read as _;
        let images = tempfile::tempdir().unwrap();
        let stores = Stores::beside(&images.path().join("images"));
        assert!(stores.list().unwrap().is_empty(), "not even a folder");
        build(&stores, b"one");
        let (store, mut file) = stores.attach("ci").unwrap();
        assert_eq!(store.manifest.bytes, 3);
        build(&stores, b"three");
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one");
        let (store, _) = stores.attach("ci").unwrap();
        assert_eq!(store.manifest.bytes, 5);
        assert_eq!(names(&stores.path().join("ci")).unwrap().len(), 2, "manifest and data");
        assert_eq!(stores.list().unwrap().len(), 1);
    }

    #[test]
    fn a_build_that_is_not_finished_changes_nothing() {
        let images = tempfile::tempdir().unwrap();
        let stores = Stores::beside(images.path());
        build(&stores, b"one");
        let work = begin(&stores);
        fs::write(work.folder.join("data"), b"two").unwrap();
        assert!(matches!(stores.begin("ci"), Err(ImageStoreError::Busy(_))));
        // As if it had been killed.
        let left = work.folder.clone();
        std::mem::forget(work);
        assert!(left.join("data").exists());
        assert_eq!(stores.attach("ci").unwrap().0.manifest.bytes, 3);
    }

    #[test]
    fn what_is_damaged_or_missing_is_not_attached() {
        let images = tempfile::tempdir().unwrap();
        let stores = Stores::beside(images.path());
        let missing = stores.attach("ci").unwrap_err().to_string();
        assert!(missing.starts_with("no image store `ci` in "), "{missing}");
        let store = store(images.path(), "ci", b"data");
        fs::write(store.file(), b"dat").unwrap();
        assert_eq!(
            stores.attach("ci").unwrap_err().to_string(),
            "image store `ci` cannot be used: its file has 3 bytes, expected 4"
        );
        stores.remove("ci").unwrap();
        assert!(matches!(stores.remove("ci"), Err(ImageStoreError::Missing { .. })));
        assert!(matches!(stores.remove("../images"), Err(ImageStoreError::Name(_))));
    }
}
