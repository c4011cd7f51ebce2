//! The report of the script on the instance, line by line.

use std::time::Duration;

use serde::Deserialize;

use crate::container::failure::{Blame, Cause};
use crate::container::name::Owner;
use crate::container::settings::PullPolicy;
use crate::container::spec::starts_nothing;
use crate::images::FoundImage;
use crate::text::{clean_line, clean_text};
use crate::unbegun::CheckKind;

/// The longest line that is read, in bytes; the rest of a longer one is dropped.
const LONGEST: usize = 8 << 10;

/// The longest text of the engine or a service in a report, in characters.
const TEXT: usize = 600;

/// The longest line of a service that is shown while it runs.
const WRITTEN: usize = 4000;

/// A report. The number of a container counts from 0, the job's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    Pulling {
        number: usize,
        policy: PullPolicy,
        again: bool,
    },
    /// So many bytes have come.
    Bytes {
        number: usize,
        bytes: u64,
    },
    Image {
        number: usize,
        facts: ImageFacts,
    },
    PullFailed {
        number: usize,
        policy: PullPolicy,
        text: String,
    },
    /// Pulls have lasted too long.
    Late,
    /// An image of this architecture on an instance of that one.
    Foreign {
        number: usize,
        image: String,
        instance: String,
    },
    Started {
        number: usize,
    },
    /// A service is still waited for.
    Waiting {
        number: usize,
    },
    Up {
        number: usize,
    },
    Exited {
        number: usize,
        status: String,
    },
    Silent {
        number: usize,
    },
    Unstarted {
        number: usize,
        text: String,
    },
    Log {
        number: usize,
        line: String,
    },
    /// A line that a service wrote, and its time of day.
    Wrote {
        number: usize,
        at: String,
        line: String,
    },
    /// A service wrote more than is shown: so many bytes before the next line.
    Skipped {
        number: usize,
        bytes: u64,
    },
    /// An image was removed to make room. `unused`: for how long; `None`: no job has used it.
    Removed {
        image: String,
        unused: Option<Duration>,
    },
    /// The user of the job's container.
    Owner(Owner),
    /// The instance's own name servers, none of which the containers reach.
    Unreached(String),
    Broken {
        part: Part,
        text: String,
    },
    /// Greenroom's own container did not start, or a disk is full: the script found this by itself.
    Unsound {
        kind: CheckKind,
        text: String,
    },
    Done,
}

/// The step that failed on the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Engine,
    Network,
    /// The job's container.
    Create,
}

/// The facts that an image states about its containers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ImageFacts {
    /// Bytes of all the image's layers, unpacked.
    pub bytes: u64,
    pub user: Option<String>,
    pub entrypoint: Option<Vec<String>>,
    /// The digest of the image's manifest.
    #[serde(default)]
    pub digest: Option<String>,
}

impl ImageFacts {
    /// True if a container runs as root. `user`: the one that job or pool chose.
    pub fn runs_as_root(&self, user: Option<&str>) -> bool {
        let user = user.or(self.user.as_deref()).unwrap_or_default();
        matches!(user.split(':').next(), None | Some("" | "0" | "root"))
    }

    /// True if the container starts with the search for a shell. `entrypoint`: the job's.
    pub fn starts_a_shell(&self, entrypoint: Option<&[String]>) -> bool {
        let own = entrypoint.or(self.entrypoint.as_deref());
        own.is_none_or(starts_nothing)
    }

    /// The image under its complete name.
    pub fn found(&self, name: &str) -> FoundImage {
        let digest = self.digest.as_deref().and_then(digest).map(Into::into);
        FoundImage { name: name.into(), digest, bytes: self.bytes }
    }
}

/// The digest as engines write it: alone, or after an image's name.
pub fn digest(text: &str) -> Option<String> {
    let digest = text.rsplit('@').next()?;
    let hex = digest.strip_prefix("sha256:")?;
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())).then(|| digest.to_owned())
}

/// An image that a script did not pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotPulled {
    pub why: String,
    /// True if it may come some hours later.
    pub may_pass: bool,
}

/// A sentence for the job log. `servers`: those that only the instance itself reaches.
pub fn unreached(servers: &str) -> String {
    format!(
        "only the instance itself reaches its name servers ({}), so the containers use others: for internal names, have the \
         operator set `dns`",
        servers.replace(' ', ", ")
    )
}

/// The pulled image, by the report of a script that only pulls this one.
pub fn pulled<'a>(image: &str, lines: impl IntoIterator<Item = &'a str>) -> Result<FoundImage, NotPulled> {
    let mut found = None;
    let mut failed = None;
    let mut done = false;
    for report in lines.into_iter().filter_map(|line| Report::parse(line.as_bytes())) {
        match report {
            Report::Image { facts, .. } => found = Some(facts.found(image)),
            Report::PullFailed { text, .. } => {
                let may_pass = !matches!(Cause::of(&text, image).blame(), Blame::Job);
                failed = Some(NotPulled { why: text, may_pass });
            }
            Report::Late => {
                failed = Some(NotPulled { why: "`pull_timeout` has passed".to_owned(), may_pass: true });
            }
            Report::Broken { text, .. } | Report::Unsound { text, .. } => {
                failed = Some(NotPulled { why: text, may_pass: true });
            }
            Report::Foreign { image, .. } => {
                failed = Some(NotPulled { why: format!("it is for {image}"), may_pass: false });
            }
            Report::Done => done = true,
            Report::Pulling { .. }
            | Report::Bytes { .. }
            | Report::Started { .. }
            | Report::Waiting { .. }
            | Report::Up { .. }
            | Report::Exited { .. }
            | Report::Silent { .. }
            | Report::Unstarted { .. }
            | Report::Log { .. }
            | Report::Wrote { .. }
            | Report::Skipped { .. }
            | Report::Removed { .. }
            | Report::Unreached(_)
            | Report::Owner(_) => {}
        }
    }
    let silent = || NotPulled { why: "the guest's script gave no reason".to_owned(), may_pass: true };
    found.filter(|_| done).ok_or_else(|| failed.unwrap_or_else(silent))
}

impl Report {
    /// `None`: a sign of life, or not a report.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok().map_or_else(|| String::from_utf8_lossy(line), Into::into);
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "late" => return Some(Self::Late),
            "done" => return Some(Self::Done),
            "unreached" => return Some(Self::Unreached(clean(rest))),
            "broken" => {
                let (part, text) = rest.split_once(' ')?;
                let part = match part {
                    "engine" => Part::Engine,
                    "network" => Part::Network,
                    "create" => Part::Create,
                    _ => return None,
                };
                return Some(Self::Broken { part, text: clean(text) });
            }
            "unsound" => {
                let (network, text) = rest.split_once(' ')?;
                let kind = match network {
                    "host" => CheckKind::Engine,
                    "network" => CheckKind::Network,
                    _ => return None,
                };
                return Some(Self::Unsound { kind, text: clean(text) });
            }
            "removed" => {
                let (seconds, image) = rest.split_once(' ')?;
                let unused = seconds.parse().ok().map(Duration::from_secs);
                return Some(Self::Removed { image: clean(image), unused });
            }
            "owner" => {
                let (user, group) = rest.split_once(' ')?;
                return Some(Self::Owner(Owner { user: user.parse().ok()?, group: group.parse().ok()? }));
            }
            _ => {}
        }
        let (number, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let number: usize = number.parse().ok()?;
        let mut words = rest.splitn(3, ' ');
        let mut next = || words.next().unwrap_or_default();
        Some(match word {
            "pulling" => Self::Pulling { number, policy: policy(next())?, again: next() != "1" },
            "bytes" => Self::Bytes { number, bytes: next().parse::<u64>().ok()?.saturating_mul(1024) },
            "image" => Self::Image { number, facts: serde_json::from_str(rest).ok()? },
            "failed" => {
                let policy = policy(next())?;
                let _try = next();
                Self::PullFailed { number, policy, text: clean(next()) }
            }
            "foreign" => Self::Foreign { number, image: clean(next()), instance: clean(next()) },
            "started" => Self::Started { number },
            "waiting" => Self::Waiting { number },
            "up" => Self::Up { number },
            "exited" => Self::Exited { number, status: clean(rest) },
            "silent" => Self::Silent { number },
            "unstarted" => Self::Unstarted { number, text: clean(rest) },
            "wrote" => wrote(number, rest)?,
            "skipped" => Self::Skipped { number, bytes: next().parse().ok()? },
            "log" => Self::Log { number, line: clean(rest) },
            _ => return None,
        })
    }
}

/// A line of the engine's log: when, which stream, whether it is whole, and the text. Docker's is JSON.
fn wrote(number: usize, rest: &str) -> Option<Report> {
    let (when, text) = if rest.starts_with('{') {
        let DockerLine { log, time } = docker_line(rest)?;
        (time, log)
    } else {
        let mut words = rest.splitn(4, ' ');
        let when = words.next()?;
        let _stream = words.next()?;
        let _whole = words.next()?;
        (when.to_owned(), words.next().unwrap_or_default().to_owned())
    };
    let time = when.split_once('T').and_then(|(_, time)| time.get(..8)).unwrap_or_default();
    let is_time = time.bytes().all(|b| b.is_ascii_digit() || b == b':');
    let line = clean_text(text.as_bytes());
    let line = line.trim_end().chars().take(WRITTEN).map(|c| if c == '\n' { ' ' } else { c }).collect();
    Some(Report::Wrote { number, at: if is_time { time.to_owned() } else { String::new() }, line })
}

#[derive(Deserialize)]
struct DockerLine {
    log: String,
    #[serde(default)]
    time: String,
}

/// The rest of a line that was too long is missing: what follows the text, or its end.
fn docker_line(line: &str) -> Option<DockerLine> {
    let parse = |text: &str| serde_json::from_str(text).ok();
    // The longest escape sequence is `\u0000`.
    let mut ends = line.char_indices().rev().take(6).map(|(at, _)| at);
    parse(line).or_else(|| ends.find_map(|end| parse(&format!("{}\"}}", &line[..end]))))
}

fn clean(text: &str) -> String {
    clean_line(text.as_bytes(), TEXT)
}

fn policy(name: &str) -> Option<PullPolicy> {
    PullPolicy::ALL.into_iter().find(|policy| policy.as_str() == name)
}

/// Puts lines together from an output, in bounded memory.
#[derive(Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Calls `each` with every line that these bytes complete.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let ends = piece.ends_with(b"\n");
            let piece = if ends { &piece[..piece.len() - 1] } else { piece };
            let room = LONGEST.saturating_sub(self.begun.len()).min(piece.len());
            self.begun.extend(&piece[..room]);
            if ends {
                each(&self.begun);
                self.begun.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_line_is_one_report() {
        let facts = |user: Option<&str>, entrypoint: Option<&[&str]>| ImageFacts {
            bytes: 7,
            user: user.map(str::to_owned),
            entrypoint: entrypoint.map(|words| words.iter().map(|word| (*word).to_owned()).collect()),
            digest: None,
        };
        let always = PullPolicy::Always;
        for (line, report) in [
            ("pulling 0 always 1", Report::Pulling { number: 0, policy: always, again: false }),
            (
                "pulling 2 if-not-present 3",
                Report::Pulling { number: 2, policy: PullPolicy::IfNotPresent, again: true },
            ),
            ("bytes 1 2048", Report::Bytes { number: 1, bytes: 2 << 20 }),
            (
                "image 0 [7,\"\",null,\"sha256:0a\"]",
                Report::Image {
                    number: 0,
                    facts: ImageFacts { digest: Some("sha256:0a".to_owned()), ..facts(Some(""), None) },
                },
            ),
            ("image 0 [7,\"\",null]", Report::Image { number: 0, facts: facts(Some(""), None) }),
            (
                "image 1 [7,\"app user\",[\"/e\",\"a b\"]]",
                Report::Image { number: 1, facts: facts(Some("app user"), Some(&["/e", "a b"])) },
            ),
            (
                "failed 0 always 2 Error: no \x1b[31msuch host",
                Report::PullFailed { number: 0, policy: always, text: "Error: no such host".to_owned() },
            ),
            (
                "foreign 0 arm64 amd64",
                Report::Foreign { number: 0, image: "arm64".to_owned(), instance: "amd64".to_owned() },
            ),
            (
                "wrote 1 2026-01-02T03:04:05.678+01:00 stderr F   at \x1b[1mmain()",
                Report::Wrote { number: 1, at: "03:04:05".to_owned(), line: "  at main()".to_owned() },
            ),
            (
                "wrote 2 \x1b[2J stdout P ",
                Report::Wrote { number: 2, at: String::new(), line: String::new() },
            ),
            (
                r#"wrote 1 {"log":"  at \u001b[1mmain()\n","stream":"stderr","time":"2026-01-02T03:04:05.678Z"}"#,
                Report::Wrote { number: 1, at: "03:04:05".to_owned(), line: "  at main()".to_owned() },
            ),
            (
                r#"wrote 1 {"log":"a long line, cut in \u00"#,
                Report::Wrote { number: 1, at: String::new(), line: "a long line, cut in".to_owned() },
            ),
            ("skipped 1 70", Report::Skipped { number: 1, bytes: 70 }),
            ("owner 1000 0", Report::Owner(Owner { user: 1000, group: 0 })),
            ("waiting 1", Report::Waiting { number: 1 }),
            ("exited 1 137", Report::Exited { number: 1, status: "137".to_owned() }),
            ("log 1 a\tb", Report::Log { number: 1, line: "a b".to_owned() }),
            (
                "broken network no iptables",
                Report::Broken { part: Part::Network, text: "no iptables".to_owned() },
            ),
            (
                "unsound network the disk is full: 3 MiB free in /v",
                Report::Unsound {
                    kind: CheckKind::Network,
                    text: "the disk is full: 3 MiB free in /v".to_owned(),
                },
            ),
            ("late", Report::Late),
            ("unreached 127.0.0.1 ::1", Report::Unreached("127.0.0.1 ::1".to_owned())),
            ("done", Report::Done),
        ] {
            assert_eq!(Report::parse(line.as_bytes()), Some(report), "{line}");
        }
        for line in [
            "",
            "pulling",
            "pulling x always 1",
            "pulling 0 often 1",
            "image 0 {}",
            "hello 1 2",
            "broken x y",
            "owner app 0",
            "owner -1 0",
            "wrote 1 2026",
            "wrote 1 {x",
        ] {
            assert_eq!(Report::parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn a_pull_brings_the_image_or_the_reason() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let image = format!("image 0 [7,\"\",null,\"{digest}\"]");
        let came = pulled("r.corp/a:1", ["pulling 0 always 1", "", &image, "done"]).unwrap();
        assert_eq!((&*came.name, came.digest.as_deref(), came.bytes), ("r.corp/a:1", Some(&*digest), 7));
        for (lines, why, may_pass) in [
            (&["failed 0 always 1 Error: manifest unknown"][..], "Error: manifest unknown", false),
            (&["failed 0 always 1 Error: unauthorized"], "Error: unauthorized", false),
            (
                &["failed 0 always 3 Error: dial tcp: no route to host"],
                "Error: dial tcp: no route to host",
                true,
            ),
            (&["late"], "`pull_timeout` has passed", true),
            (&["broken engine podman is not installed"], "podman is not installed", true),
            (&["foreign 0 arm64 amd64"], "it is for arm64", false),
            (&[&image], "the guest's script gave no reason", true),
        ] {
            let expected = NotPulled { why: why.to_owned(), may_pass };
            assert_eq!(pulled("r.corp/a:1", lines.iter().copied()), Err(expected), "{lines:?}");
        }
    }

    proptest! {
        #[test]
        fn no_line_panics_and_no_report_is_long(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            if let Some(Report::Log { line, .. }) = Report::parse(&[b"log 1 ", bytes.as_slice()].concat()) {
                prop_assert!(line.chars().count() <= TEXT);
            }
            Report::parse(&bytes);
        }

        #[test]
        fn lines_are_the_same_however_they_come(text in "([a-z ]{0,20}\n){0,8}", cut in 0_usize..200) {
            let mut lines = Lines::default();
            let mut seen = Vec::new();
            let (first, second) = text.as_bytes().split_at(cut.min(text.len()));
            for part in [first, second] {
                lines.push(part, |line| seen.push(String::from_utf8(line.to_vec()).unwrap()));
            }
            prop_assert_eq!(seen, text.lines().map(str::to_owned).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let mut lines = Lines::default();
        for _ in 0..100 {
            lines.push(&[b'x'; 1000], |_| ());
        }
        assert_eq!(lines.begun.len(), LONGEST);
    }
}
