//! GitLab's description of a job: JOB_RESPONSE_FILE.
//!
//! The only source of decisions. The file holds the job's token, registry credentials and all its variables; of these,
//! only what containers need is kept, wrapped. No message quotes the file. Unknown fields, nulls and missing optional
//! fields are accepted.

use std::fmt;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use greenroom_core::container::request::ContainerRequest;
use greenroom_core::ids::JobKey;
use greenroom_core::job::JobFacts;
use greenroom_core::text::Secret;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::bounded::{Budget, Clipped, FieldName};
use super::containers::RequestCollector;

/// GitLab Runner's own default for a job without a timeout.
const DEFAULT_TIMEOUT: Duration = Duration::from_hours(2);

/// The longest name, ref, URL or path of a project that a job may have, in bytes. GitLab's own limits are lower.
const LONGEST_TEXT: usize = 8 << 10;
/// The memory of one of the response's small parts.
const PART: usize = 256 << 10;
/// Bytes of the file that are read at a time.
const CHUNK: usize = 64 << 10;

/// The parts of a job's response that Greenroom uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobResponse {
    /// The recorded facts. Their texts are cleaned and truncated; rules compare the fields below.
    pub facts: JobFacts,
    /// The job's name in the pipeline, unchanged. Users who may push choose it.
    pub name: String,
    /// Branch or tag, unchanged. Users who may push choose it.
    pub git_ref: String,
    /// The value of `image:`, variables expanded. Users who may push choose it.
    pub image: Option<String>,
    /// The id that GitLab gave to the runner.
    pub runner: Option<u64>,
    /// The job's request for containers, with its credentials and variables.
    pub containers: ContainerRequest,
}

/// A response that cannot be used. No variant quotes the file.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    #[error("cannot read the job's response")]
    Read(#[source] io::Error),
    #[error("the job's response is not valid JSON: {what} in line {line}, column {column}")]
    Json { what: &'static str, line: usize, column: usize },
    #[error("the job's response has no valid `{field}`: expected {expected}, found {found}")]
    Field { field: &'static str, expected: &'static str, found: &'static str },
    #[error("the job's `{field}` is longer than {} KiB, which no pool accepts: shorten it", LONGEST_TEXT >> 10)]
    TooLong { field: &'static str },
}

impl ResponseError {
    /// True if the job's author chose what is wrong.
    pub fn is_by_job(&self) -> bool {
        matches!(self, Self::TooLong { .. })
    }
}

impl JobResponse {
    /// Reads the file that `JOB_RESPONSE_FILE` names. The error names it.
    pub fn read(path: &Path) -> Result<Self, ResponseError> {
        Self::parse(fs_err::File::open(path).map_err(ResponseError::Read)?)
    }

    /// Parses the file's bytes. Scripts, which are its largest part, are passed over.
    pub fn parse(bytes: impl Read) -> Result<Self, ResponseError> {
        let document = Document::parse(bytes)?;
        let text = |path: &[&'static str]| document.at(path).as_str().filter(|text| !text.is_empty());
        let id = document.at(&["id"]);
        let id = id.as_u64().ok_or(ResponseError::Field {
            field: "id",
            expected: "a whole number",
            found: kind(id),
        })?;
        let server = document.first_variable("CI_SERVER_URL").ok_or(ResponseError::Field {
            field: "CI_SERVER_URL",
            expected: "GitLab's URL in the variables",
            found: "none",
        })?;
        let project = text(&["job_info", "project_full_path"]);
        let project = project.or_else(|| document.first_variable("CI_PROJECT_PATH"));
        let project = project.ok_or(ResponseError::Field {
            field: "job_info.project_full_path",
            expected: "the project's full path",
            found: "none, nor a variable `CI_PROJECT_PATH`",
        })?;
        let timeout = document.at(&["runner_info", "timeout"]).as_u64().filter(|seconds| *seconds > 0);
        let timeout = timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let key = JobKey::new(server.trim_end_matches('/'), id);
        let name = text(&["job_info", "name"]).unwrap_or_default();
        let git_ref = text(&["git_info", "ref"]).unwrap_or_default();
        let texts =
            [("name", name), ("ref", git_ref), ("project_full_path", project), ("CI_SERVER_URL", server)];
        if let Some((field, _)) = texts.iter().find(|(_, text)| text.len() > LONGEST_TEXT) {
            return Err(ResponseError::TooLong { field });
        }
        let facts = JobFacts {
            pipeline: document.pipeline(),
            stage: text(&["job_info", "stage"]).and_then(JobFacts::text),
            name: JobFacts::text(name),
            git_ref: JobFacts::text(git_ref),
            protected: document.at(&["git_info", "protected"]).as_bool().unwrap_or(false),
            ..JobFacts::new(key, project, timeout)
        };
        Ok(Self {
            facts,
            name: name.to_owned(),
            git_ref: git_ref.to_owned(),
            image: document.containers.image.as_ref().map(|image| image.name.clone()),
            runner: document.first_variable("CI_RUNNER_ID").and_then(|id| id.parse().ok()),
            containers: document.containers,
        })
    }
}

/// The response's parts, kept only while it is parsed.
struct Document {
    parts: Secret<Value>,
    containers: ContainerRequest,
}

/// Reads the parts.
struct Parts;

impl<'de> Visitor<'de> for Parts {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Document, A::Error> {
        const FIELDS: &[&str] =
            &["id", "job_info", "git_info", "runner_info", "image", "services", "credentials", "variables"];
        let mut parts = Map::new();
        let mut containers = RequestCollector::new();
        while let Some(name) = fields.next_key_seed(FieldName(FIELDS))? {
            match name {
                None => {
                    fields.next_value::<IgnoredAny>()?;
                }
                Some("services") => fields.next_value_seed(containers.services())?,
                Some("credentials") => fields.next_value_seed(containers.credentials())?,
                Some("variables") => fields.next_value_seed(containers.variables())?,
                Some("image") => {
                    let budget = RequestCollector::image_budget();
                    let image = fields.next_value_seed(&budget)?;
                    containers.set_image(&image, budget.is_over());
                }
                Some(name) => {
                    parts.insert(name.to_owned(), fields.next_value_seed(&Budget::new(PART))?);
                }
            }
        }
        Ok(Document { parts: Secret::new(Value::Object(parts)), containers: containers.into_request() })
    }
}

impl Document {
    /// Does not pass on the parser's messages, because they quote invalid input.
    fn parse(bytes: impl Read) -> Result<Self, ResponseError> {
        let bytes = BufReader::with_capacity(CHUNK, Clipped::new(bytes));
        let mut from = serde_json::Deserializer::from_reader(bytes);
        let document = from.deserialize_any(Parts).and_then(|document| from.end().map(|()| document));
        document.map_err(|error| {
            let (what, line, column) = match error.classify() {
                serde_json::error::Category::Data => ("not an object", 1, 1),
                serde_json::error::Category::Eof => ("unexpected end", error.line(), error.column()),
                serde_json::error::Category::Syntax => ("syntax error", error.line(), error.column()),
                serde_json::error::Category::Io => {
                    let error = io::Error::from(error);
                    if error.kind() != io::ErrorKind::InvalidData {
                        return ResponseError::Read(error);
                    }
                    ("nested too deeply", 1, 1)
                }
            };
            ResponseError::Json { what, line, column }
        })
    }

    /// The value at a path; null if any part of it is missing or of another kind.
    fn at(&self, path: &[&str]) -> &Value {
        const NULL: &Value = &Value::Null;
        path.iter().fold(self.parts.expose(), |value, part| value.get(part).unwrap_or(NULL))
    }

    /// The pipeline's id. An older GitLab names it only in a variable; the runner then writes 0 into the field.
    fn pipeline(&self) -> Option<u64> {
        let field = self.at(&["job_info", "pipeline_id"]).as_u64().filter(|id| *id > 0);
        field.or_else(|| self.first_variable("CI_PIPELINE_ID")?.parse().ok().filter(|id| *id > 0))
    }

    /// The first variable with a name. GitLab's own come first; a pipeline's variables of the same name come after
    /// them.
    fn first_variable(&self, name: &str) -> Option<&str> {
        let found = self.containers.variables.iter().find(|variable| variable.key == name)?;
        Some(found.value.expose().as_str()).filter(|value| !value.is_empty())
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "none",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "another number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
impl JobResponse {
    /// The containers of a minimal response with these parts.
    pub(super) fn with_containers(parts: &Value) -> ContainerRequest {
        Document::parse(parts.to_string().as_bytes()).unwrap().containers
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Written by a real runner.
    const RECORDED: &str = include_str!("../../../../tests/fixtures/runner-19.4/response.json");

    fn parse(value: &Value) -> Result<JobResponse, ResponseError> {
        JobResponse::parse(value.to_string().as_bytes())
    }

    fn recorded() -> Value {
        serde_json::from_str(RECORDED).unwrap()
    }

    /// A minimal response.
    fn minimal() -> Value {
        let variables = json!([{"key": "CI_SERVER_URL", "value": "https://gitlab.example.com"}]);
        json!({"id": 7, "job_info": {"project_full_path": "g/p"}, "variables": variables})
    }

    #[test]
    fn a_recorded_response_is_understood() {
        let job = JobResponse::parse(RECORDED.as_bytes()).unwrap();
        assert_eq!(job.facts.key, JobKey::new("http://127.0.0.1:9999", 7043));
        assert_eq!((&*job.facts.project, job.facts.namespace()), ("g/demo", "g"));
        assert_eq!(job.facts.timeout, Duration::from_hours(1));
        assert_eq!((job.name.as_str(), job.git_ref.as_str()), ("lab-job", "main"));
        let facts = &job.facts;
        assert_eq!((facts.name.as_deref(), facts.stage.as_deref()), (Some("lab-job"), Some("test")));
        assert_eq!((facts.pipeline, facts.git_ref.as_deref()), (Some(7043), Some("main")));
        assert!(!facts.protected);
        assert_eq!(job.runner, Some(1));
        assert_eq!(job.image.as_deref(), Some("ruby:3.3"));
    }

    #[test]
    fn little_is_enough_and_nulls_are_nothing() {
        let mut poor = minimal();
        for field in ["git_info", "runner_info", "image", "steps"] {
            poor[field] = Value::Null;
        }
        let job = parse(&poor).unwrap();
        assert_eq!(job, parse(&minimal()).unwrap());
        assert_eq!(job.facts, JobFacts::new(job.facts.key.clone(), "g/p", DEFAULT_TIMEOUT));
        assert_eq!((job.name.as_str(), job.git_ref.as_str(), job.image), ("", "", None));
    }

    #[test]
    fn variables_that_a_pipeline_adds_change_nothing() {
        let plain = parse(&recorded()).unwrap();
        let mut forged = recorded();
        let variables = forged["variables"].as_array_mut().unwrap();
        for (key, value) in [
            ("CI_SERVER_URL", "https://evil.example.com"),
            ("CI_PROJECT_PATH", "top/secret"),
            ("CI_JOB_ID", "1"),
            ("CI_JOB_IMAGE", "any"),
            ("CI_COMMIT_REF_PROTECTED", "true"),
            ("CI_COMMIT_REF_NAME", "production"),
            ("CI_PIPELINE_ID", "1"),
            ("CI_RUNNER_ID", "99"),
            ("CI_JOB_STAGE", "deploy"),
            ("CI_JOB_NAME", "deploy"),
        ] {
            variables.push(json!({"key": key, "value": value}));
        }
        // The job's containers get its variables; nothing else changes.
        let containers = plain.containers.clone();
        assert_eq!(JobResponse { containers, ..parse(&forged).unwrap() }, plain);
    }

    #[test]
    fn an_older_gitlab_names_the_project_in_its_first_variable_only() {
        let mut old = recorded();
        old["job_info"]["project_full_path"] = Value::Null;
        let variables = old["variables"].as_array_mut().unwrap();
        variables.push(json!({"key": "CI_PROJECT_PATH", "value": "top/secret"}));
        assert_eq!(&*parse(&old).unwrap().facts.project, "g/demo");
    }

    #[test]
    fn an_older_gitlab_names_the_pipeline_in_its_first_variable_only() {
        let mut old = recorded();
        let variables = old["variables"].as_array_mut().unwrap();
        variables.push(json!({"key": "CI_PIPELINE_ID", "value": "1"}));
        for nothing in [json!(null), json!(0), json!("7")] {
            old["job_info"]["pipeline_id"] = nothing;
            assert_eq!(parse(&old).unwrap().facts.pipeline, Some(7043));
        }
        for nonsense in ["0", "-1", "x"] {
            let mut odd = minimal();
            let variables = odd["variables"].as_array_mut().unwrap();
            variables.push(json!({"key": "CI_PIPELINE_ID", "value": nonsense}));
            assert_eq!(parse(&odd).unwrap().facts.pipeline, None, "{nonsense}");
        }
    }

    #[test]
    fn rules_see_texts_as_they_are_and_the_record_gets_them_clean_and_short() {
        let mut odd = minimal();
        let name = "main\x1b[31m\njob";
        let git_ref = "r".repeat(300);
        odd["job_info"] = json!({"project_full_path": "g/p", "name": name, "stage": "a\tb"});
        odd["git_info"] = json!({"ref": git_ref});
        let job = parse(&odd).unwrap();
        assert_eq!((job.name.as_str(), job.git_ref.as_str()), (name, git_ref.as_str()));
        let facts = job.facts;
        assert_eq!((facts.name.as_deref(), facts.stage.as_deref()), (Some("main job"), Some("a b")));
        assert_eq!(facts.git_ref.unwrap().chars().count(), 255);
    }

    #[test]
    fn only_gitlabs_yes_makes_a_ref_protected() {
        for (value, protected) in
            [(json!(true), true), (json!(false), false), (json!(null), false), (json!("true"), false)]
        {
            let mut response = minimal();
            response["git_info"] = json!({ "protected": value });
            assert_eq!(parse(&response).unwrap().facts.protected, protected, "{value}");
        }
    }

    #[test]
    fn what_is_missing_is_said_in_one_sentence() {
        let without = |field: &str| {
            let mut response = minimal();
            response.as_object_mut().unwrap().remove(field);
            parse(&response).unwrap_err().to_string()
        };
        let start = "the job's response has no valid";
        assert_eq!(without("id"), format!("{start} `id`: expected a whole number, found none"));
        assert_eq!(
            without("variables"),
            format!("{start} `CI_SERVER_URL`: expected GitLab's URL in the variables, found none")
        );
        assert!(without("job_info").contains("expected the project's full path"));
        for (id, found) in [(json!("7"), "a string"), (json!(-1), "another number"), (json!([]), "a list")] {
            let mut response = minimal();
            response["id"] = id;
            assert!(parse(&response).unwrap_err().to_string().ends_with(&format!("found {found}")));
        }
    }

    #[test]
    fn broken_json_is_located() {
        for (text, expected) in [
            ("", "unexpected end in line 1, column 0"),
            ("{\"id\": 7,\n \"a\": [1, ", "unexpected end in line 2"),
            ("{\"id\": 7,\n \"a\" 1}", "syntax error in line 2, column 6"),
            ("[]", "not an object in line 1, column 1"),
        ] {
            let message = JobResponse::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named_by_the_source() {
        let error = JobResponse::read(Path::new("/nowhere/response.json")).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("/nowhere/response.json"), "{source}");
        assert_eq!(error.to_string(), "cannot read the job's response");
    }

    #[test]
    fn no_secret_shows_up_in_what_is_kept_or_said() {
        let secrets = ["glcbt-lab-job-token-7043", "s3cr3t-value-123"];
        assert!(secrets.iter().all(|secret| RECORDED.contains(secret)), "the sample has them");
        let mut shown = vec![format!("{:?}", parse(&recorded()).unwrap())];
        for end in 0..RECORDED.len() {
            let error = JobResponse::parse(&RECORDED.as_bytes()[..end]).unwrap_err();
            shown.push(format!("{error} {error:?}"));
        }
        for field in
            ["id", "variables", "job_info", "git_info", "runner_info", "image", "services", "credentials"]
        {
            let mut response = recorded();
            response[field] = json!("s3cr3t-value-123");
            shown.push(format!("{:?}", parse(&response)));
        }
        for text in shown {
            assert!(!secrets.iter().any(|secret| text.contains(secret)), "{text}");
        }
    }
}
