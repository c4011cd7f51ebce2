//! The runner's `[[runners]]` section that calls Greenroom: which one it is, and what has to change there.
//!
//! Comments, order and unknown keys of the file stay as they are. Texts of errors never quote the file, which has tokens.

use greenroom_keys::near::nearest_or_all;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, TableLike, Value};

use crate::cli::doctor::runner::{EXEC_TIMEOUT_DEFAULT, EXECS, KILL_TIMEOUT_LIMIT, is_greenroom};

/// A value of `graceful_kill_timeout` below the 300 s after which the runner calls `cleanup` all the same.
const KILL_TIMEOUT: u64 = 120;

/// The settings that [`merge`] writes into the section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Absolute path of `greenroom`.
    pub(super) program: String,
    /// Path of the configuration, if calls do not find it by themselves.
    pub(super) config: Option<String>,
    /// The job slots of all pools.
    pub(super) slots: u64,
    /// Seconds that stopping a stage may take.
    pub(super) stop: u64,
    /// Seconds that `prepare` may take.
    pub(super) prepare: u64,
}

/// The reasons for which the runner's configuration is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("is not valid TOML: {0}")]
    Invalid(String),
    #[error("has its runners in another form than `[[runners]]`")]
    OtherForm,
    #[error("has no `[[runners]]` section: no runner is registered")]
    NoRunner,
    #[error("has no runner `{name}`")]
    Unknown { name: String, help: String },
    #[error("has several runners that may call Greenroom: {}", .0.join(", "))]
    Several(Vec<String>),
    #[error("has several runners with the name `{0}`")]
    SameName(String),
    #[error("has {runner} with another executor, \"{executor}\"")]
    OtherExecutor { runner: String, executor: String },
    #[error("has {runner}, which calls another program, `{program}`")]
    OtherProgram { runner: String, program: String },
}

impl Refusal {
    /// The help for the operator.
    pub(super) fn help(&self) -> String {
        match self {
            Self::Invalid(_) => "correct the file; `gitlab-runner verify` reads it, too".to_owned(),
            Self::OtherForm => "write each runner as a `[[runners]]` table".to_owned(),
            Self::NoRunner => "register one, for example with `gitlab-runner register --executor custom \
                               --custom-run-exec /usr/bin/greenroom`, then run init again"
                .to_owned(),
            Self::Unknown { help, .. } => help.clone(),
            Self::Several(_) => "name one with `--runner NAME`".to_owned(),
            Self::SameName(_) => "give each runner a name of its own".to_owned(),
            Self::OtherExecutor { .. } | Self::OtherProgram { .. } => {
                "name another runner with `--runner NAME`, or add `--change-executor` to change this one"
                    .to_owned()
            }
        }
    }
}

/// One section, as far as [`choose`] needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Section {
    name: Option<String>,
    executor: String,
    /// The first executable of `[runners.custom]`.
    program: Option<String>,
}

impl Section {
    fn of(table: &Table) -> Self {
        let text = |item: Option<&Item>| item.and_then(Item::as_str).unwrap_or_default().to_owned();
        let custom = table.get("custom").and_then(Item::as_table_like);
        let exec = |name: &&str| custom.map(|it| text(it.get(&format!("{name}_exec")))).unwrap_or_default();
        let programs: Vec<String> = EXECS.iter().map(exec).filter(|path| !path.is_empty()).collect();
        let ours = programs.iter().find(|path| is_greenroom(path));
        Self {
            name: table.get("name").and_then(Item::as_str).map(str::to_owned),
            executor: text(table.get("executor")),
            program: ours.or(programs.first()).cloned(),
        }
    }

    fn is_ours(&self) -> bool {
        self.executor == "custom" && self.program.as_deref().is_some_and(is_greenroom)
    }

    /// Neither another executor nor another program.
    fn is_free(&self) -> bool {
        ["", "custom"].contains(&self.executor.as_str()) && self.program.as_deref().is_none_or(is_greenroom)
    }
}

/// The section that calls Greenroom, or is to call it: its number from 0.
pub(super) fn choose(text: &str, name: Option<&str>, may_change: bool) -> Result<usize, Refusal> {
    let document = parse(text)?;
    let sections: Vec<Section> = match document.get("runners") {
        None => Vec::new(),
        Some(item) => item.as_array_of_tables().ok_or(Refusal::OtherForm)?.iter().map(Section::of).collect(),
    };
    let title = |at: usize| match &sections[at].name {
        Some(name) => format!("runner `{name}`"),
        None => format!("runner {} without a name", at + 1),
    };
    let those = |is: &dyn Fn(&Section) -> bool| -> Vec<usize> {
        (0..sections.len()).filter(|at| is(&sections[*at])).collect()
    };
    let at = match name {
        _ if sections.is_empty() => return Err(Refusal::NoRunner),
        Some(name) => match those(&|section| section.name.as_deref() == Some(name)).as_slice() {
            [only] => *only,
            [] => {
                let names = sections.iter().filter_map(|section| section.name.as_deref());
                let help = nearest_or_all(name, names.collect::<Vec<_>>().into_iter());
                return Err(Refusal::Unknown { name: name.to_owned(), help });
            }
            _ => return Err(Refusal::SameName(name.to_owned())),
        },
        None => {
            let ours = those(&Section::is_ours);
            let free = those(&Section::is_free);
            // A section that calls Greenroom comes before a free one, and a free one before all others.
            let possible = [ours, free, those(&|_| true)].into_iter().find(|those| !those.is_empty());
            match possible.unwrap_or_default().as_slice() {
                [only] => *only,
                several => return Err(Refusal::Several(several.iter().map(|at| title(*at)).collect())),
            }
        }
    };
    let section = &sections[at];
    if section.is_free() || may_change {
        return Ok(at);
    }
    let runner = title(at);
    Err(match &section.program {
        Some(program) if section.executor == "custom" => {
            Refusal::OtherProgram { runner, program: program.clone() }
        }
        _ => Refusal::OtherExecutor { runner, executor: section.executor.clone() },
    })
}

fn parse(text: &str) -> Result<DocumentMut, Refusal> {
    text.parse().map_err(|error: toml_edit::TomlError| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        Refusal::Invalid(format!("line {}: {}", before.matches('\n').count() + 1, error.message()))
    })
}

/// The file with what the section has to say. What is right already stays as it is written.
pub(super) fn merge(text: &str, at: usize, wanted: &Wanted) -> Result<String, Refusal> {
    let mut document = parse(text)?;
    let concurrent = document.get("concurrent").and_then(Item::as_integer).unwrap_or(1);
    let slots = i64::try_from(wanted.slots).unwrap_or(i64::MAX);
    if concurrent < slots {
        set(document.as_table_mut(), "concurrent", slots.into(), "");
    }
    let runners = document.get_mut("runners").and_then(Item::as_array_of_tables_mut);
    let runner =
        runners.and_then(|runners: &mut ArrayOfTables| runners.get_mut(at)).ok_or(Refusal::NoRunner)?;
    let indent = indent(runner).unwrap_or_else(|| "  ".to_owned());
    if runner.get("executor").and_then(Item::as_str) != Some("custom") {
        set(runner, "executor", "custom".into(), &indent);
    }
    let limit = runner.get("limit").and_then(Item::as_integer).unwrap_or(0);
    if limit <= 0 || limit > slots {
        set(runner, "limit", slots.into(), &indent);
    }
    if runner.get("custom").and_then(Item::as_table_like).is_none() {
        let mut table = Table::new();
        table.decor_mut().set_prefix(indent.as_str());
        runner.insert("custom", Item::Table(table));
    }
    if let Some(custom) = runner.get_mut("custom").and_then(Item::as_table_like_mut) {
        let inside = self::indent(custom).unwrap_or_else(|| format!("{indent}  "));
        executables(custom, wanted, &inside);
        timeouts(custom, wanted, &inside);
    }
    Ok(document.to_string())
}

/// Programs and arguments that call Greenroom already stay.
fn executables(custom: &mut dyn TableLike, wanted: &Wanted, indent: &str) {
    for name in EXECS {
        let exec = format!("{name}_exec");
        let args = format!("{name}_args");
        let calls = custom.get(&exec).and_then(Item::as_str).is_some_and(is_greenroom);
        if !calls {
            set(custom, &exec, wanted.program.as_str().into(), indent);
        }
        let has_args = custom.get(&args).and_then(Item::as_array).is_some_and(|args| !args.is_empty());
        if !calls || !has_args {
            let config = wanted.config.iter().flat_map(|path| ["--config", path]);
            let words: Array = std::iter::once(name).chain(config).collect();
            set(custom, &args, Value::Array(words), indent);
        }
    }
}

fn timeouts(custom: &mut dyn TableLike, wanted: &Wanted, indent: &str) {
    let seconds = |custom: &dyn TableLike, key: &str| {
        custom.get(key).and_then(Item::as_integer).filter(|seconds| *seconds > 0)
    };
    let number = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    let kill = seconds(custom, "graceful_kill_timeout").unwrap_or(KILL_TIMEOUT_LIMIT);
    if kill >= KILL_TIMEOUT_LIMIT || kill < number(wanted.stop) {
        let timeout = number(wanted.stop.max(KILL_TIMEOUT)).min(KILL_TIMEOUT_LIMIT - 1);
        set(custom, "graceful_kill_timeout", timeout.into(), indent);
    }
    if seconds(custom, "prepare_exec_timeout").unwrap_or(EXEC_TIMEOUT_DEFAULT) <= number(wanted.prepare) {
        set(custom, "prepare_exec_timeout", (number(wanted.prepare) + 60).into(), indent);
    }
}

/// Sets a key. One that is there keeps its place and its comment; a new one comes last, indented like the others.
fn set(table: &mut dyn TableLike, name: &str, mut value: Value, indent: &str) {
    if let Some(old) = table.get_mut(name).and_then(Item::as_value_mut) {
        *value.decor_mut() = old.decor().clone();
        *old = value;
        return;
    }
    table.insert(name, Item::Value(value));
    if let Some(mut key) = table.key_mut(name) {
        key.leaf_decor_mut().set_prefix(indent);
    }
}

/// The blanks before the last key of a table.
fn indent(table: &dyn TableLike) -> Option<String> {
    let (name, _) = table.iter().filter(|(_, item)| item.is_value()).last()?;
    let prefix = table.key(name)?.leaf_decor().prefix()?.as_str()?;
    let line = prefix.rsplit('\n').next().unwrap_or_default();
    Some(line.chars().take_while(|c| c.is_whitespace()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A runner's configuration as `gitlab-runner register` leaves it, with an operator's comments.
    const FILE: &str = include_str!("../../../tests/fixtures/runner-config.toml");

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
        let both =
            "    image = \"debian:12\"\n  [runners.custom]\n    config_exec = \"/usr/bin/greenroom\"\n";
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
        assert_eq!(
            choose(&(custom("a") + &custom("a")), Some("a"), false),
            Err(Refusal::SameName("a".into()))
        );
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
}
