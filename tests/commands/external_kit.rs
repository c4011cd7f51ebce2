//! docs/providers/external-kit.md: its blocks run as a reader types them, and print what the page shows.

use std::path::Path;

use greenroom_testkit::skipped::skipped;

use super::pages;

const PAGE: &str = "docs/providers/external-kit.md";

#[test]
fn the_tutorial_prints_what_the_page_shows() {
    let search = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&search).any(|folder| folder.join("python3").is_file()) {
        return skipped("`python3` is missing");
    }
    if !Path::new("/usr/sbin/sshd").exists() {
        return skipped("`sshd` is missing");
    }
    let page = pages::read(PAGE);
    let steps = pages::shown(page.split("\n## Running it\n").next().expect("its first part"));
    assert_eq!(steps.len(), 5, "{steps:?}");
    pages::hold(PAGE, "", &steps);
}
