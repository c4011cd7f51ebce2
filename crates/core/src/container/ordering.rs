//! Decides whether a job gets an instance of its own that is made of the images it names.

use super::image::{ImageName, runs_docker};
use super::judge::{ContainerRefusal, JobContext, judge, shorten};
use super::name::shown;
use super::request::{ContainerRequest, ImageRequest, JobLimit, ORDER_BYTES, RECORDED_IMAGES, REMARKS};
use super::settings::{ContainerSettings, Mode, PullPolicy};
use super::spec::{ContainerJob, ContainerSpec, ServiceSpec};
use crate::glob::Glob;
use crate::order::{LaunchOrder, Order, OrderService};
use crate::text::clean_line;

/// The longest name of a variable in a sentence, in characters.
const NAME: usize = 100;

/// Prefix of the names of services' containers.
pub const SERVICE: &str = "svc-";

/// The settings for what jobs may order in a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct OrderSettings {
    /// The images of the pool's own instances, the first offering's first.
    own: Vec<String>,
    /// The settings for the images that jobs may name.
    containers: ContainerSettings,
    /// False if no container of an instance is privileged. The operator's own part may make them so.
    may_be_privileged: bool,
}

/// The keys of a pool that makes orders.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AllowedOrders {
    /// Images that jobs may name; `None`: any.
    pub images: Option<Vec<Glob>>,
    /// Images that services may have; `None`: any.
    pub services: Option<Vec<Glob>>,
    pub services_limit: Option<usize>,
    pub pull_policies: Vec<PullPolicy>,
    /// False if no container of an instance can be privileged.
    pub may_be_privileged: bool,
}

/// A job's order, as the pool allows it.
#[derive(Debug, Clone, PartialEq)]
pub struct JobOrder {
    /// The order's names, for the record.
    pub order: Order,
    pub launch: LaunchOrder,
    /// Sentences for the job log.
    pub remarks: Vec<String>,
}

impl OrderSettings {
    /// `own`: the images of the pool's offerings, at least one.
    pub fn new(own: Vec<String>, allowed: AllowedOrders) -> Self {
        let AllowedOrders { images, services, services_limit, pull_policies, may_be_privileged } = allowed;
        // A job may name what the pool runs anyway.
        let images = images.map(|mut images| {
            images.extend(own.iter().skip(1).map(|own| Glob::new(own)));
            images
        });
        let containers = ContainerSettings {
            mode: Mode::Always,
            default_image: own.first().cloned(),
            images,
            services,
            services_limit,
            allowed_pull_policies: pull_policies,
            ..ContainerSettings::default()
        };
        Self { own, containers, may_be_privileged }
    }

    /// True if each instance of the pool has this image.
    fn is_own(&self, image: &ImageRequest) -> bool {
        let named = ImageName::parse(&image.name);
        self.own.iter().all(|own| *own == image.name || (named.is_ok() && ImageName::parse(own) == named))
    }

    /// The name, for messages, of the first service that no instance of the pool can run, because it has to be privileged.
    pub fn unprivileged(&self, request: &ContainerRequest) -> Option<String> {
        let mut services = request.services.iter().map(|service| service.image.name.as_str());
        services.find(|image| !self.may_be_privileged && runs_docker(image)).map(shown)
    }

    /// The job's order; `None`: any instance of the pool serves it. `dirs`: the directories of its files.
    pub fn judge(
        &self,
        request: &ContainerRequest,
        about: &JobContext,
        dirs: &[&str],
    ) -> Result<Option<JobOrder>, ContainerRefusal> {
        if request.services.is_empty() && request.image.as_ref().is_none_or(|image| self.is_own(image)) {
            return Ok(None);
        }
        let Some(judged) = judge(&self.containers, request, about)? else { return Ok(None) };
        if judged.services.iter().map(length).sum::<usize>() > ORDER_BYTES {
            return Err(JobLimit::Order.into());
        }
        let mut remarks = judged.remarks.clone();
        // Services without a name of their own are left out of those that were judged.
        let mut requested = request.services.iter();
        let services = judged.services.iter().enumerate().map(|(number, service)| {
            let asked = requested.find(|one| shown(&one.image.name) == service.container.called);
            let pulls = asked.is_some_and(|asked| !asked.image.pull_policy.is_empty());
            ordered(service, number, pulls, &mut remarks)
        });
        let services = services.collect();
        for container in judged.containers() {
            remarks.extend(without_effect(container));
        }
        shorten(&mut remarks);
        let own = request.image.is_none().then(|| self.own.first().cloned()).flatten();
        let pulls = request.image.as_ref().is_some_and(|image| !image.pull_policy.is_empty());
        Ok(Some(JobOrder {
            order: names(&judged),
            launch: LaunchOrder {
                image: own.unwrap_or_else(|| judged.job.image.clone()),
                of_offering: request.image.is_none(),
                pull_policy: pull(&judged.job).filter(|_| pulls),
                services,
                dirs: dirs.iter().map(|dir| (*dir).to_owned()).collect(),
            },
            remarks,
        }))
    }
}

fn names(judged: &ContainerJob) -> Order {
    let services = judged.services.iter().map(|service| service.container.called.as_str().into());
    Order {
        image: judged.job.called.as_str().into(),
        services: services.take(RECORDED_IMAGES).collect(),
        more_services: judged.services.len().saturating_sub(RECORDED_IMAGES),
    }
}

/// The bytes of a service's texts.
fn length(service: &ServiceSpec) -> usize {
    let ContainerSpec { image, entrypoint, command, environment, .. } = &service.container;
    let words = entrypoint.iter().chain(command).flatten().chain(&service.names).chain(Some(image));
    let variables = environment.iter().map(|(key, value)| key.len() + value.expose().len());
    words.map(String::len).chain(variables).sum()
}

fn ordered(service: &ServiceSpec, number: usize, pulls: bool, remarks: &mut Vec<String>) -> OrderService {
    let ServiceSpec { container, names, probe } = service;
    let (aliases, others): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| !name.contains('_'));
    // The first of two names from an image has `__` where the second has `-`.
    let is_twin = |name: &str| aliases.iter().any(|alias| **alias == name.replace("__", "-"));
    for name in others.into_iter().filter(|name| !is_twin(name)) {
        remarks.push(format!(
            "service `{}` does not get the name `{name}`: Kubernetes allows no `_` in it",
            container.called
        ));
    }
    let (variables, refused): (Vec<_>, Vec<_>) =
        container.environment.iter().partition(|(name, _)| is_variable(name));
    for (name, _) in refused.into_iter().take(REMARKS) {
        remarks.push(format!(
            "service `{}` does not get the variable `{}`: Kubernetes allows no such name",
            container.called,
            clean_line(name.as_bytes(), NAME)
        ));
    }
    OrderService {
        name: format!("{SERVICE}{number}"),
        image: container.image.clone(),
        aliases: aliases.into_iter().map(|alias| alias.to_ascii_lowercase()).collect(),
        entrypoint: container.entrypoint.clone(),
        command: container.command.clone(),
        variables: variables
            .into_iter()
            .map(|(name, value)| (name.to_string(), value.expose().to_string()))
            .collect(),
        pull_policy: pull(container).filter(|_| pulls),
        port: *probe,
    }
}

/// True for the name of a variable that Kubernetes allows.
fn is_variable(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !name.starts_with(|c: char| c.is_ascii_digit()) && name.bytes().all(is_part)
}

/// The pull policy of a container. Only the first one counts: Kubernetes knows one for each container.
fn pull(container: &ContainerSpec) -> Option<PullPolicy> {
    container.policies.first().copied()
}

/// Options of an engine, which pods do not have.
fn without_effect(container: &ContainerSpec) -> Option<String> {
    let option = match (&container.user, &container.platform) {
        (Some(_), _) => "user",
        (None, Some(_)) => "platform",
        (None, None) => return None,
    };
    Some(format!("image `{}`: `{option}` has no effect in this pool", container.called))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::request::{ServiceRequest, Variable};
    use crate::text::Secret;

    fn settings(own: &[&str], images: Option<&[&str]>) -> OrderSettings {
        let globs = |list: &[&str]| list.iter().map(|text| Glob::new(text)).collect();
        let allowed = AllowedOrders {
            images: images.map(globs),
            services: Some(globs(&["postgres:*", "my_db"])),
            services_limit: Some(2),
            pull_policies: vec![PullPolicy::IfNotPresent],
            may_be_privileged: false,
        };
        OrderSettings::new(own.iter().map(|own| (*own).to_owned()).collect(), allowed)
    }

    fn image(name: &str) -> ImageRequest {
        ImageRequest { name: name.to_owned(), ..ImageRequest::default() }
    }

    fn job(name: Option<&str>, services: &[&str]) -> ContainerRequest {
        let service = |name: &&str| ServiceRequest { image: image(name), ..ServiceRequest::default() };
        ContainerRequest {
            image: name.map(image),
            services: services.iter().map(service).collect(),
            ..ContainerRequest::default()
        }
    }

    fn judged(
        settings: &OrderSettings,
        request: &ContainerRequest,
    ) -> Result<Option<JobOrder>, ContainerRefusal> {
        settings.judge(request, &JobContext::default(), &["/builds", "/cache"])
    }

    #[test]
    fn a_job_with_the_images_of_all_offerings_and_no_service_takes_any_instance() {
        let one = settings(&["r.example.com/ci/base:12"], None);
        let two = settings(&["ruby:3.3", "docker.io/library/ruby:3.3"], None);
        let mixed = settings(&["ruby:3.3", "arm64v8/ruby:3.3"], None);
        for (pool, name, services, expected) in [
            (&one, None, vec![], None),
            (&one, Some("r.example.com/ci/base:12"), vec![], None),
            (&one, Some("r.example.com/ci/base"), vec![], Some("r.example.com/ci/base:latest")),
            (&two, Some("library/ruby:3.3"), vec![], None),
            (&mixed, Some("ruby:3.3"), vec![], Some("docker.io/library/ruby:3.3")),
            (&mixed, None, vec![], None),
            (&one, None, vec!["postgres:17"], Some("r.example.com/ci/base:12")),
            (&one, Some("alpine"), vec!["postgres:17"], Some("docker.io/library/alpine:latest")),
        ] {
            let order = judged(pool, &job(name, &services)).unwrap();
            let made = order.as_ref().map(|order| order.launch.image.as_str());
            assert_eq!(made, expected, "{name:?} {services:?}");
            let of_offering = order.is_some_and(|order| order.launch.of_offering);
            assert_eq!(of_offering, expected.is_some() && name.is_none(), "{name:?}");
        }
    }

    #[test]
    fn what_is_not_allowed_has_the_sentences_of_containers() {
        let pool = settings(&["ruby:3.3", "arm64v8/ruby:3.3"], Some(&["alpine:*"]));
        for (name, services, expected) in [
            (
                "debian",
                vec![],
                "the image `debian` is not allowed in this pool (allowed: `alpine:*`, `arm64v8/ruby:3.3`): use another \
                 one, or have the operator extend `images`",
            ),
            (
                "alpine:3",
                vec!["redis"],
                "the service `redis` is not allowed in this pool (allowed: `postgres:*`",
            ),
            (
                "alpine:3",
                vec!["postgres:1", "postgres:2", "postgres:3"],
                "the job has 3 services, but this pool allows 2",
            ),
            ("Alpine:3", vec![], "the name of the image `Alpine:3` is not valid"),
        ] {
            let refused = judged(&pool, &job(Some(name), &services)).unwrap_err().to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
        for allowed in ["alpine:3", "ruby:3.3", "arm64v8/ruby:3.3"] {
            assert!(judged(&pool, &job(Some(allowed), &["postgres:1"])).is_ok(), "{allowed}");
        }
    }

    #[test]
    fn docker_in_docker_needs_an_instance_whose_containers_may_be_privileged() {
        let request = job(Some("docker:27"), &["postgres:17", "docker:27-dind"]);
        let mut pool = settings(&["ruby:3.3"], None);
        assert_eq!(pool.unprivileged(&request).as_deref(), Some("docker:27-dind"));
        assert_eq!(
            pool.unprivileged(&job(Some("docker:27-dind"), &["postgres:17"])),
            None,
            "the client is in it, too"
        );
        pool.may_be_privileged = true;
        assert_eq!(pool.unprivileged(&request), None);
    }

    #[test]
    fn a_pull_policy_is_the_jobs_own_or_none() {
        let pool = settings(&["ruby:3.3"], None);
        let mut request = job(Some("alpine"), &["postgres:17"]);
        let order = judged(&pool, &request).unwrap().unwrap().launch;
        assert_eq!((order.pull_policy, order.services[0].pull_policy), (None, None));
        for image in [request.image.as_mut().unwrap(), &mut request.services[0].image] {
            image.pull_policy = vec!["always".to_owned(), "if-not-present".to_owned()];
        }
        let order = judged(&pool, &request).unwrap().unwrap();
        let expected = Some(PullPolicy::IfNotPresent);
        assert_eq!((order.launch.pull_policy, order.launch.services[0].pull_policy), (expected, expected));
        assert!(order.remarks[0].contains("pull_policy ([always]) is not allowed"), "{:?}", order.remarks);
        request.image.as_mut().unwrap().pull_policy = vec!["never".to_owned()];
        let refused = judged(&pool, &request).unwrap_err().to_string();
        assert!(refused.contains("is not one of the allowed_pull_policies ([if-not-present])"), "{refused}");
    }

    #[test]
    fn a_service_is_complete_and_its_names_are_those_that_kubernetes_takes() {
        let pool = settings(&["ruby:3.3"], None);
        let mut request = job(Some("alpine"), &["postgres:17", "my_db"]);
        let variable = |key: &str, value: &str| Variable {
            key: key.to_owned(),
            value: Secret::new(value.to_owned()),
            public: true,
            file: false,
            raw: true,
        };
        let service = &mut request.services[0];
        service.alias = Some("DB, a__b".to_owned());
        service.command = Some(vec!["-c".to_owned(), "fsync=off".to_owned()]);
        service.variables = vec![variable("HEALTHCHECK_TCP_PORT", "5432"), variable("P", "$(X)")];
        request.services[1].image.user = Some("70".to_owned());
        let JobOrder { order, launch, remarks } = judged(&pool, &request).unwrap().unwrap();
        assert_eq!(order.to_string(), "image `alpine`, 2 services");
        let [first, second] = launch.services.as_slice() else { panic!("{launch:?}") };
        assert_eq!((first.name.as_str(), first.image.as_str()), ("svc-0", "docker.io/library/postgres:17"));
        assert_eq!((first.aliases.join(" "), first.port), ("postgres db".to_owned(), Some(5432)));
        assert_eq!(first.variables[1], ("P".to_owned(), "$(X)".to_owned()));
        assert_eq!((second.name.as_str(), second.aliases.len()), ("svc-1", 0));
        assert_eq!(launch.dirs, ["/builds", "/cache"]);
        assert_eq!(
            remarks,
            [
                "service `postgres:17` does not get the name `a__b`: Kubernetes allows no `_` in it",
                "service `my_db` does not get the name `my_db`: Kubernetes allows no `_` in it",
                "image `my_db`: `user` has no effect in this pool",
            ]
        );
    }
}
