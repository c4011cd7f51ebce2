//! The meaning of a failed engine's text, and the party who can do something about it.

use std::time::Duration;

use crate::container::spec::ContainerSpec;
use crate::time::Pretty;

/// The reason why a container could not be prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    DiskFull,
    RateLimit,
    Missing,
    Denied,
    InvalidName,
    NoPlatform,
    /// Pull policy `never`, and the image is not there.
    Absent,
    Certificate,
    RegistryFault,
    Network,
    /// `pull_timeout` has passed.
    Late,
    /// The engine denies an option.
    InvalidOption,
    Unknown,
}

/// The party to blame, which decides whether another try is of use. Never the instance: an engine's text quotes jobs,
/// images and registries, so only `sound.sh` finds that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// Nothing changes by trying again.
    Job,
    /// A registry, the network, the pool's settings, or what is not known.
    Surroundings,
}

/// Parts of the engine's texts, in the order in which they decide. A registry's status comes before what it writes.
const TEXTS: &[(&str, Cause)] = &[
    ("StatusCode: 429", Cause::RateLimit),
    ("from registry 429", Cause::RateLimit),
    ("StatusCode: 404", Cause::Missing),
    ("StatusCode: 403", Cause::Denied),
    ("from registry 403", Cause::Denied),
    ("403 (Forbidden)", Cause::Denied),
    ("unexpected HTTP status: 5", Cause::RegistryFault),
    ("StatusCode: 5", Cause::RegistryFault),
    ("from registry 5", Cause::RegistryFault),
    ("toomanyrequests", Cause::RateLimit),
    ("too many requests", Cause::RateLimit),
    ("Too Many Requests", Cause::RateLimit),
    ("manifest unknown", Cause::Missing),
    ("name unknown", Cause::Missing),
    ("repository name not known", Cause::Missing),
    ("unauthorized", Cause::Denied),
    ("no basic auth credentials", Cause::Denied),
    ("authentication required", Cause::Denied),
    ("access to the resource is denied", Cause::Denied),
    ("access forbidden", Cause::Denied),
    ("denied:", Cause::Denied),
    ("invalid username/password", Cause::Denied),
    ("invalid reference format", Cause::InvalidName),
    ("repository name must be lowercase", Cause::InvalidName),
    ("no image found in manifest list", Cause::NoPlatform),
    ("no image found in image index", Cause::NoPlatform),
    ("no matching manifest for ", Cause::NoPlatform),
    ("does not match the specified platform", Cause::NoPlatform),
    ("invalid platform syntax", Cause::NoPlatform),
    ("x509:", Cause::Certificate),
    ("tls: failed to verify certificate", Cause::Certificate),
    ("server gave HTTP response to HTTPS client", Cause::Certificate),
    ("Internal Server Error", Cause::RegistryFault),
    ("Bad Gateway", Cause::RegistryFault),
    ("Service Unavailable", Cause::RegistryFault),
    ("Gateway Time", Cause::RegistryFault),
    ("dial tcp", Cause::Network),
    ("dial udp", Cause::Network),
    ("no such host", Cause::Network),
    ("connection refused", Cause::Network),
    ("connection reset", Cause::Network),
    ("broken pipe", Cause::Network),
    ("network is unreachable", Cause::Network),
    ("no route to host", Cause::Network),
    ("server misbehaving", Cause::Network),
    ("i/o timeout", Cause::Network),
    ("handshake timeout", Cause::Network),
    ("Client.Timeout", Cause::Network),
    ("deadline exceeded", Cause::Network),
    ("remote error: tls", Cause::Network),
    ("unexpected EOF", Cause::Network),
    (": EOF", Cause::Network),
    // The last of those that explain a pull: a registry may quote it.
    ("no space left on device", Cause::DiskFull),
    ("disk quota exceeded", Cause::DiskFull),
    ("unknown capability", Cause::InvalidOption),
    ("invalid", Cause::InvalidOption),
    ("bad format", Cause::InvalidOption),
    ("must be", Cause::InvalidOption),
    ("is not an ip address", Cause::InvalidOption),
    ("container-init binary not found", Cause::InvalidOption),
    ("unresolvable CDI devices", Cause::InvalidOption),
    ("could not select device driver", Cause::InvalidOption),
    ("custom device", Cause::InvalidOption),
    ("can not be set", Cause::InvalidOption),
];

/// Texts of the runtimes of Kubernetes' nodes with their causes, tried before and after those of engines.
const OF_RUNTIMES: &[(&str, Cause)] = &[
    ("no match for platform in manifest", Cause::NoPlatform),
    ("pull access denied", Cause::Denied),
    ("insufficient_scope", Cause::Denied),
    ("401 Unauthorized", Cause::Denied),
    ("403 Forbidden", Cause::Denied),
    ("couldn't parse image name", Cause::InvalidName),
];
const OF_RUNTIMES_AT_LAST: &[(&str, Cause)] =
    &[("not found", Cause::Missing), ("does not exist", Cause::Missing)];

impl Cause {
    /// The cause that an engine's text gives. `image`: its own words decide nothing.
    pub fn of(text: &str, image: &str) -> Self {
        Self::among(&[TEXTS], text, image)
    }

    /// The cause in a kubelet's message about a pull.
    pub fn of_kubelet(text: &str, image: &str) -> Self {
        Self::among(&[OF_RUNTIMES, TEXTS, OF_RUNTIMES_AT_LAST], text, image)
    }

    fn among(lists: &[&[(&str, Self)]], text: &str, image: &str) -> Self {
        let path = image.rsplit_once(['@', ':']).map_or(image, |(path, _)| path);
        let names = [image, path, short(image), short(path)];
        let text = names.iter().fold(text.to_owned(), |text, name| text.replace(name, ""));
        let mut parts = lists.iter().copied().flatten();
        parts.find(|(part, _)| text.contains(part)).map_or(Self::Unknown, |(_, cause)| *cause)
    }

    /// The parts of texts, and their cause. The first match decides.
    pub fn texts() -> impl Iterator<Item = (&'static str, Self)> {
        TEXTS.iter().copied()
    }

    /// True if it says enough of a pull that fails. Otherwise, the script tries the engine.
    pub fn explains(self) -> bool {
        !matches!(self, Self::DiskFull | Self::InvalidOption | Self::Unknown)
    }

    /// True if the same pull may succeed seconds later. A pull that is limited has been repeated for minutes: by the
    /// engine, which knows how long to wait.
    pub fn may_pass(self) -> bool {
        match self {
            Self::RegistryFault | Self::Network => true,
            Self::DiskFull
            | Self::RateLimit
            | Self::Missing
            | Self::Denied
            | Self::InvalidName
            | Self::NoPlatform
            | Self::Absent
            | Self::Certificate
            | Self::Late
            | Self::InvalidOption
            | Self::Unknown => false,
        }
    }

    /// True if no registry has answered this: name service, route or clock of the instance may be wrong.
    pub fn may_be_local(self) -> bool {
        matches!(self, Self::Certificate | Self::Network | Self::Late)
    }

    pub fn blame(self) -> Blame {
        match self {
            Self::Missing | Self::Denied | Self::InvalidName | Self::NoPlatform | Self::Absent => Blame::Job,
            Self::DiskFull
            | Self::RateLimit
            | Self::Certificate
            | Self::RegistryFault
            | Self::Network
            | Self::Late
            | Self::InvalidOption
            | Self::Unknown => Blame::Surroundings,
        }
    }

    /// The sentence about why a pod cannot have an image that its job names. `image`: its complete name; `text`: the
    /// kubelet's own.
    pub fn of_pod(self, image: &str, text: &str) -> String {
        let registry = image.split('/').next().unwrap_or_default();
        let image = format!("image `{}`", short(image));
        match self {
            Self::Missing | Self::InvalidName | Self::Absent => self.of_name(&image, registry),
            Self::Denied => format!(
                "registry `{registry}` denies access to {image}: correct its name, or have the operator add credentials to \
                 `image_pull_secrets`; those of a job, such as DOCKER_AUTH_CONFIG, do not count in pods"
            ),
            Self::NoPlatform => format!(
                "registry `{registry}` has {image}, but not for the architecture of the node: use another image"
            ),
            Self::DiskFull
            | Self::RateLimit
            | Self::Certificate
            | Self::RegistryFault
            | Self::Network
            | Self::Late
            | Self::InvalidOption
            | Self::Unknown => format!("{image} cannot be pulled: {text}"),
        }
    }

    /// The sentence for a cause where only the image's name matters.
    fn of_name(self, image: &str, registry: &str) -> String {
        if self == Self::Missing {
            return format!(
                "{image} does not exist in registry `{registry}`: correct its name or tag in .gitlab-ci.yml"
            );
        }
        if self == Self::InvalidName {
            return format!("{image} has an invalid name: correct it in .gitlab-ci.yml");
        }
        format!(
            "{image} is not on the instance, and the pull policy is `never`: set another `pull_policy` in .gitlab-ci.yml"
        )
    }

    /// The sentence about why an image is missing: cause, party, remedy. `text`: the engine's own, on one line.
    pub fn of_pull(self, wanted: &ContainerSpec, limit: Duration, text: &str) -> String {
        let image = format!("image `{}`", wanted.called);
        let registry = wanted.image.split('/').next().unwrap_or_default();
        match self {
            Self::DiskFull => format!(
                "{image} does not fit on the instance's disk: use a smaller image, or give the instances a larger disk \
                 ({text})"
            ),
            Self::RateLimit => format!(
                "registry `{registry}` limits the rate of pulls and denied {image}: run the job again later, or set \
                 `mirrors` or `registry_auth` for the pool"
            ),
            Self::Missing | Self::InvalidName | Self::Absent => self.of_name(&image, registry),
            Self::Denied => match &wanted.login {
                Some(login) => format!(
                    "registry `{registry}` denies access to {image} with the credentials from {}: correct them, or the \
                     image's name",
                    login.source
                ),
                None if wanted.login_withheld => format!(
                    "registry `{registry}` denies access to {image}. Credentials in `registry_auth` are not used, because an \
                     instance of this pool serves several jobs: set DOCKER_AUTH_CONFIG, or have the operator set \
                     `registry_auth_shared`"
                ),
                None => format!(
                    "registry `{registry}` denies access to {image}, for which there are no credentials: correct its \
                     name, or set DOCKER_AUTH_CONFIG"
                ),
            },
            Self::NoPlatform => format!(
                "registry `{registry}` has {image}, but not for {}: use another image or `platform`",
                wanted.platform.as_deref().unwrap_or("the instance's architecture")
            ),
            Self::Certificate => format!(
                "the instance does not accept the certificate of registry `{registry}`: set `ca` for the pool ({text})"
            ),
            Self::RegistryFault => {
                format!("registry `{registry}` cannot serve {image}: run the job again later ({text})")
            }
            Self::Network => format!(
                "the instance cannot reach registry `{registry}` for {image}: check registry and network ({text})"
            ),
            Self::Late => format!(
                "{image} was not pulled within {} (`pull_timeout`): check registry and network, or raise the limit",
                Pretty(limit)
            ),
            Self::InvalidOption | Self::Unknown => format!("{image} cannot be pulled: {text}"),
        }
    }

    /// The sentence about why the job's container was not created.
    pub fn of_create(self, wanted: &ContainerSpec, text: &str) -> String {
        let container = format!("the container of image `{}`", wanted.called);
        match self {
            Self::InvalidOption => {
                format!(
                    "{container} cannot be created: correct the pool's `containers` table or the image's options ({text})"
                )
            }
            Self::DiskFull
            | Self::RateLimit
            | Self::Missing
            | Self::Denied
            | Self::InvalidName
            | Self::NoPlatform
            | Self::Absent
            | Self::Certificate
            | Self::RegistryFault
            | Self::Network
            | Self::Late
            | Self::Unknown => format!("the instance's container engine cannot create {container}: {text}"),
        }
    }
}

/// A name without that of Docker Hub, which Docker and people leave out.
pub fn short(name: &str) -> &str {
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    name.strip_prefix("library/").unwrap_or(name)
}

/// The sentence about why a pulled image cannot run: it is for another architecture.
pub fn foreign(wanted: &ContainerSpec, image: &str, instance: &str) -> String {
    if let Some(platform) = &wanted.platform {
        return format!(
            "image `{}` is for {image}, but `platform` is `{platform}`: use an image for {platform}, or remove \
             `platform`",
            wanted.called
        );
    }
    format!(
        "image `{}` is for {image}, but the instance is {instance}: use an image for {instance}, or a pool of {image} \
         instances",
        wanted.called
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::settings::PullPolicy;
    use crate::container::spec::Login;
    use crate::text::Secret;

    /// Texts of Podman 4.3.1 and Docker 20.10, most of them before Debian's docker-registry 2.8.
    const SEEN: &[(&str, Cause)] = &[
        (
            "Error: initializing source docker://h:1/bb:none: reading manifest none in h:1/bb: manifest unknown: \
             manifest unknown",
            Cause::Missing,
        ),
        (
            "Error: initializing source docker://h:1/bb:1: reading manifest 1 in h:1/bb: unauthorized: authentication \
             required",
            Cause::Denied,
        ),
        (
            "Error: initializing source docker://x/y:1: reading manifest 1 in docker.io/x/y: errors: denied: requested \
             access to the resource is denied unauthorized: authentication required",
            Cause::Denied,
        ),
        (
            "Error: initializing source docker://h:1/bb:1: pinging container registry h:1: Get \"http://h:1/v2/\": dial \
             tcp 127.0.0.1:1: connect: connection refused",
            Cause::Network,
        ),
        (
            "Error: initializing source docker://h/bb:1: pinging container registry h: Get \"https://h/v2/\": http: \
             server gave HTTP response to HTTPS client",
            Cause::Certificate,
        ),
        (
            "Error: initializing source docker://h/bb:1: pinging container registry h: Get \"https://h/v2/\": x509: \
             certificate signed by unknown authority",
            Cause::Certificate,
        ),
        ("Error: repository name must be lowercase", Cause::InvalidName),
        (
            "Error: initializing source docker://x:1: reading manifest 1 in docker.io/x: toomanyrequests: You have \
             reached your pull rate limit.",
            Cause::RateLimit,
        ),
        (
            "Error: writing blob: adding layer with blob \"sha256:1\": Error processing tar file(exit status 1): write \
             /x: no space left on device",
            Cause::DiskFull,
        ),
        (
            "Error: initializing source docker://h:1/bb:1: reading manifest 1 in h:1/bb: StatusCode: 403, no space left on \
             device",
            Cause::Denied,
        ),
        (
            "Error: unable to start container \"1\": netavark: No such file or directory (os error 2)",
            Cause::Unknown,
        ),
        ("Error: \"CAP_FOO\": unknown capability", Cause::InvalidOption),
        (
            "Error: initializing source docker://h:1/bb:1: pinging container registry h:1: invalid status code from \
             registry 503 (Service Unavailable)",
            Cause::RegistryFault,
        ),
        (
            "Error response from daemon: Head \"http://h:1/v2/bb/manifests/1\": no basic auth credentials",
            Cause::Denied,
        ),
        (
            "Error response from daemon: manifest for h:1/bb:1 not found: manifest unknown: manifest unknown",
            Cause::Missing,
        ),
        (
            "Error response from daemon: received unexpected HTTP status: 503 Service Unavailable",
            Cause::RegistryFault,
        ),
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            Cause::Unknown,
        ),
        ("Error response from daemon: invalid CapAdd: unknown capability: \"CAP_FOO\"", Cause::InvalidOption),
        ("Error: something new", Cause::Unknown),
    ];

    fn wanted(login: bool) -> ContainerSpec {
        ContainerSpec {
            called: "h:1/bb".to_owned(),
            image: "h:1/bb:1".to_owned(),
            policies: vec![PullPolicy::Always],
            login: login.then(|| Login {
                scope: "h:1".to_owned(),
                username: "joe".to_owned(),
                password: Secret::new("geheim".to_owned()),
                source: "DOCKER_AUTH_CONFIG",
            }),
            login_withheld: false,
            platform: None,
            user: None,
            entrypoint: None,
            command: None,
            environment: Vec::new(),
            privileged: false,
        }
    }

    #[test]
    fn the_engines_texts_have_their_causes() {
        for (text, cause) in SEEN {
            assert_eq!(Cause::of(text, "h:1/bb:1"), *cause, "{text}");
        }
    }

    #[test]
    fn a_kubelets_message_has_its_cause() {
        for (text, cause) in [
            (
                "failed to pull and unpack image \"docker.io/library/ruby:1\": failed to resolve reference \
                 \"docker.io/library/ruby:1\": docker.io/library/ruby:1: not found",
                Cause::Missing,
            ),
            (
                "failed to resolve reference \"docker.io/library/ruby:1\": pull access denied, repository does not exist or \
                 may require authorization: server message: insufficient_scope: authorization failed",
                Cause::Denied,
            ),
            (
                "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to \
                 https://r/token: 401 Unauthorized",
                Cause::Denied,
            ),
            ("no match for platform in manifest sha256:1: not found", Cause::NoPlatform),
            (
                "failed to do request: Head \"https://r/v2/\": dial tcp: lookup r: no such host",
                Cause::Network,
            ),
            (
                "failed to do request: Head \"https://r/v2/\": dial tcp 10.0.0.1:443: i/o timeout",
                Cause::Network,
            ),
            (
                "unexpected status from HEAD request to https://r/v2/: 503 Service Unavailable",
                Cause::RegistryFault,
            ),
            ("unexpected status code 429 Too Many Requests", Cause::RateLimit),
            ("reading manifest 1 in r/a: manifest unknown", Cause::Missing),
            ("Back-off pulling image \"docker.io/library/ruby:1\"", Cause::Unknown),
        ] {
            assert_eq!(Cause::of_kubelet(text, "docker.io/library/ruby:1"), cause, "{text}");
        }
        let denied = Cause::Denied.of_pod("docker.io/library/ruby:1", "");
        assert!(denied.starts_with("registry `docker.io` denies access to image `ruby:1`: "), "{denied}");
        let missing = Cause::Missing.of_pod("r:5000/a:1", "");
        assert!(missing.starts_with("image `r:5000/a:1` does not exist in registry `r:5000`: "), "{missing}");
    }

    #[test]
    fn an_images_name_decides_nothing() {
        let text = "Error: initializing source docker://h/unauthorized:1: reading manifest 1 in h/unauthorized: dial tcp: \
                    no such host";
        assert_eq!(Cause::of(text, "h/unauthorized:1"), Cause::Network);
        let text = "Error response from daemon: pulling unauthorized:1: dial tcp: no such host";
        assert_eq!(Cause::of(text, "docker.io/library/unauthorized:1"), Cause::Network);
    }

    #[test]
    fn only_what_may_pass_is_tried_again_and_none_of_it_is_the_jobs() {
        for (_, cause) in TEXTS {
            assert!(!cause.may_pass() || cause.blame() == Blame::Surroundings, "{cause:?}");
        }
        assert_eq!(Cause::texts().count(), TEXTS.len());
    }

    #[test]
    fn a_denial_names_the_credentials_and_never_shows_them() {
        let denied = |login| Cause::Denied.of_pull(&wanted(login), Duration::from_mins(1), "text");
        assert_eq!(
            denied(true),
            "registry `h:1` denies access to image `h:1/bb` with the credentials from DOCKER_AUTH_CONFIG: correct them, \
             or the image's name"
        );
        assert!(denied(false).contains("no credentials"), "{}", denied(false));
        let withheld = ContainerSpec { login_withheld: true, ..wanted(false) };
        let said = Cause::Denied.of_pull(&withheld, Duration::from_mins(1), "text");
        assert!(said.contains("have the operator set `registry_auth_shared`"), "{said}");
    }

    #[test]
    fn an_image_for_another_architecture_is_compared_with_the_platform_or_the_instance() {
        let mut spec = wanted(false);
        assert_eq!(
            foreign(&spec, "arm64", "amd64"),
            "image `h:1/bb` is for arm64, but the instance is amd64: use an image for amd64, or a pool of arm64 instances"
        );
        spec.platform = Some("linux/arm/v7".to_owned());
        assert_eq!(
            foreign(&spec, "amd64", "arm"),
            "image `h:1/bb` is for amd64, but `platform` is `linux/arm/v7`: use an image for linux/arm/v7, or remove `platform`"
        );
    }

    #[test]
    fn a_rate_limit_is_named_as_one() {
        let sentence = Cause::RateLimit.of_pull(&wanted(false), Duration::from_mins(1), "text");
        assert!(sentence.starts_with("registry `h:1` limits the rate of pulls"), "{sentence}");
    }
}
