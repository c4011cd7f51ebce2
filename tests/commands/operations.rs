//! docs/operations.md: what an operator does to a state directory prints what the page shows.

use super::pages;

const PAGE: &str = "docs/operations.md";

/// A pool `demo` that has served a job and has one instance, which is idle. The state directory is `$PWD/state` instead of the usual
/// one, and what the page calls `/srv/copy` is `$PWD/copy`.
const POOL: &str = r#"
cat > greenroom.toml <<'END'
[pool.demo]
max_instances = 2
idle_count = 1
[pool.demo.provider]
kind = "local"
allow_root = true
END
export GREENROOM_CONFIG=$PWD/greenroom.toml GREENROOM_STATE_DIR=$PWD/state
greenroom() { command greenroom "${@//\/srv\/copy/$PWD/copy}"; }
greenroom try >/dev/null
for _ in $(seq 600); do
  status="$(greenroom pool status --json)"
  case "$status" in *-1\"*) ;; *-2\"*\"ready\"* | *\"ready\"*-2\"*) break ;; esac
  sleep 0.1
done
"#;

fn hold(heading: &str, more: &str, commands: usize) {
    let page = pages::read(PAGE);
    let steps = pages::shown(pages::section(&page, heading));
    assert_eq!(steps.len(), commands, "{heading}: {steps:?}");
    pages::hold(PAGE, &[POOL, more].concat(), &steps);
}

#[test]
fn a_drained_pool() {
    hold("## Drain", "", 2);
}

#[test]
fn a_directory_that_was_moved() {
    hold(
        "### To another machine",
        "greenroom pool drain --wait >/dev/null; cp -a state moved; export GREENROOM_STATE_DIR=$PWD/moved",
        2,
    );
}

#[test]
fn a_directory_that_was_copied() {
    hold("### Copied", "cp -a state copy", 2);
}

#[test]
fn a_damaged_journal() {
    hold("### Damaged", "sed -i '3s/event/evemt/' state/pools/demo/journal.jsonl", 3);
}
