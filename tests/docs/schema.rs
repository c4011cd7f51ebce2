//! The JSON Schema of the configuration, in a validator that knows nothing of Greenroom.

use boon::{Compiler, Draft, SchemaIndex, Schemas};
use greenroom::config::{self, Config};
use greenroom::provider;
use greenroom_core::ids::PoolName;
use greenroom_keys::{DefaultValue, KeySpec, KeyTable, ValueType, duration, schema, size};
use serde_json::{Value, json};

use super::{path, read};

/// The compiled schema.
struct Validator {
    schemas: Schemas,
    root: SchemaIndex,
}

impl Validator {
    fn new() -> Self {
        Self::of(schema::render(config::KEYS, provider::KEYS))
    }

    fn of(schema: Value) -> Self {
        let mut compiler = Compiler::new();
        compiler.set_default_draft(Draft::V7);
        compiler.add_resource("greenroom.json", schema).expect("a schema");
        let mut schemas = Schemas::new();
        let root = compiler.compile("greenroom.json", &mut schemas).expect("a valid schema");
        Self { schemas, root }
    }

    fn check(&self, text: &str) -> Result<(), String> {
        let table: toml::Table = text.parse().map_err(|wrong: toml::de::Error| wrong.to_string())?;
        self.check_value(&serde_json::to_value(table).expect("TOML is JSON"))
    }

    fn check_value(&self, value: &Value) -> Result<(), String> {
        self.schemas.validate(value, self.root).map_err(|wrong| format!("{wrong:#}"))
    }
}

/// All TOML blocks of a page, those of its console blocks included.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    for block in page.split("```").skip(1).step_by(2) {
        if let Some(toml) = block.strip_prefix("toml\n") {
            blocks.push(toml.to_owned());
        }
        let written = block.split("<<'END'\n").skip(1).filter_map(|rest| rest.split("\nEND\n").next());
        blocks.extend(written.map(str::to_owned));
    }
    blocks
}

fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/providers"] {
        let files = std::fs::read_dir(path(folder)).expect("a folder").map(|entry| entry.expect("an entry"));
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let is_page = |name: &String| name.strip_suffix(".md").is_some();
        pages.extend(names.filter(is_page).map(|name| format!("{folder}/{name}")));
    }
    pages
}

#[test]
fn the_schema_takes_all_examples() {
    let validator = Validator::new();
    for entry in std::fs::read_dir(path("examples")).expect("a folder") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if name.strip_suffix(".toml").is_none() {
            continue;
        }
        let text = read(&format!("examples/{name}"));
        assert_eq!(text.lines().next(), Some(schema::LINE), "the first line of examples/{name}");
        validator.check(&text).unwrap_or_else(|wrong| panic!("examples/{name}: {wrong}"));
    }
    for known in provider::all() {
        let table = of_provider(known.kind);
        validator.check_value(&table).unwrap_or_else(|wrong| panic!("{}: {wrong}", known.kind));
    }
}

#[test]
fn the_schema_takes_what_the_pages_show() {
    let validator = Validator::new();
    let mut taken = 0;
    for page in pages() {
        for block in blocks(&read(&page)) {
            let Ok(table) = block.parse::<toml::Table>() else { continue };
            let Some(pools) = table.get("pool").and_then(toml::Value::as_table) else { continue };
            let mut whole = serde_json::to_value(&table).expect("TOML is JSON");
            // A page shows the part of a pool that it explains.
            for name in pools.keys() {
                let pool = whole["pool"][name].as_object_mut().expect("a pool");
                pool.entry("max_instances").or_insert(json!(1));
                pool.entry("provider").or_insert(json!({ "kind": "qemu" }));
            }
            validator.check_value(&whole).unwrap_or_else(|wrong| panic!("{page}: {wrong}\n{block}"));
            taken += 1;
        }
    }
    assert!(taken >= 10, "{taken}");
}

/// A configuration with the example of a provider.
fn of_provider(kind: &str) -> Value {
    let known = provider::WITHOUT_BACKENDS.iter().find(|known| known.kind == kind).expect(kind);
    let table: toml::Table = known.example.parse().expect(kind);
    let mut table = serde_json::to_value(table).expect("TOML is JSON");
    table["kind"] = json!(kind);
    json!({ "pool": { "linux": { "max_instances": 1, "provider": table } } })
}

/// The place of a table of keys in a configuration: its JSON Pointer, with a first entry for each list.
fn pointer(table: &KeyTable) -> String {
    let mut pointer = String::new();
    for part in table.path().split('.').filter(|part| !part.is_empty()) {
        pointer = format!("{pointer}/{}", part.replace("NAME", "linux"));
    }
    if table.header.starts_with("[[") { pointer + "/0" } else { pointer }
}

/// The configuration with one key set, and the tables around it made.
fn with(base: &Value, table: &KeyTable, name: &str, value: Value) -> Value {
    let mut whole = base.clone();
    let mut at = &mut whole;
    for part in pointer(table).split('/').skip(1) {
        if part == "0" {
            if !at.is_array() {
                *at = json!([{}]);
            }
            at = &mut at[0];
        } else {
            at = at.as_object_mut().expect("a table").entry(part).or_insert(json!({}));
        }
    }
    let required =
        table.keys.iter().filter(|key| key.default == DefaultValue::Required && !key.opens_table());
    let at = at.as_object_mut().expect("a table");
    for key in required {
        let any = match key.ty {
            ValueType::Texts => json!(["* * * * *"]),
            ValueType::Count(_) | ValueType::Range(..) => json!(1),
            ValueType::Word(words) => json!(words[0]),
            _ => json!("/linux"),
        };
        at.entry(key.name).or_insert(any);
    }
    at.insert(name.to_owned(), value);
    whole
}

/// Values that a key refuses.
fn refused(takes: ValueType) -> Vec<Value> {
    let beyond = match takes {
        ValueType::Count(least) => vec![json!(i64::from(least) - 1), json!(1_000_001), json!(1.5)],
        ValueType::Range(least, most) => vec![json!(i64::from(least) - 1), json!(i64::from(most) + 1)],
        ValueType::Factor => vec![json!(-1), json!(1_000_000.5)],
        ValueType::Duration(_) => {
            vec![json!("soon"), json!(5), json!("-1s"), json!("30"), json!("1y"), json!("")]
        }
        ValueType::Size => vec![json!("0G"), json!("8"), json!(8), json!("1.5G"), json!("2 G")],
        ValueType::Text => vec![json!(" "), json!("")],
        ValueType::Word(_) => vec![json!("0000")],
        ValueType::Choice(_) => vec![json!("0000"), json!([])],
        ValueType::Words(_) => vec![json!("0000"), json!([]), json!(["0000"])],
        ValueType::Texts | ValueType::Globs => vec![json!([]), json!([1])],
        ValueType::TextOrTexts => vec![json!([]), json!([1]), json!(""), json!(["a", " "])],
        ValueType::HostPath | ValueType::GuestPath => vec![json!("a/b")],
        ValueType::Map => vec![json!({ "a": 1 })],
        ValueType::Flag | ValueType::Values | ValueType::Table => vec![json!("true")],
        ValueType::Tables => vec![json!({}), json!([1])],
    };
    let inner = (takes != ValueType::Values).then(|| json!({ "a": { "b": 0 } }));
    [json!(null)].into_iter().chain(inner).chain(beyond).collect()
}

fn each_key(mut check: impl FnMut(&Value, &KeyTable, &KeySpec)) {
    let base = of_provider("qemu");
    for table in config::KEYS {
        for key in table.keys.iter().filter(|key| key.name != "kind") {
            check(&base, table, key);
        }
    }
    for (kind, tables) in provider::KEYS {
        for table in *tables {
            for key in table.keys {
                check(&of_provider(kind), table, key);
            }
        }
    }
}

#[test]
fn the_schema_refuses_for_each_key_what_greenroom_refuses() {
    let validator = Validator::new();
    let mut refusals = 0;
    each_key(|base, table, key| {
        for value in refused(key.ty) {
            let whole = with(base, table, key.name, value.clone());
            let taken = validator.check_value(&whole).is_ok();
            assert!(!taken, "`{}` of {} may be {value}", key.name, table.header);
            refusals += 1;
        }
        let whole = with(base, table, "0000", json!(true));
        assert!(validator.check_value(&whole).is_err(), "{} takes an unknown key", table.header);
    });
    assert!(refusals > 500, "{refusals}");
}

#[test]
fn the_schema_takes_the_default_of_each_key() {
    let validator = Validator::new();
    each_key(|base, table, key| {
        let Some(default) = key.default_text() else { return };
        let table_of_one: toml::Table = format!("it = {default}").parse().expect(default);
        let whole = with(base, table, key.name, json!(table_of_one["it"]));
        let taken = validator.check_value(&whole);
        taken.unwrap_or_else(|wrong| panic!("`{}` of {}: {wrong}", key.name, table.header));
    });
}

/// Configurations that Greenroom refuses before it asks a provider.
const REFUSED: &[&str] = &[
    "",
    "max_instances = 4",
    "[pool]",
    "pool = 1",
    "[pool.linux]\nmax_instances = 4",
    "[pool.linux]\nmax_instances = 4\n[pool.linux.provider]",
    "[pool.linux]\n[pool.linux.provider]\nkind = 'local'",
    "[pool.Linux]\nmax_instances = 4\n[pool.Linux.provider]\nkind = 'local'",
    "[pool.-linux]\nmax_instances = 4\n[pool.-linux.provider]\nkind = 'local'",
    "[pool.linux]\nmax_instances = 'four'\n[pool.linux.provider]\nkind = 'local'",
    "[pool.linux]\nmax_instances = 4\nidle_cuont = 1\n[pool.linux.provider]\nkind = 'local'",
    "[pool.linux]\nmax_instances = 4\nidle_time = 30\n[pool.linux.provider]\nkind = 'local'",
    "[[rule]]\nproject = 'a'\n[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\nkind = 'local'",
    "[rule]\npool = 'linux'\n[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\nkind = 'local'",
    "[timing]\nreap_grace = '1mo'\n[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\nkind = 'local'",
    "[[pool.linux.policy]]\nidle_count = 1\n[pool.linux]\nmax_instances = 4\n[pool.linux.provider]\nkind = 'local'",
];

/// Provider tables that their providers refuse.
const REFUSED_BY_PROVIDERS: &[&str] = &[
    "kind = 'locla'",
    "kind = 'local'\nmemory = '1G'",
    "kind = 'qemu'\nnetwork = 'none'",
    "kind = 'qemu'\nallow_root = true",
    "kind = 'static'\nuser = 'ci'\nkey = '/k'",
    "kind = 'static'\nuser = 'ci'\nkey = '/k'\n[[host]]\nname = 'a'",
    "kind = 'static'\nuser = 'ci'\nkey = 'k'\n[[host]]\nname = 'a'\naddress = 'a'",
    "kind = 'aws-ec2'\nregion = 'eu-west-1'\nsecurity_groups = 'sg-1'\nsubnets = 'subnet-1'",
    "kind = 'aws-ec2'\nimage = 'ami-1'\ninstance_types = 'a'\nsubnets = 'subnet-1'",
    "kind = 'gce'\nproject = 'p'\nzones = 'z'",
];

#[test]
fn the_schema_refuses_whole_files_that_greenroom_refuses() {
    let validator = Validator::new();
    for text in REFUSED {
        assert!(Config::parse(text, "greenroom.toml").is_err(), "Greenroom takes it: {text}");
        assert!(validator.check(text).is_err(), "the schema takes it: {text}");
    }
    for text in REFUSED_BY_PROVIDERS {
        let table: toml::Table = text.parse().expect("TOML");
        let table = serde_json::to_value(table).expect("TOML is JSON");
        let whole = json!({ "pool": { "linux": { "max_instances": 1, "provider": table } } });
        assert!(validator.check_value(&whole).is_err(), "the schema takes it: {text}");
    }
}

#[test]
fn names_durations_and_sizes_of_the_schema_are_those_of_greenroom() {
    let validator = |takes: &str| Validator::of(json!({ "pattern": find(takes), "type": "string" }));
    let durations = validator("acquire_timeout");
    for text in [
        "30s",
        "20m0s",
        "1h 30m",
        "1h20m",
        "1.5h",
        "1d",
        "7d",
        "1w",
        "1d 12h",
        "250ms",
        "0s",
        " 5 min ",
        "90 seconds",
        "1h, 30m",
        "1d 02:30:00",
        "01:00:00",
        "1000us",
        "+30s",
        "30",
        "1.5",
        "",
        " ",
        "soon",
        "-30s",
        "30s ago",
        "1y",
        "2mo",
        "s",
        "1 h m",
    ] {
        let ours = duration::parse(text).is_ok();
        assert_eq!(durations.check_value(&json!(text)).is_ok(), ours, "`{text}` as a duration");
    }
    let sizes = validator("shm_size");
    for text in ["512M", "2GiB", "1T", "08K", "2", "1.5G", "2GB", "", "-1G", "2 G", "G", "0K"] {
        let ours = size::parse(text).is_some_and(|bytes| bytes > 0);
        assert_eq!(sizes.check_value(&json!(text)).is_ok(), ours, "`{text}` as a size");
    }
    let schema = schema::render(config::KEYS, provider::KEYS);
    let names = schema.pointer("/properties/pool/propertyNames").expect("a pattern").clone();
    let names = Validator::of(names);
    let long = "a".repeat(32);
    for text in ["linux", "a-1", "1", &long, &format!("{long}a"), "", "-a", "A", "a_b", "a.b", "ä"] {
        let ours = PoolName::parse(text).is_ok();
        assert_eq!(names.check_value(&json!(text)).is_ok(), ours, "`{text}` as the name of a pool");
    }
}

/// The pattern of a key of a pool or of its containers.
fn find(key: &str) -> Value {
    let schema = schema::render(config::KEYS, provider::KEYS);
    let pool = &schema["properties"]["pool"]["additionalProperties"]["properties"];
    let property = [&pool[key], &pool["containers"]["properties"][key]].into_iter().find(|it| it.is_object());
    let property = property.expect("a key");
    property.get("pattern").unwrap_or(&property["anyOf"][0]["pattern"]).clone()
}

#[test]
fn each_key_says_in_an_editor_what_it_means() {
    let schema = schema::render(config::KEYS, provider::KEYS);
    let text = schema.to_string();
    let text = text.replace("[KMGT](iB)", "");
    assert!(
        !text.contains("](") && !text.contains("\"description\":\"\""),
        "links lead nowhere in an editor"
    );
    let pool = &schema["properties"]["pool"]["additionalProperties"]["properties"];
    let idle_time = &pool["idle_time"];
    assert_eq!(idle_time["default"], "20m");
    let description = idle_time["description"].as_str().expect("a description");
    assert!(description.starts_with("How long an instance"), "{description}");
    assert!(description.ends_with("with the keeper's next pass."), "{description}");
    let kinds = pool["provider"]["oneOf"].as_array().expect("a table for each provider");
    assert_eq!(kinds.len(), provider::KEYS.len());
}
