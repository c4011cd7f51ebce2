//! Real forms of the runner's file, and what is left of them.

use super::*;

/// As `gitlab-runner register` leaves it, with an operator's comments.
const FILE: &str = include_str!("../../../../tests/fixtures/runner-config.toml");

fn wanted() -> Wanted {
    Wanted { program: "/usr/bin/greenroom".into(), config: None, slots: 4, stop: 15, prepare: 1800 }
}

#[test]
fn a_section_is_completed_and_all_else_stays() {
    let at = choose(FILE, None, false).unwrap();
    let merged = merge(FILE, at, &wanted()).unwrap();
    let expected = FILE
        .replace("concurrent = 1", "concurrent = 4")
        .replace("executor = \"custom\"\n", "executor = \"custom\"\n  limit = 4\n")
        .replace(
            "    run_exec = \"\"\n",
            "    run_exec = \"/usr/bin/greenroom\"\n    config_exec = \"/usr/bin/greenroom\"\n    \
             config_args = [\"config\"]\n    prepare_exec = \"/usr/bin/greenroom\"\n    prepare_args = [\"prepare\"]\n    \
             run_args = [\"run\"]\n    cleanup_exec = \"/usr/bin/greenroom\"\n    cleanup_args = [\"cleanup\"]\n    \
             graceful_kill_timeout = 120\n",
        );
    assert_eq!(merged, expected);
    assert_eq!(merge(&merged, at, &wanted()).unwrap(), merged, "a second time changes nothing");
    assert_eq!(choose(&merged, None, false), Ok(at));
}

#[test]
fn another_executor_is_changed_only_on_request_and_its_table_stays() {
    let refused = choose(FILE, Some("docker"), false).unwrap_err();
    assert_eq!(refused.to_string(), "has runner `docker` with another executor, \"docker\"");
    assert!(refused.help().contains("--change-executor"), "{}", refused.help());
    let at = choose(FILE, Some("docker"), true).unwrap();
    let merged = merge(FILE, at, &wanted()).unwrap();
    assert!(merged.contains("  executor = \"custom\"\n  limit = 4\n  [runners.docker]\n"), "{merged}");
    let both = "    image = \"debian:12\"\n  [runners.custom]\n    config_exec = \"/usr/bin/greenroom\"\n";
    assert!(merged.contains(both), "{merged}");
    assert!(
        merged.contains("graceful_kill_timeout = 120\n\n[[runners]]\n  name = \"whole machines\""),
        "{merged}"
    );
}

#[test]
fn the_section_is_named_where_several_could_be_meant() {
    let custom = |name: &str| format!("[[runners]]\nname = \"{name}\"\nexecutor = \"custom\"\n");
    let two = custom("a") + &custom("b");
    let refused = choose(&two, None, false).unwrap_err();
    assert_eq!(refused, Refusal::Several(vec!["runner `a`".into(), "runner `b`".into()]));
    assert_eq!(choose(&two, Some("b"), false), Ok(1));
    let unknown = choose(&two, Some("c"), false).unwrap_err();
    assert!(unknown.help().contains("`a`"), "{}", unknown.help());
    assert_eq!(choose(&(custom("a") + &custom("a")), Some("a"), false), Err(Refusal::SameName("a".into())));
    let ours = two.clone() + "[runners.custom]\nrun_exec = \"/usr/local/bin/greenroom\"\n";
    assert_eq!(choose(&ours, None, false), Ok(1), "the one that calls Greenroom already");
    let foreign = custom("a") + "[runners.custom]\nrun_exec = \"/opt/lxd/run\"\n";
    let refused = choose(&foreign, None, false).unwrap_err();
    assert_eq!(refused.to_string(), "has runner `a`, which calls another program, `/opt/lxd/run`");
    assert_eq!(choose(&foreign, None, true), Ok(0));
}

#[test]
fn a_file_that_cannot_be_changed_is_refused_without_its_tokens() {
    assert_eq!(choose("concurrent = 4\n", None, false), Err(Refusal::NoRunner));
    assert_eq!(choose("runners = 1\n", None, false), Err(Refusal::OtherForm));
    let broken = choose("concurrent = 4\ntoken = \"glrt-secret\nx = 1\n", None, false).unwrap_err();
    let said = format!("{broken} {}", broken.help());
    assert!(said.starts_with("is not valid TOML: line 2: ") && !said.contains("secret"), "{said}");
}

#[test]
fn what_is_right_already_stays_as_it_is_written() {
    let text = "concurrent = 9\n[[runners]]\n\tname = 'x'\n\texecutor = 'custom'\n\tlimit = 2\n\t[runners.custom]\n\
                \t\tconfig_exec = '/opt/greenroom'\n\t\tconfig_args = ['config', '--pool', 'a']\n\
                \t\tprepare_exec = '/opt/greenroom'\n\t\tprepare_args = ['prepare', '--pool', 'a']\n\
                \t\trun_exec = '/opt/greenroom'\n\t\trun_args = ['run']\n\
                \t\tcleanup_exec = '/opt/greenroom'\n\t\tcleanup_args = ['cleanup']\n\t\tgraceful_kill_timeout = 60\n";
    assert_eq!(merge(text, 0, &wanted()).unwrap(), text);
    let late = Wanted { stop: 90, prepare: 3600, ..wanted() };
    let merged = merge(text, 0, &late).unwrap();
    assert_eq!(
        merged,
        text.replace("timeout = 60", "timeout = 120") + "\t\tprepare_exec_timeout = 3660\n",
        "both were too short"
    );
    let elsewhere = Wanted { config: Some("/srv/g.toml".into()), ..wanted() };
    let merged = merge("[[runners]]\nexecutor = 'custom'\n", 0, &elsewhere).unwrap();
    assert!(merged.contains("run_args = [\"run\", \"--config\", \"/srv/g.toml\"]\n"), "{merged}");
}
