//! The faults of the plugin: files in the directory `faults`, whose contents say how.
//!
//! | file | what the plugin does |
//! | --- | --- |
//! | `start-print`, `start-exit`, `start-hang` | prints a text, exits, or hangs before its handshake |
//! | `start-child` | starts these words in another session |
//! | `start-line` | prints this as its handshake; `SOCKET` is its socket |
//! | `ignore-sigterm`, `ignore-shutdown` | goes on after SIGTERM, or after the controller's call |
//! | `METHOD-delay`, `METHOD-hang` | answers so many milliseconds later, or never |
//! | `METHOD-error` | answers with this error before it does anything |
//! | `METHOD-crash` | exits with a panic of Go's; `done-METHOD-crash` does so after its work |
//! | `METHOD-unimplemented` | has no such call |
//! | `increase-part`, `decrease-part`, `suspend-part` | does so many, and fails |
//! | `increase-short` | makes so many, and answers with their number |
//! | `increase-answer` | answers with this number |
//! | `decrease-answer` | answers with this id, too |
//! | `decrease-ignores` | accepts, and removes nothing |
//! | `decrease-all` | removes all, whatever was asked |
//! | `decrease-gone-crash` | exits if it is asked to remove what does not exist |
//! | `init-own-key` | makes a key at each start, instead of using the one that it gets, unless credentials are static |
//! | `init-ignores-key` | makes a key at each start in any case |
//! | `init-no-static` | does not start with static credentials, for this reason |
//! | `update-forgets` | lists only what this process has made |
//! | `update-broken` | sends so many instances, and fails |
//! | `update-hides` | leaves out ids with this beginning; empty: all |
//! | `update-twice` | sends each instance twice, creating first |
//! | `update-state` | sends this number as the state of all |
//! | `update-adds` | sends an instance with this id, too |
//! | `flood` | prints so many lines on each of its three ways, at each `Update` |
//! | `tell` | logs the credentials of each `ConnectInfo` |
//! | `address` | "ADDRESS PORT": where each instance is said to be |
//! | `expires` | makes credentials valid for so many seconds |
//! | `max-size` | allows so many instances |
//! | `chance` | "SEED PERCENT": so many of a hundred calls fail, crash, or crash after their work. `calls` has one file each |
//!
//! A file with the ending `.once` acts once.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;

use greenroom_testkit::dice::Dice;

/// A fault of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chance {
    Error,
    Crash,
    CrashAfter,
}

/// The directory; `None`: no fault yet.
#[derive(Debug)]
pub struct Faults {
    directory: Mutex<Option<PathBuf>>,
}

impl Faults {
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self { directory: Mutex::new(directory.map(|directory| directory.join("faults"))) }
    }

    pub fn set_directory(&self, directory: &std::path::Path) {
        *self.directory.lock().unwrap() = Some(directory.join("faults"));
    }

    /// The content of a fault's file; a fault that acts once has acted.
    pub fn take(&self, name: &str) -> Option<String> {
        let directory = self.directory.lock().unwrap().clone()?;
        let once = directory.join(format!("{name}.once"));
        let content = std::fs::read_to_string(directory.join(name)).ok().or_else(|| {
            let content = std::fs::read_to_string(&once).ok()?;
            std::fs::remove_file(&once).ok().map(|()| content)
        });
        content.map(|content| content.trim().to_owned())
    }

    /// The fault that chance brings to this call of a method: a seed does the same to the same call, whichever process
    /// makes it.
    pub fn chance(&self, method: &str) -> Option<Chance> {
        let given = self.take("chance")?;
        let (seed, percent) = given.split_once(' ').expect("SEED PERCENT");
        let (seed, percent): (u64, u64) = (seed.parse().unwrap(), percent.parse().unwrap());
        let calls = self.directory.lock().unwrap().clone()?.parent()?.join("calls");
        let new = |call: &u32| {
            let file = calls.join(format!("{method}-{call}"));
            Some((*call, OpenOptions::new().write(true).create_new(true).open(file).ok()?))
        };
        let (call, mut file) = (1..u32::MAX).find_map(|call| new(&call))?;
        let of_call = method.bytes().fold(seed, |mixed, byte| mixed.rotate_left(8) ^ u64::from(byte));
        let mut dice = Dice::new(of_call.rotate_left(16) ^ u64::from(call));
        // A small seed's first numbers are alike.
        dice.below(1);
        if dice.below(100) >= percent {
            return None;
        }
        let chance = match dice.below(4) {
            0 => Chance::Crash,
            1 => Chance::CrashAfter,
            _ => Chance::Error,
        };
        write!(file, "{chance:?}").unwrap();
        Some(chance)
    }

    /// The content of a fault's file, as a number.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        let text = self.take(name)?;
        Some(text.parse().unwrap_or_else(|_| {
            super::output::log("error", "a fault is not a number", &[("fault", name)]);
            std::process::exit(2)
        }))
    }
}
