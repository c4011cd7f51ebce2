//! A database as a service: Debian's PostgreSQL, in an image of 500 MB.
//!
//! The image takes minutes to make, so this test is for `scripts/test --full`.

use std::process::{Command, Stdio};

use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;
use serde_json::{Value, json};

use crate::images::{Image, PLAIN, publish};
use crate::pool::{job, plain, run_all, setting};
use crate::site::{Site, site};

/// Makes a database and serves it, as the official image does.
const SERVE: &str = r#"#!/bin/bash
set -eu
bin=$(echo /usr/lib/postgresql/*/bin)
"$bin/initdb" --pgdata ~/data --username postgres --no-locale --encoding UTF8 --auth scram-sha-256 \
  --pwfile <(echo "${POSTGRES_PASSWORD:?}") >/dev/null
echo "host all all all scram-sha-256" >>~/data/pg_hba.conf
exec "$bin/postgres" -D ~/data -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
"#;

const POSTGRES: Image = Image {
    name: "debian/postgres:1",
    tree: &["%postgresql,bash,coreutils,dash,grep,sed", "@postgres", "noise"],
    files: &[("serve", SERVE)],
    entrypoint: &["/serve"],
    command: &[],
    user: "postgres",
    port: Some(5432),
    ..PLAIN
};

/// Lays the image down, or says why it cannot be made here.
fn make(site: &Site) -> Option<()> {
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.arg("--version").stdout(Stdio::null());
    if !mmdebstrap.status().is_ok_and(|status| status.success()) {
        skipped("an image with PostgreSQL needs mmdebstrap");
        return None;
    }
    let work = site.dir.join("postgres");
    std::fs::create_dir(&work).expect("a folder");
    let made = publish(&POSTGRES, &site.dir.join("registry"), &work);
    std::fs::remove_dir_all(work).expect("it was made here");
    assert_eq!(made["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    Some(())
}

fn service(alias: &str, variables: &Value, command: &[&str]) -> Value {
    json!({"name": plain(POSTGRES.name), "alias": alias, "variables": variables, "command": command})
}

#[test]
#[ignore = "makes an image of 500 MB"]
fn a_job_works_with_a_postgresql_service() {
    let Some(site) = site() else { return };
    let Some(()) = make(site) else { return };
    let mut setting = setting(site).pool("max_instances", 2);
    setting.patience *= 5;
    let place = setting.open();
    // The same image has the client.
    let client = |id| {
        let job = job(id, POSTGRES.name).image_option("entrypoint", json!([""]));
        job.variable("POSTGRES_PASSWORD", "made up").variable("PGHOST", "db").variable("PGUSER", "postgres")
    };
    let psql = |password: &str, query: &str| {
        format!("PGPASSWORD={password} /usr/lib/postgresql/*/bin/psql -qtA -c '{query}'")
    };
    let with_password = client(1).service(service("db", &json!([]), &[])).script([
        psql("$POSTGRES_PASSWORD", "create table t (n int)"),
        psql("$POSTGRES_PASSWORD", "insert into t select generate_series(1, 1000)"),
        psql("$POSTGRES_PASSWORD", "select sum(n) from t"),
        format!("{{ {} 2>&1 || :; }} | grep -o 'authentication failed'", psql("wrong", "select 1")),
    ]);
    let own = json!([{"key": "POSTGRES_PASSWORD", "value": "another"}]);
    let with_options = client(2)
        .service(service("db", &own, &["-c", "max_connections=7"]))
        .script([psql("another", "show max_connections")]);
    let results = run_all(&place, [with_password, with_options]);
    for (result, lines) in results.iter().zip([&["500500", "authentication failed"][..], &["7"]]) {
        result.expect_outcome(&Outcome::Success);
        let log = result.log_text();
        assert!(!log.contains("greenroom: warning"), "{}", result.describe());
        for line in lines {
            assert!(log.lines().any(|said| said == *line), "`{line}` in {}", result.describe());
        }
        let prepare = result.call("prepare");
        eprintln!("prepare took {:?}: {}", prepare.took(), prepare.stderr_text());
    }
    place.expect_sound();
}
