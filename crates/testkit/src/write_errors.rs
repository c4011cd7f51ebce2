//! The errors that any write may meet, and the system calls that meet them, as strace shows and injects them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::skipped::skipped;

/// The code under test is between these two reads of nothing; they show in a trace of system calls.
pub const BEGIN: &str = "/greenroom-mark-begin";
pub const END: &str = "/greenroom-mark-end";

/// An error, its texts, and the system calls that may return it.
#[derive(Debug)]
pub struct Row {
    pub error: &'static str,
    /// The system's text, and Greenroom's own where it has one.
    texts: &'static [&'static str],
    calls: &'static [&'static [&'static str]],
}

const OPEN: &[&str] = &["openat"];
const WRITE: &[&str] = &["write", "pwrite64"];
const SYNC: &[&str] = &["fsync", "fdatasync"];
const RESIZE: &[&str] = &["ftruncate"];
const RESERVE: &[&str] = &["fallocate"];
const RENAME: &[&str] = &["rename", "renameat", "renameat2"];
const LINK: &[&str] = &["link", "linkat"];
const UNLINK: &[&str] = &["unlink", "unlinkat"];
const MKDIR: &[&str] = &["mkdir", "mkdirat"];
const CHMOD: &[&str] = &["chmod"];
const SOCKET: &[&str] = &["socket"];
const BIND: &[&str] = &["bind"];

pub const TABLE: [Row; 4] = [
    Row {
        error: "ENOSPC",
        texts: &["No space left on device", "its file system is full"],
        calls: &[WRITE, RESIZE, RESERVE, RENAME, LINK, MKDIR, OPEN, BIND],
    },
    Row {
        error: "EIO",
        texts: &["Input/output error"],
        calls: &[WRITE, SYNC, RESIZE, RENAME, LINK, UNLINK, MKDIR, OPEN, BIND],
    },
    Row {
        error: "EROFS",
        texts: &["Read-only file system", "its file system is read-only"],
        calls: &[RESIZE, RESERVE, RENAME, LINK, UNLINK, MKDIR, OPEN, BIND, CHMOD],
    },
    Row { error: "EMFILE", texts: &["Too many open files"], calls: &[OPEN, SOCKET] },
];

impl Row {
    /// True if a message contains the error's text.
    pub fn is_told(&self, message: &str) -> bool {
        self.texts.iter().any(|text| message.contains(text))
    }

    /// The calls that may return the error, of those that concern a file or a socket.
    pub fn places<'a>(&self, calls: &'a [Call]) -> impl Iterator<Item = &'a Call> {
        let may_fail = |call: &Call| self.calls.iter().any(|names| names.contains(&call.name.as_str()));
        calls.iter().filter(move |call| may_fail(call) && !call.files.is_empty())
    }
}

/// A system call of the code under test.
#[derive(Debug)]
pub struct Call {
    pub name: String,
    /// The count of the call for that name in its thread.
    pub nth: usize,
    /// Files of the directory that it names or has open, as the trace shows them.
    pub files: Vec<String>,
}

/// The system calls between the marks of a trace, which `strace -f -y` wrote.
pub fn calls_in(trace: &str, dir: &Path) -> Vec<Call> {
    let prefix = format!("{}/", dir.display());
    let mut counts = BTreeMap::new();
    let mut inside = false;
    let mut found = Vec::new();
    for line in trace.lines() {
        let (thread, rest) = line.split_once(' ').expect("a thread and a call");
        let Some((name, _)) = rest.trim_start().split_once('(') else { continue };
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            continue;
        }
        let count = counts.entry((thread.to_owned(), name.to_owned())).or_insert(0);
        *count += 1;
        inside &= !rest.contains(END);
        if inside {
            let ends = |c: char| matches!(c, '"' | '>' | ',');
            let file = |rest: &str| rest.split(ends).next().unwrap_or_default().to_owned();
            let mut files: Vec<String> = rest.split(&prefix).skip(1).map(file).collect();
            if matches!(name, "socket" | "bind") {
                // Sockets have names under `/proc/self/fd`.
                files.push("a socket".to_owned());
            }
            found.push(Call { name: name.to_owned(), nth: *count, files });
        }
        inside |= rest.contains(BEGIN);
    }
    found
}

/// False, and the test is skipped, if strace cannot be used here.
pub fn ptrace_works() -> bool {
    let tried = Command::new("strace").args(["-f", "-qq", "-o", "/dev/null", "true"]).output();
    let works = tried.is_ok_and(|output| output.status.success());
    if !works {
        skipped("strace is missing, or ptrace is not allowed");
    }
    works
}
