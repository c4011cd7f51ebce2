//! `[[rule]]`: which pool a job gets.
//!
//! Rules use only facts that GitLab itself states, never a variable. `project`, `namespace` and `protected` are
//! GitLab's own; anyone who may push chooses `ref`, `job` and `image`: these route, they do not protect.

use std::collections::BTreeMap;

use greenroom_core::glob::Glob;
use greenroom_core::ids::PoolName;
use greenroom_keys::near::nearest;
use greenroom_keys::problem::{Place, Problem, printable};
use greenroom_keys::table::Table;
use greenroom_keys::value_error::Got;

/// The facts of a job from its response, none from its variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobTraits<'a> {
    /// Full path: `group/sub/project`.
    pub project: &'a str,
    /// Its path without the last part.
    pub namespace: &'a str,
    /// Branch or tag.
    pub git_ref: &'a str,
    /// True if GitLab reports the ref as protected; without a report, false.
    pub protected: bool,
    pub job: &'a str,
    /// The name behind `image:`, if the job has one.
    pub image: Option<&'a str>,
}

/// Why no pool serves a job. The sentence is for the job log; the call ends as a build failure, because a retry cannot
/// help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPool {
    #[error(
        "the image `{}` is not allowed by this runner; this job can{}",
        printable(image),
        usable(allowed)
    )]
    ImageRefused { image: String, allowed: Vec<String> },
    #[error(
        "no rule matches job `{}` of project `{}` on `{}` ({}); ask this runner's administrator",
        printable(job), printable(project), printable(git_ref), if *protected { "protected" } else { "not protected" }
    )]
    NoRule { job: String, project: String, git_ref: String, protected: bool },
    #[error("there is no pool `{0}`")]
    Undefined(PoolName),
}

/// The end of the sentence about the images that a job can use.
fn usable(images: &[String]) -> String {
    match images {
        [] => "not use any image".to_owned(),
        names => {
            let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            format!(" use {}", quoted.join(", "))
        }
    }
}

/// One rule, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    project: Vec<Glob>,
    namespace: Vec<Glob>,
    git_ref: Vec<Glob>,
    protected: Option<bool>,
    job: Vec<Glob>,
    /// `""` stands for a job without an image.
    image: Vec<Glob>,
    pool: PoolName,
}

impl Rule {
    /// Everything but the image.
    fn fits(&self, job: &JobTraits<'_>) -> bool {
        let any =
            |globs: &[Glob], name: &str| globs.is_empty() || globs.iter().any(|glob| glob.matches(name));
        any(&self.project, job.project)
            && any(&self.namespace, job.namespace)
            && any(&self.git_ref, job.git_ref)
            && self.protected.is_none_or(|wanted| wanted == job.protected)
            && any(&self.job, job.job)
    }

    fn admits_image(&self, image: Option<&str>) -> bool {
        let is_none = |glob: &Glob| *glob == Glob::new("");
        match image {
            _ if self.image.is_empty() => true,
            Some(image) => self.image.iter().any(|glob| !is_none(glob) && glob.matches(image)),
            None => self.image.iter().any(is_none),
        }
    }

    fn takes_everything(&self) -> bool {
        let Self { project, namespace, git_ref, protected, job, image, pool: _ } = self;
        protected.is_none() && [project, namespace, git_ref, job, image].iter().all(|globs| globs.is_empty())
    }
}

/// The rules of a configuration, and the defaults after them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rules {
    pub(super) list: Vec<Rule>,
    pub(super) default: Option<PoolName>,
}

impl Rules {
    /// The first matching rule decides, otherwise the default pool. If allow-lists of images exist, a job with an image
    /// never gets the default pool: a mistyped image must not run on an arbitrary machine.
    pub(super) fn choose(&self, job: &JobTraits<'_>) -> Result<&PoolName, NoPool> {
        let fitting = || self.list.iter().filter(|rule| rule.fits(job));
        if let Some(rule) = fitting().find(|rule| rule.admits_image(job.image)) {
            return Ok(&rule.pool);
        }
        let lists_images = self.list.iter().any(|rule| !rule.image.is_empty());
        match (&self.default, job.image) {
            (Some(pool), None) => Ok(pool),
            (Some(pool), Some(_)) if !lists_images => Ok(pool),
            (_, Some(image)) if lists_images => {
                let allowed = fitting().flat_map(|rule| &rule.image).map(ToString::to_string);
                let mut allowed: Vec<String> = allowed.filter(|name| !name.is_empty()).collect();
                allowed.dedup();
                Err(NoPool::ImageRefused { image: image.to_owned(), allowed })
            }
            (None, _) | (Some(_), Some(_)) => Err(NoPool::NoRule {
                job: job.job.to_owned(),
                project: job.project.to_owned(),
                git_ref: job.git_ref.to_owned(),
                protected: job.protected,
            }),
        }
    }
}

/// Reads the rules and `default_pool`, and checks that every pool they name exists.
pub(super) fn read(top: &Table<'_>, pools: &NamedPools) -> Rules {
    let default = top.text("default_pool");
    let mut rules = Rules::default();
    let mut greedy: Option<Place> = None;
    for table in top.tables("rule").or_default() {
        if let Some(greedy) = &greedy {
            let problem = Problem::new("this rule is never reached").at(table.place(), "never reached");
            top.report(problem.at(greedy.clone(), "this rule matches every job"));
        }
        if let Some(rule) = read_one(&table, pools) {
            if rule.takes_everything() {
                greedy.get_or_insert(table.place());
            }
            rules.list.push(rule);
        }
    }
    rules.default = match default {
        Got::Good(name, place) => pools.find(&name, place, top),
        Got::Bad(_) => None,
        Got::Absent(_) if top.has("rule") => None,
        Got::Absent(_) => {
            if pools.0.len() > 1 {
                let mut problem =
                    Problem::new("there are several pools, but neither rules nor a default pool");
                for (name, place) in &pools.0 {
                    problem = problem.at(place.clone(), format!("pool `{name}`"));
                }
                let help = "set `default_pool` at the top of the file, or add `[[rule]]` entries";
                top.report(problem.help(help));
            }
            pools.0.keys().next().map(PoolName::new)
        }
    };
    rules
}

fn read_one(table: &Table<'_>, pools: &NamedPools) -> Option<Rule> {
    let globs = |name: &str| {
        let texts = table.texts(name).or_default();
        if let Some((_, place)) = texts.iter().find(|(text, _)| text.is_empty() && name != "image") {
            let problem = Problem::new(format!("an empty pattern for `{name}` matches no job"));
            table.report(problem.at(place.clone(), "remove the key to match every job"));
        }
        texts.iter().map(|(text, _)| Glob::new(text)).collect()
    };
    let project = globs("project");
    let namespace = globs("namespace");
    let git_ref = globs("ref");
    let job = globs("job");
    let image = globs("image");
    let protected = table.flag("protected").into_value();
    let help = "name the pool of the matching jobs: `pool = \"NAME\"`";
    let Got::Good(name, place) = table.required("pool", table.text("pool"), help) else { return None };
    let pool = pools.find(&name, place, table)?;
    Some(Rule { project, namespace, git_ref, protected, job, image, pool })
}

/// The pools that the file names, including those with mistakes, with the places of their names.
pub(super) struct NamedPools(pub(super) BTreeMap<String, Place>);

impl NamedPools {
    fn find(&self, name: &str, place: Place, table: &Table<'_>) -> Option<PoolName> {
        if self.0.contains_key(name) {
            return Some(PoolName::new(name));
        }
        let problem = Problem::new(format!("there is no pool `{name}`")).at(place, "not defined");
        let known: Vec<String> = self.0.keys().map(|known| format!("`{known}`")).collect();
        table.report(match nearest(name, self.0.keys().map(String::as_str)) {
            Some(meant) => problem.help(format!("did you mean `{meant}`?")),
            None if known.is_empty() => problem.help(format!("define it: `[pool.{name}]`")),
            None => problem.help(format!("defined pools: {}", known.join(", "))),
        });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const POOLS: &str = "[pool.small]\nmax_instances = 1\nprovider.kind = 'x'\n\
                         [pool.big]\nmax_instances = 1\nprovider.kind = 'x'\n\
                         [pool.win]\nmax_instances = 1\nprovider.kind = 'x'\n";

    fn job(project: &'static str) -> JobTraits<'static> {
        let namespace = project.rsplit_once('/').map_or("", |(namespace, _)| namespace);
        JobTraits { project, namespace, git_ref: "main", protected: false, job: "test", image: None }
    }

    /// The pool's name, or the sentence for the job log.
    fn choice(rules: &str, job: &JobTraits<'_>) -> String {
        let (top, rules) = rules.split_once("---").unwrap_or(("", rules));
        let text = format!("{top}\n{POOLS}\n{rules}");
        let config = Config::parse(&text, "x").unwrap_or_else(|wrong| panic!("{wrong}"));
        match config.choose(job) {
            Ok(pool) => pool.name.to_string(),
            Err(refused) => refused.to_string(),
        }
    }

    fn message(rules: &str) -> String {
        let (top, rules) = rules.split_once("---").unwrap_or(("", rules));
        Config::parse(&format!("{top}\n{POOLS}\n{rules}"), "x").unwrap_err().to_string()
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules = "[[rule]]\nproject = 'a/**'\npool = 'big'\n[[rule]]\npool = 'small'\n";
        assert_eq!(choice(rules, &job("a/b/c")), "big");
        assert_eq!(choice(rules, &job("b/a")), "small");
    }

    #[test]
    fn every_key_of_a_rule_must_match() {
        let rules = "[[rule]]\nnamespace = ['a', 'b']\nref = 'v*'\nprotected = true\njob = 'deploy *'\npool = 'big'\n\
                     [[rule]]\npool = 'small'\n";
        let whole = JobTraits { git_ref: "v1", protected: true, job: "deploy all", ..job("b/x") };
        assert_eq!(choice(rules, &whole), "big");
        for lacking in [
            JobTraits { namespace: "c", ..whole },
            JobTraits { git_ref: "main", ..whole },
            JobTraits { protected: false, ..whole },
            JobTraits { job: "test", ..whole },
        ] {
            assert_eq!(choice(rules, &lacking), "small", "{lacking:?}");
        }
    }

    #[test]
    fn what_no_rule_takes_goes_to_the_default_pool() {
        let rules = "default_pool = 'small'\n---[[rule]]\nproject = 'a/*'\npool = 'big'\n";
        assert_eq!(choice(rules, &job("z/z")), "small");
        let with_image = JobTraits { image: Some("ruby:3"), ..job("z/z") };
        assert_eq!(choice(rules, &with_image), "small", "without allow-lists the image decides nothing");
    }

    #[test]
    fn without_a_default_a_job_that_no_rule_takes_is_told_so() {
        let rules = "[[rule]]\nproject = 'a/*'\npool = 'big'\n";
        assert_eq!(
            choice(rules, &job("z/z")),
            "no rule matches job `test` of project `z/z` on `main` (not protected); ask this runner's \
             administrator"
        );
    }

    #[test]
    fn an_image_on_no_list_is_refused_with_those_that_are() {
        let rules = "default_pool = 'small'\n---[[rule]]\nimage = ['windows-*', 'win11']\npool = 'win'\n\
                     [[rule]]\nproject = 'secret/*'\nimage = 'hidden'\npool = 'big'\n";
        let with = |image| JobTraits { image, ..job("a/b") };
        assert_eq!(choice(rules, &with(Some("windows-2022"))), "win");
        assert_eq!(choice(rules, &with(None)), "small", "a job without an image asks for none");
        assert_eq!(
            choice(rules, &with(Some("windwos-2022"))),
            "the image `windwos-2022` is not allowed by this runner; this job can use `windows-*`, `win11`"
        );
    }

    #[test]
    fn lists_of_other_projects_are_not_told() {
        let rules = "[[rule]]\nproject = 'secret/*'\nimage = 'hidden'\npool = 'big'\n";
        let other = JobTraits { image: Some("x\u{1b}[31m"), ..job("a/b") };
        assert_eq!(
            choice(rules, &other),
            "the image `x?[31m` is not allowed by this runner; this job cannot use any image"
        );
    }

    #[test]
    fn an_empty_image_stands_for_a_job_without_one() {
        let rules = "[[rule]]\nimage = ['', 'ruby:*']\npool = 'small'\n";
        assert_eq!(choice(rules, &job("a/b")), "small");
        let strict = "[[rule]]\nimage = ['**']\npool = 'small'\n";
        assert!(choice(strict, &job("a/b")).starts_with("no rule matches job"));
        let empty_name = JobTraits { image: Some("x"), ..job("a/b") };
        assert_eq!(choice(strict, &empty_name), "small");
    }

    #[test]
    fn one_pool_without_rules_serves_all() {
        let text = "[pool.only]\nmax_instances = 1\nprovider.kind = 'x'\n";
        let config = Config::parse(text, "x").unwrap();
        assert!(matches!(config.choose(&job("a/b")), Ok(pool) if pool.name.as_str() == "only"));
    }

    #[test]
    fn a_mistake_of_the_operator_is_no_fault_of_the_job() {
        for (rules, expected) in [
            ("[[rule]]\npool = 'smal'\n", "there is no pool `smal` (did you mean `small`?)"),
            ("[[rule]]\npool = 'gpu'\n", "there is no pool `gpu` (defined pools: `big`, `small`, `win`)"),
            ("default_pool = 'bigg'\n---", "there is no pool `bigg` (did you mean `big`?)"),
            ("[[rule]]\nproject = 'x'\n", "`pool` is missing in `[[rule]]`"),
            ("[[rule]]\npool = 'big'\n[[rule]]\npool = 'small'\n", "this rule is never reached"),
            ("[[rule]]\nproject = ''\npool = 'big'\n", "an empty pattern for `project` matches no job"),
            ("[[rule]]\nproject = []\npool = 'big'\n", "`project` in `[[rule]]` must be a pattern"),
            ("[[rule]]\nproject = [1]\npool = 'big'\n", "`project` in `[[rule]]` must be a pattern"),
            (
                "[[rule]]\nprotected = 'yes'\npool = 'big'\n",
                "`protected` in `[[rule]]` must be true or false",
            ),
            ("", "there are several pools, but neither rules nor a default pool"),
            ("rule = 3\n---", "`rule` must be a list of tables"),
        ] {
            assert!(message(rules).contains(expected), "{rules}: {}", message(rules));
        }
    }

    #[test]
    fn a_pool_that_is_wrong_in_itself_is_no_unknown_pool() {
        let text = "[pool.a]\nprovider.kind = 'x'\n[[rule]]\npool = 'a'\n";
        let wrong = Config::parse(text, "x").unwrap_err();
        assert_eq!(wrong.count(), 1, "{wrong}");
    }
}
