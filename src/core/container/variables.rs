//! A job's variables: references resolved, and the environments that follow from them.

use std::collections::BTreeMap;

use super::request::Variable;
use crate::core::secret::Secret;

/// Credentials of registries, in the format of Docker's `config.json`.
pub const AUTH_CONFIG: &str = "DOCKER_AUTH_CONFIG";

/// The runner's directory of a job's file variables.
pub const FILES_DIR: &str = "RUNNER_TEMP_PROJECT_DIR";

/// Variables that GitLab Runner adds to those of the job's response: its own, and those that operators usually set in
/// `[[runners]] environment`. Services get them, too. The list is closed, because the runner also adds the secrets of
/// `secrets:`.
pub const ADDED_BY_RUNNER: &[&str] = &[
    "CI_BUILDS_DIR",
    "CI_CONCURRENT_ID",
    "CI_CONCURRENT_PROJECT_ID",
    "CI_PROJECT_DIR",
    "CI_RUNNER_EXECUTABLE_ARCH",
    "CI_RUNNER_REVISION",
    "CI_RUNNER_SHORT_TOKEN",
    "CI_RUNNER_VERSION",
    "CI_SHARED_ENVIRONMENT",
    FILES_DIR,
    "FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR",
    "FF_NETWORK_PER_BUILD",
    "FF_USE_INIT_WITH_DOCKER_EXECUTOR",
    "CI_DEBUG_SERVICES",
    AUTH_CONFIG,
    "DOCKER_CERT_PATH",
    "DOCKER_DRIVER",
    "DOCKER_HOST",
    "DOCKER_TLS_CERTDIR",
    "DOCKER_TLS_VERIFY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Names and values for a container.
pub type Environment = Vec<(String, Secret<String>)>;

/// All variables of a job. Of those with the same name, the last one counts.
#[derive(Debug)]
pub struct JobVariables {
    variables: BTreeMap<String, Variable>,
    /// The directory of the files that file variables lie in.
    files: Option<String>,
}

impl JobVariables {
    /// Resolves references once, as GitLab Runner does: what a reference brings in is not resolved again.
    /// `added` are the runner's own variables ([`ADDED_BY_RUNNER`]), whose values are final; the job's override them.
    pub fn new(job: &[Variable], added: &[(String, Secret<String>)], files: Option<&str>) -> Self {
        let added = added.iter().map(|(key, value)| Variable {
            key: key.clone(),
            value: value.clone(),
            public: true,
            file: false,
            raw: true,
        });
        let variables = added.chain(job.iter().cloned()).map(|one| (one.key.clone(), one)).collect();
        let given = Self { variables, files: files.map(str::to_owned) };
        let resolved = given.variables.values().map(|one| (one.key.clone(), given.resolved(one))).collect();
        Self { variables: resolved, files: given.files }
    }

    fn resolved(&self, variable: &Variable) -> Variable {
        let value = if variable.raw {
            variable.value.clone()
        } else {
            Secret::new(self.expand(variable.value.expose()))
        };
        Variable { value, ..variable.clone() }
    }

    /// The text with its references to variables resolved.
    pub fn expand(&self, text: &str) -> String {
        expand(text, |name| self.seen(name))
    }

    /// A variable's own value; of a file variable, the file's content.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|variable| variable.value.expose().as_str())
    }

    /// True if a variable switches something on: `true`, `t` or 1.
    pub fn is_on(&self, name: &str) -> bool {
        let value = self.value(name).unwrap_or_default();
        matches!(value.to_ascii_lowercase().as_str(), "true" | "t") || value.parse() == Ok(1)
    }

    /// What the job's script sees: of a file variable, the file's path.
    fn seen(&self, name: &str) -> Option<String> {
        self.variables.get(name).and_then(|variable| self.seen_of(variable))
    }

    fn seen_of(&self, variable: &Variable) -> Option<String> {
        if !variable.file {
            return Some(variable.value.expose().clone());
        }
        self.files.as_ref().map(|files| format!("{}/{}", files.trim_end_matches('/'), variable.key))
    }

    /// Of the job's container: everything.
    pub fn job_environment(&self) -> Environment {
        environment(self.variables.values().map(|one| (one.key.as_str(), self.seen_of(one))))
    }

    /// Of a service's container: what is public, and the service's own variables, which may refer to all of the job's.
    /// Credentials of registries are left out, even if they are public.
    pub fn service_environment(&self, own: &[Variable]) -> Environment {
        let public = self.variables.values().filter(|one| one.public && one.key != AUTH_CONFIG);
        let public = public.map(|one| (one.key.as_str(), self.seen_of(one)));
        let own = own.iter().map(|one| {
            let others = |name: &str| {
                let other = own.iter().rev().find(|other| other.key == name && name != one.key);
                other.map_or_else(|| self.seen(name), |other| self.seen_of(other))
            };
            let value = match (one.file, one.raw) {
                (true, _) => self.seen_of(one),
                (false, true) => Some(one.value.expose().clone()),
                (false, false) => Some(expand(one.value.expose(), others)),
            };
            (one.key.as_str(), value)
        });
        environment(public.chain(own))
    }
}

/// Later values replace earlier ones. Programs take names that no shell can set, such as `discovery.type`; no value has a NUL.
fn environment<'a>(variables: impl Iterator<Item = (&'a str, Option<String>)>) -> Environment {
    let known: BTreeMap<&str, String> = variables
        .filter_map(|(key, value)| Some((key, value?)))
        .filter(|(key, value)| is_name(key) && !value.contains('\0'))
        .collect();
    known.into_iter().map(|(key, value)| (key.to_owned(), Secret::new(value))).collect()
}

fn is_name(key: &str) -> bool {
    !key.is_empty() && !key.contains(|c: char| c.is_control() || c == '=')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// `$NAME` and `${NAME}` become values, or nothing. `$$` becomes one `$`, and a shell's special names (`$1`, `$?`)
/// nothing. A `$` before anything else stays. `${` without its end and `${}` are dropped.
fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let (name, length) = reference(after);
        match name {
            "$" => expanded.push('$'),
            "" if length == 0 => expanded.push('$'),
            name => expanded.push_str(&value(name).unwrap_or_default()),
        }
        rest = &after[length..];
    }
    expanded.push_str(rest);
    expanded
}

/// The name that a text behind a `$` begins with, and the length of the reference.
fn reference(after: &str) -> (&str, usize) {
    let is_special = |byte: &u8| b"*#$@!?-".contains(byte) || byte.is_ascii_digit();
    if let Some(braced) = after.strip_prefix('{') {
        return braced.find('}').map_or(("", 1), |end| (&braced[..end], end + 2));
    }
    if after.as_bytes().first().is_some_and(is_special) {
        return (&after[..1], 1);
    }
    let length = after.bytes().take_while(|byte| is_word(*byte)).count();
    (&after[..length], length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn variable(key: &str, value: &str) -> Variable {
        let value = Secret::new(value.to_owned());
        Variable { key: key.to_owned(), value, public: true, file: false, raw: false }
    }

    fn secret(key: &str, value: &str) -> Variable {
        Variable { public: false, ..variable(key, value) }
    }

    fn file(key: &str, value: &str) -> Variable {
        Variable { file: true, ..variable(key, value) }
    }

    fn raw(key: &str, value: &str) -> Variable {
        Variable { raw: true, ..variable(key, value) }
    }

    fn job(variables: &[Variable]) -> JobVariables {
        JobVariables::new(variables, &[], Some("/builds/g/p.tmp"))
    }

    fn plain(environment: &Environment) -> Vec<(&str, &str)> {
        environment.iter().map(|(key, value)| (key.as_str(), value.expose().as_str())).collect()
    }

    #[test]
    fn references_are_resolved_as_gitlab_runner_does_it() {
        let job = job(&[variable("A", "1"), variable("A_B", "2"), file("F", "text"), raw("R", "$A")]);
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$A", "1"),
            ("${A}", "1"),
            ("x$A-y", "x1-y"),
            ("$A_B$A", "21"),
            ("${A}_B", "1_B"),
            ("$MISSING.", "."),
            ("${MISSING}", ""),
            ("$$A", "$A"),
            ("$$$A", "$1"),
            ("${$}", "$"),
            ("$1$?$-$@x", "x"),
            ("$12", "2"),
            ("cost: 5$", "cost: 5$"),
            ("$ $.$ä", "$ $.$ä"),
            ("${}x", "x"),
            ("${A", "A"),
            ("${A:-x}", ""),
            ("$F", "/builds/g/p.tmp/F"),
            ("$R", "$A"),
            ("größer $A", "größer 1"),
        ] {
            assert_eq!(job.expand(text), expected, "{text}");
        }
    }

    #[test]
    fn values_are_resolved_once_and_raw_ones_never() {
        let job = job(&[
            variable("A", "$B"),
            variable("B", "$C"),
            variable("C", "c"),
            raw("R", "$C"),
            variable("SELF", "x$SELF"),
        ]);
        for (name, value) in [("A", "$C"), ("B", "c"), ("R", "$C"), ("SELF", "xx$SELF")] {
            assert_eq!(job.value(name), Some(value), "{name}");
        }
        assert_eq!(job.value("NONE"), None);
    }

    #[test]
    fn a_later_variable_overrides_an_earlier_one_and_the_runners() {
        let added = [("A", "runner"), ("B", "run$A")].map(|(k, v)| (k.to_owned(), Secret::new(v.to_owned())));
        let job =
            JobVariables::new(&[variable("A", "1"), variable("A", "2"), variable("C", "$B")], &added, None);
        assert_eq!(plain(&job.job_environment()), [("A", "2"), ("B", "run$A"), ("C", "run$A")]);
    }

    #[test]
    fn the_jobs_container_gets_everything_and_paths_of_files() {
        let job = job(&[variable("A", "1"), secret("TOKEN", "t-$A"), file("F", "text")]);
        assert_eq!(plain(&job.job_environment()), [("A", "1"), ("F", "/builds/g/p.tmp/F"), ("TOKEN", "t-1")]);
        let homeless = JobVariables::new(&[file("F", "text"), variable("A", "$F")], &[], None);
        assert_eq!(plain(&homeless.job_environment()), [("A", "")]);
    }

    #[test]
    fn a_service_gets_what_is_public_and_its_own() {
        let job = job(&[
            variable("PUBLIC", "p"),
            variable("SAME", "s"),
            secret("TOKEN", "t"),
            file("F", "text"),
            variable("HIDDEN", "old"),
            secret("HIDDEN", "new"),
            variable(AUTH_CONFIG, "{}"),
            variable("FROM_TOKEN", "$TOKEN"),
        ]);
        let own = [
            variable("DB", "x-$PUBLIC"),
            variable("PASSWORD", "$TOKEN"),
            variable("URL", "$DB/$PASSWORD"),
            variable("SAME", "own $SAME"),
            raw("RAW", "$PUBLIC"),
            file("OWN_FILE", "text"),
        ];
        assert_eq!(
            plain(&job.service_environment(&own)),
            [
                ("DB", "x-p"),
                ("F", "/builds/g/p.tmp/F"),
                ("FROM_TOKEN", "t"),
                ("OWN_FILE", "/builds/g/p.tmp/OWN_FILE"),
                ("PASSWORD", "t"),
                ("PUBLIC", "p"),
                ("RAW", "$PUBLIC"),
                ("SAME", "own s"),
                ("URL", "x-$PUBLIC/$TOKEN"),
            ]
        );
        let named = job.service_environment(&[variable("TOKEN", "$TOKEN"), variable(AUTH_CONFIG, "{}")]);
        assert!(plain(&named).contains(&("TOKEN", "t")) && plain(&named).contains(&(AUTH_CONFIG, "{}")));
    }

    #[test]
    fn names_that_no_environment_can_have_are_left_out() {
        let names = ["", "1A", "A-B", "A.B", "A=B", "A B", "Ä", "A\n", "_ok", "OK2"];
        let mut variables: Vec<Variable> = names.iter().map(|name| variable(name, "x")).collect();
        variables.push(variable("NUL", "a\0b"));
        let names = ["1A", "A B", "A-B", "A.B", "OK2", "_ok", "Ä"];
        assert_eq!(plain(&job(&variables).job_environment()), names.map(|name| (name, "x")));
    }

    #[test]
    fn a_flag_is_on_as_gitlab_runner_reads_it() {
        for (value, on) in [
            ("true", true),
            ("TRUE", true),
            ("t", true),
            ("1", true),
            ("01", true),
            ("2", false),
            ("yes", false),
            ("false", false),
            ("", false),
        ] {
            assert_eq!(job(&[variable("FF", value)]).is_on("FF"), on, "{value}");
        }
        assert!(!job(&[]).is_on("FF"));
    }

    #[test]
    fn no_value_shows_up_in_debug_output() {
        let job = job(&[variable("A", "hunter2")]);
        let shown = format!("{job:?} {:?} {:?}", job.job_environment(), job.service_environment(&[]));
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[${}A1?ä]{0,12}|.{0,20}") {
            job(&[variable("A", &text), variable("B", "$A")]).service_environment(&[variable("C", &text)]);
        }

        #[test]
        fn a_text_without_dollars_stays(text in "[^$]{0,20}") {
            prop_assert_eq!(job(&[]).expand(&text), text);
        }
    }
}
