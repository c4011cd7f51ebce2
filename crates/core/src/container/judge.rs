//! Decides which containers a job gets, before it takes a machine.

use std::fmt;

use super::image::{self, ImageName, PlatformError};
use super::name::{TakenNames, shown};
use super::registries::Logins;
use super::request::{
    ContainerRequest, ENVIRONMENTS_BYTES, ImageRequest, JobLimit, OPTION, REMARKS, Room, SERVICE_NAMES_BYTES,
    SERVICES, ServiceRequest, VARIABLES, VARIABLES_BYTES,
};
use super::settings::{ContainerSettings, Mode, Privileged, PullPolicy, Umask};
use super::spec::{ContainerJob, ContainerSpec, ServiceSpec};
use super::variables::{AUTH_CONFIG, Environment, FILES_DIR, JobVariables};
use crate::glob::Glob;
use crate::text::{Secret, clean_line};

/// The facts of a job that [`judge`] needs beside configuration and request.
#[derive(Debug, Clone, Default)]
pub struct JobContext {
    /// True if the job's instance is terminated after this one job.
    pub single_use: bool,
    /// The text of the operator's file of credentials.
    pub registry_auth: Option<Secret<String>>,
    /// True if another job may be or have been on the instance, so that it could read them there.
    pub meets_others: bool,
    /// PEM certificates that registries' own are verified with.
    pub ca: Option<String>,
    /// The runner's values of [`super::variables::ADDED_BY_RUNNER`].
    pub runner_variables: Environment,
}

/// The containers of a job. `None`: the job runs on the machine.
pub fn judge(
    settings: &ContainerSettings,
    request: &ContainerRequest,
    about: &JobContext,
) -> Result<Option<ContainerJob>, ContainerRefusal> {
    let Some(image) = chosen(settings, request)? else { return Ok(None) };
    if let Some(limit) = request.excess {
        return Err(limit.into());
    }
    let limit = settings.services_limit.unwrap_or(SERVICES);
    if request.services.len() > limit {
        return Err(ContainerRefusal::Services { wanted: request.services.len(), limit });
    }
    let files = about.runner_variables.iter().find(|(name, _)| **name == *FILES_DIR);
    let files = files.map(|(_, path)| &**path.expose());
    let variables = JobVariables::new(&request.variables, &about.runner_variables, files)?;
    let registry_auth = about.registry_auth.as_ref().map(|text| text.expose().as_str());
    let withheld = registry_auth.filter(|_| about.meets_others && !settings.registry_auth_shared);
    let given = registry_auth.filter(|_| withheld.is_none());
    let mut logins = Logins::new(variables.value(AUTH_CONFIG), given, &request.credentials);
    if let Some(text) = withheld {
        logins.withhold(text);
    }
    let mut remarks = logins.remarks.clone();
    let judged = Judge { settings, variables: &variables, logins: &logins, single_use: about.single_use };
    let user = settings.user.clone();
    let job = judged.container(&image, Role::Job, variables.job_environment(), &mut remarks)?;
    let job = ContainerSpec { user: user.or(job.user), ..job };
    let mut shared = Shared::default();
    let mut services = Vec::new();
    for service in &request.services {
        let spec = judged.service(service, &mut shared, &mut remarks)?;
        services.extend(Some(spec).filter(|spec| !spec.names.is_empty()));
    }
    shorten(&mut remarks);
    let keeps_umask = variables.is_on("FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR");
    Ok(Some(ContainerJob {
        engine: settings.engine,
        job,
        services,
        remarks,
        umask: if keeps_umask { Umask::Closed } else { settings.umask },
        options: settings.options.clone(),
        volumes: settings.volumes.clone(),
        mirrors: settings.mirrors.clone().into_iter().collect(),
        ca: about.ca.clone(),
        wait_for_services: settings.wait_for_services,
        pull_timeout: settings.pull_timeout,
        min_free_space: settings.min_free_space,
        init: variables.is_on("FF_USE_INIT_WITH_DOCKER_EXECUTOR"),
        debug_services: variables.is_on("CI_DEBUG_SERVICES"),
    }))
}

/// The image of the job's container.
fn chosen(
    settings: &ContainerSettings,
    request: &ContainerRequest,
) -> Result<Option<ImageRequest>, ContainerRefusal> {
    match (&request.image, settings.mode, &settings.default_image) {
        (Some(image), Mode::Image | Mode::Always, _) => Ok(Some(image.clone())),
        (None, Mode::Image, _) => Ok(None),
        (None, Mode::Always, Some(name)) => {
            Ok(Some(ImageRequest { name: name.clone(), ..ImageRequest::default() }))
        }
        (None, Mode::Always, None) => Err(ContainerRefusal::NoImage),
    }
}

/// The names and the limits that the services of a job share.
struct Shared {
    names: TakenNames,
    /// Room for their own variables.
    variables: Room,
    /// Room for their environments in the script.
    environments: Room,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            names: TakenNames::new(),
            variables: Room::new(VARIABLES, VARIABLES_BYTES),
            environments: Room::new(usize::MAX, ENVIRONMENTS_BYTES),
        }
    }
}

/// The length of a text between a shell's quotes, where a quote takes four bytes.
fn quoted_length(text: &str) -> usize {
    2 + text.len() + 3 * text.bytes().filter(|byte| *byte == b'\'').count()
}

/// Leaves a number of remarks, and how many more there were.
pub(super) fn shorten(remarks: &mut Vec<String>) {
    if remarks.len() > REMARKS {
        remarks.truncate(REMARKS);
        remarks.push("further remarks about this job are left out".to_owned());
    }
}

struct Judge<'a> {
    settings: &'a ContainerSettings,
    variables: &'a JobVariables,
    logins: &'a Logins,
    single_use: bool,
}

impl Judge<'_> {
    fn container(
        &self,
        image: &ImageRequest,
        role: Role,
        environment: Environment,
        remarks: &mut Vec<String>,
    ) -> Result<ContainerSpec, ContainerRefusal> {
        let container = Requested { role, image: shown(&image.name) };
        let name = ImageName::parse(&image.name).map_err(|why| match image.name.as_str() {
            "" => ContainerRefusal::NoName(role),
            _ => ContainerRefusal::Name { container: container.clone(), why },
        })?;
        self.check_allowed(&name, &container)?;
        let (policies, refused) = effective_policies(
            &image.pull_policy,
            &self.settings.pull_policy,
            &self.settings.allowed_pull_policies,
        )
        .map_err(|refused| ContainerRefusal::PullPolicy { container: container.clone(), refused })?;
        if !refused.is_empty() {
            let refused = clean_line(refused.join(" ").as_bytes(), 100);
            remarks.push(format!(
                "{container}: pull_policy ([{refused}]) is not allowed in this pool and left out"
            ));
        }
        let asked = image.platform.as_ref().map(|text| self.option(text)).transpose()?;
        let platform = image::complete_platform(asked.as_deref().unwrap_or_default()).map_err(|why| {
            let platform = clean_line(asked.unwrap_or_default().as_bytes(), 80);
            ContainerRefusal::Platform { container: container.clone(), platform, why }
        })?;
        Ok(ContainerSpec {
            image: name.to_string(),
            policies,
            login: self.logins.of(&name).cloned(),
            login_withheld: self.logins.withholds(&name),
            platform,
            user: self.user(image, &container)?,
            entrypoint: image.entrypoint.clone(),
            command: None,
            environment,
            privileged: self.is_privileged(&name),
            called: container.image,
        })
    }

    fn service(
        &self,
        service: &ServiceRequest,
        shared: &mut Shared,
        remarks: &mut Vec<String>,
    ) -> Result<ServiceSpec, ContainerRefusal> {
        let environment = self.variables.service_environment(&service.variables, &mut shared.variables)?;
        // Each variable has its name twice in the script, beside some words.
        let lengths =
            environment.iter().map(|(key, value)| 2 * key.len() + 20 + quoted_length(value.expose()));
        if !shared.environments.take(lengths.sum()) {
            return Err(JobLimit::Environments.into());
        }
        let probe = probe(&environment);
        let container = self.container(&service.image, Role::Service, environment, remarks)?;
        if probe == Err(()) {
            remarks.push(format!(
                "service `{}`: HEALTHCHECK_TCP_PORT is ignored, because it is not a port",
                container.called
            ));
        }
        let alias =
            service.alias.as_ref().map(|alias| self.variables.expand(alias, SERVICE_NAMES_BYTES).ok_or(()));
        let alias = alias.transpose().map_err(|()| JobLimit::ServiceNames)?;
        let names = shared.names.take(&service.image.name, alias.as_deref(), remarks)?;
        let command = service.command.clone();
        let container = ContainerSpec { command, ..container };
        Ok(ServiceSpec { container, names, probe: probe.unwrap_or_default() })
    }

    /// The text of `user` or `platform`, references resolved.
    fn option(&self, text: &str) -> Result<String, JobLimit> {
        self.variables.expand(text, OPTION).ok_or(JobLimit::Option)
    }

    /// The operator's own default image needs no permission.
    fn check_allowed(&self, name: &ImageName, container: &Requested) -> Result<(), ContainerRefusal> {
        let list = match container.role {
            Role::Job => &self.settings.images,
            Role::Service => &self.settings.services,
        };
        let Some(list) = list else { return Ok(()) };
        let default = self.settings.default_image.as_deref().filter(|_| container.role == Role::Job);
        if default.is_some_and(|default| ImageName::parse(default).as_ref() == Ok(name))
            || list.iter().any(|pattern| name.is_covered_by(pattern))
        {
            return Ok(());
        }
        Err(ContainerRefusal::Image { container: container.clone(), allowed: list.clone() })
    }

    /// `None`: the image's own.
    fn user(&self, image: &ImageRequest, container: &Requested) -> Result<Option<String>, ContainerRefusal> {
        let user = image.user.as_ref().map(|user| self.option(user)).transpose()?;
        let Some(wanted) = user.filter(|user| !user.is_empty()) else { return Ok(None) };
        let container = container.clone();
        let user = clean_line(wanted.as_bytes(), 80);
        let is_permitted = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:$".contains(&byte);
        if !wanted.bytes().all(is_permitted) || wanted.starts_with('-') {
            return Err(ContainerRefusal::UserName { container, user });
        }
        match &self.settings.allowed_users {
            Some(list) if !list.iter().any(|pattern| pattern.matches(&wanted)) => {
                Err(ContainerRefusal::User { container, user, allowed: list.clone() })
            }
            Some(_) | None => Ok(Some(wanted)),
        }
    }

    fn is_privileged(&self, name: &ImageName) -> bool {
        match &self.settings.privileged {
            Privileged::SingleUse => self.single_use,
            Privileged::All => true,
            Privileged::None => false,
            Privileged::Images(list) => list.iter().any(|pattern| name.is_covered_by(pattern)),
        }
    }
}

/// The only port that a service is probed at. The variable's name may have any case, as for GitLab Runner.
fn probe(environment: &Environment) -> Result<Option<u16>, ()> {
    let variable = environment.iter().find(|(key, _)| key.eq_ignore_ascii_case("HEALTHCHECK_TCP_PORT"));
    let Some((_, value)) = variable.filter(|(_, value)| !value.expose().is_empty()) else { return Ok(None) };
    value.expose().parse().ok().filter(|port| *port > 0).map(Some).ok_or(())
}

// The pull policies of one image.

/// The policies to try, in their order, and those of the job that the pool does not allow.
///
/// A job's list replaces the pool's. What the pool does not allow is left out; the error has both lists if nothing
/// remains. The pool's own list needs no permission.
pub fn effective_policies(
    requested: &[String],
    pool: &[PullPolicy],
    allowed: &[PullPolicy],
) -> Result<(Vec<PullPolicy>, Vec<String>), PullPolicyRefusal> {
    if requested.is_empty() {
        return Ok((if pool.is_empty() { vec![PullPolicy::Always] } else { pool.to_vec() }, Vec::new()));
    }
    let mut policies = Vec::new();
    let mut refused = Vec::new();
    for word in requested {
        match allowed.iter().copied().find(|policy| policy.as_str() == word) {
            Some(policy) if policies.contains(&policy) => {}
            Some(policy) => policies.push(policy),
            None => refused.push(word.clone()),
        }
    }
    if policies.is_empty() {
        return Err(PullPolicyRefusal { requested: requested.to_vec(), allowed: allowed.to_vec() });
    }
    Ok((policies, refused))
}

// Why a pool does not run the containers of a job.

/// Number of an allow-list's patterns that a message names.
const PATTERNS_NAMED: usize = 5;

/// A refusal that another attempt would not change. Each sentence says what is refused, and who can change it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContainerRefusal {
    #[error(
        "all jobs of this pool run in containers, and this one names no image: set `image:` in `.gitlab-ci.yml`, or have \
         the operator set `default_image`"
    )]
    NoImage,
    #[error(
        "the job has {wanted} services, but this pool allows {limit}: remove services, or have the operator raise \
         `services_limit`"
    )]
    Services { wanted: usize, limit: usize },
    #[error(transparent)]
    Limit(#[from] JobLimit),
    #[error("a {} has no name: correct it in `.gitlab-ci.yml`", .0.as_str())]
    NoName(Role),
    #[error("the name of the {container} is not valid: {why}; correct it in `.gitlab-ci.yml`")]
    Name { container: Requested, why: &'static str },
    #[error(
        "the {container} is not allowed in this pool ({}): use another one, or have the operator extend `{}`",
        shown_patterns(.allowed), .container.role.key()
    )]
    Image { container: Requested, allowed: Vec<Glob> },
    #[error("{refused} for the {container}: change it in `.gitlab-ci.yml`, or have the operator allow it")]
    PullPolicy {
        container: Requested,
        #[source]
        refused: PullPolicyRefusal,
    },
    /// `platform` is what the job has asked for, cleaned.
    #[error(
        "the platform `{platform}` of the {container} is not valid: {why}; correct it in `.gitlab-ci.yml`"
    )]
    Platform { container: Requested, platform: String, why: PlatformError },
    /// `user` is what the job has asked for, cleaned.
    #[error("the user `{user}` of the {container} is not valid: use a name or `UID:GID` in `.gitlab-ci.yml`")]
    UserName { container: Requested, user: String },
    #[error(
        "the user `{user}` of the {container} is not allowed in this pool ({}): use another one, or have the operator \
         extend `allowed_users`",
        shown_patterns(.allowed)
    )]
    User { container: Requested, user: String, allowed: Vec<Glob> },
}

/// The pool allows none of the pull policies that a job wants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct PullPolicyRefusal {
    pub requested: Vec<String>,
    pub allowed: Vec<PullPolicy>,
}

impl PullPolicyRefusal {
    /// GitLab Runner's own sentence. A job may ask for any text.
    fn sentence(&self) -> String {
        let allowed: Vec<&str> = self.allowed.iter().map(|policy| policy.as_str()).collect();
        let sentence = format!(
            "pull_policy ([{}]) is not one of the allowed_pull_policies ([{}])",
            self.requested.join(" "),
            allowed.join(" ")
        );
        clean_line(sentence.as_bytes(), 300)
    }
}

/// The purpose of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Job,
    Service,
}

impl Role {
    /// The word for its image.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Job => "image",
            Self::Service => "service",
        }
    }

    /// The key of the pool with the images that are allowed for it.
    fn key(self) -> &'static str {
        match self {
            Self::Job => "images",
            Self::Service => "services",
        }
    }
}

/// A container that a job has asked for, as messages call it: *image `ruby`*.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requested {
    pub role: Role,
    /// The name of its image, cleaned.
    pub image: String,
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.role.as_str(), self.image)
    }
}

/// The patterns of an allow-list, as messages show them.
fn shown_patterns(allowed: &[Glob]) -> String {
    let named = allowed.iter().take(PATTERNS_NAMED).map(|pattern| format!("`{pattern}`"));
    let named: Vec<String> = named.collect();
    match allowed.len().saturating_sub(PATTERNS_NAMED) {
        0 if named.is_empty() => "none is allowed".to_owned(),
        0 => format!("allowed: {}", named.join(", ")),
        more => format!("allowed: {} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests;
