//! Every relative link of a page leads to a file, and every anchor to a heading.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The pages of the repository: path from its root → text.
pub(crate) type Pages = BTreeMap<PathBuf, String>;

const NAMED: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "state/README.md", "tests/lab/README.md"];

/// The pages whose links are checked: those above, and all below `docs/`.
pub(crate) fn pages(root: &Path) -> Pages {
    let mut paths: Vec<PathBuf> = NAMED.iter().map(PathBuf::from).collect();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder)).expect("a folder of pages") {
            let entry = entry.expect("its entry");
            let path = folder.join(entry.file_name());
            match entry.file_type().expect("its kind") {
                kind if kind.is_dir() => folders.push(path),
                _ if path.extension().is_some_and(|end| end == "md") => paths.push(path),
                _ => {}
            }
        }
    }
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(root.join(&path)).expect("a page");
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// The lines outside fenced blocks, with their numbers.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let is_fence = line.trim_start().starts_with("```");
        inside ^= is_fence;
        (!inside && !is_fence).then_some((number, line))
    })
}

/// Each link of a page: its line, and its target.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let outside_code: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let inline = outside_code.match_indices("](").filter_map(|(at, open)| {
            outside_code[at + open.len()..].split_once(')').map(|(target, _)| target.to_owned())
        });
        found.extend(inline.map(|target| (number, target)));
        let by_name = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        found.extend(by_name.map(|(_, target)| (number, target.trim().to_owned())));
    }
    found
}

/// The anchors of a page, as GitLab and GitHub make them from its headings.
fn anchors(text: &str) -> Vec<String> {
    let mut made: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        let Some(title) = title.strip_prefix(' ').filter(|_| line.starts_with('#')) else { continue };
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let plain: String = kept.flat_map(char::to_lowercase).collect();
        let anchor = plain.replace(' ', "-");
        let again = made.iter().filter(|other| **other == anchor).count();
        made.push(if again == 0 { anchor } else { format!("{anchor}-{again}") });
    }
    made
}

/// `folder/../file` as `file`.
fn simple(path: &Path) -> PathBuf {
    let mut simple = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(simple.pop()),
            Component::CurDir => {}
            part => simple.push(part),
        }
    }
    simple
}

/// The links that lead nowhere. `exists` says whether a path from the root does.
pub(crate) fn broken(pages: &Pages, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (page, text) in pages {
        for (line, target) in links(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let folder = page.parent().expect("a page is a file");
            let to = if file.is_empty() { page.clone() } else { simple(&folder.join(file)) };
            let why = if !exists(&to) {
                "no such file"
            } else if anchor.is_empty() {
                continue;
            } else {
                match pages.get(&to) {
                    Some(text) if anchors(text).iter().any(|there| there == anchor) => continue,
                    Some(_) => "no such heading",
                    None => "the anchors of this page are not checked: add the page",
                }
            };
            found.push(format!("{}:{line}: {target}: {why}", page.display()));
        }
    }
    found
}

/// The pages to which no chain of links leads from a page.
pub(crate) fn unreachable(pages: &Pages, from: &Path) -> Vec<String> {
    let mut reached = vec![from.to_owned()];
    let mut next = 0;
    while let Some(page) = reached.get(next).cloned() {
        next += 1;
        let folder = page.parent().expect("a page is a file");
        for (_, target) in links(&pages[&page]) {
            let to = simple(&folder.join(target.split('#').next().unwrap_or_default()));
            if pages.contains_key(&to) && !reached.contains(&to) {
                reached.push(to);
            }
        }
    }
    pages.keys().filter(|page| !reached.contains(page)).map(|page| page.display().to_string()).collect()
}

mod planted {
    use super::{Pages, Path, broken, unreachable};

    fn of(page: &str) -> Vec<String> {
        let pages: [(&str, &str); 2] =
            [("docs/a.md", page), ("docs/sub/b.md", "# `[x.Y]`: a *b*\n## Same\n## Same\n")];
        let pages: Pages = pages.map(|(path, text)| (path.into(), text.to_owned())).into();
        broken(&pages, |path| ["docs/a.md", "docs/sub/b.md", "src/c.rs"].map(Path::new).contains(&path))
    }

    #[test]
    fn a_broken_link_is_reported_with_file_and_line() {
        assert_eq!(of("# A\n[x](sub/c.md)"), ["docs/a.md:2: sub/c.md: no such file"]);
        assert_eq!(of("[x](#b)"), ["docs/a.md:1: #b: no such heading"]);
        assert_eq!(of("[x](sub/b.md#same-2)"), ["docs/a.md:1: sub/b.md#same-2: no such heading"]);
        assert_eq!(of("[b] is good.\n\n[b]: ../docs/b.md"), ["docs/a.md:3: ../docs/b.md: no such file"]);
        assert_eq!(of("[two\nlines](x.md), ![a picture](y.svg)").len(), 2);
        assert_eq!(of("[x](../src/c.rs#f").len(), 0, "not a link");
        assert_eq!(of("[x](../src/c.rs#f)").len(), 1, "anchors of pages only");
    }

    #[test]
    fn a_page_without_a_link_to_it_is_reported() {
        let pages: [(&str, &str); 4] = [
            ("README.md", "[a](docs/a.md#b)"),
            ("docs/a.md", "[b](sub/b.md)"),
            ("docs/sub/b.md", "[back](../a.md)"),
            ("docs/c.md", "[a](a.md) `[c](c.md)`"),
        ];
        let pages: Pages = pages.map(|(path, text)| (path.into(), text.to_owned())).into();
        assert_eq!(unreachable(&pages, Path::new("README.md")), ["docs/c.md"]);
    }

    #[test]
    fn a_good_link_is_not_reported() {
        for page in [
            "[x](sub/b.md), [y](../src/c.rs), [z](https://example.com/x.md#y)",
            "[x](sub/b.md#xy-a-b) [y](sub/b.md#same) [z](sub/b.md#same-1)",
            "# The `a` page\n[`[pool.NAME]`](#the-a-page)",
            "`[x](y.md)`\n```\n[x](y.md)\n# no heading\n```\n",
        ] {
            assert_eq!(of(page), Vec::<String>::new(), "{page}");
        }
    }
}
