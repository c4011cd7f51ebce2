//! The location of a state directory, and whether it has changed.
//!
//! A copy of a state directory has the same owner id and instances: two managers would terminate each other's
//! instances. So the directory records the machine and the inode it was created on.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

const MACHINE_ID: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
const PRODUCT_UUID: &str = "/sys/class/dmi/id/product_uuid";

/// The identity of a location. Values that could not be read are not compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DirLocation {
    #[serde(default)]
    machine_id: Option<String>,
    /// Readable by root only on most machines.
    #[serde(default)]
    product_uuid: Option<String>,
    inode: u64,
    /// Nanoseconds since 1970; some file systems do not record it.
    #[serde(default)]
    born_ns: Option<u64>,
}

impl DirLocation {
    /// The current location of the directory at `root`.
    pub(super) fn of(root: &Path) -> std::io::Result<Self> {
        let known = fs::metadata(root)?;
        let born = known.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            machine_id: MACHINE_ID.iter().find_map(|path| first_line(path)),
            product_uuid: first_line(PRODUCT_UUID),
            inode: known.ino(),
            born_ns: born.and_then(|age| u64::try_from(age.as_nanos()).ok()),
        })
    }

    /// The differences between the recorded location and the current one, as text; `None` if there are none.
    pub(super) fn differs(&self, now: &Self) -> Option<String> {
        let differences = [
            // Machine ids are confidential, and job logs show this text: it states only that they differ.
            another("machine ID", self.machine_id.as_ref(), now.machine_id.as_ref()),
            another("DMI product UUID", self.product_uuid.as_ref(), now.product_uuid.as_ref()),
            differing("inode", Some(&self.inode), Some(&now.inode)),
            differing("birth time", self.born_ns.as_ref(), now.born_ns.as_ref()),
        ];
        let found: Vec<String> = differences.into_iter().flatten().collect();
        (!found.is_empty()).then(|| found.join(", "))
    }
}

fn another(what: &str, recorded: Option<&String>, found: Option<&String>) -> Option<String> {
    (recorded? != found?).then(|| format!("different {what}"))
}

fn differing<T: PartialEq + Display>(what: &str, recorded: Option<&T>, found: Option<&T>) -> Option<String> {
    let (recorded, found) = (recorded?, found?);
    (recorded != found).then(|| format!("{what} {found}, recorded {recorded}"))
}

/// Ignores the empty machine id that container images often have.
fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty() && line != "uninitialized").then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(machine: Option<&str>, uuid: Option<&str>, inode: u64, born_ns: Option<u64>) -> DirLocation {
        let (machine_id, product_uuid) = (machine.map(str::to_owned), uuid.map(str::to_owned));
        DirLocation { machine_id, product_uuid, inode, born_ns }
    }

    #[test]
    fn what_one_side_cannot_read_is_not_compared() {
        let root = place(Some("m"), Some("u"), 7, Some(1));
        assert_eq!(root.differs(&place(Some("m"), None, 7, Some(1))), None);
        assert_eq!(root.differs(&place(None, None, 7, None)), None);
    }

    #[test]
    fn each_difference_is_named_and_no_machine_id_is_told() {
        let here = place(Some("m"), Some("u"), 7, Some(1));
        for (other, expected) in [
            (place(Some("n"), Some("u"), 7, Some(1)), "different machine ID"),
            (place(Some("m"), Some("v"), 7, Some(1)), "different DMI product UUID"),
            (place(Some("m"), Some("u"), 8, Some(2)), "inode 8, recorded 7, birth time 2, recorded 1"),
        ] {
            assert_eq!(here.differs(&other).as_deref(), Some(expected));
        }
    }
}
