//! docs/getting-started.md: its first blocks run as a reader types them, and print what the page shows.

use super::pages;

const PAGE: &str = "docs/getting-started.md";

/// A reader takes their time: the next job comes when the keeper has refilled the pool.
const READER: &str = r#"
greenroom() {
    if [ "$1" = try ] && [ -d state ]; then
        for _ in $(seq 600); do ! command greenroom pool status --json | grep -q '"ready"' || break; sleep 0.1; done
    fi
    command greenroom "$@"
}
"#;

#[test]
fn the_first_blocks_print_what_the_page_shows() {
    let page = pages::read(PAGE);
    let steps = pages::shown(page.split("\n## Real machines\n").next().expect("its first part"));
    assert!(steps.len() >= 9, "{steps:?}");
    pages::hold(PAGE, READER, &steps);
}
