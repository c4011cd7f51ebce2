//! Which pool a job gets.

use crate::config::{Config, JobTraits, PoolChoice};

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
        PoolChoice::Pool(pool) => pool.name.to_string(),
        PoolChoice::Impossible(sentence) => sentence,
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
    assert!(matches!(config.choose(&job("a/b")), PoolChoice::Pool(pool) if pool.name.as_str() == "only"));
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
        ("[[rule]]\nprotected = 'yes'\npool = 'big'\n", "`protected` in `[[rule]]` must be true or false"),
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
