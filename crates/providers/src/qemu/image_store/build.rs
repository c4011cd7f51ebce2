//! Builds an image store, or refreshes one.
//!
//! A build works in a folder with a dot name beside the stores. It changes the current store only in its last step, so a
//! build that fails or is killed leaves the store that there was.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use fs_err as fs;
use greenroom_core::container::image::ImageName;

use super::folder::UnfinishedStore;
use super::skopeo::Skopeo;
use super::{FORMAT, ImageStoreError, Manifest, Source, Store, StoredImage, Stores, file_digest};
use crate::qemu::image::build::{Tool, ToolError, make_disk, tools_there};

/// The parameters of a build.
#[derive(Debug, Clone)]
pub struct Request {
    pub name: String,
    /// Empty: those that the store has.
    pub images: Vec<String>,
    /// `None`: where the store's images came from.
    pub source: Option<Source>,
}

/// A completed step.
#[derive(Debug, Clone)]
pub struct Step {
    pub what: String,
    pub took: Duration,
}

/// The result of a build.
#[derive(Debug)]
pub enum BuiltStore {
    New(Store),
    /// All images still have the digests that the store has.
    Unchanged(Store),
}

/// An image that changed in its registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newer {
    pub image: String,
    pub digest: String,
}

/// Builds a store, or refreshes one whose images have changed.
pub fn build(
    stores: &Stores,
    request: &Request,
    report: &mut dyn FnMut(Step),
) -> Result<BuiltStore, ImageStoreError> {
    if !rustix::process::geteuid().is_root() {
        return Err(ImageStoreError::NotRoot);
    }
    let images = named(&request.images)?;
    tools_there(&[Tool::Skopeo, Tool::Mke2fs])?;
    let work = stores.begin(&request.name)?;
    let before = match stores.open(&request.name) {
        Err(
            ImageStoreError::Missing { .. }
            | ImageStoreError::Manifest { .. }
            | ImageStoreError::ManifestDigest(_),
        ) => None,
        other => Some(other?),
    };
    let recorded = before.as_ref().map(|store| &store.manifest);
    let images = match (images.is_empty(), recorded) {
        (false, _) => images,
        (true, Some(manifest)) => named(manifest.images.iter().map(|image| &image.name))?,
        (true, None) => return Err(ImageStoreError::NoImages(request.name.clone())),
    };
    let recorded_source = recorded.map(|manifest| manifest.source.clone());
    let source = request.source.clone().or(recorded_source).unwrap_or_default();
    let tool = Skopeo::version()?;
    let folder = work.folder.clone();
    let lock = fs::File::from_parts(work.lock.file().try_clone()?, folder.join("lock"));
    let skopeo = Skopeo::new(&folder, &lock, &source)?;
    let now = jiff::Timestamp::now();
    let digests = digests(&skopeo, &images)?;
    if let Some(store) = before.as_ref().filter(|store| store.manifest.has(&digests))
        && store.damage()?.is_none()
    {
        let manifest = Manifest { refreshed: now, source, ..store.manifest.clone() };
        return Ok(BuiltStore::Unchanged(work.finish(None, manifest)?));
    }
    for (image, (_, digest)) in images.iter().zip(&digests) {
        let begun = Instant::now();
        skopeo.copy(image, digest)?;
        report(Step { what: image.to_string(), took: begun.elapsed() });
    }
    let since = |name: &str, digest: &str| recorded?.since(name, digest);
    let images = digests.into_iter().map(|(name, digest)| {
        let since = since(&name, &digest).unwrap_or(now);
        StoredImage { name, digest, since }
    });
    let parts =
        ManifestParts { name: request.name.clone(), images: images.collect(), source: source.clone(), tool };
    let store = complete(work, &skopeo.storage, parts, report)?;
    Ok(BuiltStore::New(store))
}

/// The images of a store that have other digests at their source now.
pub fn newer(stores: &Stores, store: &Store) -> Result<Vec<Newer>, ImageStoreError> {
    tools_there(&[Tool::Skopeo])?;
    let work = stores.begin(&store.manifest.name)?;
    let skopeo = Skopeo::new(&work.folder, &work.lock, &store.manifest.source)?;
    let images = named(store.manifest.images.iter().map(|image| &image.name))?;
    let now = digests(&skopeo, &images)?.into_iter().zip(&store.manifest.images);
    let changed = now.filter(|((_, digest), image)| *digest != image.digest);
    Ok(changed.map(|((image, digest), _)| Newer { image, digest }).collect())
}

/// The names, complete, each once.
fn named<'a>(texts: impl IntoIterator<Item = &'a String>) -> Result<Vec<ImageName>, ImageStoreError> {
    let mut names = Vec::new();
    for text in texts {
        let invalid = |problem| ImageStoreError::Image { image: text.clone(), problem };
        let name = ImageName::parse(text).map_err(invalid)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

fn digests(skopeo: &Skopeo<'_>, images: &[ImageName]) -> Result<Vec<(String, String)>, ImageStoreError> {
    images.iter().map(|image| Ok((image.to_string(), skopeo.digest(image)?))).collect()
}

/// The parts of a manifest that are known before the data is complete.
struct ManifestParts {
    name: String,
    images: Vec<StoredImage>,
    source: Source,
    tool: String,
}

/// Makes the file system, and the store the current one.
fn complete(
    work: UnfinishedStore,
    storage: &Path,
    parts: ManifestParts,
    report: &mut dyn FnMut(Step),
) -> Result<Store, ImageStoreError> {
    let begun = Instant::now();
    let data = work.folder.join("data");
    fill(storage, &data)?;
    let digest = file_digest(&data)?;
    report(Step { what: "file system".to_owned(), took: begun.elapsed() });
    let now = jiff::Timestamp::now();
    let manifest = Manifest {
        format: FORMAT,
        name: parts.name,
        digest,
        bytes: fs::metadata(&data)?.len(),
        built: now,
        refreshed: now,
        tool: parts.tool,
        images: parts.images,
        source: parts.source,
    };
    work.finish(Some(&data), manifest)
}

/// The minimum size of a file system for a tree.
#[derive(Debug, Default, PartialEq, Eq)]
struct TreeSize {
    blocks: u64,
    inodes: u64,
}

const BLOCK: u64 = 4096;

/// Makes a read-only file system with the tree in it. The need of a file system can only be estimated, so a second try is
/// larger.
fn fill(tree: &Path, data: &Path) -> Result<(), ImageStoreError> {
    let mut need = TreeSize::default();
    measure(tree, &mut need, &mut BTreeSet::new())?;
    let inodes = need.inodes + need.inodes / 16 + 64;
    let mut bytes = (need.blocks + need.blocks / 32) * BLOCK + inodes * 256 + (16 << 20);
    for _ in 0..2 {
        match make_disk(tree, data, bytes, Some(inodes)) {
            Err(ToolError::Failed { .. }) => bytes += bytes / 2,
            other => return Ok(other?),
        }
    }
    Ok(make_disk(tree, data, bytes, Some(inodes))?)
}

/// Each file counts once, whatever the number of its names.
fn measure(path: &Path, need: &mut TreeSize, seen: &mut BTreeSet<(u64, u64)>) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let own = fs::symlink_metadata(path)?;
    if !seen.insert((own.dev(), own.ino())) {
        return Ok(());
    }
    need.inodes += 1;
    // One more for attributes, or the tree of extents.
    need.blocks += own.size().div_ceil(BLOCK) + 1;
    if own.is_dir() {
        for entry in fs::read_dir(path)? {
            measure(&entry?.path(), need, seen)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_and_each_image_counts_once() {
        let texts = ["ruby:3.3", "docker.io/library/ruby:3.3", "corp.test/a"].map(str::to_owned);
        let names: Vec<String> = named(&texts).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(names, ["docker.io/library/ruby:3.3", "corp.test/a:latest"]);
        assert!(matches!(named(&["A b".to_owned()]), Err(ImageStoreError::Image { .. })));
    }

    #[test]
    fn a_file_with_two_names_is_measured_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), vec![0; 5000]).unwrap();
        fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
        let mut need = TreeSize::default();
        measure(dir.path(), &mut need, &mut BTreeSet::new()).unwrap();
        assert_eq!(need.inodes, 2);
    }
}
