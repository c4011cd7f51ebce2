//! Pictures of the pages: well-formed, with their text as text, readable on light and dark pages.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// The faults of a picture. `None` if no XML parser is at hand.
pub(crate) fn faults(picture: &Path) -> Option<Vec<String>> {
    let parser = "import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])";
    let parsed = Command::new("python3").args(["-I", "-c", parser]).arg(picture).output();
    if parsed.as_ref().is_err_and(|problem| problem.kind() == ErrorKind::NotFound) {
        return None;
    }
    let parsed = parsed.expect("python3 runs");
    let mut found = Vec::new();
    if !parsed.status.success() {
        let said = String::from_utf8_lossy(&parsed.stderr);
        found.push(format!("not well-formed: {}", said.trim().lines().last().unwrap_or_default()));
    }
    let text = std::fs::read_to_string(picture).expect("a picture");
    for (needed, why) in [
        ("<title", "no title: screen readers have nothing to read"),
        ("</text>", "no text as text"),
        ("prefers-color-scheme: dark", "no colours for dark pages"),
        ("viewBox=", "no viewBox: it does not scale"),
    ] {
        if !text.contains(needed) {
            found.push(why.to_owned());
        }
    }
    for outside in ["http://", "https://", "<script", "<image", "@import"] {
        let names = text.replace("http://www.w3.org/2000/svg", "");
        if names.contains(outside) {
            found.push(format!("`{outside}`: a picture loads and runs nothing"));
        }
    }
    Some(found)
}

mod planted {
    use super::faults;

    #[test]
    fn a_broken_picture_is_reported() {
        let folder = tempfile::tempdir().expect("a directory");
        let picture = folder.path().join("a.svg");
        std::fs::write(&picture, "<svg viewBox=''><title>a</title><text>b</svg>").expect("a picture");
        let Some(found) = faults(&picture) else { return };
        assert!(found.len() == 3 && found[0].starts_with("not well-formed: "), "{found:?}");
    }
}
