//! The shortest program of docs/providers/external.md, as it is printed, on a made-up command `cloud`.

#![cfg(test)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use greenroom_core::inventory::Status;
use greenroom_harness::provider::{Fixture as _, listed, request};
use greenroom_ports::provider::Termination;

use crate::fixture::{Pool, registration};

const PAGE: &str = include_str!("../../docs/providers/external.md");

/// Keeps a file for each machine.
const CLOUD: &str = r#"#!/bin/sh
set -eu
cd "$(dirname "$0")"
case "$1" in
  create) cat >"$3.data"; echo "id-$3" >"$3.id"; cat "$3.id" ;;
  list) for file in *.id; do
      [ ! -e "$file" ] || jq -n --arg id "$(cat "$file")" --arg name "${file%.id}" \
        '{id: $id, name: $name, status: "ACTIVE", ip: "10.0.0.1"}'
    done | jq -s . ;;
  delete) rm "${2#id-}.id" ;;
esac
"#;

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn the_shortest_program_of_the_page_makes_and_ends_a_machine() {
    let (pool, dir) = (Pool::of("machines.sh"), tempfile::tempdir().unwrap());
    let program = PAGE.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let found = format!("#!/bin/sh\nPATH={}:$PATH\n", dir.path().display());
    write_program(&dir.path().join("program"), &program.replacen("#!/bin/sh\n", &found, 1));
    write_program(&dir.path().join("cloud"), CLOUD);
    let table = format!("program = '{}'", dir.path().join("program").display());
    let provider = (registration().build)(&pool.context(), &table.parse().unwrap()).unwrap();

    let launch = request(&pool, 1);
    provider.launch(&launch).await.unwrap();
    let all = listed(&*provider, &pool.pool()).await;
    assert_eq!((all[0].id.clone(), all[0].status), (launch.instance.clone(), Status::Running));
    assert_eq!(provider.endpoint(&launch.instance).await.unwrap().address, "10.0.0.1");
    let data = fs::read_to_string(dir.path().join("linux-c0ffee-1-00000000000000a1.data")).unwrap();
    assert!(data.starts_with("#cloud-config\n"), "{data}");
    assert_eq!(provider.terminate(&launch.instance).await.unwrap(), Termination::Requested);
    assert_eq!(listed(&*provider, &pool.pool()).await, []);
}
