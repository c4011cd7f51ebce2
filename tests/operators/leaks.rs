//! `pool leaks` on provider `local`: what no record knows, what another owner made, what was lost.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::{Home, Said};

/// `reap_grace` is over when a test looks.
fn home() -> Home {
    let home = Home::new();
    let config = home.path("greenroom.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}[timing]\nreap_grace = \"1ms\"\nprobe_interval = \"20ms\"\n")).unwrap();
    home
}

fn leaks(home: &Home, args: &[&str]) -> Said {
    home.run(&[&["pool", "leaks"], args].concat())
}

/// The directories of instances, sorted.
fn instances(home: &Home) -> Vec<String> {
    let names =
        fs::read_dir(home.path("state/instances/linux")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

/// A second instance like `first`, under another name and with other tags: its process is another's.
fn like(home: &Home, first: &str, name: &str, change: impl Fn(&mut Value)) {
    let all = home.path("state/instances/linux");
    assert!(Command::new("cp").arg("-a").args([all.join(first), all.join(name)]).status().unwrap().success());
    let path = all.join(name).join("spec.json");
    let mut spec: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    spec["instance"] = name.into();
    change(&mut spec["tags"]);
    fs::write(path, spec.to_string()).unwrap();
}

/// Stops the keeper, and leaves the instance that it kept ready.
fn kept(home: &Home) -> String {
    let keeper = home.keep();
    let ready = home.ready().unwrap();
    keeper.leave();
    ready
}

#[test]
fn a_pool_whose_instances_are_all_recorded_has_nothing_left_over() {
    let home = home();
    let ready = kept(&home);
    let said = leaks(&home, &[]);
    assert_eq!((said.code, said.out.as_str()), (0, "pool linux: no orphaned resources, 1 recorded\n"));
    assert_eq!(leaks(&home, &["--terminate"]).code, 0);
    assert_eq!(instances(&home), [ready]);
    home.empty();
    let said = leaks(&home, &["linux"]);
    assert_eq!((said.code, said.out.as_str()), (0, "pool linux: no orphaned resources, 0 recorded\n"));
}

#[test]
fn leftovers_are_deleted_and_what_another_made_is_not() {
    let home = home();
    let ready = kept(&home);
    let ours = ready.rsplit_once('-').unwrap().0.to_owned() + "-0";
    like(&home, &ready, &ours, |tags| tags["number"] = 0.into());
    like(&home, &ready, "linux-00000000-1", |tags| tags["owner"] = "somebody".into());

    let said = leaks(&home, &[]);
    assert_eq!(said.code, 1, "{said:?}");
    let expected = "pool linux: 1 orphaned resource, 1 recorded\nKIND      NAME";
    assert!(said.out.starts_with(expected), "{said:?}");
    assert!(said.out.contains(&format!("instance  {ours}  {ours}  ")), "{said:?}");
    assert!(said.out.contains("\n    it has no record\n"), "{said:?}");
    assert!(said.out.contains("\nnot counted, and left alone:\n"), "{said:?}");
    assert!(said.out.contains("\n    it has another owner, `somebody`\n"), "{said:?}");

    let dry = leaks(&home, &["--terminate", "--dry-run"]);
    assert_eq!(dry.code, 1);
    assert!(dry.out.ends_with(&format!("\nwould delete instance {ours}\n")), "{dry:?}");
    assert_eq!(instances(&home).len(), 3);
    let alone = leaks(&home, &["--dry-run"]);
    assert!(alone.code == 2 && alone.err.contains("--terminate"), "{alone:?}");

    let deleted: Value = home.json(&["pool", "leaks", "--terminate", "--json"]);
    let pool = &deleted["pools"][0];
    assert_eq!(
        (&pool["orphaned"], &pool["deletion"]["gone"][0]),
        (&1.into(), &ours.as_str().into()),
        "{pool}"
    );
    assert_eq!(
        (&pool["deletion"]["dry_run"], &pool["deletion"]["stays"]),
        (&false.into(), &serde_json::json!([]))
    );
    assert_eq!(instances(&home), ["linux-00000000-1".to_owned(), ready]);
    assert_eq!(leaks(&home, &["--terminate"]).code, 0);
    assert_eq!(instances(&home).len(), 2);
    home.empty();
}

#[test]
fn after_a_lost_journal_nothing_is_deleted_and_nothing_is_called_good() {
    let home = home();
    let ready = kept(&home);
    fs::remove_dir_all(home.path("state/pools/linux")).unwrap();
    let said = leaks(&home, &["--terminate"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.out.starts_with("pool linux: no orphaned resources, 0 recorded\n"), "{said:?}");
    assert!(
        said.out.contains("    it has this owner's tag, but was never launched from this state directory\n"),
        "{said:?}"
    );
    assert!(said.out.contains("  error: a copy of this state directory is in use"), "{said:?}");
    assert_eq!(instances(&home), [ready]);
    // The processes of instances end with their directories.
    fs::remove_dir_all(home.path("state/instances")).unwrap();
}

#[test]
fn whoever_cannot_look_says_so() {
    let home = home();
    let ready = kept(&home);
    let spec = home.path("state/instances/linux").join(ready).join("spec.json");
    let text = fs::read_to_string(&spec).unwrap();
    fs::write(&spec, "{").unwrap();
    let said = leaks(&home, &[]);
    assert_eq!((said.code, said.out.as_str()), (2, ""), "{said:?}");
    let expected =
        "error: orphaned resources cannot be determined: pool `linux`: the provider's list is incomplete";
    assert!(said.err.starts_with(expected), "{said:?}");
    let json = home.json(&["pool", "leaks", "--json"]);
    assert!(json["pools"][0]["error"].as_str().unwrap().contains("incomplete"), "{json}");
    fs::write(&spec, text).unwrap();

    // The pool has another name now: nobody knows any more whom to ask about what it has.
    let config = home.path("greenroom.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("pool.linux", "pool.other")).unwrap();
    let said = leaks(&home, &[]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.out.starts_with("pool other: no orphaned resources"), "{said:?}");
    assert!(
        said.err.contains("pool `linux` has 1 instance on record, but is not in the configuration"),
        "{said:?}"
    );
    fs::write(&config, text).unwrap();
    home.empty();
}
