//! Parsed settings, and the exact messages about mistakes.

use std::time::Duration;

use greenroom_core::execution::{Shell, StageShell};
use greenroom_core::policy::{Lifetime, Policy, Reuse};

use super::*;

/// The full message about an invalid text.
fn message(text: &str) -> String {
    let wrong = Config::parse(text, "greenroom.toml").expect_err("a bad configuration was taken");
    wrong.render(false) + "\n"
}

pub(super) fn good(text: &str) -> Config {
    Config::parse(text, "greenroom.toml").unwrap_or_else(|wrong| panic!("{wrong}"))
}

#[track_caller]
pub(super) fn fails_with(text: &str, expected: &str) {
    let found = message(text);
    assert!(found == expected.trim_start_matches('\n'), "found:\n{found}\nexpected:{expected}");
}

/// The simulation and the tests of the core have that policy without a configuration.
#[test]
fn the_core_assumes_the_declared_defaults_of_a_pool() {
    let config = good("[pool.a]\nmax_instances = 9\nprovider.kind = \"local\"\n");
    let policy = &config.pools[&PoolName::new("a")].policy;
    assert_eq!(*policy, Policy { max_instances: 9, ..Policy::default() });
}

#[test]
fn an_unknown_key_is_named_with_what_was_probably_meant() {
    fails_with(
        "[pool.linux]\nmax_instances = 4\nidle_cuont = 2\n\n[pool.linux.provider]\nkind = \"local\"\n",
        r"
error: `idle_cuont` is not a key of `[pool.linux]`
 --> greenroom.toml:3:1
  |
3 | idle_cuont = 2
  | ^^^^^^^^^^ unknown key
  |
  = help: did you mean `idle_count`?
",
    );
}

#[test]
fn wrong_types_are_named_with_what_was_expected_and_found_all_at_once() {
    fails_with(
        "[pool.linux]\nmax_instances = \"four\"\nidle_time = 30\nshell = \"bsh\"\nclean_unbinds = 1\n\n\
         [pool.linux.provider]\nkind = \"local\"\n",
        r#"
error: `max_instances` in `[pool.linux]` must be a whole number, 1 or more
 --> greenroom.toml:2:17
  |
2 | max_instances = "four"
  |                 ^^^^^^ found a string

error: `idle_time` in `[pool.linux]` must be a duration like "30s", "20m" or "1h 30m"
 --> greenroom.toml:3:13
  |
3 | idle_time = 30
  |             ^^ a number needs its unit: "30s", "30m" or "30h"

error: `shell` in `[pool.linux]` must be one of "bash", "sh", "pwsh"
 --> greenroom.toml:4:9
  |
4 | shell = "bsh"
  |         ^^^^^ found "bsh"
  |
  = help: did you mean "bash"?

error: `clean_unbinds` in `[pool.linux]` must be true or false
 --> greenroom.toml:5:17
  |
5 | clean_unbinds = 1
  |                 ^ found a whole number
"#,
    );
}

#[test]
fn negative_numbers_and_durations_are_refused() {
    fails_with(
        "history_days = -1\n[pool.linux]\nmax_instances = 1\nidle_time = \"-5m\"\nscale_factor = -0.5\n\
         [pool.linux.provider]\nkind = \"local\"\n",
        r#"
error: `history_days` must be a whole number, 0 or more
 --> greenroom.toml:1:16
  |
1 | history_days = -1
  |                ^^ found -1

error: `idle_time` in `[pool.linux]` must be a duration like "30s", "20m" or "1h 30m"
 --> greenroom.toml:4:13
  |
4 | idle_time = "-5m"
  |             ^^^^^ a duration cannot be negative

error: `scale_factor` in `[pool.linux]` must be a number, 0 or more
 --> greenroom.toml:5:16
  |
5 | scale_factor = -0.5
  |                ^^^^ found -0.5
"#,
    );
}

#[test]
fn two_pools_of_one_name_are_shown_with_both_lines() {
    fails_with(
        "[pool.linux]\nmax_instances = 1\n[pool.linux.provider]\nkind = \"local\"\n\n[pool.linux]\nmax_instances = 3\n",
        r"
error: pool `linux` is defined twice
 --> greenroom.toml:6:7
  |
1 | [pool.linux]
  | ------------ first definition
...
6 | [pool.linux]
  |       ^^^^^ second definition
",
    );
}

#[test]
fn a_key_that_stands_twice_is_shown_with_both_lines() {
    fails_with(
        "state_dir = \"/a\"\n[pool.linux]\nmax_instances = 1\nmax_instances = 2\n",
        r"
error: `max_instances` is defined twice
 --> greenroom.toml:4:1
  |
3 | max_instances = 1
  | ----------------- first definition
4 | max_instances = 2
  | ^^^^^^^^^^^^^ second definition
",
    );
}

#[test]
fn an_empty_file_is_answered_with_the_least_there_can_be() {
    let expected = r#"
error: no pool is defined
--> greenroom.toml
 = help: add a pool, for example:
         [pool.linux]
         max_instances = 4
         [pool.linux.provider]
         kind = "local"
"#;
    fails_with("", expected);
    fails_with("# nothing\n\n", expected);
}

#[test]
fn the_least_there_can_be_is_enough() {
    let config = good("[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\nkind = \"local\"\n");
    let pool = &config.pools[&PoolName::new("linux")];
    assert_eq!(pool.policy, Policy { max_instances: 4, ..Policy::default() });
    assert_eq!((pool.shell, pool.builds_dir.as_str()), (Shell::Bash, "/builds"));
    assert_eq!(config.state_dir, Path::new("/var/lib/greenroom"));
}

#[test]
fn binary_garbage_is_called_what_it_is() {
    fails_with(
        "\u{7f}ELF\u{2}\u{1}\0\0\0",
        "
error: not a text file
 --> greenroom.toml:1:7
  |
1 | ␡ELF␂␁␀␀␀
  |       ^ a zero byte
",
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"a = 1\n\xff\xfe").unwrap();
    let wrong = Config::read(file.path()).unwrap_err().to_string();
    assert!(wrong.contains("not a text file: byte 0xff in line 2 is not valid UTF-8"), "{wrong}");
}

#[test]
fn text_that_is_no_toml_is_shown_where_it_goes_wrong() {
    fails_with(
        "state_dir = /var\n[pool.linux\nmax_instances = = 3\n",
        r"
error: not valid TOML: string values must be quoted, expected literal string
 --> greenroom.toml:1:13
  |
1 | state_dir = /var
  |             ^^^^ here

error: not valid TOML: unclosed table, expected `]`
 --> greenroom.toml:2:12
  |
2 | [pool.linux
  |            ^ here

error: not valid TOML: extra `=`, expected nothing
 --> greenroom.toml:3:17
  |
3 | max_instances = = 3
  |                 ^ here
",
    );
}

#[test]
fn a_pool_without_provider_is_told_how_to_get_one() {
    fails_with(
        "[pool.linux]\nmax_instances = 2\n",
        r#"
error: `[pool.linux]` has no provider
 --> greenroom.toml:1:1
  |
1 | [pool.linux]
  | ^^^^^^^^^^^^ this pool
  |
  = help: name the provider of its instances, for example:
          [pool.linux.provider]
          kind = "local"
"#,
    );
}

#[test]
fn missing_keys_are_named_with_what_they_are_for() {
    fails_with(
        "[pool.linux]\n[pool.linux.provider]\npath = \"/x\"\n[[pool.linux.policy]]\nidle_count = 0\n",
        r#"
error: `max_instances` is missing in `[pool.linux]`
 --> greenroom.toml:1:1
  |
1 | [pool.linux]
  | ^^^^^^^^^^^^ in this table
  |
  = help: set the maximum number of instances, whatever their phase

error: `kind` is missing in `[pool.linux.provider]`
 --> greenroom.toml:2:1
  |
2 | [pool.linux.provider]
  | ^^^^^^^^^^^^^^^^^^^^^ in this table
  |
  = help: name the provider, for example `kind = "local"`

error: `periods` is missing in `[[pool.linux.policy]]`
 --> greenroom.toml:4:1
  |
4 | [[pool.linux.policy]]
  | ^^^^^^^^^^^^^^^^^^^^^ in this table
  |
  = help: set `periods`, such as `["* 9-17 * * mon-fri"]` (minute, hour, day, month, weekday)
"#,
    );
}

#[test]
fn directories_that_are_not_absolute_are_refused() {
    fails_with(
        "state_dir = \"state\"\n[pool.linux]\nmax_instances = 2\nbuilds_dir = \"builds\"\nprovider.kind = \"local\"\n",
        r#"
error: `state_dir` must be an absolute path
 --> greenroom.toml:1:13
  |
1 | state_dir = "state"
  |             ^^^^^^^ a relative path: GitLab Runner starts each call in a new directory

error: `builds_dir` in `[pool.linux]` must be an absolute path on the instance
 --> greenroom.toml:4:14
  |
4 | builds_dir = "builds"
  |              ^^^^^^^^ not an absolute path
"#,
    );
    let same =
        "[pool.a]\nmax_instances = 1\nbuilds_dir = \"/b/\"\ncache_dir = \"/b\"\nprovider.kind = \"x\"\n";
    assert!(message(same).contains("`builds_dir` and `cache_dir` must be different directories"));
}

#[test]
fn pools_of_the_wrong_shape_are_told_the_right_one() {
    fails_with(
        "[[pool]]\nname = \"linux\"\n",
        r"
error: `pool` must be a table
 --> greenroom.toml:1:1
  |
1 | [[pool]]
  | ^^^^^^^^ found a list
  |
  = help: write it as `[pool.NAME]`
",
    );
    fails_with(
        "[pool.Linux]\nmax_instances = 1\nprovider.kind = \"local\"\n",
        r"
error: `Linux` cannot be the name of a pool
 --> greenroom.toml:1:7
  |
1 | [pool.Linux]
  |       ^^^^^ lower-case letters, digits and hyphens, at most 32, not starting with a hyphen
",
    );
}

#[test]
fn every_key_of_a_pool_arrives() {
    let config = good(
        "state_dir = \"/srv/green\"\nhistory_days = 7\n[pool.w]\nmax_instances = 9\ncapacity_per_instance = 2\n\
         max_use_count = 0\nidle_count = 4\nidle_time = \"1h 30m\"\nscale_factor = 2\nscale_factor_limit = 8\n\
         max_launching = 3\nlaunches_per_minute = 6\nmax_lifetime = \"1d\"\nreuse = \"namespace\"\n\
         clean_unbinds = false\nacquire_timeout = \"90s\"\nshell = \"pwsh\"\nlogin_shell = true\n\
         separate_stderr = true\nbuilds_dir = \"C:\\\\b\"\n\
         cache_dir = \"C:/c/\"\nready_command = \"true\"\nclean_command = \"clean\"\n\
         [pool.w.provider]\nkind = \"local\"\nroot = \"/x\"\nlist = [1, 2]\n\
         [[pool.w.policy]]\nperiods = [\"* 9 * * *\"]\nidle_count = 6\n",
    );
    let pool = &config.pools[&PoolName::new("w")];
    let policy = &pool.policy;
    assert_eq!((config.history_days, config.state_dir.to_str()), (7, Some("/srv/green")));
    assert_eq!((policy.max_instances, policy.capacity_per_instance, policy.max_use_count), (9, 2, None));
    assert_eq!((policy.max_launching, policy.launches_per_minute), (3, 6));
    assert_eq!(policy.max_lifetime, Some(Lifetime(Duration::from_hours(24))));
    assert_eq!((policy.reuse, policy.clean_unbinds), (Reuse::Namespace, false));
    assert_eq!(policy.timing.acquire_timeout, Duration::from_secs(90));
    assert_eq!(config.timing.acquire_timeout, Duration::from_mins(30));
    assert_eq!(
        (pool.shell, pool.builds_dir.as_str(), pool.cache_dir.as_str()),
        (Shell::Pwsh, "C:\\b", "C:/c")
    );
    assert_eq!(
        pool.stage_shell(false),
        StageShell { shell: Shell::Pwsh, login_shell: true, separate_stderr: true }
    );
    assert_eq!(pool.ready_command.as_deref(), Some("true"));
    assert_eq!(pool.clean_command.as_deref(), Some("clean"));
    let own = policy.schedules[0].idle;
    assert_eq!((own.idle_count, own.idle_time, own.scale_factor_limit), (6, Duration::from_mins(90), 8));
    assert_eq!(policy.schedules[0].when.text().timezone, "UTC");
    assert_eq!(pool.provider.kind, "local");
    assert_eq!(pool.provider.table.keys().collect::<Vec<_>>(), ["list", "root"]);
}

#[test]
fn a_fixed_host_serves_any_number_of_jobs_unless_the_file_says_otherwise() {
    let text = |line| format!("[pool.a]\nmax_instances = 1\n{line}\nprovider.kind = \"x\"\n");
    for (line, disposable, uses) in [
        ("#", true, Some(1)),
        ("#", false, None),
        ("max_use_count = 1", false, Some(1)),
        ("max_use_count = 0", true, None),
    ] {
        let config = good(&text(line));
        let policy = config.pools[&PoolName::new("a")].policy_where(disposable, None);
        assert_eq!(policy.max_use_count, uses, "{line} {disposable}");
    }
}

#[test]
fn a_lifetime_is_the_files_or_the_providers_and_0_is_none() {
    let text = |line| format!("[pool.a]\nmax_instances = 1\n{line}\nprovider.kind = \"x\"\n");
    let day = Some(Duration::from_hours(24));
    for (line, default, lifetime) in [
        ("#", None, None),
        ("#", day, day),
        ("max_lifetime = \"1s\"", day, Some(Duration::from_secs(1))),
        ("max_lifetime = \"30d\"", None, Some(Duration::from_hours(30 * 24))),
        ("max_lifetime = 0", day, None),
        ("max_lifetime = \"0s\"", day, None),
    ] {
        let config = good(&text(line));
        let policy = config.pools[&PoolName::new("a")].policy_where(true, default);
        assert_eq!(policy.max_lifetime.map(|limit| limit.0), lifetime, "{line} {default:?}");
        assert_eq!(policy.extends_lifetime, line == "#" && default.is_some(), "{line} {default:?}");
    }
    let wrong = Config::parse(&text("max_lifetime = \"999ms\""), "x").unwrap_err().to_string();
    assert!(wrong.contains("is too short for any job"), "{wrong}");
}

#[test]
fn a_policy_is_the_same_after_the_journal() {
    let config = good(include_str!("../../examples/config.toml"));
    for pool in config.pools.values() {
        let text = serde_json::to_string(&pool.policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), pool.policy);
    }
}

#[test]
fn limits_say_where_they_are_set_and_defaults_say_nothing() {
    let config = good(
        "default_pool = \"a\"\n[pool.a]\nmax_instances = 1\nprovider.kind = \"x\"\n[[rule]]\npool = \"a\"\n",
    );
    assert_eq!(config.origin("pool.a.max_instances").as_deref(), Some("greenroom.toml:3"));
    assert_eq!(config.origin("rule.0.pool").as_deref(), Some("greenroom.toml:6"));
    assert_eq!(config.origin("pool.a.idle_count"), None);
}

#[test]
fn a_provider_can_complain_about_its_own_lines() {
    let config = good("[pool.a]\nmax_instances = 1\n[pool.a.provider]\nkind = \"x\"\nzone = \"mars-1\"\n");
    let path = &config.pools[&PoolName::new("a")].provider.path;
    let complain = |title: &str, place: Place| config.diagnostics(Problem::new(title).at(place, "here"));
    let name = Place::name_of(format!("{path}.zone"));
    let value = Place::value_of(format!("{path}.zone"));
    assert_eq!(
        complain("there is no zone `mars-1`", name).render(false),
        "error: there is no zone `mars-1`\n --> greenroom.toml:5:1\n  |\n5 | zone = \"mars-1\"\n  | ^^^^ here"
    );
    assert_eq!(complain("there is no zone", value).to_string(), "greenroom.toml:5:8: there is no zone");
    for absent in ["image", "image.a.b"] {
        let absent = complain("`image` is missing", Place::name_of(format!("{path}.{absent}"))).to_string();
        assert_eq!(absent, "greenroom.toml:3:1: `image` is missing");
    }
}

#[test]
fn numbers_that_do_not_fit_are_shown_like_those_that_are_too_large() {
    fails_with(
        "history_days = 99999999999999999999\n[pool.linux]\nmax_instances = 0xffffffffffffffffff\n\
         idle_time = 99999999999999999999\nscale_factor = 1e999\n[pool.linux.provider]\nkind = \"local\"\n",
        r#"
error: `history_days` must be a whole number, 0 or more
 --> greenroom.toml:1:16
  |
1 | history_days = 99999999999999999999
  |                ^^^^^^^^^^^^^^^^^^^^ more than 1000000

error: `max_instances` in `[pool.linux]` must be a whole number, 1 or more
 --> greenroom.toml:3:17
  |
3 | max_instances = 0xffffffffffffffffff
  |                 ^^^^^^^^^^^^^^^^^^^^ more than 1000000

error: `idle_time` in `[pool.linux]` must be a duration like "30s", "20m" or "1h 30m"
 --> greenroom.toml:4:13
  |
4 | idle_time = 99999999999999999999
  |             ^^^^^^^^^^^^^^^^^^^^ found a whole number

error: `scale_factor` in `[pool.linux]` must be a number, 0 or more
 --> greenroom.toml:5:16
  |
5 | scale_factor = 1e999
  |                ^^^^^ more than 1000000
"#,
    );
}

#[test]
fn the_wrong_entry_of_a_list_is_pointed_at() {
    fails_with(
        "[pool.a]\nmax_instances = 1\nprovider.kind = \"x\"\n[[rule]]\npool = \"a\"\nproject = [\"b\", 3]\n",
        r#"
error: `project` in `[[rule]]` must be a pattern or a list of patterns
 --> greenroom.toml:6:17
  |
6 | project = ["b", 3]
  |                 ^ found a whole number
"#,
    );
}

#[test]
fn a_key_with_a_dot_is_not_taken_for_a_table() {
    let wrong = message("\"pool.a\" = 1\n[pool.a]\nmax_instances = 0\n[pool.a.provider]\nkind = \"x\"\n");
    assert!(wrong.contains("1 | \"pool.a\" = 1\n  | ^^^^^^^^ unknown key"), "{wrong}");
    assert!(wrong.contains("3 | max_instances = 0\n  |                 ^ found 0"), "{wrong}");
}

#[test]
fn a_providers_values_are_no_ones_business() {
    let config =
        good("[pool.a]\nmax_instances = 1\n[pool.a.provider]\nkind = \"x\"\npassword = \"hunter2\"\n");
    let shown = format!("{config:?}");
    assert!(shown.contains("password") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_changed_text_has_another_hash() {
    assert_eq!(Config::hash("a"), Config::hash("a"));
    assert_ne!(Config::hash("a"), Config::hash("a "));
}

#[test]
fn a_file_that_is_not_there_is_named_once() {
    let wrong = Config::read(Path::new("/nowhere/greenroom.toml")).unwrap_err();
    let source = std::error::Error::source(&wrong).unwrap().to_string();
    assert!(
        source.contains("/nowhere/greenroom.toml") && !wrong.to_string().contains("nowhere"),
        "{wrong}: {source}"
    );
}

proptest::proptest! {
    #[test]
    fn no_damage_to_the_example_makes_it_panic(from in 0usize..9000, cut in 0usize..40, put in "[\\[\\]\"'=.#\n a1é]{0,6}") {
        let example = include_str!("../../examples/config.toml");
        let from = example.floor_char_boundary(from.min(example.len()));
        let to = example.floor_char_boundary((from + cut).min(example.len())).max(from);
        let text = format!("{}{put}{}", &example[..from], &example[to..]);
        if let Err(wrong) = Config::parse(&text, "x") {
            proptest::prop_assert!(!wrong.render(true).is_empty() && !wrong.to_string().contains('\n'));
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "(\\[\\[?|pool|\\.|a|\\]\\]?|\n| = |\"|1|-|rule|timing|\\{|\\}|é|\u{0}|,){0,40}") {
        if let Err(wrong) = Config::parse(&text, "x") {
            proptest::prop_assert!(wrong.count() > 0 && !wrong.to_string().is_empty());
        }
    }
}
