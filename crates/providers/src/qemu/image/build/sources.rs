//! The sources of Debian packages: those that the runner host's apt is configured for.
//!
//! A build uses Debian's main archive of one release, its updates and its security archive, signed by Debian's keys.
//! Everything else is left out: repositories of vendors, backports, other releases.

use std::io;
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::BuildError;

/// Package archives that a build may use, each as one line of `sources.list`.
pub(super) type Lines = Vec<String>;

const LIST: &str = "sources.list";
const FOLDER: &str = "sources.list.d";

/// One archive, as apt's files name it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AptSource {
    uri: String,
    suite: String,
    components: Vec<String>,
    /// Key files; empty: those that apt trusts for everything.
    signed_by: Vec<String>,
}

/// Reads `sources.list` and `sources.list.d` in a folder, usually /etc/apt.
pub(super) fn of_machine(apt: &Path, suite: &str) -> Result<Lines, BuildError> {
    let mut sources = Vec::new();
    for file in files(apt)? {
        let text = fs::read_to_string(&file)?;
        let is_stanzas = file.extension().is_some_and(|ending| ending == "sources");
        sources.extend(if is_stanzas { stanzas(&text) } else { one_line(&text) });
    }
    let fitting = sources.into_iter().filter(|source| source.is_debian(suite));
    let mut lines = Vec::new();
    for source in fitting {
        let line = source.line()?;
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    Ok(lines)
}

/// The line for a value of `--mirror`: an address, or a whole line that begins with `deb`.
pub(super) fn of_mirror(mirror: &str, suite: &str) -> String {
    if mirror.starts_with("deb ") { mirror.to_owned() } else { format!("deb {mirror} {suite} main") }
}

fn files(apt: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if apt.join(LIST).is_file() {
        files.push(apt.join(LIST));
    }
    let mut more = Vec::new();
    match fs::read_dir(apt.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => {
            for entry in other? {
                more.push(entry?.path());
            }
        }
    }
    more.retain(|path| path.extension().is_some_and(|ending| ending == "list" || ending == "sources"));
    more.sort();
    files.extend(more);
    Ok(files)
}

/// The sources in lines such as `deb [signed-by=/key.gpg] http://mirror.example/debian bookworm main`.
fn one_line(text: &str) -> Vec<AptSource> {
    let read = |line: &str| {
        let line = line.split('#').next()?.trim();
        let mut rest = line.strip_prefix("deb")?.strip_prefix([' ', '\t'])?.trim_start();
        let mut signed_by = Vec::new();
        if let Some(inside) = rest.strip_prefix('[') {
            let (options, after) = inside.split_once(']')?;
            let keys = options.split_whitespace().filter_map(|option| option.strip_prefix("signed-by="));
            signed_by = keys.flat_map(|keys| keys.split(',')).map(str::to_owned).collect();
            rest = after;
        }
        let mut fields = rest.split_whitespace().map(str::to_owned);
        let uri = fields.next()?;
        let suite = fields.next()?;
        Some(AptSource { uri, suite, components: fields.collect(), signed_by })
    };
    text.lines().filter_map(read).collect()
}

/// The sources in paragraphs of `Key: value` lines (deb822).
fn stanzas(text: &str) -> Vec<AptSource> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    lines.split(|line| line.trim().is_empty()).flat_map(stanza).collect()
}

fn stanza(lines: &[&str]) -> Vec<AptSource> {
    let values = |key: &str| field(lines, key);
    let is_off = values("Enabled").first().is_some_and(|word| word.eq_ignore_ascii_case("no"));
    if is_off || !values("Types").iter().any(|kind| kind == "deb") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for uri in values("URIs") {
        for suite in values("Suites") {
            let uri = uri.clone();
            let components = values("Components");
            found.push(AptSource { uri, suite, components, signed_by: values("Signed-By") });
        }
    }
    found
}

/// The values of a field, with those of its continuation lines.
fn field(lines: &[&str], key: &str) -> Vec<String> {
    let is_key =
        |line: &&str| line.split_once(':').is_some_and(|(name, _)| name.trim_end().eq_ignore_ascii_case(key));
    let Some(at) = lines.iter().position(is_key) else { return Vec::new() };
    let first = lines[at].split_once(':').map_or("", |(_, value)| value);
    let further = lines[at + 1..].iter().take_while(|line| line.starts_with([' ', '\t']));
    let all = std::iter::once(first).chain(further.copied());
    all.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

impl AptSource {
    fn is_debian(&self, suite: &str) -> bool {
        let fits = self.suite.strip_prefix(suite).is_some_and(|r| matches!(r, "" | "-updates" | "-security"));
        let is_reachable =
            ["http:", "https:", "file:", "mirror+file:"].iter().any(|scheme| self.uri.starts_with(scheme));
        let by_debian = self.signed_by.iter().all(|key| key.contains("debian-archive"));
        fits && is_reachable && by_debian && self.components.iter().any(|component| component == "main")
    }

    fn line(&self) -> Result<String, BuildError> {
        let uri = match self.uri.strip_prefix("mirror+file:") {
            // A list that only the runner host has; its first entry is sufficient.
            Some(list) => first_of_list(Path::new(list.trim_start_matches("//")))?,
            None => self.uri.clone(),
        };
        let keys = match self.signed_by.as_slice() {
            [] => String::new(),
            keys => format!("[signed-by={}] ", keys.join(",")),
        };
        Ok(format!("deb {keys}{uri} {} main", self.suite))
    }
}

fn first_of_list(path: &Path) -> Result<String, BuildError> {
    let text = fs::read_to_string(path)?;
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let word = first.and_then(|line| line.split_whitespace().next());
    word.map(str::to_owned).ok_or_else(|| BuildError::NoMirror(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Lines {
        let apt = tempfile::tempdir().unwrap();
        fs::create_dir(apt.path().join(FOLDER)).unwrap();
        for (name, text) in files {
            fs::write(apt.path().join(name), text).unwrap();
        }
        of_machine(apt.path(), "bookworm").unwrap()
    }

    #[test]
    fn stanzas_are_read_with_their_keys() {
        let lines = read(&[(
            "sources.list.d/debian.sources",
            "Types: deb deb-src\n# a remark\nURIs: http://mirror.example/debian\nSuites: bookworm\n \
             bookworm-updates bookworm-backports\nComponents: main contrib\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
             Types: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\nComponents: main\n\n\
             Types: deb\nEnabled: no\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n",
        )]);
        let keys = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]";
        assert_eq!(
            lines,
            [
                format!("deb {keys} http://mirror.example/debian bookworm main"),
                format!("deb {keys} http://mirror.example/debian bookworm-updates main"),
                "deb http://mirror.example/security bookworm-security main".to_owned(),
            ]
        );
    }

    #[test]
    fn lines_are_read_and_vendors_are_left_out() {
        let lines = read(&[
            (
                "sources.list",
                "# deb http://old.example/debian bookworm main\n\
                 deb http://mirror.example/debian bookworm main contrib # ours\n\
                 deb-src http://mirror.example/debian bookworm main\n\
                 deb http://mirror.example/debian trixie main\n\
                 deb cdrom:[Debian 12]/ bookworm main\n",
            ),
            (
                "sources.list.d/vendor.list",
                "deb [arch=amd64 signed-by=/usr/share/keyrings/vendor.gpg] https://apt.vendor.example bookworm main\n\
                 deb [arch=amd64] https://download.vendor.example/linux bookworm stable\n\
                 deb http://mirror.example/debian bookworm main\n",
            ),
            ("sources.list.d/vendor.list.save", "deb http://saved.example/debian bookworm main\n"),
        ]);
        assert_eq!(lines, ["deb http://mirror.example/debian bookworm main"]);
    }

    #[test]
    fn a_list_of_mirrors_gives_its_first() {
        let temporary = tempfile::tempdir().unwrap();
        let list = temporary.path().join("debian.list");
        fs::write(&list, "# nearest first\nhttps://near.example/debian priority:1\nhttps://far.example\n")
            .unwrap();
        let lines =
            read(&[("sources.list", &format!("deb mirror+file://{} bookworm main\n", list.display()))]);
        assert_eq!(lines, ["deb https://near.example/debian bookworm main"]);
    }

    #[test]
    fn a_mirror_may_be_an_address_or_a_whole_line() {
        assert_eq!(of_mirror("http://m.example/debian", "trixie"), "deb http://m.example/debian trixie main");
        assert_eq!(of_mirror("deb http://m.example x main", "trixie"), "deb http://m.example x main");
    }
}
