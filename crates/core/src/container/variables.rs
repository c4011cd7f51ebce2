//! A job's variables: references resolved, and the environments that follow from them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::request::{JobLimit, Room, VARIABLE_VALUE, VARIABLES, VARIABLES_BYTES, Variable};
use crate::text::Secret;

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

/// Names and values for a container. Containers share the texts.
pub type Environment = Vec<(Arc<str>, Secret<Arc<str>>)>;

/// All variables of a job. Of those with the same name, the last one counts.
#[derive(Debug)]
pub struct JobVariables {
    variables: BTreeMap<Arc<str>, Resolved>,
    /// The directory of the files that file variables lie in.
    files: Option<String>,
}

/// A variable without references.
#[derive(Debug, Clone)]
struct Resolved {
    /// The variable's value; of a file variable, the file's content.
    value: Secret<Arc<str>>,
    /// The value as the job's script sees it: of a file variable, the file's path. `None`: the directory of files is not
    /// known.
    seen: Option<Secret<Arc<str>>>,
    public: bool,
}

impl JobVariables {
    /// Resolves references once, as GitLab Runner does: what a reference brings in is not resolved again.
    /// `added` are the runner's own variables ([`ADDED_BY_RUNNER`]), whose values are final; the job's override them.
    pub fn new(
        job: &[Variable],
        added: &[(Arc<str>, Secret<Arc<str>>)],
        files: Option<&str>,
    ) -> Result<Self, JobLimit> {
        let given: BTreeMap<&str, &Variable> = job.iter().map(|one| (one.key.as_str(), one)).collect();
        let added: BTreeMap<&str, &Secret<Arc<str>>> =
            added.iter().map(|(key, value)| (&**key, value)).collect();
        let seen = |name: &str| match given.get(name) {
            Some(one) if one.file => path(files, one).map(Cow::Owned),
            Some(one) => Some(Cow::Borrowed(one.value.expose().as_str())),
            None => added.get(name).map(|value| Cow::Borrowed(&**value.expose())),
        };
        let mut room = Room::new(VARIABLES + ADDED_BY_RUNNER.len(), VARIABLES_BYTES);
        let mut variables = BTreeMap::new();
        for (key, value) in added.iter().filter(|(key, _)| !given.contains_key(**key)) {
            let value = Secret::clone(value);
            variables.insert(Arc::from(*key), Resolved { seen: Some(value.clone()), value, public: true });
        }
        for (key, one) in &given {
            let value: Arc<str> = if one.raw {
                one.value.expose().as_str().into()
            } else {
                expand(one.value.expose(), VARIABLE_VALUE, seen).ok_or(JobLimit::VariableValue)?.into()
            };
            if !room.take(key.len() + value.len()) {
                return Err(JobLimit::VariablesBytes);
            }
            let value = Secret::new(value);
            let seen = if one.file {
                path(files, one).map(|path| Secret::new(path.into()))
            } else {
                Some(value.clone())
            };
            variables.insert(Arc::from(*key), Resolved { value, seen, public: one.public });
        }
        Ok(Self { variables, files: files.map(str::to_owned) })
    }

    /// The text with its references to variables resolved; `None` if it becomes longer than so many bytes.
    pub fn expand(&self, text: &str, most: usize) -> Option<String> {
        expand(text, most, |name| self.seen(name).map(Cow::Borrowed))
    }

    /// A variable's own value; of a file variable, the file's content.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|variable| &**variable.value.expose())
    }

    /// True if a variable switches something on: `true`, `t` or 1.
    pub fn is_on(&self, name: &str) -> bool {
        let value = self.value(name).unwrap_or_default();
        matches!(value.to_ascii_lowercase().as_str(), "true" | "t") || value.parse() == Ok(1)
    }

    /// The value as the job's script sees it: of a file variable, the file's path.
    fn seen(&self, name: &str) -> Option<&str> {
        self.variables.get(name).and_then(|variable| variable.seen.as_ref()).map(|value| &**value.expose())
    }

    /// The environment of the job's container: everything.
    pub fn job_environment(&self) -> Environment {
        environment(self.variables.iter().filter_map(|(key, one)| Some((key.clone(), one.seen.clone()?))))
    }

    /// The environment of a service's container: what is public, and the service's own variables, which may refer to all of
    /// the job's. Credentials of registries are left out, even if they are public. `room`: for the own variables of all
    /// services.
    pub fn service_environment(&self, own: &[Variable], room: &mut Room) -> Result<Environment, JobLimit> {
        let files = self.files.as_deref();
        let public = self.variables.iter().filter(|(key, one)| one.public && ***key != *AUTH_CONFIG);
        let public = public.filter_map(|(key, one)| Some((key.clone(), one.seen.clone()?)));
        let others: BTreeMap<&str, &Variable> = own.iter().map(|one| (one.key.as_str(), one)).collect();
        let mut resolved = Vec::with_capacity(own.len());
        for one in own {
            let seen = |name: &str| match others.get(name).filter(|_| name != one.key) {
                Some(other) if other.file => path(files, other).map(Cow::Owned),
                Some(other) => Some(Cow::Borrowed(other.value.expose().as_str())),
                None => self.seen(name).map(Cow::Borrowed),
            };
            let value = match (one.file, one.raw) {
                (true, _) => path(files, one),
                (false, true) => Some(one.value.expose().clone()),
                (false, false) => {
                    Some(expand(one.value.expose(), VARIABLE_VALUE, seen).ok_or(JobLimit::VariableValue)?)
                }
            };
            let Some(value) = value else { continue };
            if !room.take(one.key.len() + value.len()) {
                return Err(JobLimit::VariablesBytes);
            }
            resolved.push((one.key.as_str().into(), Secret::new(value.into())));
        }
        Ok(environment(public.chain(resolved)))
    }
}

/// The path of a file variable; `None` if the directory is not known.
fn path(files: Option<&str>, variable: &Variable) -> Option<String> {
    files.map(|files| format!("{}/{}", files.trim_end_matches('/'), variable.key))
}

/// Later values replace earlier ones. Programs take names that no shell can set, such as `discovery.type`; no value has a NUL.
fn environment(variables: impl Iterator<Item = (Arc<str>, Secret<Arc<str>>)>) -> Environment {
    let fit = variables.filter(|(key, value)| is_name(key) && !value.expose().contains('\0'));
    let known: BTreeMap<Arc<str>, Secret<Arc<str>>> = fit.collect();
    known.into_iter().collect()
}

fn is_name(key: &str) -> bool {
    !key.is_empty() && !key.contains(|c: char| c.is_control() || c == '=')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// `$NAME` and `${NAME}` become values, or nothing. `$$` becomes one `$`, and a shell's special names (`$1`, `$?`)
/// nothing. A `$` before anything else stays. `${` without its end and `${}` are dropped. `None`: the text would become
/// longer than so many bytes.
fn expand<'a>(text: &str, most: usize, value: impl Fn(&str) -> Option<Cow<'a, str>>) -> Option<String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let (name, length) = reference(after);
        match name {
            "$" => expanded.push('$'),
            "" if length == 0 => expanded.push('$'),
            name => {
                let value = value(name).unwrap_or_default();
                if expanded.len() + value.len() > most {
                    return None;
                }
                expanded.push_str(&value);
            }
        }
        rest = &after[length..];
    }
    expanded.push_str(rest);
    Some(expanded).filter(|expanded| expanded.len() <= most)
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
        JobVariables::new(variables, &[], Some("/builds/g/p.tmp")).unwrap()
    }

    fn of_service(job: &JobVariables, own: &[Variable]) -> Environment {
        job.service_environment(own, &mut Room::new(10, 1000)).unwrap()
    }

    fn plain(environment: &Environment) -> Vec<(&str, &str)> {
        environment.iter().map(|(key, value)| (&**key, &**value.expose())).collect()
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
            assert_eq!(job.expand(text, 100).unwrap(), expected, "{text}");
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
        let added = [("A", "runner"), ("B", "run$A")].map(|(k, v)| (k.into(), Secret::new(v.into())));
        let job =
            JobVariables::new(&[variable("A", "1"), variable("A", "2"), variable("C", "$B")], &added, None)
                .unwrap();
        assert_eq!(plain(&job.job_environment()), [("A", "2"), ("B", "run$A"), ("C", "run$A")]);
    }

    #[test]
    fn the_jobs_container_gets_everything_and_paths_of_files() {
        let job = job(&[variable("A", "1"), secret("TOKEN", "t-$A"), file("F", "text")]);
        assert_eq!(plain(&job.job_environment()), [("A", "1"), ("F", "/builds/g/p.tmp/F"), ("TOKEN", "t-1")]);
        let homeless = JobVariables::new(&[file("F", "text"), variable("A", "$F")], &[], None).unwrap();
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
            plain(&of_service(&job, &own)),
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
        let named = of_service(&job, &[variable("TOKEN", "$TOKEN"), variable(AUTH_CONFIG, "{}")]);
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
    fn references_multiply_no_value_beyond_the_limits() {
        let bomb = [variable("A", &"$B".repeat(1000)), variable("B", &"x".repeat(1000))];
        assert_eq!(JobVariables::new(&bomb, &[], None).unwrap_err(), JobLimit::VariableValue);
        let full = "x".repeat(VARIABLE_VALUE);
        let mut many = vec![variable("A", &full)];
        many.extend((0..16).map(|number| variable(&format!("A{number}"), "$A")));
        assert_eq!(JobVariables::new(&many, &[], None).unwrap_err(), JobLimit::VariablesBytes);
        let job = job(&many[..8]);
        assert_eq!(job.expand("$A$A", VARIABLE_VALUE), None);
        assert_eq!(job.expand(&full, VARIABLE_VALUE - 1), None);
        let mut room = Room::new(10, 3 * VARIABLE_VALUE);
        let own = [variable("C", "$A"), variable("D", "$A")];
        assert!(job.service_environment(&own, &mut room).is_ok());
        assert_eq!(job.service_environment(&own, &mut room).unwrap_err(), JobLimit::VariablesBytes);
    }

    #[test]
    fn services_share_the_texts_of_public_variables() {
        let job = job(&[variable("A", "1")]);
        let [first, second] = [(); 2].map(|()| of_service(&job, &[]).remove(0));
        assert!(Arc::ptr_eq(&first.0, &second.0) && Arc::ptr_eq(first.1.expose(), second.1.expose()));
    }

    #[test]
    fn no_value_shows_up_in_debug_output() {
        let job = job(&[variable("A", "hunter2")]);
        let shown = format!("{job:?} {:?} {:?}", job.job_environment(), of_service(&job, &[]));
        assert!(!shown.contains("hunter2"), "{shown}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[${}A1?ä]{0,12}|.{0,20}") {
            of_service(&job(&[variable("A", &text), variable("B", "$A")]), &[variable("C", &text)]);
        }

        #[test]
        fn a_text_without_dollars_stays(text in "[^$]{0,20}") {
            prop_assert_eq!(job(&[]).expand(&text, 1000).unwrap(), text);
        }
    }
}
