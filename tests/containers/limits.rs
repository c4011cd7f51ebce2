//! Limits and devices of a pool, as the engine is given them. The kernel of these machines cannot enforce them all.

use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::engine::engine;
use crate::inside::Inside;
use crate::pool::{containers, job, plain};
use crate::site::site;

/// Records how the engine is called, and leaves out what these machines cannot do.
const ENGINE: &str = r#"#!/bin/bash
line=$(printf '<%s>' "$@")
echo "$line" >>/run/engine.calls
options=()
while [ $# -gt 0 ]; do
  case $1 in
    --memory | --cpus | --gpus) shift ;;
    --device) case $2 in nvidia*) shift ;; *) options+=("$1") ;; esac ;;
    *) options+=("$1") ;;
  esac
  shift
done
exec /usr/bin/ENGINE "${options[@]}"
"#;

#[test]
pub fn limits_and_gpus_of_the_pool_reach_the_engine_for_all_containers() {
    let Some(site) = site() else { return };
    let setting = containers(site, |table| {
        table.insert("memory".into(), "128M".into());
        table.insert("cpus".into(), 0.5.into());
        table.insert("gpus".into(), "all".into());
        let limits = [("nofile", "512:600"), ("nproc", "1000:1000")];
        let limits = limits.map(|(name, value)| (name.to_owned(), value.into()));
        table.insert("ulimit".into(), toml::Table::from_iter(limits).into());
    });
    let place = setting.pool("max_instances", 1).pool("max_use_count", 3).open();
    let first = place.warm_up(1).remove(0);
    let inside = Inside::at(&place, &first);
    let (program, played) = (engine().program(), ENGINE.replace("ENGINE", engine().program()));
    inside.sh(&format!(
        "cat >/usr/local/bin/{program} <<'END'\n{played}END\nchmod +x /usr/local/bin/{program}"
    ));
    let job = job(1, "ash:1")
        .service(json!({"name": plain("backend:1")}))
        .script(["echo \"files $(ulimit -Sn) of $(ulimit -Hn)\""]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains("files 512 of 600"), "{}", result.describe());
    let calls = inside.sh("cat /run/engine.calls");
    let created: Vec<&str> = calls.lines().filter(|line| line.starts_with("<create>")).collect();
    assert_eq!(created.len(), 2, "{calls}");
    let gpus = if engine().is_default() { "<--device><nvidia.com/gpu=all>" } else { "<--gpus><all>" };
    for options in ["<--memory><134217728b>", "<--cpus><0.5>", gpus] {
        assert!(created.iter().all(|line| line.contains(options)), "{options}: {calls}");
    }
}
