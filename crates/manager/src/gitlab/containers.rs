//! The parts of a job's response that concern containers: image, services, credentials, variables.
//!
//! A value of another type than expected counts as missing, so that a newer GitLab fails no job.

use greenroom_core::container::request::{
    self, ContainerRequest, Credential, ImageRequest, JobLimit, Room, ServiceRequest, Variable,
};
use greenroom_core::text::Secret;
use serde_json::Value;

use super::bounded::{Budget, Elements, LONGEST};

/// The memory of a variable while it is read: enough to see whether its name or its value is too long.
const VARIABLE: usize = 3 * LONGEST;
/// The memory of the image, or of a service with its variables.
const CONTAINER: usize = 10 << 20;

/// Collects the parts while they are read. What exceeds a limit is left out, and the request names the limit.
#[derive(Debug)]
pub(super) struct RequestCollector {
    request: ContainerRequest,
    variables: Room,
    service_variables: Room,
    words: Room,
    credentials: Room,
}

impl RequestCollector {
    pub(super) fn new() -> Self {
        let variables = Room::new(request::VARIABLES, request::VARIABLES_BYTES);
        Self {
            request: ContainerRequest::default(),
            variables,
            service_variables: variables,
            words: Room::new(request::WORDS, request::WORDS_BYTES),
            credentials: Room::new(request::CREDENTIALS, request::CREDENTIALS_BYTES),
        }
    }

    /// The budget for `image`.
    pub(super) const fn image_budget() -> Budget {
        Budget::new(CONTAINER)
    }

    /// The value of `image`. A job without one has an image without a name.
    pub(super) fn set_image(&mut self, value: &Value, is_over: bool) {
        let image = Some(value).filter(|value| value.is_object()).map(|value| self.image(value));
        self.request.image = image.filter(|image| !image.name.is_empty());
        self.refuse_if(is_over, JobLimit::Words);
    }

    /// Reads `services`. A service without a name stays, so that the job fails with a reason.
    pub(super) fn services(&mut self) -> Elements<impl FnMut(Value, bool) -> bool + '_> {
        self.request.services.clear();
        let each = |value: Value, is_over| {
            if !value.is_object() {
                return true;
            }
            let is_full = self.request.services.len() == request::SERVICES;
            self.refuse_if(is_full, JobLimit::Services);
            // One more shows that the job has services.
            let service = if is_full { ServiceRequest::default() } else { self.service(&value) };
            self.refuse_if(is_over, JobLimit::VariablesBytes);
            self.request.services.push(service);
            !is_full
        };
        Elements { bytes: CONTAINER, each }
    }

    /// Reads `credentials`.
    pub(super) fn credentials(&mut self) -> Elements<impl FnMut(Value, bool) -> bool + '_> {
        self.request.credentials.clear();
        let each = |value: Value, is_over| {
            self.refuse_if(is_over, JobLimit::Credentials);
            if let Some(one) = credential(&value) {
                let bytes = one.registry.len() + one.username.len() + one.password.expose().len();
                let fits = self.credentials.take(bytes);
                self.refuse_if(!fits, JobLimit::Credentials);
                self.request.credentials.extend(fits.then_some(one));
            }
            self.request.excess.is_none()
        };
        Elements { bytes: request::CREDENTIALS_BYTES, each }
    }

    /// Reads `variables`.
    pub(super) fn variables(&mut self) -> Elements<impl FnMut(Value, bool) -> bool + '_> {
        self.request.variables.clear();
        let each = |value: Value, is_over| {
            self.refuse_if(is_over, JobLimit::VariableValue);
            let Some(variable) = variable(&value) else { return true };
            match fits(&variable, &mut self.variables) {
                Ok(()) => {
                    self.request.variables.push(variable);
                    true
                }
                // GitLab's own variables come first. They tell whose job it is, whatever else is wrong with it.
                Err(limit) => {
                    self.refuse_if(true, limit);
                    matches!(limit, JobLimit::VariableName | JobLimit::VariableValue)
                }
            }
        };
        Elements { bytes: VARIABLE, each }
    }

    pub(super) fn into_request(self) -> ContainerRequest {
        self.request
    }

    /// Notes the limit that a job exceeds. Of several limits, the first one is named.
    fn refuse_if(&mut self, exceeds: bool, limit: JobLimit) {
        if exceeds {
            self.request.excess.get_or_insert(limit);
        }
    }

    fn image(&mut self, value: &Value) -> ImageRequest {
        let docker = value.get("executor_opts").and_then(|options| options.get("docker"));
        let option = |name| docker.and_then(|docker| text(docker, name));
        let user = option("user");
        let platform = option("platform");
        let policies = words(value, "pull_policy").unwrap_or_default();
        let mut name = text(value, "name").unwrap_or_default();
        self.refuse_if(name.len() > request::IMAGE_NAME, JobLimit::ImageName);
        self.refuse_if(policies.len() > request::PULL_POLICIES, JobLimit::PullPolicies);
        let options = policies.iter().chain(&user).chain(&platform);
        let is_long = options.map(String::len).any(|length| length > request::OPTION);
        self.refuse_if(is_long, JobLimit::Option);
        name.truncate(name.floor_char_boundary(request::IMAGE_NAME));
        if self.request.excess.is_some() {
            return ImageRequest { name, ..ImageRequest::default() };
        }
        let entrypoint = self.words(words(value, "entrypoint"));
        ImageRequest { name, entrypoint, pull_policy: policies, user, platform }
    }

    fn words(&mut self, words: Option<Vec<String>>) -> Option<Vec<String>> {
        let fits = words.iter().flatten().all(|word| self.words.take(word.len()));
        self.refuse_if(!fits, JobLimit::Words);
        words.filter(|_| fits)
    }

    fn service(&mut self, value: &Value) -> ServiceRequest {
        let image = self.image(value);
        let alias = text(value, "alias");
        let is_long = alias.as_ref().is_some_and(|alias| alias.len() > request::SERVICE_NAMES_BYTES);
        self.refuse_if(is_long, JobLimit::ServiceNames);
        let command = self.words(words(value, "command"));
        let variables: Vec<Variable> = objects(value, "variables").filter_map(variable).collect();
        let fits = variables.iter().try_for_each(|variable| fits(variable, &mut self.service_variables));
        self.request.excess = self.request.excess.or(fits.err());
        if self.request.excess.is_some() {
            return ServiceRequest { image, ..ServiceRequest::default() };
        }
        ServiceRequest { image, alias, command, variables }
    }
}

fn fits(variable: &Variable, room: &mut Room) -> Result<(), JobLimit> {
    let name = variable.key.len();
    let value = variable.value.expose().len();
    let had_entries = room.has_entries();
    match () {
        () if name > request::VARIABLE_NAME => Err(JobLimit::VariableName),
        () if value > request::VARIABLE_VALUE => Err(JobLimit::VariableValue),
        () if room.take(name + value) => Ok(()),
        () if had_entries => Err(JobLimit::VariablesBytes),
        () => Err(JobLimit::Variables),
    }
}

/// Other kinds of credentials than a registry's are of no use here.
fn credential(value: &Value) -> Option<Credential> {
    if value.get("type")?.as_str()? != "registry" {
        return None;
    }
    Some(Credential {
        registry: text(value, "url")?,
        username: text(value, "username").unwrap_or_default(),
        password: Secret::new(text(value, "password").unwrap_or_default()),
    })
}

fn variable(value: &Value) -> Option<Variable> {
    let is = |name| value.get(name).and_then(Value::as_bool).unwrap_or(false);
    Some(Variable {
        key: text(value, "key")?,
        value: Secret::new(text(value, "value").unwrap_or_default()),
        public: is("public"),
        file: is("file"),
        raw: is("raw"),
    })
}

/// The objects in a list.
fn objects<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of.get(name).and_then(Value::as_array).into_iter().flatten().filter(|value| value.is_object())
}

/// A text that is not empty.
fn text(of: &Value, name: &str) -> Option<String> {
    of.get(name)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A list of texts; a single text is a list of one.
fn words(of: &Value, name: &str) -> Option<Vec<String>> {
    match of.get(name)? {
        Value::String(word) => Some(vec![word.clone()]),
        Value::Array(words) => Some(words.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gitlab::response::JobResponse;

    /// Written by a real runner, but for the credentials.
    const RECORDED: &str = include_str!("../../../../tests/fixtures/runner-19.4/containers.json");

    /// The request of a response with these parts.
    fn parse(parts: &Value) -> ContainerRequest {
        JobResponse::with_containers(parts)
    }

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_recorded_request_is_understood() {
        let request = parse(&serde_json::from_str(RECORDED).unwrap());
        let image = ImageRequest {
            name: "registry.example.com:5005/g/demo:1".to_owned(),
            entrypoint: Some(strings(&["/e", "x"])),
            pull_policy: strings(&["always", "if-not-present"]),
            user: Some("1000:1000".to_owned()),
            platform: Some("linux/amd64".to_owned()),
        };
        assert_eq!(request.image, Some(image));
        let variable = Variable {
            key: "POSTGRES_DB".to_owned(),
            value: Secret::new("x-$CI_PROJECT_NAME".to_owned()),
            public: true,
            file: false,
            raw: false,
        };
        let database = ServiceRequest {
            image: ImageRequest {
                name: "registry.example.com:5005/g/db/postgres:16".to_owned(),
                entrypoint: Some(strings(&["docker-entrypoint.sh"])),
                pull_policy: strings(&["never"]),
                user: Some("70".to_owned()),
                platform: None,
            },
            alias: Some("db, pg  demo".to_owned()),
            command: Some(strings(&["-c", "fsync=off"])),
            variables: vec![variable],
        };
        let image = ImageRequest { name: "docker:24-dind".to_owned(), ..ImageRequest::default() };
        assert_eq!(request.services, [database, ServiceRequest { image, ..ServiceRequest::default() }]);
        let [login] = request.credentials.as_slice() else { panic!("{:?}", request.credentials) };
        assert_eq!(
            (login.registry.as_str(), login.username.as_str()),
            ("registry.example.com:5005", "gitlab-ci-token")
        );
        assert_eq!(login.password.expose(), "glcbt-made-up");
        assert_eq!(request.variables, []);
        assert!(!format!("{request:?}").contains("glcbt"));
    }

    #[test]
    fn a_job_without_image_or_services_asks_for_nothing() {
        for nothing in [
            json!({}),
            json!({"image": {"name": ""}, "services": [], "credentials": null}),
            json!({"image": null, "services": null, "variables": null}),
            json!({"image": "ruby", "services": "x", "credentials": {}, "variables": 1}),
            json!({"image": {"name": 3}, "services": ["x", 7], "credentials": [1], "variables": [{}]}),
        ] {
            assert_eq!(parse(&nothing), ContainerRequest::default(), "{nothing}");
        }
    }

    #[test]
    fn options_of_another_type_count_as_missing() {
        let odd = json!({"name": "a", "entrypoint": {"x": 1}, "pull_policy": 7, "alias": ["x"], "command": null,
            "variables": {"A": "b"}, "executor_opts": {"docker": {"user": 70, "platform": []}, "new": {}}});
        let plain = ImageRequest { name: "a".to_owned(), ..ImageRequest::default() };
        let request = parse(&json!({"image": odd, "services": [odd]}));
        assert_eq!(request.image, Some(plain.clone()));
        assert_eq!(request.services, [ServiceRequest { image: plain, ..ServiceRequest::default() }]);
        for odd in [json!(7), json!([]), json!("x")] {
            let image = json!({"name": "a", "executor_opts": odd});
            assert_eq!(parse(&json!({"image": image})).image.unwrap().user, None);
        }
    }

    #[test]
    fn an_empty_list_is_not_a_missing_one_and_a_text_is_a_list_of_one() {
        let entrypoint = |value| {
            let image = json!({"name": "a", "entrypoint": value});
            parse(&json!({"image": image})).image.unwrap().entrypoint
        };
        assert_eq!(entrypoint(json!([])), Some(Vec::new()));
        assert_eq!(entrypoint(json!([""])), Some(strings(&[""])));
        assert_eq!(entrypoint(json!("/e")), Some(strings(&["/e"])));
        assert_eq!(entrypoint(json!(null)), None);
    }

    #[test]
    fn the_first_limit_that_is_exceeded_is_named_and_the_rest_is_left_out() {
        let excess = |parts: Value| parse(&parts).excess;
        let named = |count: usize| (0..count).map(|n| json!({"key": format!("A{n}")})).collect::<Vec<_>>();
        let words = |count: usize| vec!["x"; count];
        for (parts, limit) in [
            (json!({"variables": named(request::VARIABLES)}), None),
            (json!({"variables": named(request::VARIABLES + 1)}), Some(JobLimit::Variables)),
            (json!({"services": vec![json!({"name": "a"}); request::SERVICES]}), None),
            (
                json!({"services": vec![json!({"name": "a"}); request::SERVICES + 1]}),
                Some(JobLimit::Services),
            ),
            (json!({"services": [{"name": "a", "command": words(1_000_000)}]}), Some(JobLimit::Words)),
            (json!({"image": {"name": "a", "entrypoint": words(request::WORDS)}}), None),
            (json!({"image": {"name": "a", "entrypoint": words(request::WORDS + 1)}}), Some(JobLimit::Words)),
            (json!({"image": {"name": "a", "pull_policy": words(100_000)}}), Some(JobLimit::PullPolicies)),
            (json!({"services": [{"name": "a", "variables": named(20_000)}]}), Some(JobLimit::Variables)),
        ] {
            assert_eq!(excess(parts), limit);
        }
        let first = json!({"key": "LARGE", "value": "x".repeat(request::VARIABLE_VALUE + 1)});
        let request = parse(&json!({"variables": [first, {"key": "CI_SERVER_URL", "value": "x"}]}));
        assert_eq!(request.excess, Some(JobLimit::VariableValue));
        assert_eq!(request.variables.len(), 1, "what is not too large stays");
        let parts = json!({"services": vec![json!({"name": "a"}); 3 * request::SERVICES]});
        assert_eq!(parse(&parts).services.len(), request::SERVICES + 1);
    }

    #[test]
    fn a_service_without_a_name_stays_and_other_credentials_do_not() {
        let request = parse(&json!({
            "services": [{"alias": "db"}],
            "credentials": [
                {"type": "package", "url": "a"},
                {"type": "registry"},
                {"type": "registry", "url": "b"}
            ],
        }));
        assert_eq!(request.services[0].image.name, "");
        let registries: Vec<&str> = request.credentials.iter().map(|one| one.registry.as_str()).collect();
        assert_eq!(registries, ["b"]);
    }
}
