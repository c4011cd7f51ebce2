//! docs/status.md and docs/history.md: what a job leaves in its log and in the history is what the pages show.

use super::pages;

/// A pool `demo` whose jobs end with a summary. Each job but the first one comes when the instance of the job before it is gone
/// and the next one is idle.
const POOL: &str = r#"
cat > greenroom.toml <<'END'
[pool.demo]
max_instances = 2
idle_count = 1
summary = true
[pool.demo.provider]
kind = "local"
allow_root = true
END
export GREENROOM_CONFIG=$PWD/greenroom.toml GREENROOM_STATE_DIR=$PWD/state
greenroom() {
    if [ "$1" = try ] && [ -d state ]; then
        for _ in $(seq 600); do
            case "$(command greenroom pool status --json)" in *-1\"*) ;; *-2\"*\"ready\"* | *\"ready\"*-2\"*) break ;; esac
            sleep 0.1
        done
    fi
    command greenroom "$@"
}
"#;

fn hold(page: &str, text: &str, commands: usize) {
    let steps = pages::shown(text);
    assert_eq!(steps.len(), commands, "{page}: {steps:?}");
    pages::hold(page, POOL, &steps);
}

#[test]
fn the_log_of_a_job_ends_with_the_summary_that_the_page_shows() {
    const PAGE: &str = "docs/status.md";
    hold(PAGE, pages::section(&pages::read(PAGE), "## A summary in the job log"), 1);
}

#[test]
fn the_history_has_the_jobs_that_the_page_shows() {
    const PAGE: &str = "docs/history.md";
    let page = pages::read(PAGE);
    let (first, _) = page.split_once("\n## The period\n").expect("its first section");
    hold(PAGE, &first.replacen("```console\n$ greenroom history\n```", "", 1), 3);
}
