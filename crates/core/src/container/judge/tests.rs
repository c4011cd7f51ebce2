//! Tests of what a pool allows, and of what a job gets.

use PullPolicy::{Always, IfNotPresent, Never};
use proptest::prelude::*;

use super::*;
use crate::container::request::{Credential, Variable};
use crate::container::settings::PullPolicy;
use crate::container::spec::Login;
use crate::glob::Glob;

fn image(name: &str) -> ImageRequest {
    ImageRequest { name: name.to_owned(), ..ImageRequest::default() }
}

fn service(name: &str) -> ServiceRequest {
    ServiceRequest { image: image(name), ..ServiceRequest::default() }
}

fn variable(key: &str, value: &str) -> Variable {
    let value = Secret::new(value.to_owned());
    Variable { key: key.to_owned(), value, public: true, file: false, raw: false }
}

fn request(name: &str, services: &[&str]) -> ContainerRequest {
    let services = services.iter().map(|name| service(name)).collect();
    ContainerRequest { image: Some(image(name)), services, ..ContainerRequest::default() }
}

fn globs(patterns: &[&str]) -> Vec<Glob> {
    patterns.iter().map(|pattern| Glob::new(pattern)).collect()
}

fn accepted(settings: &ContainerSettings, request: &ContainerRequest) -> ContainerJob {
    judge(settings, request, &JobContext::default()).unwrap().unwrap()
}

fn refused(settings: &ContainerSettings, request: &ContainerRequest) -> String {
    judge(settings, request, &JobContext::default()).unwrap_err().to_string()
}

#[test]
fn a_plain_job_gets_a_container_with_the_pools_settings() {
    let settings = ContainerSettings::default();
    let job = accepted(&settings, &request("ruby:3.3", &["postgres:16"]));
    let ruby = ContainerSpec {
        called: "ruby:3.3".to_owned(),
        image: "docker.io/library/ruby:3.3".to_owned(),
        policies: vec![PullPolicy::Always, PullPolicy::IfNotPresent],
        login: None,
        login_withheld: false,
        platform: None,
        user: None,
        entrypoint: None,
        command: None,
        environment: Vec::new(),
        privileged: false,
    };
    let postgres = ContainerSpec {
        called: "postgres:16".to_owned(),
        image: "docker.io/library/postgres:16".to_owned(),
        ..ruby.clone()
    };
    assert_eq!(job.job, ruby);
    assert_eq!(
        job.services,
        [ServiceSpec { container: postgres, names: vec!["postgres".to_owned()], probe: None }]
    );
    assert_eq!((job.remarks.len(), job.umask, job.init, job.debug_services), (0, Umask::Auto, false, false));
    assert_eq!((job.volumes, job.pull_timeout), (settings.volumes, settings.pull_timeout));
}

#[test]
fn the_mode_decides_for_jobs_without_an_image() {
    let nothing = ContainerRequest { services: vec![service("a")], ..ContainerRequest::default() };
    let default_image = Some("alpine".to_owned());
    let on_request =
        ContainerSettings { default_image: default_image.clone(), ..ContainerSettings::default() };
    assert_eq!(judge(&on_request, &nothing, &JobContext::default()), Ok(None));
    let always = ContainerSettings { mode: Mode::Always, default_image, ..ContainerSettings::default() };
    assert_eq!(accepted(&always, &nothing).job.image, "docker.io/library/alpine:latest");
    assert_eq!(accepted(&always, &request("ruby", &[])).job.image, "docker.io/library/ruby:latest");
    let none = ContainerSettings { mode: Mode::Always, ..ContainerSettings::default() };
    assert!(refused(&none, &nothing).contains("names no image"));
}

#[test]
fn allow_lists_decide_about_images_and_services() {
    let settings = ContainerSettings {
        images: Some(globs(&["ruby:*"])),
        services: Some(globs(&["postgres:1?"])),
        default_image: Some("corp.example.com/base".to_owned()),
        ..ContainerSettings::default()
    };
    accepted(&settings, &request("docker.io/library/ruby:3.3", &["postgres:16"]));
    accepted(&settings, &request("corp.example.com/base:latest", &[]));
    assert_eq!(
        refused(&settings, &request("alpine", &[])),
        "the image `alpine` is not allowed in this pool (allowed: `ruby:*`): use another one, or have the operator \
         extend `images`"
    );
    assert_eq!(
        refused(&settings, &request("ruby:3", &["postgres:9"])),
        "the service `postgres:9` is not allowed in this pool (allowed: `postgres:1?`): use another one, or have the \
         operator extend `services`"
    );
    // The default image of jobs is no service.
    assert!(refused(&settings, &request("ruby:3", &["corp.example.com/base"])).contains("is not allowed"));
    let many = ["a", "b", "c", "d", "e", "f", "g"];
    for (list, shown) in
        [(globs(&[]), "(none is allowed)"), (globs(&many), "(allowed: `a`, `b`, `c`, `d`, `e` and 2 more)")]
    {
        let settings = ContainerSettings { images: Some(list), ..ContainerSettings::default() };
        assert!(refused(&settings, &request("x", &[])).contains(shown));
    }
}

#[test]
fn services_are_counted() {
    let limit = |services_limit| ContainerSettings { services_limit, ..ContainerSettings::default() };
    accepted(&limit(Some(2)), &request("ruby", &["a", "b"]));
    accepted(&limit(None), &request("ruby", &["a"; 40]));
    assert_eq!(
        refused(&limit(Some(1)), &request("ruby", &["a", "b"])),
        "the job has 2 services, but this pool allows 1: remove services, or have the operator raise `services_limit`"
    );
}

#[test]
fn names_are_judged_before_anything_is_pulled() {
    let settings = ContainerSettings::default();
    for (request, message) in [
        (
            request("Ruby", &[]),
            "the name of the image `Ruby` is not valid: the path must be lower case; correct it in `.gitlab-ci.yml`",
        ),
        (
            request("ruby", &["db:"]),
            "the name of the service `db:` is not valid: the tag is empty; a variable in it may have no value; \
             correct it in `.gitlab-ci.yml`",
        ),
        (request("ruby", &[""]), "a service has no name: correct it in `.gitlab-ci.yml`"),
    ] {
        assert_eq!(refused(&settings, &request), message);
    }
    let hostile = refused(&settings, &request("x\u{1b}[31m\nsection_start", &[]));
    assert!(!hostile.contains(['\u{1b}', '\n']), "{hostile}");
}

#[test]
fn a_services_names_come_from_its_image_and_its_alias() {
    let mut two = request("ruby", &["postgres:16", "postgres:15", "postgres:14"]);
    two.variables = vec![variable("NAME", "db")];
    two.services[1].alias = Some("${NAME}-old, $NAME".to_owned());
    let job = accepted(&ContainerSettings::default(), &two);
    let names: Vec<&[String]> = job.services.iter().map(|one| one.names.as_slice()).collect();
    assert_eq!(names, [["postgres"].map(str::to_owned).as_slice(), &["db-old".to_owned(), "db".to_owned()]]);
    assert_eq!(job.remarks.len(), 3, "{:?}", job.remarks);
}

#[test]
fn policies_that_the_pool_does_not_allow_are_left_out() {
    let mut job = request("ruby", &["redis"]);
    job.image.as_mut().unwrap().pull_policy = vec!["never".to_owned(), "if-not-present".to_owned()];
    let settings = ContainerSettings::default();
    let accepted = accepted(&settings, &job);
    assert_eq!(accepted.job.policies, [PullPolicy::IfNotPresent]);
    assert_eq!(accepted.services[0].container.policies, settings.pull_policy);
    assert_eq!(
        accepted.remarks,
        ["image `ruby`: pull_policy ([never]) is not allowed in this pool and left out"]
    );
    job.services[0].image.pull_policy = vec!["never".to_owned()];
    assert_eq!(
        refused(&settings, &job),
        "pull_policy ([never]) is not one of the allowed_pull_policies ([always if-not-present]) for the service \
         `redis`: change it in `.gitlab-ci.yml`, or have the operator allow it"
    );
}

#[test]
fn the_operators_user_wins_and_the_jobs_must_be_allowed() {
    let user = |settings: &ContainerSettings, user: &str| {
        let mut job = request("ruby", &["redis"]);
        job.variables = vec![variable("UID_", "1000")];
        for image in [job.image.as_mut().unwrap(), &mut job.services[0].image] {
            image.user = Some(user.to_owned());
        }
        let judged = judge(settings, &job, &JobContext::default()).map_err(|refused| refused.to_string());
        judged.map(|job| {
            let job = job.unwrap();
            (job.job.user, job.services[0].container.user.clone())
        })
    };
    let some = |text: &str| Some(text.to_owned());
    let any = ContainerSettings::default();
    assert_eq!(user(&any, "${UID_}:100"), Ok((some("1000:100"), some("1000:100"))));
    assert_eq!(user(&any, "$NONE"), Ok((None, None)));
    let few = ContainerSettings { allowed_users: Some(globs(&["1000*", "app"])), ..any.clone() };
    assert_eq!(user(&few, "1000:1000"), Ok((some("1000:1000"), some("1000:1000"))));
    assert_eq!(user(&few, ""), Ok((None, None)));
    assert_eq!(
        user(&few, "root"),
        Err(
            "the user `root` of the image `ruby` is not allowed in this pool (allowed: `1000*`, `app`): use \
             another one, or have the operator extend `allowed_users`"
                .to_owned()
        )
    );
    let own = ContainerSettings { user: some("build"), ..few };
    assert_eq!(user(&own, "app"), Ok((some("build"), some("app"))));
    for bad in ["a b", "-x", "a\n", "a;b"] {
        assert!(user(&any, bad).unwrap_err().contains("is not valid"), "{bad}");
    }
}

#[test]
fn a_platform_is_expanded_and_checked() {
    let mut job = request("ruby", &[]);
    job.variables = vec![variable("ARCH", "arm64")];
    job.image.as_mut().unwrap().platform = Some("linux/$ARCH".to_owned());
    let settings = ContainerSettings::default();
    assert_eq!(accepted(&settings, &job).job.platform.as_deref(), Some("linux/arm64"));
    job.image.as_mut().unwrap().platform = Some("windows/$ARCH".to_owned());
    assert_eq!(
        refused(&settings, &job),
        "the platform `windows/arm64` of the image `ruby` is not valid: images for Linux only can run here; correct \
         it in `.gitlab-ci.yml`"
    );
}

#[test]
fn privileges_go_to_whom_the_pool_gives_them() {
    let privileged = |privileged, single_use| {
        let settings = ContainerSettings { privileged, ..ContainerSettings::default() };
        let about = JobContext { single_use, ..JobContext::default() };
        let job = judge(&settings, &request("ruby", &["docker:24-dind"]), &about).unwrap().unwrap();
        (job.job.privileged, job.services[0].container.privileged)
    };
    assert_eq!(privileged(Privileged::SingleUse, true), (true, true));
    assert_eq!(privileged(Privileged::SingleUse, false), (false, false));
    assert_eq!(privileged(Privileged::All, false), (true, true));
    assert_eq!(privileged(Privileged::None, true), (false, false));
    assert_eq!(privileged(Privileged::Images(globs(&["docker:*"])), false), (false, true));
}

#[test]
fn flags_and_ports_come_from_variables() {
    let mut job = request("ruby", &["redis", "other"]);
    job.variables = vec![variable("CI_DEBUG_SERVICES", "true"), variable("TOKEN", "t")];
    job.variables[1].public = false;
    job.services[0].variables = vec![variable("HealthCheck_TCP_Port", "6379"), variable("PASS", "$TOKEN")];
    job.services[1].variables = vec![variable("HEALTHCHECK_TCP_PORT", "none")];
    let on = |name: &str| (name.into(), Secret::new("true".into()));
    let flags = ["FF_USE_INIT_WITH_DOCKER_EXECUTOR", "FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR"];
    let about = JobContext { runner_variables: flags.map(on).into(), ..JobContext::default() };
    let job = judge(&ContainerSettings::default(), &job, &about).unwrap().unwrap();
    assert_eq!((job.init, job.debug_services, job.umask), (true, true, Umask::Closed));
    assert_eq!((job.services[0].probe, job.services[1].probe), (Some(6379), None));
    assert_eq!(job.remarks, ["service `other`: HEALTHCHECK_TCP_PORT is ignored, because it is not a port"]);
    let has = |environment: &Environment, key: &str| environment.iter().any(|(name, _)| **name == *key);
    assert!(has(&job.job.environment, "TOKEN"));
    let redis = &job.services[0].container.environment;
    assert!(!has(redis, "TOKEN") && has(redis, "PASS") && has(redis, "CI_DEBUG_SERVICES"));
}

#[test]
fn file_variables_lie_in_the_directory_that_the_runner_names() {
    let mut job = request("ruby", &[]);
    job.variables = vec![Variable { file: true, ..variable("KEY", "content") }];
    let named = [("CI_PROJECT_DIR", "/builds/g/demo"), (FILES_DIR, "/builds/g/demo.tmp")];
    let named = named.map(|(name, path)| (name.into(), Secret::new(path.into())));
    let about = JobContext { runner_variables: named.into(), ..JobContext::default() };
    let job = judge(&ContainerSettings::default(), &job, &about).unwrap().unwrap();
    let key = job.job.environment.iter().find(|(name, _)| **name == *"KEY");
    assert_eq!(key.map(|(_, path)| &**path.expose()), Some("/builds/g/demo.tmp/KEY"));
}

#[test]
fn limits_hold_for_each_kind_of_thing_that_a_job_chooses() {
    let settings = ContainerSettings::default();
    let mut job = request("ruby", &["postgres"]);
    job.excess = Some(JobLimit::Words);
    assert_eq!(refused(&settings, &job), JobLimit::Words.to_string());
    let on_machine = ContainerRequest { image: None, ..job };
    assert_eq!(judge(&settings, &on_machine, &JobContext::default()).unwrap(), None, "it has no container");

    let with = |change: &dyn Fn(&mut ContainerRequest)| {
        let mut job = request("ruby", &["postgres"]);
        job.variables = vec![variable("A", &"x".repeat(1 << 16))];
        change(&mut job);
        refused(&settings, &job)
    };
    for (limit, message) in [
        (JobLimit::Option, with(&|job| job.image.as_mut().unwrap().user = Some("$A".to_owned()))),
        (JobLimit::Option, with(&|job| job.services[0].image.platform = Some("$A".to_owned()))),
        (JobLimit::ServiceNames, with(&|job| job.services[0].alias = Some("$A".to_owned()))),
        (JobLimit::VariableValue, with(&|job| job.variables.push(variable("B", "$A$A$A")))),
        (JobLimit::VariableValue, with(&|job| job.services[0].variables.push(variable("B", "$A$A$A")))),
    ] {
        assert_eq!(message, limit.to_string());
    }
}

#[test]
fn environments_of_all_services_have_one_limit() {
    let settings = ContainerSettings::default();
    let names: Vec<String> = (0..SERVICES).map(|number| format!("s{number}")).collect();
    let mut job = request("ruby", &names.iter().map(String::as_str).collect::<Vec<_>>());
    let most = ENVIRONMENTS_BYTES / SERVICES / 2 - 30;
    let full = "x".repeat(most);
    job.variables = vec![variable("A", &full), variable("B", &full), variable("S", "secret")];
    job.variables[2].public = false;
    let accepted = accepted(&settings, &job);
    let value = |number: usize| accepted.services[number].container.environment[0].1.expose().clone();
    assert!(std::sync::Arc::ptr_eq(&value(0), &value(99)), "the services share the text");
    assert_eq!(accepted.images().count(), 20, "the record names a few images");
    // A quote takes four bytes in the script.
    job.variables[0] = variable("A", &format!("{}{}", "x".repeat(most - 40), "'".repeat(40)));
    assert_eq!(refused(&settings, &job), JobLimit::Environments.to_string());
}

#[test]
fn each_image_gets_the_credentials_of_its_registry_only() {
    let mut job = request("a.example.com/app", &["b.example.com/db", "ruby"]);
    let password = Secret::new("hunter2".to_owned());
    job.credentials =
        vec![Credential { registry: "a.example.com".to_owned(), username: "gitlab".to_owned(), password }];
    let file = r#"{"auths": {"b.example.com": {"username": "op", "password": "hunter2"}}}"#;
    let about = JobContext { registry_auth: Some(Secret::new(file.to_owned())), ..JobContext::default() };
    let accepted = judge(&ContainerSettings::default(), &job, &about).unwrap().unwrap();
    let user = |spec: &ContainerSpec| spec.login.as_ref().map(|login| login.username.clone());
    assert_eq!(user(&accepted.job).as_deref(), Some("gitlab"));
    assert_eq!(user(&accepted.services[0].container).as_deref(), Some("op"));
    assert_eq!(user(&accepted.services[1].container), None);
    assert!(!format!("{accepted:?} {about:?}").contains("hunter2"));
    let broken = JobContext { registry_auth: Some(Secret::new("hunter2".to_owned())), ..about };
    let remarks = judge(&ContainerSettings::default(), &job, &broken).unwrap().unwrap().remarks;
    assert_eq!(remarks, ["`registry_auth` is ignored: it is not a JSON object"]);
}

#[test]
fn where_jobs_meet_they_get_the_operators_credentials_only_if_these_are_shared() {
    let mut job = request("a.example.com/g/app", &["a.example.com/db", "ruby"]);
    let password = Secret::new("hunter2".to_owned());
    job.credentials =
        vec![Credential { registry: "a.example.com/g".to_owned(), username: "gitlab".to_owned(), password }];
    let file = r#"{"auths": {"a.example.com": {"username": "op", "password": "hunter2"}}}"#;
    let logins = |meets_others, registry_auth_shared| {
        let registry_auth = Some(Secret::new(file.to_owned()));
        let about = JobContext { registry_auth, meets_others, ..JobContext::default() };
        let settings = ContainerSettings { registry_auth_shared, ..ContainerSettings::default() };
        let accepted = judge(&settings, &job, &about).unwrap().unwrap();
        let of = |spec: &ContainerSpec| {
            let user = spec.login.as_ref().map_or("none", |login| login.username.as_str());
            format!("{user}{}", if spec.login_withheld { ", withheld" } else { "" })
        };
        accepted.containers().map(of).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(logins(false, false), "gitlab; op; none");
    assert_eq!(logins(true, false), "gitlab, withheld; none, withheld; none");
    assert_eq!(logins(true, true), "gitlab; op; none");
}

#[test]
fn entrypoints_and_commands_are_passed_on() {
    let mut job = request("ruby", &["redis"]);
    job.image.as_mut().unwrap().entrypoint = Some(vec![String::new()]);
    job.services[0].command = Some(vec!["--port".to_owned(), "1".to_owned()]);
    let accepted = accepted(&ContainerSettings::default(), &job);
    assert_eq!((accepted.job.entrypoint, accepted.job.command), (Some(vec![String::new()]), None));
    assert_eq!(accepted.services[0].container.command, job.services[0].command);
}

#[test]
fn containers_share_a_pull_only_if_nothing_about_it_differs() {
    let job = accepted(&ContainerSettings::default(), &request("ruby", &["ruby", "ghcr.io/own/db"]));
    let ruby = job.job.clone();
    let same = job.services[0].container.clone();
    assert!(ruby.shares_pull(&same));
    assert!(!ruby.shares_pull(&job.services[1].container));
    let login = Login {
        scope: "docker.io".to_owned(),
        username: "ci".to_owned(),
        password: Secret::new(String::new()),
        source: "DOCKER_AUTH_CONFIG",
    };
    for other in [
        ContainerSpec { platform: Some("linux/arm64".to_owned()), ..same.clone() },
        ContainerSpec { policies: vec![PullPolicy::Never], ..same.clone() },
        ContainerSpec { login: Some(login), ..same.clone() },
    ] {
        assert!(!ruby.shares_pull(&other), "{other:?}");
    }
    assert!(ruby.shares_pull(&ContainerSpec { user: Some("1000".to_owned()), ..same }), "only a pull counts");
    let registries: Vec<String> = job.registries().collect();
    assert_eq!(registries, ["docker.io", "docker.io", "ghcr.io"]);
    assert_eq!(job.complete_name("ghcr.io/own/db"), Some("ghcr.io/own/db:latest"));
    assert_eq!(job.complete_name("redis"), None);
    assert_eq!(job.images().count(), 2);
}

proptest! {
    #[test]
    fn no_text_panics_and_every_message_is_one_line(name in ".{0,30}", other in ".{0,30}") {
        let mut job = request(&name, &[&other, "ruby"]);
        job.services[1].alias = Some(other.clone());
        job.services[1].image = ImageRequest {
            user: Some(other.clone()),
            platform: Some(name.clone()),
            pull_policy: vec![name.clone(), "always".to_owned()],
            ..image("ruby")
        };
        job.variables = vec![variable(&name, &other), variable(AUTH_CONFIG, &name)];
        let messages = match judge(&ContainerSettings::default(), &job, &JobContext::default()) {
            Ok(job) => job.map(|job| job.remarks).unwrap_or_default(),
            Err(refused) => vec![refused.to_string()],
        };
        prop_assert!(messages.iter().all(|message| !message.contains(char::is_control)), "{messages:?}");
    }
}

#[test]
fn a_job_gets_its_own_policies_as_far_as_the_pool_allows_them() {
    for (requested, pool, allowed, expected, refused) in [
        (vec![], vec![Always, IfNotPresent], vec![], vec![Always, IfNotPresent], vec![]),
        (vec![], vec![Never], vec![Always], vec![Never], vec![]),
        (vec![], vec![], vec![], vec![Always], vec![]),
        (vec!["if-not-present"], vec![Always], vec![Always, IfNotPresent], vec![IfNotPresent], vec![]),
        (vec!["never", "always"], vec![Always], vec![Always], vec![Always], vec!["never"]),
        (
            vec!["if-not-present", "always"],
            vec![Never],
            PullPolicy::ALL.to_vec(),
            vec![IfNotPresent, Always],
            vec![],
        ),
        (vec!["always", "always"], vec![Never], vec![Always], vec![Always], vec![]),
    ] {
        let words: Vec<String> = requested.iter().map(|word| (*word).to_owned()).collect();
        let refused: Vec<String> = refused.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(effective_policies(&words, &pool, &allowed), Ok((expected, refused)), "{requested:?}");
    }
}

#[test]
fn only_an_empty_rest_is_an_error() {
    for (words, allowed, message) in [
        (
            vec!["if-not-present"],
            vec![Always],
            "pull_policy ([if-not-present]) is not one of the allowed_pull_policies ([always])",
        ),
        (
            vec!["never", "Always"],
            vec![Always, IfNotPresent],
            "pull_policy ([never Always]) is not one of the allowed_pull_policies ([always if-not-present])",
        ),
    ] {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let refused = effective_policies(&words, &[Always], &allowed).unwrap_err();
        assert_eq!(refused.to_string(), message);
    }
}
