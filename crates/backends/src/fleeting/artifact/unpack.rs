//! Unpacks a plugin's layer: regular files below `plugin/`, and nothing that leaves it.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use flate2::read::MultiGzDecoder;
use tar::{Archive, EntryType};

use crate::fleeting::locate::PROGRAM;

/// The folder of the plugin's files in the layer.
const FOLDER: &str = "plugin";
/// Limit of all files together. Plugins have 20 to 150 MB.
const MAX_BYTES: u64 = 2 << 30;
/// Limit of a layer's content in proportion to its compressed size. Programs compress to a third or a quarter; the first
/// bytes need no proportion.
const MAX_RATIO: u64 = 30;
const FREE_BYTES: u64 = 16 << 20;
/// Limit of files, and of folders.
const MAX_ENTRIES: usize = 1000;

/// The reason a layer is not unpacked. Each message continues a sentence that names the plugin.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("has a damaged archive: {0}")]
    Archive(io::Error),
    #[error("has {what} in its archive: {path:?}")]
    Refused { what: &'static str, path: String },
    #[error("has an archive with more than {MAX_ENTRIES} entries, or of more than {MAX_BYTES} bytes")]
    Large,
    #[error("has an archive that becomes more than {MAX_RATIO} times as large when it is unpacked")]
    Ratio,
    #[error("has no file `plugin/plugin` in its archive")]
    NoProgram,
    #[error("cannot be unpacked")]
    Write(#[source] io::Error),
}

/// Unpacks a layer into an existing, empty folder. After an error, the folder has some of the files.
pub(super) fn unpack(layer: impl Read, into: &Path) -> Result<(), UnpackError> {
    // One byte more than allowed, so that reaching it proves that there is more.
    let bounded = Inflated::new(layer).take(MAX_BYTES + 1);
    let mut archive = Archive::new(bounded);
    let mut folders = BTreeSet::from([into.to_owned()]);
    let mut entries = 0;
    let mut has_program = false;
    for entry in archive.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(UnpackError::Large);
        }
        let path = entry.path().map_err(damaged)?.into_owned();
        let kind = entry.header().entry_type();
        let Some(below) = checked(&path, kind)? else { continue };
        let is_program = below == Path::new(PROGRAM);
        has_program |= is_program;
        let runs = is_program || entry.header().mode().is_ok_and(|mode| mode & 0o100 != 0);
        let target = into.join(below);
        let folder = target.parent().unwrap_or(into);
        fs_err::create_dir_all(folder).map_err(UnpackError::Write)?;
        folders.insert(folder.to_owned());
        write(&mut entry, &target, if runs { 0o755 } else { 0o644 })?;
    }
    // The decompressor checks the sum of a stream at its end.
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(damaged)?;
    if rest.limit() == 0 {
        return Err(UnpackError::Large);
    }
    if !has_program {
        return Err(UnpackError::NoProgram);
    }
    folders.iter().try_for_each(|folder| sync(folder)).map_err(UnpackError::Write)
}

fn damaged(error: io::Error) -> UnpackError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => UnpackError::Ratio,
        _ => UnpackError::Archive(error),
    }
}

/// Content of a compressed layer, as long as it is in proportion to the layer.
struct Inflated<R> {
    content: MultiGzDecoder<CountedReader<R>>,
    bytes: u64,
}

/// Counts the bytes that are read.
struct CountedReader<R> {
    from: R,
    bytes: u64,
}

impl<R: Read> Inflated<R> {
    fn new(layer: R) -> Self {
        Self { content: MultiGzDecoder::new(CountedReader { from: layer, bytes: 0 }), bytes: 0 }
    }
}

impl<R: Read> Read for CountedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

impl<R: Read> Read for Inflated<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        self.bytes += read as u64;
        if self.bytes > FREE_BYTES + MAX_RATIO * self.content.get_ref().bytes {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(read)
    }
}

/// The path of a file below `plugin/`; `None`: a folder, or a file elsewhere, which is left out.
fn checked(path: &Path, kind: EntryType) -> Result<Option<PathBuf>, UnpackError> {
    let refused = |what| Err(UnpackError::Refused { what, path: path.display().to_string() });
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part),
            Component::CurDir => {}
            Component::ParentDir => return refused("a path with `..`"),
            Component::RootDir | Component::Prefix(_) => return refused("an absolute path"),
        }
    }
    if parts.iter().any(|part| part.to_str().is_none_or(|part| part.contains(char::is_control))) {
        return refused("a name that is not plain text");
    }
    match kind {
        EntryType::Regular | EntryType::Continuous => {}
        EntryType::Directory => return Ok(None),
        EntryType::Symlink | EntryType::Link => return refused("a link"),
        _ => return refused("something that is neither a file nor a folder"),
    }
    Ok(match parts.split_first() {
        Some((first, below)) if *first == FOLDER && !below.is_empty() => Some(below.iter().collect()),
        _ => None,
    })
}

/// Writes a new file: a name that comes twice is an error.
fn write(content: &mut impl Read, target: &Path, mode: u32) -> Result<(), UnpackError> {
    let mut options = fs_err::OpenOptions::new();
    let mut file = options.write(true).create_new(true).open(target).map_err(UnpackError::Write)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = match content.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) => return Err(damaged(error)),
        };
        file.write_all(&buffer[..read]).map_err(UnpackError::Write)?;
    }
    let finished = || {
        fs_err::set_permissions(target, std::fs::Permissions::from_mode(mode))?;
        file.sync_all()
    };
    finished().map_err(UnpackError::Write)
}

/// Makes the names in a folder survive a power failure.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    fs_err::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tar::{Builder, Header};

    use super::*;

    struct ArchiveEntry(&'static str, EntryType, u32, &'static str);

    fn file(path: &'static str) -> ArchiveEntry {
        ArchiveEntry(path, EntryType::Regular, 0o644, "content")
    }

    /// An archive with these names, whatever they are.
    fn archive(entries: &[ArchiveEntry]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for ArchiveEntry(path, kind, mode, content) in entries {
            let mut header = Header::new_ustar();
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
            if is_link {
                header.set_link_name(content).unwrap();
            }
            let content = if is_link { "" } else { content };
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn compressed(archive: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(archive).unwrap();
        encoder.finish().unwrap()
    }

    /// The error, and that nothing was written outside of the folder.
    #[track_caller]
    fn refused(layer: &[u8]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("into");
        std::fs::create_dir(&into).unwrap();
        let error = unpack(layer, &into).unwrap_err().to_string();
        let names: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["into"]);
        error
    }

    #[test]
    fn files_below_plugin_are_unpacked_with_their_modes() {
        let dir = tempfile::tempdir().unwrap();
        let layer = compressed(&archive(&[
            ArchiveEntry("plugin/", EntryType::Directory, 0o700, ""),
            file("./plugin/plugin"),
            ArchiveEntry("plugin/data/LICENSE", EntryType::Regular, 0o6666, "terms"),
            ArchiveEntry("plugin/tool", EntryType::Regular, 0o700, ""),
            file("etc/elsewhere"),
        ]));
        unpack(layer.as_slice(), dir.path()).unwrap();
        let mode = |name: &str| dir.path().join(name).metadata().unwrap().permissions().mode() & 0o7777;
        let modes = [mode("plugin"), mode("data/LICENSE"), mode("tool")];
        assert_eq!(modes, [0o755, 0o644, 0o755]);
        assert_eq!(std::fs::read_to_string(dir.path().join("data/LICENSE")).unwrap(), "terms");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_leaves_the_folder_or_is_no_file_is_refused() {
        let link = |kind| ArchiveEntry("plugin/link", kind, 0o777, "/etc/passwd");
        for (entry, said) in [
            (file("plugin/../../outside"), "`..`"),
            (file("../outside"), "`..`"),
            (file("/outside"), "an absolute path"),
            (link(EntryType::Symlink), "a link"),
            (link(EntryType::Link), "a link"),
            (ArchiveEntry("plugin/fifo", EntryType::Fifo, 0o644, ""), "neither a file nor a folder"),
            (ArchiveEntry("plugin/device", EntryType::Char, 0o644, ""), "neither a file nor a folder"),
            (file("plugin/a\u{1b}[2J"), "not plain text"),
        ] {
            let error = refused(&compressed(&archive(&[file("plugin/plugin"), entry])));
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn a_damaged_or_incomplete_archive_is_refused() {
        let good = compressed(&archive(&[file("plugin/plugin")]));
        let mut damaged = good.clone();
        let sum = damaged.len() - 6;
        damaged[sum] ^= 1;
        for (layer, said) in [
            (damaged.as_slice(), "damaged"),
            (&good[..good.len() - 4], "damaged"),
            (b"text".as_slice(), "damaged"),
            (&compressed(&archive(&[file("plugin/other"), file("plugin")])), "plugin/plugin"),
            (&compressed(&archive(&[file("plugin/plugin"), file("plugin/plugin")])), "cannot be unpacked"),
        ] {
            let error = refused(layer);
            assert!(error.contains(said), "{said}: {error}");
        }
        let large = vec![0; 2 * usize::try_from(FREE_BYTES).unwrap()];
        let mut header = Header::new_ustar();
        header.set_path("plugin/plugin").unwrap();
        header.set_size(large.len() as u64);
        header.set_cksum();
        let mut builder = Builder::new(Vec::new());
        builder.append(&header, large.as_slice()).unwrap();
        let error = refused(&compressed(&builder.into_inner().unwrap()));
        assert!(error.contains("30 times as large"), "{error}");
        let many: Vec<ArchiveEntry> = (0..=MAX_ENTRIES).map(|_| file("elsewhere")).collect();
        assert!(refused(&compressed(&archive(&many))).contains("more than"));
    }
}
