//! Names of images: their parts, and the complete form that an engine understands without guessing.

use std::fmt;

use crate::glob::Glob;

const HUB: &str = "docker.io";

/// A complete reference. `ruby` becomes `docker.io/library/ruby:latest`; a digest replaces the tag, because it decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    registry: String,
    /// The path in the registry.
    repository: String,
    version: Version,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Version {
    Tag(String),
    Digest(String),
}

impl ImageName {
    /// The error completes a sentence that begins with the name: *… is not valid: …*.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        // A colon before the last slash belongs to the registry's port.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            Some(_) | None => (rest, None),
        };
        let (registry, path) = match name.split_once('/') {
            Some((first, path)) if is_registry(first) => (lower_case(first), path),
            Some(_) | None => (HUB.to_owned(), name),
        };
        let registry = if registry == format!("index.{HUB}") { HUB.to_owned() } else { registry };
        let official = registry == HUB && !path.contains('/');
        let repository = if official { format!("library/{path}") } else { path.to_owned() };
        if path.is_empty() {
            return Err("it is empty");
        }
        if !is_host_and_port(&registry) {
            return Err("the registry is not a host name with an optional port");
        }
        if path.chars().any(|c| c.is_ascii_uppercase()) {
            return Err("the path must be lower case");
        }
        if !path.split('/').all(is_component) || registry.len() + repository.len() > 254 {
            return Err("the path may have letters, digits, single separators `.`, `_`, `-` and `/`");
        }
        if tag == Some("") {
            return Err("the tag is empty; a variable in it may have no value");
        }
        if !tag.is_none_or(is_tag) {
            return Err("the tag may have at most 128 letters, digits, `.`, `_` and `-`");
        }
        if !digest.is_none_or(is_digest) {
            return Err("the digest is not `sha256:` and 64 hexadecimal digits");
        }
        let version = match digest {
            Some(digest) => Version::Digest(digest.to_owned()),
            None => Version::Tag(tag.unwrap_or("latest").to_owned()),
        };
        Ok(Self { registry, repository, version })
    }

    /// The registry's host name and port.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Registry and path, without tag or digest.
    pub fn path(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The path, on Docker Hub also without the registry.
    fn paths(&self) -> Vec<String> {
        let mut paths = vec![self.path()];
        if self.registry == HUB {
            paths.push(self.repository.clone());
            paths.extend(self.repository.strip_prefix("library/").map(str::to_owned));
        }
        paths
    }

    /// The complete name, and shorter ones with the same meaning.
    pub fn names(&self) -> Vec<String> {
        self.paths().into_iter().map(|path| format!("{path}{}", self.version)).collect()
    }

    /// True if a pattern of an allow-list covers the image, however the job wrote its name.
    ///
    /// A pattern is compared with the complete name (`docker.io/library/ruby:3.3`) and, on Docker Hub, with the short
    /// ones (`library/ruby:3.3`, `ruby:3.3`). The tag may be missing in a pattern for `latest`. The tag of a name that
    /// also has a digest counts for nothing, because the digest may be of any other version. Wildcards are those of
    /// [`Glob`]: as in GitLab Runner's lists, `*` stops at `/`, and `**` does not.
    pub fn is_covered_by(&self, pattern: &Glob) -> bool {
        let names = self.paths();
        let is_latest = self.version == Version::Tag("latest".to_owned());
        names.iter().any(|name| {
            pattern.matches(&format!("{name}{}", self.version)) || (is_latest && pattern.matches(name))
        })
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{}", self.registry, self.repository, self.version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => write!(f, ":{tag}"),
            Self::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

/// True if the part before the first slash names a registry rather than a group on Docker Hub.
fn is_registry(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.chars().any(|c| c.is_ascii_uppercase())
}

/// A registry in lower case, unless only its capitals tell it from a group on Docker Hub.
fn lower_case(registry: &str) -> String {
    let lower = registry.to_ascii_lowercase();
    if is_registry(&lower) { lower } else { registry.to_owned() }
}

fn is_host_and_port(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        Some(_) | None => (text, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match address {
        Some(address) => !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'),
        None => host.split('.').all(is_label),
    };
    is_host && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Letters and digits, separated by `.`, `_`, `__` or any number of `-`.
fn is_component(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator = |run: &str| matches!(run, "." | "_" | "__") || run.bytes().all(|b| b == b'-');
    let mut separators = text.split(is_plain).filter(|run| !run.is_empty());
    text.starts_with(is_plain) && text.ends_with(is_plain) && separators.all(is_separator)
}

fn is_tag(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.bytes().next().is_some_and(is_word)
        && text.len() <= 128
        && text.bytes().all(|b| is_word(b) || b == b'.' || b == b'-')
}

fn is_digest(text: &str) -> bool {
    let digits = text.split_once(':').filter(|(kind, digits)| {
        matches!((*kind, digits.len()), ("sha256", 64) | ("sha384", 96) | ("sha512", 128))
    });
    digits.is_some_and(|(_, digits)| digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

// Platforms of images: `linux/arm64/v8`.

/// The reason why a text is not a platform of an image. The sentence has no subject: that is the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlatformError {
    #[error("it is not like `linux/arm64`")]
    Form,
    #[error("images for Linux only can run here")]
    System,
}

/// The platform in full; `None`: the machine's.
///
/// `arm64` alone means `linux/arm64`, as for Docker, and the names of `uname -m` are understood.
pub fn complete_platform(text: &str) -> Result<Option<String>, PlatformError> {
    if text.is_empty() {
        return Ok(None);
    }
    let lower = text.to_ascii_lowercase();
    let mut parts: Vec<&str> = lower.split('/').collect();
    if parts.len() == 1 && parts[0] != "linux" {
        parts.insert(0, "linux");
    }
    let is_word = |part: &&str| {
        part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !part.is_empty() && part.len() <= 32
    };
    if parts.len() > 3 || !parts.iter().all(is_word) {
        return Err(PlatformError::Form);
    }
    if parts[0] != "linux" {
        return Err(PlatformError::System);
    }
    if let Some(machine) = parts.get_mut(1) {
        *machine = match *machine {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "i386" | "i686" => "386",
            other => other,
        };
    }
    Ok(Some(parts.join("/")))
}

// Images that run Docker's daemon.

/// The end of a sentence that begins with the name of an image: what the daemon needs, also one without root.
pub const NEEDS: &str = "needs a privileged container";

/// True for `docker:dind`, `docker:27-dind-rootless` and the like: nothing but its name tells. `image` is as a job names it.
pub fn runs_docker(image: &str) -> bool {
    last(image).contains("dind")
}

/// True if an image runs Docker's daemon as root. A daemon without root reads other files.
pub fn runs_docker_as_root(image: &str) -> bool {
    runs_docker(image) && !last(image).contains("rootless")
}

/// The last part of the path, and the tag.
fn last(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    name.rsplit('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn complete(text: &str) -> String {
        ImageName::parse(text).unwrap_or_else(|why| panic!("{text}: {why}")).to_string()
    }

    #[test]
    fn a_name_is_completed_as_docker_does_it() {
        for (given, expected) in [
            ("ruby", "docker.io/library/ruby:latest"),
            ("ruby:3.3", "docker.io/library/ruby:3.3"),
            ("library/ruby:3.3", "docker.io/library/ruby:3.3"),
            ("docker.io/ruby:3.3", "docker.io/library/ruby:3.3"),
            ("index.docker.io/library/ruby", "docker.io/library/ruby:latest"),
            ("tutum/wordpress", "docker.io/tutum/wordpress:latest"),
            ("registry.example.com/app", "registry.example.com/app:latest"),
            ("Registry.Example.com/app", "registry.example.com/app:latest"),
            ("registry.example.com:5005/g/s/app:1", "registry.example.com:5005/g/s/app:1"),
            ("registry:5005/app", "registry:5005/app:latest"),
            ("registry:5005", "docker.io/library/registry:5005"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("[::1]:5000/app:x", "[::1]:5000/app:x"),
            ("[fe80::1]/app", "[fe80::1]/app:latest"),
            ("127.0.0.1:5000/a__b/c-d--e.f:V_1.2-x", "127.0.0.1:5000/a__b/c-d--e.f:V_1.2-x"),
        ] {
            assert_eq!(complete(given), expected);
        }
        assert_eq!(complete(&format!("ruby@{DIGEST}")), format!("docker.io/library/ruby@{DIGEST}"));
        assert_eq!(complete(&format!("ruby:3.3@{DIGEST}")), format!("docker.io/library/ruby@{DIGEST}"));
        assert_eq!(complete(&format!("a.b:1/c@{DIGEST}")), format!("a.b:1/c@{DIGEST}"));
    }

    #[test]
    fn an_invalid_name_has_a_reason() {
        for (given, reason) in [
            ("", "it is empty"),
            ("registry.example.com/", "it is empty"),
            ("Ruby", "lower case"),
            ("group/Ruby", "lower case"),
            ("ruby:", "the tag is empty"),
            ("registry.example.com/app:", "the tag is empty"),
            ("ruby:.x", "the tag may"),
            ("ruby:a b", "the tag may"),
            ("ruby:ä", "the tag may"),
            ("a b", "the path may"),
            ("-a", "the path may"),
            ("a..b", "the path may"),
            ("a___b", "the path may"),
            ("a//b", "the path may"),
            ("/a", "the path may"),
            ("a/", "the path may"),
            ("a;rm", "the path may"),
            ("$IMAGE", "lower case"),
            ("a\nb", "the path may"),
            ("registry.example.com:x/app", "the registry"),
            ("registry.example.com:0/app", "the registry"),
            ("registry..example.com/app", "the registry"),
            ("[::1/app", "the registry"),
            ("https://registry.example.com/app", "the registry"),
            ("ruby@sha256:abc", "the digest"),
            ("ruby@", "the digest"),
        ] {
            let found = ImageName::parse(given).map(|name| name.to_string());
            assert!(found.as_ref().is_err_and(|found| found.contains(reason)), "{given}: {found:?}");
        }
        assert!(ImageName::parse(&format!("ruby:{}", "x".repeat(129))).is_err());
        assert!(ImageName::parse(&"x".repeat(300)).is_err());
    }

    #[test]
    fn registry_and_path_leave_out_the_version() {
        let name = ImageName::parse("registry.example.com:5005/g/app:1").unwrap();
        assert_eq!(
            (name.registry(), &*name.path()),
            ("registry.example.com:5005", "registry.example.com:5005/g/app")
        );
        assert_eq!(ImageName::parse("ruby:3.3").unwrap().path(), "docker.io/library/ruby");
    }

    #[test]
    fn capitals_of_a_registry_stay_if_they_alone_make_it_one() {
        let complete = |text: &str| ImageName::parse(text).unwrap().to_string();
        assert_eq!(complete("Registry.Example.com/a"), "registry.example.com/a:latest");
        assert_eq!(complete("CORP/a"), "CORP/a:latest");
        assert_eq!(complete("corp/a"), "docker.io/corp/a:latest");
    }

    #[test]
    fn a_pattern_covers_an_image_however_it_is_written() {
        let digest = format!("ruby:3.3@{DIGEST}");
        for (pattern, covered, others) in [
            (
                "ruby:*",
                vec!["ruby:3.3", "ruby", "library/ruby:2", "docker.io/library/ruby:3"],
                vec!["jruby:3", "g/ruby:3", "registry.example.com/ruby:3", &digest],
            ),
            ("ruby", vec!["ruby", "ruby:latest", "docker.io/library/ruby"], vec!["ruby:3.3"]),
            ("ruby:3.*", vec!["ruby:3.3"], vec!["ruby:2.7", &digest]),
            ("ruby@*", vec![&digest], vec!["ruby:3.3"]),
            ("docker.io/library/*:*", vec!["ruby:3.3", "alpine"], vec!["tutum/wordpress"]),
            ("tutum/*", vec!["tutum/wordpress", "docker.io/tutum/wordpress:1"], vec!["tutum/a/b"]),
            ("library/*", vec!["ruby:3.3"], vec!["registry.example.com/library/ruby"]),
            (
                "registry.example.com:5005/g/**",
                vec!["registry.example.com:5005/g/app", "REGISTRY.example.com:5005/g/s/app:1"],
                vec!["registry.example.com/g/app", "registry.example.com:5005/x/app"],
            ),
            ("**", vec!["ruby", "a.b:1/c/d:e", &digest], vec![]),
        ] {
            let is_covered = |name: &str| ImageName::parse(name).unwrap().is_covered_by(&Glob::new(pattern));
            for name in covered {
                assert!(is_covered(name), "{pattern} {name}");
            }
            for name in others {
                assert!(!is_covered(name), "{pattern} {name}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_completion_changes_nothing_twice(text in "[a-zA-Z0-9.:/@_\\[\\] ä-]{0,24}|.{0,40}") {
            if let Ok(name) = ImageName::parse(&text) {
                prop_assert_eq!(ImageName::parse(&name.to_string()).unwrap(), name);
            }
        }

        #[test]
        fn an_ordinary_name_is_valid_and_its_parts_come_back(
            host in "([a-z0-9]{1,5}\\.){1,2}[a-z]{2,3}(:[1-9][0-9]{0,3})?",
            path in "[a-z0-9]{1,5}(/[a-z0-9]{1,5}([._-][a-z0-9]{1,3})?){0,3}",
            tag in "[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,10}",
        ) {
            let name = ImageName::parse(&format!("{host}/{path}:{tag}")).unwrap();
            prop_assert_eq!(name.registry(), &host);
            prop_assert_eq!(name.path(), format!("{host}/{path}"));
            prop_assert_eq!(name.to_string(), format!("{host}/{path}:{tag}"));
        }
    }

    #[test]
    fn a_platform_is_completed_or_refused() {
        for (text, expected) in [
            ("", Ok(None)),
            ("linux", Ok(Some("linux"))),
            ("linux/amd64", Ok(Some("linux/amd64"))),
            ("linux/arm64/v8", Ok(Some("linux/arm64/v8"))),
            ("Linux/x86_64", Ok(Some("linux/amd64"))),
            ("aarch64", Ok(Some("linux/arm64"))),
            ("windows/amd64", Err(PlatformError::System)),
            ("linux/", Err(PlatformError::Form)),
            ("linux/a/b/c", Err(PlatformError::Form)),
            ("linux/a b", Err(PlatformError::Form)),
            ("--os=x", Err(PlatformError::Form)),
        ] {
            assert_eq!(
                complete_platform(text),
                expected.map(|platform| platform.map(str::to_owned)),
                "{text}"
            );
        }
    }

    #[test]
    fn a_daemon_is_known_by_its_image() {
        for (image, any, as_root) in [
            ("docker:dind", true, true),
            ("docker:27.1-dind", true, true),
            ("registry.example.com:5000/mirror/docker:dind@sha256:0", true, true),
            ("example/ubuntu-dind:1", true, true),
            ("docker:27", false, false),
            ("docker:27-dind-rootless", true, false),
            ("dind.example.com/docker:cli", false, false),
            ("postgres:16", false, false),
        ] {
            assert_eq!((runs_docker(image), runs_docker_as_root(image)), (any, as_root), "{image}");
        }
    }
}
