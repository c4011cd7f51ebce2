//! Installs a plugin from a registry into the plugin directory, whole or not at all.
//!
//! Everything is written into a folder beside the plugins first, under a lock, and then renamed: a killed installation
//! leaves a folder that the next one removes.

use std::io;
use std::path::{Path, PathBuf};

use greenroom_system::remove;
use greenroom_system::threads::flock::{Kind, try_lock};

use super::Digest;
use super::credentials::{Credentials, CredentialsError};
use super::document::{self, LayoutError, Platform, PluginLayer};
use super::lock_file::{LockFile, LockFileError, Locked};
use super::registry::{Registry, RegistryError};
use super::unpack::{self, UnpackError};
use crate::fleeting::locate::{Installed, PROGRAM, newest_in, versions};
use crate::fleeting::reference::{PluginVersion, Reference};

/// The folder into which an installation is written before it is renamed.
const PARTIAL: &str = ".greenroom-partial";
/// The TLS library's word for a server without TLS.
const NO_TLS: &str = "InvalidContentType";

/// One installation.
#[derive(Debug)]
pub struct InstallRequest<'a> {
    /// The plugin directory. Absolute.
    pub directory: &'a Path,
    pub reference: &'a Reference,
    /// Installs the newest version that the registry has, also if another one is installed or locked.
    pub upgrade: bool,
    /// Allows plain HTTP.
    pub insecure: bool,
    pub platform: &'a Platform,
}

/// Progress of an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallProgress<'a> {
    /// Another installation holds the lock.
    Waiting,
    Found {
        version: &'a PluginVersion,
        bytes: u64,
    },
    Downloaded {
        bytes: u64,
        of: u64,
    },
}

/// An installed plugin, found or new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    pub installed: Installed,
    /// False if it was there before.
    pub is_new: bool,
}

/// The reason [`install`] has not installed a plugin.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    LockFile(#[from] LockFileError),
    #[error("registry `{host}` has no `{what}`{near}")]
    NoTag { host: String, what: String, near: String },
    #[error("plugin `{0}` {1}")]
    Layout(String, #[source] LayoutError),
    #[error("plugin `{0}` {1}")]
    Unpack(String, #[source] UnpackError),
    #[error("the tag `{tag}` of plugin `{reference}` contains version {version}")]
    OtherVersion { reference: String, tag: String, version: String },
    #[error(
        "the registry's plugin {plugin} is not the one in the lock file `{}`: it has the digest {found}, the lock \
         file {locked}", path.display()
    )]
    Locked { plugin: String, found: Digest, locked: Digest, path: PathBuf },
    #[error("the installed plugin `{}` is not the one in the lock file `{}`", program.display(), path.display())]
    Changed { program: PathBuf, path: PathBuf },
    #[error("`{}` exists, but has no program `{PROGRAM}`", .0.display())]
    Occupied(PathBuf),
    #[error("cannot write into the plugin directory")]
    Write(#[source] io::Error),
}

impl InstallError {
    /// Remedy for the operator.
    pub fn help(&self) -> Option<String> {
        let help = match self {
            Self::Registry(RegistryError::Unreachable { host, cause }) if cause.contains(NO_TLS) => {
                format!("`{host}` answers without TLS; `--insecure` allows plain HTTP")
            }
            Self::Registry(RegistryError::Unreachable { .. }) => {
                "check the network, `HTTPS_PROXY`, and the certificates (`SSL_CERT_FILE`)".to_owned()
            }
            Self::Registry(RegistryError::Denied { host, helper: Some(_), .. }) => format!(
                "correct the helper, which Docker's file names in `credHelpers` or `credsStore`, or write the account \
                 into `auths` for `{host}`"
            ),
            Self::Registry(RegistryError::Denied { host, .. }) => {
                format!(
                    "log in with `docker login {host}` or `skopeo login {host} --authfile ~/.docker/config.json`"
                )
            }
            Self::Registry(RegistryError::Content { .. }) => {
                "repeat it; if it fails again, the registry or a proxy on the way changes contents".to_owned()
            }
            Self::Locked { path, .. } => format!(
                "ask the plugin's authors whether they have replaced this version; to accept the new content, remove its \
                 entry from `{}`",
                path.display()
            ),
            Self::Changed { program, .. } => format!(
                "remove the folder `{}`, and install the plugin again",
                program.parent().unwrap_or(program).display()
            ),
            Self::Occupied(folder) => format!("remove the folder `{}`", folder.display()),
            Self::Write(_) => {
                "name another directory with `--dir DIR`, or run it as the directory's owner".to_owned()
            }
            _ => return None,
        };
        Some(help)
    }
}

/// Installs the version that the reference names; an installed one that it allows is enough, unless it is an upgrade.
pub async fn install(
    request: &InstallRequest<'_>,
    credentials: impl AsyncFnOnce() -> Result<Credentials, CredentialsError>,
    report: &dyn Fn(InstallProgress<'_>),
) -> Result<Installation, InstallError> {
    let InstallRequest { directory, reference, .. } = *request;
    fs_err::create_dir_all(directory).map_err(InstallError::Write)?;
    let _only = lock(directory, report).map_err(InstallError::Write)?;
    let locked = LockFile::read(directory)?;
    if !request.upgrade
        && let Some(installed) = newest_in(directory, reference)
    {
        return present(request, &locked, installed);
    }
    let registry = Registry::new(&reference.plugin, credentials().await?, request.insecure)?;
    let tag = match locked.newest(reference) {
        Some(version) if !request.upgrade => version.to_string(),
        _ => reference.constraint.to_string(),
    };
    let (index, digest) = tagged(request, &registry, &tag).await?;
    let layout = |error| InstallError::Layout(reference.to_string(), error);
    let named = document::manifest_for(&index, request.platform).map_err(layout)?;
    let manifest = registry.manifest(&named).await?;
    let layer = document::plugin_layer(&manifest).map_err(layout)?;
    let version = layer.version.clone();
    if !reference.constraint.allows(&version) {
        let reference = reference.to_string();
        let version = version.to_string();
        return Err(InstallError::OtherVersion { reference, tag, version });
    }
    let name = &reference.plugin;
    if let Some(before) = locked.index(name, &version).filter(|before| **before != digest) {
        let plugin = format!("{} {version}", name.short());
        let path = locked.path.clone();
        let locked = before.clone();
        return Err(InstallError::Locked { plugin, found: digest, locked, path });
    }
    if let Some(installed) = versions(directory, name).into_iter().find(|one| one.version == version) {
        return present(request, &locked, installed);
    }
    report(InstallProgress::Found { version: &version, bytes: layer.content.size });
    let written = write(request, &registry, &layer, report).await?;
    let entry = Locked {
        name: name.clone(),
        version,
        platform: request.platform.to_string(),
        reference: reference.to_string(),
        index: digest,
        manifest: named.digest,
        layer: layer.content.digest,
        program: written.program,
    };
    keep(request, locked, entry, &written.folder)
}

/// An index by its tag. Where a mirror lacks a tag such as `1`, its newest version that the reference allows.
async fn tagged(
    request: &InstallRequest<'_>,
    registry: &Registry,
    tag: &str,
) -> Result<(Vec<u8>, Digest), InstallError> {
    let (host, what) = match registry.tagged(tag).await {
        Err(RegistryError::Missing { host, what }) => (host, what),
        other => return Ok(other?),
    };
    let tags = registry.tags().await;
    let allowed = tags.iter().filter_map(|tag| PluginVersion::parse(tag));
    let newest = allowed.filter(|version| request.reference.constraint.allows(version)).max();
    match newest.map(|version| version.to_string()).filter(|newest| newest != tag) {
        Some(newest) => Ok(registry.tagged(&newest).await?),
        None => Err(InstallError::NoTag { host, what, near: near(tag, &tags) }),
    }
}

/// The tags to choose from, the newest first.
fn near(tag: &str, tags: &[String]) -> String {
    /// More are no help.
    const SHOWN: usize = 5;
    let mut versions: Vec<PluginVersion> = tags.iter().filter_map(|tag| PluginVersion::parse(tag)).collect();
    let major = tag.split('.').next().unwrap_or(tag);
    // Those of the same major version first.
    versions.sort_by_key(|version| {
        (version.to_string().split('.').next() != Some(major), std::cmp::Reverse(version.clone()))
    });
    let shown: Vec<String> = versions.iter().take(SHOWN).map(ToString::to_string).collect();
    match shown.len() {
        0 => String::new(),
        _ => format!(", but {}{}", shown.join(", "), if versions.len() > SHOWN { ", …" } else { "" }),
    }
}

/// An installed version, unless its program differs from the one in the lock file.
fn present(
    request: &InstallRequest<'_>,
    locked: &LockFile,
    installed: Installed,
) -> Result<Installation, InstallError> {
    match locked.entry(&installed.plugin, &installed.version, &request.platform.to_string()) {
        Some(entry) if Digest::of_file(&installed.program).map_err(InstallError::Write)? != entry.program => {
            Err(InstallError::Changed { program: installed.program, path: locked.path.clone() })
        }
        _ => Ok(Installation { installed, is_new: false }),
    }
}

/// Files of a plugin, written beside the plugins.
struct Written {
    folder: PathBuf,
    program: Digest,
}

/// Downloads and unpacks a layer into the folder beside the plugins.
async fn write(
    request: &InstallRequest<'_>,
    registry: &Registry,
    layer: &PluginLayer,
    report: &dyn Fn(InstallProgress<'_>),
) -> Result<Written, InstallError> {
    let partial = request.directory.join(PARTIAL);
    let folder = partial.join("files");
    remove::tree(&partial).map_err(InstallError::Write)?;
    fs_err::create_dir_all(&folder).map_err(InstallError::Write)?;
    let archive = partial.join("layer");
    let mut file = fs_err::File::create(&archive).map_err(InstallError::Write)?;
    let of = layer.content.size;
    let progress = |bytes| report(InstallProgress::Downloaded { bytes, of });
    registry.blob(&layer.content, &mut file, &progress).await?;
    drop(file);
    let unpacked = fs_err::File::open(&archive).map_err(InstallError::Write)?;
    unpack::unpack(io::BufReader::new(unpacked), &folder)
        .map_err(|error| InstallError::Unpack(request.reference.to_string(), error))?;
    let program = Digest::of_file(&folder.join(PROGRAM)).map_err(InstallError::Write)?;
    Ok(Written { folder, program })
}

/// Records a version in the lock file, and then makes it appear in one step. Killed in between, the version is missing,
/// and the next installation accepts the same content only.
fn keep(
    request: &InstallRequest<'_>,
    mut locked: LockFile,
    entry: Locked,
    written: &Path,
) -> Result<Installation, InstallError> {
    let plugin = entry.name.clone();
    let version = entry.version.clone();
    let parent = request.directory.join(plugin.folder());
    let folder = parent.join(version.folder());
    if std::fs::symlink_metadata(&folder).is_ok() {
        return Err(InstallError::Occupied(folder));
    }
    let renamed = || {
        locked.record(entry)?;
        fs_err::create_dir_all(&parent)?;
        fs_err::rename(written, &folder)?;
        unpack::sync(&parent)?;
        unpack::sync(request.directory)?;
        remove::tree(&request.directory.join(PARTIAL))
    };
    renamed().map_err(InstallError::Write)?;
    let program = folder.join(PROGRAM);
    Ok(Installation { installed: Installed { plugin, version, program }, is_new: true })
}

/// Locks the plugin directory against other installations; the kernel drops the lock with the process.
fn lock(directory: &Path, report: &dyn Fn(InstallProgress<'_>)) -> io::Result<std::fs::File> {
    let file = std::fs::File::open(directory)?;
    if !try_lock(&file, Kind::Exclusive)? {
        report(InstallProgress::Waiting);
        file.lock()?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_tags_are_versions_of_the_same_kind_first() {
        let tags: Vec<String> =
            ["latest", "1", "2.1.0", "0.9.0", "1.0.0", "1.10.0", "1.9.0", "3.0.0"].map(str::to_owned).into();
        assert_eq!(near("1.2.3", &tags), ", but 1.10.0, 1.9.0, 1.0.0, 3.0.0, 2.1.0, …");
        assert_eq!(near("5", &tags[..4]), ", but 2.1.0, 0.9.0");
        assert_eq!(near("latest", &tags[..2]), "");
    }
}
