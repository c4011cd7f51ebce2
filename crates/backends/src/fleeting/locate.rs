//! Finds the plugin that a pool's key `plugin` names: by path, on PATH, or among the installed plugins.

use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::reference::{PluginName, Reference, ReferenceError, Version};

/// Names the plugin directory.
pub const VARIABLE: &str = "FLEETING_PLUGIN_PATH";
/// The plugin directory without that variable, in the home directory.
const DIRECTORY: &str = ".config/fleeting/plugins";
/// The executable file of an installed version.
pub const PROGRAM: &str = "plugin";
/// What a program on PATH is called.
const PREFIX: &str = "fleeting-plugin-";
/// Folders below one another in the plugin directory. More is not of plugins.
const MAX_DEPTH: usize = 16;

/// Where plugins may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The plugin directory; `None`: neither FLEETING_PLUGIN_PATH nor a home directory names it.
    pub plugins: Option<PathBuf>,
    /// The directories of PATH.
    pub path: Vec<PathBuf>,
}

/// What the key `plugin` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An absolute path.
    Path(PathBuf),
    /// A bare name on PATH; if it is not there, a reference.
    Bare(String, Reference),
    Reference(Reference),
}

/// The plugin that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The executable file. Absolute.
    pub program: PathBuf,
    /// `None`: a file by its path, or on PATH.
    pub installed: Option<Installed>,
}

/// One version in the plugin directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Installed {
    pub plugin: PluginName,
    pub version: Version,
    /// The executable file. Absolute.
    pub program: PathBuf,
}

/// Why no plugin was found. Each message names what was looked for, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    #[error("plugin `{0}` is missing, or is not an executable file")]
    Path(PathBuf),
    #[error("plugin `{name}` is not on PATH ({path}), and {missing}")]
    Bare { name: String, path: String, missing: Box<LocateError> },
    #[error("plugin `{reference}` is not installed: `{folder}` has no version that it allows{others}")]
    Missing { reference: Box<Reference>, directory: PathBuf, folder: PathBuf, others: String },
    #[error(
        "plugin `{0}` cannot be found: {VARIABLE} is not an absolute path, and this account has no home directory"
    )]
    NoDirectory(Box<Reference>),
}

impl LocateError {
    /// What the operator does about it.
    pub fn help(&self) -> String {
        match self {
            Self::Path(_) => "check the path; an installed plugin is named like `aws:1`".to_owned(),
            Self::Bare { .. } => "install it on PATH, or write the path of its file".to_owned(),
            Self::Missing { reference, directory, .. } => {
                format!("install it: `greenroom plugin install {reference} --dir {}`", directory.display())
            }
            Self::NoDirectory(_) => format!("set {VARIABLE} for the keeper"),
        }
    }
}

impl Places {
    /// Those of this process.
    pub fn of_process() -> Self {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        // A system service has no HOME.
        let home = || absolute("HOME").or_else(|| home(&std::fs::read_to_string("/etc/passwd").ok()?));
        Self {
            plugins: absolute(VARIABLE).or_else(|| Some(home()?.join(DIRECTORY))),
            path: std::env::var_os("PATH")
                .map_or_else(Vec::new, |path| std::env::split_paths(&path).collect()),
        }
    }
}

/// The home directory of this process's account, by the lines of `/etc/passwd`.
fn home(accounts: &str) -> Option<PathBuf> {
    let id = rustix::process::getuid().as_raw().to_string();
    let fields = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let own = fields.into_iter().find(|fields| fields.get(2) == Some(&id.as_str()))?;
    own.get(5).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Why a value of `plugin` names none. Its sentence has no subject: that is the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("is {0:?}, which contains a control character")]
    Control(String),
    #[error("is the relative path `{0}`, expected a path that begins with `/`")]
    Relative(String),
    #[error("is `{text}`, which {wrong}")]
    Reference { text: String, wrong: ReferenceError },
}

impl Source {
    /// Reads the key's value.
    ///
    /// A path begins with `/`. GitLab Runner prefers any existing path, so that a file `aws` in its working directory
    /// replaces the plugin `aws`. Here, a name never means a file of the working directory.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        if text.contains(char::is_control) {
            return Err(SourceError::Control(text.to_owned()));
        }
        let path = Path::new(text);
        if path.is_absolute() {
            return Ok(Self::Path(path.to_owned()));
        }
        if text.starts_with("./") || text.starts_with("../") {
            return Err(SourceError::Relative(text.to_owned()));
        }
        let reference = Reference::parse(text, None)
            .map_err(|wrong| SourceError::Reference { text: text.to_owned(), wrong })?;
        let is_bare = text.starts_with(PREFIX) && !text.contains(['/', ':']);
        Ok(if is_bare { Self::Bare(text.to_owned(), reference) } else { Self::Reference(reference) })
    }

    /// The reference of an installed plugin; `None`: the value is a path.
    pub fn reference(&self) -> Option<&Reference> {
        match self {
            Self::Path(_) => None,
            Self::Bare(_, reference) | Self::Reference(reference) => Some(reference),
        }
    }
}

/// As the key has it, if that is as short as it can be written.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Bare(name, _) => f.write_str(name),
            Self::Reference(reference) => reference.fmt(f),
        }
    }
}

/// Finds the plugin: of an installed one, the newest version that the reference allows.
pub fn locate(source: &Source, places: &Places) -> Result<Located, LocateError> {
    match source {
        Source::Path(path) if is_program(path) => Ok(Located { program: path.clone(), installed: None }),
        Source::Path(path) => Err(LocateError::Path(path.clone())),
        Source::Reference(reference) => newest(reference, places),
        Source::Bare(name, reference) => {
            // A relative directory of PATH would mean a file of the working directory.
            let directories = || places.path.iter().filter(|directory| directory.is_absolute());
            match directories().map(|directory| directory.join(name)).find(|program| is_program(program)) {
                Some(program) => Ok(Located { program, installed: None }),
                None => newest(reference, places).map_err(|missing| LocateError::Bare {
                    name: name.clone(),
                    path: directories().map(|at| at.display().to_string()).collect::<Vec<_>>().join(":"),
                    missing: Box::new(missing),
                }),
            }
        }
    }
}

fn newest(reference: &Reference, places: &Places) -> Result<Located, LocateError> {
    let directory =
        places.plugins.as_ref().ok_or_else(|| LocateError::NoDirectory(Box::new(reference.clone())))?;
    match newest_in(directory, reference) {
        Some(newest) => Ok(Located { program: newest.program.clone(), installed: Some(newest) }),
        None => Err(LocateError::Missing {
            reference: Box::new(reference.clone()),
            directory: directory.clone(),
            folder: directory.join(reference.plugin.folder()),
            others: others(&versions(directory, &reference.plugin)),
        }),
    }
}

/// The newest installed version that a reference allows.
pub fn newest_in(directory: &Path, reference: &Reference) -> Option<Installed> {
    let versions = versions(directory, &reference.plugin);
    versions.into_iter().rfind(|installed| reference.constraint.allows(&installed.version))
}

fn others(versions: &[Installed]) -> String {
    let names: Vec<String> = versions.iter().map(|installed| installed.version.to_string()).collect();
    if names.is_empty() { String::new() } else { format!(", only {}", names.join(", ")) }
}

/// The installed versions of a plugin, the oldest first.
pub fn versions(directory: &Path, plugin: &PluginName) -> Vec<Installed> {
    let folder = directory.join(plugin.folder());
    let mut found: Vec<Installed> = entries(&folder)
        .iter()
        .filter_map(|entry| {
            let version = Version::of_folder(entry.file_name().to_str()?)?;
            let program = entry.path().join(PROGRAM);
            is_program(&program).then(|| Installed { plugin: plugin.clone(), version, program })
        })
        .collect();
    found.sort();
    found
}

/// All installed plugins, in order.
pub fn installed(directory: &Path) -> Vec<Installed> {
    let mut found = Vec::new();
    walk(directory, Path::new(""), &mut found);
    found.sort();
    found
}

/// Adds the plugins at and below a folder, which is relative to the plugin directory.
fn walk(directory: &Path, folder: &Path, found: &mut Vec<Installed>) {
    if let Some(plugin) = PluginName::of_folder(folder) {
        found.extend(versions(directory, &plugin));
    }
    if folder.components().count() >= MAX_DEPTH {
        return;
    }
    for entry in entries(&directory.join(folder)) {
        // Not through links, which may lead in a circle.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(directory, &folder.join(entry.file_name()), found);
        }
    }
}

/// What a folder contains; nothing if it cannot be read.
fn entries(folder: &Path) -> Vec<std::fs::DirEntry> {
    std::fs::read_dir(folder).map(|entries| entries.flatten().collect()).unwrap_or_default()
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
#[path = "locate_tests.rs"]
mod tests;
