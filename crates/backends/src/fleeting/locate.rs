//! Finds the plugin that a pool's key `plugin` names: by path, on PATH, or among the installed plugins.

use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::reference::{PluginName, PluginVersion, Reference, ReferenceError};

/// Names the plugin directory.
pub const VARIABLE: &str = "FLEETING_PLUGIN_PATH";
/// The plugin directory without that variable, in the home directory.
const DIRECTORY: &str = ".config/fleeting/plugins";
/// The executable file of an installed version.
pub const PROGRAM: &str = "plugin";
/// Begin of the name of a plugin on PATH.
const PREFIX: &str = "fleeting-plugin-";
/// Folders below one another in the plugin directory. More is not of plugins.
const MAX_DEPTH: usize = 16;

/// The places where [`locate`] looks for plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginPlaces {
    /// The plugin directory; `None`: neither FLEETING_PLUGIN_PATH nor a home directory names it.
    pub plugins: Option<PathBuf>,
    /// The directories of PATH.
    pub path: Vec<PathBuf>,
}

/// Value of the key `plugin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginSource {
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
    pub version: PluginVersion,
    /// The executable file. Absolute.
    pub program: PathBuf,
}

/// The reason [`locate`] found no plugin. Each message names what was looked for, and where.
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
    /// Remedy for the operator.
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

impl PluginPlaces {
    /// Places of this process's environment.
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

/// The reason a value of `plugin` names none. Its sentence has no subject: that is the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("is {0:?}, which contains a control character")]
    Control(String),
    #[error("is the relative path `{0}`, expected a path that begins with `/`")]
    Relative(String),
    #[error("is `{text}`, which {wrong}")]
    Reference { text: String, wrong: ReferenceError },
}

impl PluginSource {
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

/// Shows the source as the key has it, if that is as short as it can be written.
impl fmt::Display for PluginSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Bare(name, _) => f.write_str(name),
            Self::Reference(reference) => reference.fmt(f),
        }
    }
}

/// Finds the plugin: of an installed one, the newest version that the reference allows.
pub fn locate(source: &PluginSource, places: &PluginPlaces) -> Result<Located, LocateError> {
    match source {
        PluginSource::Path(path) if is_program(path) => {
            Ok(Located { program: path.clone(), installed: None })
        }
        PluginSource::Path(path) => Err(LocateError::Path(path.clone())),
        PluginSource::Reference(reference) => newest(reference, places),
        PluginSource::Bare(name, reference) => {
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

fn newest(reference: &Reference, places: &PluginPlaces) -> Result<Located, LocateError> {
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
            let version = PluginVersion::of_folder(entry.file_name().to_str()?)?;
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

/// Entries of a folder; none if it cannot be read.
fn entries(folder: &Path) -> Vec<std::fs::DirEntry> {
    std::fs::read_dir(folder).map(|entries| entries.flatten().collect()).unwrap_or_default()
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scene {
        dir: tempfile::TempDir,
        places: PluginPlaces,
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let path = vec!["".into(), "relative".into(), dir.path().join("bin"), dir.path().join("sbin")];
            let places = PluginPlaces { plugins: Some(dir.path().join("plugins")), path };
            Self { dir, places }
        }

        fn file(&self, path: &str, mode: u32) -> PathBuf {
            let path = self.dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        }

        fn version(&self, folder: &str, version: &str) -> PathBuf {
            self.file(&format!("plugins/{folder}/{version}/plugin"), 0o755)
        }

        fn find(&self, text: &str) -> Result<PathBuf, LocateError> {
            locate(&PluginSource::parse(text).unwrap(), &self.places).map(|located| located.program)
        }
    }

    const OFFICIAL: &str = "registry.gitlab.com/gitlab-org/fleeting/plugins";

    #[test]
    fn the_newest_allowed_version_is_found() {
        let scene = Scene::new();
        let aws = format!("{OFFICIAL}/aws");
        for version in ["0.9.0", "1.2.0", "1.10.0", "1.10.1-rc.1", "2.0.0-beta"] {
            scene.version(&aws, version);
        }
        // Neither half a version nor one without a program counts.
        scene.file(&format!("plugins/{aws}/3.0.0/README"), 0o644);
        scene.file(&format!("plugins/{aws}/3.0.1/plugin"), 0o644);
        scene.version(&aws, "4.0");
        for (text, version) in [
            ("aws", "1.10.0"),
            ("aws:latest", "1.10.0"),
            ("aws:1", "1.10.0"),
            ("aws:1.2", "1.2.0"),
            ("aws:0", "0.9.0"),
            ("aws:2.0.0-beta", "2.0.0-beta"),
            ("gitlab-org/fleeting/plugins/aws:1", "1.10.0"),
            ("registry.gitlab.com/gitlab-org/fleeting/plugins/aws", "1.10.0"),
        ] {
            let expected = scene.dir.path().join(format!("plugins/{aws}/{version}/plugin"));
            assert_eq!(scene.find(text), Ok(expected), "{text}");
        }
        let error = scene.find("aws:3").unwrap_err();
        let message = error.to_string();
        for part in ["`aws:3`", &aws, "only 0.9.0, 1.2.0, 1.10.0, 1.10.1-rc.1, 2.0.0-beta"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        let help =
            format!("greenroom plugin install aws:3 --dir {}", scene.dir.path().join("plugins").display());
        assert!(error.help().contains(&help), "{}", error.help());
    }

    #[test]
    fn a_path_is_a_file_that_may_be_executed() {
        let scene = Scene::new();
        let program = scene.file("own/plugin", 0o755);
        let plain = scene.file("own/notes", 0o644);
        assert_eq!(scene.find(program.to_str().unwrap()), Ok(program));
        let folder = scene.dir.path().join("own");
        for path in [plain, folder, "/nonexistent".into()] {
            assert_eq!(scene.find(path.to_str().unwrap()), Err(LocateError::Path(path)));
        }
        for relative in ["./plugin", "../plugin", "a\nb", "/a\0b", ""] {
            assert!(PluginSource::parse(relative).is_err(), "{relative:?}");
        }
    }

    #[test]
    fn a_name_never_means_a_file_of_the_working_directory() {
        // The tests run in the package's directory, which has a folder `src` and a file `Cargo.toml`.
        let scene = Scene::new();
        assert!(Path::new("Cargo.toml").exists() && Path::new("src/lib.rs").exists());
        for text in ["Cargo.toml", "src/lib.rs"] {
            let error = locate(&PluginSource::parse(text).unwrap(), &scene.places).unwrap_err();
            assert!(matches!(error, LocateError::Missing { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn a_bare_name_is_on_path_or_installed() {
        let scene = Scene::new();
        scene.file("bin/fleeting-plugin-a", 0o644);
        let first = scene.file("sbin/fleeting-plugin-a", 0o755);
        assert_eq!(scene.find("fleeting-plugin-a"), Ok(first));
        // Any other name is not looked for on PATH.
        scene.file("bin/aws", 0o755);
        assert!(scene.find("aws").is_err());
        let error = scene.find("fleeting-plugin-b").unwrap_err().to_string();
        let path = format!("({0}/bin:{0}/sbin)", scene.dir.path().display());
        assert!(error.contains(&path) && error.contains(OFFICIAL), "{error}");
        let installed = scene.version(&format!("{OFFICIAL}/fleeting-plugin-b"), "1.0.0");
        assert_eq!(scene.find("fleeting-plugin-b"), Ok(installed));
    }

    #[test]
    fn without_a_home_the_error_says_so() {
        let places = PluginPlaces { plugins: None, path: Vec::new() };
        let error = locate(&PluginSource::parse("aws").unwrap(), &places).unwrap_err();
        assert!(error.to_string().contains("FLEETING_PLUGIN_PATH"), "{error}");
    }

    #[test]
    fn all_installed_plugins_are_listed_and_links_are_not_followed() {
        let scene = Scene::new();
        scene.version(&format!("{OFFICIAL}/aws"), "1.2.0");
        scene.version(&format!("{OFFICIAL}/aws"), "1.10.0");
        scene.version("127.0.0.1:5000/!team/own", "0.1.0-!r!c.1");
        scene.version("ci.example/own", "3.0.0");
        // A version's own folders are no plugins.
        scene.file("plugins/ci.example/own/3.0.0/lib/1.0.0/data", 0o644);
        let plugins = scene.places.plugins.clone().unwrap();
        std::os::unix::fs::symlink(&plugins, plugins.join("ci.example/circle")).unwrap();
        let found: Vec<String> =
            installed(&plugins).iter().map(|one| format!("{} {}", one.plugin, one.version)).collect();
        assert_eq!(
            found,
            [
                "127.0.0.1:5000/Team/own 0.1.0-RC.1",
                "ci.example/own 3.0.0",
                &format!("{OFFICIAL}/aws 1.2.0"),
                &format!("{OFFICIAL}/aws 1.10.0"),
            ]
        );
        assert!(installed(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn the_home_directory_is_that_of_the_account() {
        let id = rustix::process::getuid().as_raw();
        let accounts =
            |path| format!("other:x:{id}7:{id}::/wrong:/bin/sh\nbad\nown:x:{id}:0:a name:{path}:/bin/sh\n");
        assert_eq!(home(&accounts("/home/own")), Some("/home/own".into()));
        assert_eq!(home(&accounts("relative")), None);
        assert_eq!(home(""), None);
    }
}
