//! The parts of a job's response that concern containers: image, services, credentials, variables.
//!
//! A value of another type than expected counts as missing, so that a newer GitLab fails no job.

use serde_json::Value;

use crate::core::container::request::{ContainerRequest, Credential, ImageRequest, ServiceRequest, Variable};
use crate::core::secret::Secret;

/// Reads a whole response.
pub(super) fn parse(response: &Value) -> ContainerRequest {
    let named = |image: &ImageRequest| !image.name.is_empty();
    ContainerRequest {
        // A job without `image:` has an image without a name.
        image: response.get("image").map(image).filter(named),
        // A service without a name stays, so that the job fails with a reason.
        services: objects(response, "services").map(service).collect(),
        credentials: objects(response, "credentials").filter_map(credential).collect(),
        variables: variables(response),
    }
}

fn image(value: &Value) -> ImageRequest {
    let docker = value.get("executor_opts").and_then(|options| options.get("docker"));
    let option = |name| docker.and_then(|docker| text(docker, name));
    ImageRequest {
        name: text(value, "name").unwrap_or_default(),
        entrypoint: words(value, "entrypoint"),
        pull_policy: words(value, "pull_policy").unwrap_or_default(),
        user: option("user"),
        platform: option("platform"),
    }
}

fn service(value: &Value) -> ServiceRequest {
    ServiceRequest {
        image: image(value),
        alias: text(value, "alias"),
        command: words(value, "command"),
        variables: variables(value),
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

fn variables(of: &Value) -> Vec<Variable> {
    let is = |value: &Value, name| value.get(name).and_then(Value::as_bool).unwrap_or(false);
    let variable = |value: &Value| {
        Some(Variable {
            key: text(value, "key")?,
            value: Secret::new(text(value, "value").unwrap_or_default()),
            public: is(value, "public"),
            file: is(value, "file"),
            raw: is(value, "raw"),
        })
    };
    objects(of, "variables").filter_map(variable).collect()
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

    /// Written by a real runner, but for the credentials.
    const RECORDED: &str = include_str!("../../tests/fixtures/runner-19.4/containers.json");

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
