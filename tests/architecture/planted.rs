//! Shows that the checks bite: each finds what is planted for it, with file and line, and leaves the innocent alone.

use std::collections::BTreeSet;

use super::source::Source;
use super::{Finding, layers, paths, report, sizes, source, tree, words};

fn arrows(path: &str, text: &str) -> String {
    let adapters: BTreeSet<String> = ["providers/local", "providers/ec2"].map(str::to_owned).into();
    report(&layers::arrows(&Source::new(path, text), &adapters))
}

#[test]
fn a_wrong_arrow_is_reported_with_file_and_line() {
    assert_eq!(
        arrows("src/provider.rs", "//! x\n\nuse crate::config::pool::Pool;\n"),
        "src/provider.rs:3: `provider` may not use `config` (crate::config::pool::Pool)"
    );
}

#[test]
fn an_arrow_is_found_however_it_is_written() {
    for (path, text, arrow) in [
        ("src/config/a.rs", "fn f() { crate::cli::run(); }", "`config` may not use `cli`"),
        ("src/config/a.rs", "use crate::{config::x, provider::Config};", "`config` may not use `provider`"),
        (
            "src/config/a.rs",
            "use crate::{\n    config::{a, b::{c, d}},\n    cli::{self, env},\n};",
            "`config` may not use `cli`",
        ),
        ("src/config/mod.rs", "use super::provider;", "`config` may not use `provider`"),
        ("src/config/a.rs", "use super::super::cli::World;", "`config` may not use `cli`"),
        (
            "crates/providers/src/local/a.rs",
            "use super::super::ec2::X;",
            "`providers/local` may not use `providers/ec2`",
        ),
        (
            "crates/providers/src/local/mod.rs",
            "use crate::{launch::Y, ec2::X};",
            "`providers/local` may not use `providers/ec2`",
        ),
        ("src/config/a.rs", "use greenroom_providers::local::X;", "`config` may not use `providers/local`"),
        ("src/provider.rs", "use greenroom_manager::runner_host;", "`provider` may not use `manager`"),
        ("src/config/mod.rs", "use greenroom_manager::gitlab::env::Env;", "`config` may not use `manager`"),
        (
            "src/config/a.rs",
            "#[cfg(test)]\nmod tests {\n    use super::super::super::cli::x;\n}",
            "`config` may not use `cli`",
        ),
        ("src/bin/greenroom.rs", "fn main() { greenroom_engine::run() }", "`bin` may not use `engine`"),
        ("src/config/a.rs", "type X = Vec<crate::cli::Y>;", "`config` may not use `cli`"),
        (
            "src/cli/doctor/a.rs",
            "use greenroom_manager::file_store::FileStore;",
            "only `src/cli/context.rs` may use `manager::file_store`",
        ),
        ("src/utils/mod.rs", "", "`utils` is no layer"),
    ] {
        let found = arrows(path, text);
        assert!(found.contains(arrow) && found.lines().count() == 1, "{path}: {text}\nfound: {found}");
    }
}

#[test]
fn right_arrows_are_left_alone() {
    for (path, text) in [
        ("src/config/a.rs", "use crate::config::pool::Pool; use greenroom_core::ids::JobKey;"),
        (
            "crates/providers/src/local/a.rs",
            "use super::b::X; use crate::launch::Server; use greenroom_ports::provider;",
        ),
        ("crates/providers/src/lib.rs", "pub mod local; use local::X; use crate::local::Y;"),
        ("crates/backends/src/gce/a.rs", "use greenroom_providers::local::X; use crate::cloud::Y;"),
        ("src/provider.rs", "use greenroom_providers::{local, ec2}; use greenroom_backends::gce;"),
        (
            "src/cli/a.rs",
            "use crate::{config, provider}; use greenroom_providers::local; use greenroom_manager::{gitlab, runner_host};",
        ),
        ("src/cli/context.rs", "use greenroom_manager::file_store::FileStores;"),
        ("src/config/a.rs", "//! see crate::cli\n// use crate::cli;\nconst A: &str = \"crate::cli::x\";"),
        ("src/config/a.rs", "#[cfg(test)]\nmod tests {\n    use greenroom_testkit::clock::ManualClock;\n}"),
        ("src/config/a/mod.rs", "use super::ids::X; use self::b::Y; pub(in crate::config) fn f() {}"),
        ("crates/core/src/a.rs", "use crate::plan::plan; use super::pool::PoolState;"),
        ("tests/lifecycle.rs", "use greenroom_engine::Engine;"),
        ("src/lib.rs", "pub use crate::cli::run;"),
    ] {
        assert_eq!(arrows(path, text), "", "{path}: {text}");
    }
}

#[test]
fn a_crate_that_uses_the_wrong_one_is_reported() {
    let wrong = |package: &str, manifest: &str| report(&layers::wrong_crates(package, manifest));
    let engine = |line: &str| format!("[dependencies]\ngreenroom-core.workspace = true\n{line}\n");
    assert_eq!(wrong("engine", &engine("[dev-dependencies]\ngreenroom-testkit = \"1\"")), "");
    for (planted, name) in [
        ("greenroom-keys.workspace = true", "keys"),
        ("greenroom-testkit = { workspace = true, optional = true }", "testkit"),
        ("[target.'cfg(unix)'.dependencies]\ngreenroom-sim = \"1\"", "sim"),
    ] {
        let found = wrong("engine", &engine(planted));
        assert_eq!(found, format!("crates/engine/Cargo.toml:1: the crate `engine` may not use `{name}`"));
    }
    assert_eq!(wrong("utils", ""), "crates/utils/Cargo.toml:1: `utils` is no crate of the table");
}

#[test]
fn a_folder_is_an_adapter_and_a_file_belongs_to_the_family() {
    let files = [
        "crates/providers/src/lib.rs",
        "crates/providers/src/launch.rs",
        "crates/providers/src/local/mod.rs",
        "crates/backends/src/cloud/mod.rs",
        "crates/engine/src/pass/mod.rs",
        "src/provider/mod.rs",
    ];
    let adapters: Vec<String> = layers::adapters(files.into_iter()).into_iter().collect();
    assert_eq!(adapters, ["providers/local"]);
}

#[test]
fn a_file_of_a_crate_belongs_to_the_layer_of_that_name() {
    for (path, layer, module) in [
        ("crates/core/src/lib.rs", Some("core"), "core"),
        ("crates/core/src/plan/mod.rs", Some("core"), "core::plan"),
        ("crates/core/src/a/b.rs", Some("core"), "core::a::b"),
        ("crates/core/tests/a.rs", None, "crates::core::tests::a"),
        ("src/engine/a.rs", None, "engine::a"),
    ] {
        assert_eq!(source::crate_of(path), layer, "{path}");
        assert_eq!(paths::module_of(path).join("::"), module, "{path}");
        assert_eq!(Source::new(path, "").is_ours(), path.contains("src/"), "{path}");
    }
    let file =
        Source::new("crates/core/src/a/b.rs", "use crate::c::D; use super::e::F; use greenroom_core::g::H;");
    let absolute = |path| paths::absolute(&file, path).unwrap_or_default().join("::");
    let found: Vec<String> = paths::paths(&file).iter().map(absolute).collect();
    assert_eq!(found, ["core::c::D", "core::a::e::F", "core::g::H"]);
}

#[test]
fn a_crate_that_the_core_may_not_use_is_reported() {
    let crates = |manifest: &str| report(&layers::foreign_crates(&tree::dependencies(manifest)));
    assert_eq!(crates("[dependencies]\nserde.workspace = true\n[dev-dependencies]\nproptest = \"1\"\n"), "");
    for (planted, name) in [
        ("tokio.workspace = true", "tokio"),
        ("greenroom = { path = \"../..\" }", "greenroom"),
        ("fs-err = \"3\"", "fs_err"),
        ("[target.'cfg(unix)'.dependencies]\nrand = \"1\"", "rand"),
        ("[dev-dependencies.tempfile]\nversion = \"3\"", "tempfile"),
    ] {
        let found = crates(&format!("[dependencies]\nserde = \"1\"\n{planted}\n"));
        assert_eq!(found, format!("crates/core/Cargo.toml:1: the core may not use the crate `{name}`"));
    }
}

#[test]
fn an_impurity_of_the_core_is_reported_with_file_and_line() {
    let impurities = |text: &str| report(&layers::impurities(&Source::new("crates/core/src/a.rs", text)));
    assert_eq!(
        impurities("//! x\nfn f() {\n    std::time::SystemTime::now();\n}"),
        "crates/core/src/a.rs:3: the core is pure: no `SystemTime`"
    );
    for text in [
        "use std::time::{Duration, Instant};",
        "use std::{env, fmt};",
        "use std::fs::File;",
        "let x = std::net::Ipv4Addr::LOCALHOST;",
        "use std::process;",
        "std::thread::sleep(x);",
        "use std::collections::{BTreeMap, HashMap};",
        "use std::collections::HashSet as Set;",
        "use std::time;",
        "use std::collections::*;",
        "let now = jiff::Timestamp::now();",
        "let now = Zoned::now();",
    ] {
        assert_eq!(impurities(text).lines().count(), 1, "{text}: {}", impurities(text));
    }
    for text in [
        "use std::time::Duration;",
        "use std::collections::{BTreeMap, BTreeSet};",
        "// an Instant, a HashMap\nlet x = \"std::env::var\";",
        "use serde::Serialize;",
        "struct InstantCoffee;",
        "let x: jiff::Timestamp = jiff::Timestamp::from_second(1)",
    ] {
        assert_eq!(impurities(text), "", "{text}");
    }
    let elsewhere = Source::new("src/engine/a.rs", "use std::time::Instant;");
    assert_eq!(layers::impurities(&elsewhere), []);
}

#[test]
fn the_601st_line_is_reported_and_tests_do_not_count() {
    let lines = |count: usize| format!("//! x\n{}", "// y\n".repeat(count - 1));
    assert_eq!(sizes::long_file(&Source::new("src/a.rs", &lines(600))), None);
    let long = sizes::long_file(&Source::new("src/a.rs", &lines(601)));
    assert_eq!(report(long.as_slice()), "src/a.rs:601: 601 lines without tests, at most 600 are allowed");
    let tested = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", lines(600), "    // z\n".repeat(500));
    assert_eq!(sizes::own_lines(&Source::new("src/a.rs", &tested)), 600);
}

#[test]
fn a_function_of_101_lines_is_reported_with_its_line() {
    let function = |lines: usize| {
        let body = "    let _ = \"}\"; // }\n".repeat(lines - 2);
        format!(
            "//! x\n\nimpl A {{\npub async fn long<'a>(x: [u8; 2], c: char) -> Result<(), ()> {{\n{body}}}\n}}\n"
        )
    };
    assert_eq!(sizes::long_functions(&Source::new("src/a.rs", &function(100))), []);
    assert_eq!(
        report(&sizes::long_functions(&Source::new("src/a.rs", &function(101)))),
        "src/a.rs:4: `long` has 101 lines, at most 100 are allowed"
    );
    let declared = format!("trait A {{\n    fn a(&self);\n{}}}\n", "\n".repeat(200));
    assert_eq!(sizes::long_functions(&Source::new("src/a.rs", &declared)), []);
}

#[test]
fn a_missing_first_line_is_reported() {
    for (text, missing) in
        [("//! what it is\n", false), ("// what\n", true), ("//! \n", true), ("\n//! x", true), ("", true)]
    {
        let found = words::no_first_line(&Source::new("src/a.rs", text));
        assert_eq!(found.len(), usize::from(missing), "{text:?}");
    }
}

#[test]
fn leftovers_are_reported_with_file_and_line() {
    for planted in [
        concat!("#[al", "low(dead_code)]"),
        concat!("#![al", "low(dead_code)]"),
        concat!("db", "g!(x);"),
        concat!("to", "do!()"),
        concat!("// FIX", "ME later"),
        concat!("// X", "XX later"),
    ] {
        let found = words::leftovers(&Source::new("src/a.rs", &format!("//! x\n\n{planted}\n")));
        assert!(report(&found).starts_with("src/a.rs:3: ") && found.len() == 1, "{planted}: {found:?}");
    }
    let innocent = concat!("mktemp X", "XXXXX; \"to", "do!(\"; // #[al", "low(x)]");
    assert_eq!(words::leftovers(&Source::new("src/a.rs", innocent)), []);
}

#[test]
fn a_forbidden_word_is_reported_with_file_and_line() {
    for planted in [
        concat!("cd /wo", "rk/main"),
        concat!("path = \"/ro", "ot/.cargo\""),
        concat!("https://index.", "crates.io/config.json"),
        concat!("https://ARTI", "FACTORY.example.com"),
        concat!("Written by Clau", "de."),
        concat!("Co-Auth", "ored-By: somebody"),
        concat!("an LL", "M wrote this"),
    ] {
        let found = words::forbidden("docs/a.md", &format!("one\ntwo\n{planted}\n"));
        assert!(report(&found).starts_with("docs/a.md:3: ") && found.len() == 1, "{planted}: {found:?}");
    }
    for innocent in [
        concat!("src/wo", "rk/queue.rs"),
        concat!("$HOME/wo", "rk/x"),
        concat!("~/ro", "ot/x"),
        "all messages",
        "LLMNR",
        "/workers/a",
        "/rootfs/a",
    ] {
        let found = words::forbidden("a.md", innocent);
        assert_eq!(found, [], "{innocent}");
    }
}

#[test]
fn a_package_of_another_registry_is_reported() {
    let lock = "[[package]]\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n[[package]]\nsource = \"git+https://example.com/x\"\n";
    assert!(report(&words::strange_sources(lock)).starts_with("Cargo.lock:4: source = "));
}

#[test]
fn the_kind_of_a_provider_is_reported_where_the_program_names_it() {
    let text = "//! x\n\nfn a(kind: &str) -> bool {\n    kind == \"gce\"\n}\n";
    let found = words::kinds(&Source::new("src/a.rs", text), &["qemu", "gce"]);
    assert_eq!(report(&found), "src/a.rs:4: `gce` is named outside the provider");
    for innocent in [
        "//! x \"gce\"",
        "/// The kind \"gce\".",
        "#[cfg(feature = \"gce\")]",
        "const A: &str = \"gce machines\";",
        "#[cfg(test)]\nmod tests {\n    const A: &str = \"gce\";\n}",
    ] {
        assert_eq!(words::kinds(&Source::new("src/a.rs", innocent), &["gce"]), [], "{innocent}");
    }
}

fn forgotten(files: &[(&str, &str)]) -> Vec<String> {
    let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
    let found: Vec<Finding> =
        tree::forgotten(&sources, "path = \"tests/odd/start.rs\"\npath = \"odd/start.rs\"");
    found.into_iter().map(|finding| finding.file).collect()
}

#[test]
fn a_forgotten_file_is_reported() {
    let files = [
        ("src/lib.rs", "pub mod a;\nmod b { mod c; }"),
        ("src/a/mod.rs", "mod x;\n#[cfg(test)]\nmod tests;\n// mod ghost;"),
        ("src/a/x.rs", "mod y;"),
        ("src/a/x/y.rs", ""),
        ("src/a/tests.rs", ""),
        ("src/a/ghost.rs", ""),
        ("src/a/y.rs", ""),
        ("src/b/c.rs", ""),
        ("src/bin/greenroom.rs", ""),
        ("tests/one.rs", "#[path = \"one/two.rs\"]\nmod two;\nmod support;"),
        ("tests/one/two.rs", ""),
        ("tests/one/three.rs", ""),
        ("tests/support/mod.rs", ""),
        ("tests/odd/start.rs", "//! Not `#[path = \"x.rs\"]`.\n#[path = \"../shared/mod.rs\"]\nmod shared;"),
        ("tests/shared/mod.rs", ""),
        ("crates/x/src/lib.rs", "mod a;"),
        ("crates/x/src/a.rs", ""),
        ("crates/x/src/b.rs", ""),
        ("crates/x/tests/one.rs", ""),
        ("crates/x/odd/start.rs", "mod near;"),
        ("crates/x/odd/near.rs", ""),
    ];
    assert_eq!(
        forgotten(&files),
        ["crates/x/src/b.rs", "src/a/ghost.rs", "src/a/y.rs", "tests/one/three.rs"]
    );
}

#[test]
fn files_behind_a_test_module_are_tests() {
    let sources = [
        Source::new("src/lib.rs", "pub mod a;"),
        Source::new("src/a/mod.rs", "mod x;\n#[cfg(test)]\nmod tests;"),
        Source::new("src/a/tests.rs", "mod deep;"),
        Source::new("crates/x/src/lib.rs", "mod a;\n#[cfg(feature = \"samples\")]\npub mod samples;\nmod b;"),
        Source::new("crates/x/src/samples.rs", "mod deep;"),
    ];
    let tests = tree::test_files(&sources);
    assert!(tests.contains("src/a/tests.rs") && tests.contains("src/a/tests/deep.rs"));
    assert!(!tests.contains("src/a/x.rs") && !tests.contains("src/a/mod.rs"));
    assert!(tests.contains("crates/x/src/samples.rs") && tests.contains("crates/x/src/samples/deep.rs"));
    assert!(!tests.contains("crates/x/src/a.rs") && !tests.contains("crates/x/src/b.rs"));
}

#[test]
fn comments_strings_and_characters_are_blanked_and_lifetimes_are_not() {
    for (text, code) in [
        ("a /* b /* c */ d */ e", "a                   e"),
        ("a \"b\\\"c\" d", "a        d"),
        ("r#\"a\"b\"# c", "         c"),
        ("br\"a\\\" c", "       c"),
        ("b\"a\" c", "     c"),
        ("'a' 'x: '\\'' '\\n' '\\u{1f600}' b", "    'x:                       b"),
        ("&'static str", "&'static str"),
        ("'é' b", "     b"),
        ("a // b\nc", "a     \nc"),
        ("for r in b { c\"x\" }", "for r in b {      }"),
        ("écrit(\"x\")", "écrit(   )"),
    ] {
        assert_eq!(Source::new("x", text).code, code, "{text}");
    }
}

#[test]
fn dependencies_are_read_from_the_manifest() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nfs-err = \"3\"\njiff.workspace = true\n[dev-dependencies]\nproptest = \"1\"\n[lints]\na = 1\n";
    assert_eq!(tree::dependencies(manifest), ["fs_err", "jiff", "proptest"]);
}

#[test]
fn a_dependency_that_no_file_uses_is_reported() {
    let sources = [
        Source::new("src/a.rs", "use serde::Serialize; // toml\nconst A: &str = \"tokio\";"),
        Source::new("crates/a/src/lib.rs", "fs_err::read(x);"),
    ];
    let unused = |folder: &str, manifest: &str| report(&tree::unused(folder, manifest, &sources));
    assert_eq!(unused("", "[dependencies]\nserde = \"1\""), "");
    assert_eq!(
        unused("crates/a/", "[dependencies]\nfs-err = \"3\"\n[dev-dependencies]\ngreenroom-a = \"1\""),
        ""
    );
    for name in ["toml", "tokio", "fs-err"] {
        let found = unused("", &format!("[dev-dependencies]\n{name} = \"1\""));
        let name = name.replace('-', "_");
        assert_eq!(found, format!("Cargo.toml:1: no file uses the dependency `{name}`"));
    }
}
