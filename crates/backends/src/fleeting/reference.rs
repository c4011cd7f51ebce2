//! Names and versions of plugins: `[[registry/]repository/]name[:constraint]`, and their folders.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The registry of a name without one.
const REGISTRY: &str = "registry.gitlab.com";
/// The repository of a bare name.
const REPOSITORY: &str = "gitlab-org/fleeting/plugins";
/// Longer names do not exist, and would not fit into a file system.
const MAX_LENGTH: usize = 255;

/// A plugin, whatever its version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PluginName {
    /// Host, and perhaps port.
    pub registry: String,
    /// Path in the registry; the last part is the plugin's own name.
    pub path: String,
}

/// A semantic version, as a tag can have it: without build metadata.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PluginVersion(semver::Version);

/// The versions that a reference allows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Constraint {
    Latest,
    Major(u64),
    Minor(u64, u64),
    /// The only one that allows a prerelease.
    Exact(PluginVersion),
}

/// A plugin, and the allowed versions of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    pub plugin: PluginName,
    pub constraint: Constraint,
}

/// The reason a text is no [`Reference`]. Its sentence has no subject: that is the text, and the caller knows where it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("has {0} bytes, expected 1 to {MAX_LENGTH}")]
    Length(usize),
    #[error("has the part {0:?}, expected letters, digits, `.`, `_` and `-` between letters or digits")]
    Part(String),
    #[error("has the registry {0:?}, expected a host, and perhaps `:` and a port")]
    Registry(String),
    #[error("has the version {0:?}, expected `latest`, `1`, `1.2` or `1.2.3`")]
    Version(String),
}

impl Reference {
    /// Reads a reference. `registry` replaces GitLab.com's for names without a registry.
    pub fn parse(text: &str, registry: Option<&str>) -> Result<Self, ReferenceError> {
        if text.is_empty() || text.len() > MAX_LENGTH {
            return Err(ReferenceError::Length(text.len()));
        }
        let name_at = text.rfind('/').map_or(0, |slash| slash + 1);
        let (name, constraint) = match text[name_at..].split_once(':') {
            Some((name, constraint)) => (&text[..name_at + name.len()], Constraint::parse(constraint)?),
            None => (text, Constraint::Latest),
        };
        Ok(Self { plugin: PluginName::parse(name, registry)?, constraint })
    }
}

impl PluginName {
    fn parse(text: &str, registry: Option<&str>) -> Result<Self, ReferenceError> {
        let (registry, path) = match text.split_once('/') {
            Some((first, rest)) if is_host(first) => (first.to_owned(), rest.to_owned()),
            other => {
                let path = if other.is_some() { text.to_owned() } else { format!("{REPOSITORY}/{text}") };
                (registry.unwrap_or(REGISTRY).to_owned(), path)
            }
        };
        check_registry(&registry)?;
        match path.split('/').find(|part| !is_plain(part)) {
            Some(part) => Err(ReferenceError::Part(part.to_owned())),
            None => Ok(Self { registry, path }),
        }
    }

    /// The name without registry and repository.
    pub fn short(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The folder of all versions, relative to the plugin directory.
    pub fn folder(&self) -> PathBuf {
        PathBuf::from(escaped(&format!("{}/{}", self.registry, self.path)))
    }

    /// The plugin that a folder belongs to; `None`: the folder is of something else.
    pub fn of_folder(folder: &Path) -> Option<Self> {
        Self::try_from(unescaped(folder.to_str()?)?).ok()
    }
}

impl PluginVersion {
    pub fn parse(text: &str) -> Option<Self> {
        let version = semver::Version::parse(text).ok()?;
        (version.build.is_empty() && text.len() <= MAX_LENGTH).then_some(Self(version))
    }

    /// True for what is no prerelease.
    pub fn is_release(&self) -> bool {
        self.0.pre.is_empty()
    }

    /// The folder's name.
    pub fn folder(&self) -> String {
        escaped(&self.to_string())
    }

    /// The version that a folder is named after.
    pub fn of_folder(name: &str) -> Option<Self> {
        Self::parse(&unescaped(name)?)
    }
}

impl Constraint {
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let numbers: Option<Vec<u64>> = text.split('.').map(part).collect();
        match (text, numbers.as_deref()) {
            ("latest", _) => Ok(Self::Latest),
            (_, Some([major])) => Ok(Self::Major(*major)),
            (_, Some([major, minor])) => Ok(Self::Minor(*major, *minor)),
            _ => PluginVersion::parse(text)
                .map(Self::Exact)
                .ok_or_else(|| ReferenceError::Version(text.to_owned())),
        }
    }

    pub fn allows(&self, version: &PluginVersion) -> bool {
        let semver::Version { major, minor, .. } = version.0;
        let fits = match self {
            Self::Exact(exact) => return exact == version,
            Self::Latest => true,
            Self::Major(wanted) => major == *wanted,
            Self::Minor(wanted, second) => (major, minor) == (*wanted, *second),
        };
        fits && version.is_release()
    }
}

/// A first part that names a registry: it has a dot or a port, or is `localhost`.
fn is_host(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

fn check_registry(registry: &str) -> Result<(), ReferenceError> {
    let (host, port) = registry.split_once(':').map_or((registry, None), |(host, port)| (host, Some(port)));
    if is_plain(host) && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0)) {
        return Ok(());
    }
    Err(ReferenceError::Registry(registry.to_owned()))
}

/// A part of a name. Never `.` or `..`, never empty: it cannot leave its folder.
fn is_plain(part: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    part.chars().all(inner)
        && edge(part.chars().next())
        && edge(part.chars().next_back())
        && !part.contains("..")
}

/// A number without leading zeros, so that each version has one name.
fn part(text: &str) -> Option<u64> {
    let is_digits = text.chars().all(|c| c.is_ascii_digit());
    (is_digits && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok()).flatten()
}

/// Capitals become `!` and the small letter: file systems may ignore case.
fn escaped(text: &str) -> String {
    let mut name = String::with_capacity(text.len() + 4);
    for c in text.chars() {
        if c.is_ascii_uppercase() {
            name.push('!');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// The reverse; `None`: no name is escaped like this.
fn unescaped(name: &str) -> Option<String> {
    let mut text = String::with_capacity(name.len());
    let mut letters = name.chars();
    while let Some(c) = letters.next() {
        match c {
            '!' => text.push(letters.next().filter(char::is_ascii_lowercase)?.to_ascii_uppercase()),
            'A'..='Z' => return None,
            other => text.push(other),
        }
    }
    Some(text)
}

impl fmt::Display for PluginVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Major(major) => write!(f, "{major}"),
            Self::Minor(major, minor) => write!(f, "{major}.{minor}"),
            Self::Exact(version) => write!(f, "{version}"),
        }
    }
}

/// A recorded text is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}")]
pub struct RecordedError {
    text: String,
    what: &'static str,
}

/// The whole name, with the registry.
impl TryFrom<String> for PluginName {
    type Error = RecordedError;

    fn try_from(text: String) -> Result<Self, RecordedError> {
        match text.split_once('/') {
            Some((registry, path)) if check_registry(registry).is_ok() && path.split('/').all(is_plain) => {
                Ok(Self { registry: registry.to_owned(), path: path.to_owned() })
            }
            _ => Err(RecordedError { text, what: "the name of a plugin with its registry" }),
        }
    }
}

impl From<PluginName> for String {
    fn from(name: PluginName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for PluginVersion {
    type Error = RecordedError;

    fn try_from(text: String) -> Result<Self, RecordedError> {
        Self::parse(&text).ok_or(RecordedError { text, what: "a version" })
    }
}

impl From<PluginVersion> for String {
    fn from(version: PluginVersion) -> Self {
        version.to_string()
    }
}

/// The whole name, with the registry.
impl fmt::Display for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)
    }
}

/// Shows the reference as short as it can be written.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PluginName { registry, path } = &self.plugin;
        let bare = path.strip_prefix(REPOSITORY).and_then(|rest| rest.strip_prefix('/'));
        // Without the registry, a first part with a dot would be read as one.
        let is_short = registry == REGISTRY && path.split_once('/').is_some_and(|(first, _)| !is_host(first));
        match bare.filter(|bare| is_short && !bare.contains('/')) {
            Some(bare) => f.write_str(bare)?,
            None if is_short => f.write_str(path)?,
            None => write!(f, "{registry}/{path}")?,
        }
        if self.constraint == Constraint::Latest { Ok(()) } else { write!(f, ":{}", self.constraint) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn folder(text: &str) -> String {
        Reference::parse(text, None).unwrap().plugin.folder().display().to_string()
    }

    #[test]
    fn a_reference_names_registry_repository_and_plugin() {
        for (text, expected) in [
            ("aws", "registry.gitlab.com/gitlab-org/fleeting/plugins/aws"),
            ("aws:1.2", "registry.gitlab.com/gitlab-org/fleeting/plugins/aws"),
            ("hetznercloud/plugin:latest", "registry.gitlab.com/hetznercloud/plugin"),
            ("ci.example/aws", "ci.example/aws"),
            ("ci.example:5000/a/b/aws:1", "ci.example:5000/a/b/aws"),
            ("localhost/a/aws", "localhost/a/aws"),
            ("127.0.0.1:5000/Team/aws", "127.0.0.1:5000/!team/aws"),
        ] {
            assert_eq!(folder(text), expected, "{text}");
        }
        let mirror = Reference::parse("aws:1", Some("mirror.example")).unwrap().plugin.to_string();
        assert_eq!(mirror, "mirror.example/gitlab-org/fleeting/plugins/aws");
        let own = Reference::parse("ci.example/aws", Some("mirror.example")).unwrap().plugin.to_string();
        assert_eq!(own, "ci.example/aws");
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for text in [
            "",
            ":1",
            "/aws",
            "aws/",
            "a//b",
            "../aws",
            "a/../b",
            "a/./b",
            ".aws",
            "aws.",
            "a..b",
            "a b",
            "a\nb",
            "a\0b",
            "aws:",
            "aws:1.2.3.4",
            "aws:v1",
            "aws:01",
            "aws:1.2.3+x",
            "aws:1.2.3-",
            "aws:../x",
            "é",
            "ci.example:0/a",
            "ci.example:99999/a",
            "ci.example:x/a",
            "..:1/a",
            "aws@sha256:00",
            "a\\b",
            "http://ci.example/a",
        ] {
            assert!(Reference::parse(text, None).is_err(), "{text:?}");
        }
        assert!(Reference::parse(&"a".repeat(256), None).is_err());
        assert!(Reference::parse("aws", Some("../x")).is_err());
    }

    #[test]
    fn a_constraint_allows_releases_and_a_prerelease_only_by_name() {
        for (constraint, version, allowed) in [
            ("latest", "1.2.3", true),
            ("latest", "1.2.3-rc.1", false),
            ("1", "1.9.0", true),
            ("1", "10.0.0", false),
            ("1", "1.0.0-rc.1", false),
            ("1.2", "1.2.9", true),
            ("1.2", "1.20.0", false),
            ("1.2.3", "1.2.3", true),
            ("1.2.3", "1.2.4", false),
            ("1.2.3", "1.2.3-rc.1", false),
            ("1.2.3-rc.1", "1.2.3-rc.1", true),
        ] {
            let allows =
                Constraint::parse(constraint).unwrap().allows(&PluginVersion::parse(version).unwrap());
            assert_eq!(allows, allowed, "{constraint} {version}");
        }
    }

    #[test]
    fn versions_are_ordered_by_number() {
        let ordered =
            ["0.9.0", "1.0.0-beta", "1.0.0-rc.2", "1.0.0-rc.10", "1.0.0", "1.2.0", "1.10.0", "2.0.0"];
        let mut versions: Vec<_> =
            ordered.iter().rev().map(|text| PluginVersion::parse(text).unwrap()).collect();
        versions.sort();
        assert_eq!(versions.iter().map(ToString::to_string).collect::<Vec<_>>(), ordered);
    }

    #[test]
    fn a_reference_is_written_as_shortly_as_it_is_read() {
        for text in ["aws", "aws:1.2", "group/aws:1", "ci.example/aws", "ci.example/g/aws:1.2.3-rc.1"] {
            assert_eq!(Reference::parse(text, None).unwrap().to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn no_reference_leaves_the_plugin_directory(text in "[a-zA-Z0-9./:!_\\-\u{0}-\u{20}\\\\]{0,40}") {
            if let Ok(reference) = Reference::parse(&text, None) {
                let folder = reference.plugin.folder();
                let normal = |part| matches!(part, std::path::Component::Normal(_));
                prop_assert!(folder.components().all(normal), "{folder:?}");
                prop_assert!(folder.components().count() >= 2, "{folder:?}");
                prop_assert!(!folder.to_string_lossy().contains(char::is_control));
                prop_assert_eq!(PluginName::of_folder(&folder), Some(reference.plugin.clone()));
                // What is printed is read as the same plugin.
                prop_assert_eq!(Reference::parse(&reference.to_string(), None), Ok(reference));
            }
        }

        #[test]
        fn a_version_is_one_folder(text in "[0-9]{1,2}\\.[0-9]{1,2}\\.[0-9](-[a-zA-Z.\\-/]{1,6})?") {
            if let Some(version) = PluginVersion::parse(&text) {
                prop_assert_eq!(&version.to_string(), &text);
                prop_assert_eq!(Path::new(&version.folder()).components().count(), 1);
                prop_assert_eq!(PluginVersion::of_folder(&version.folder()), Some(version));
            }
        }
    }
}
