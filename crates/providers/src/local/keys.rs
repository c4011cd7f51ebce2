//! The keys of provider `local`.

use greenroom_keys::Applies::{Launch, Pass, Within};
use greenroom_keys::Takes::{Duration, Flag, HostPath, Range, Table, Word};
use greenroom_keys::Unset::{Required, Value, Words};
use greenroom_keys::{KeyTable, key};

use super::faults::CLASSES;

/// The values of `server`.
const SERVERS: &[&str] = &["embedded", "openssh"];

pub(super) const TABLES: &[KeyTable] = &[
    KeyTable {
        header: "[pool.NAME.provider]",
        about: "Instances are processes of the runner host: for a first try, for rehearsals and for tests. There \
                is no isolation: every job runs as the user that runs Greenroom, and sees the runner host, its \
                files and other jobs. The keys from `boot_delay` on inject faults; all are off by default.",
        keys: &[
            key("allow_root", Flag, Value("false"), Pass)
                .means("Whether jobs may run as root, if Greenroom does.")
                .interacts("Required where Greenroom runs as root."),
            key("server", Word(SERVERS), Value("\"embedded\""), Launch).means(
                "SSH server of an instance: Greenroom's own, or OpenSSH's `sshd -i` for each connection.",
            ),
            key("sshd", HostPath, Words("searched for in the usual directories"), Launch)
                .means("Path of sshd.")
                .interacts("Only with `server = \"openssh\"`."),
            key("boot_delay", Duration(0), Value("\"0s\""), Launch)
                .means("Time from the launch of an instance to its first answer."),
            key("die_after", Duration(0), Words("never"), Launch)
                .means("Time from the first answer of an instance to its sudden end."),
            key("list_lag", Duration(0), Value("\"0s\""), Launch)
                .means("Time from the launch of an instance to its first appearance in lists."),
            key("no_capacity", Range(0, u32::MAX), Words("no limit"), Pass)
                .unit("instances")
                .means("Number of instances at which launches are refused with no capacity; 0 refuses all.")
                .interacts("It has no effect above `max_instances`."),
            key("fail_launch", Table, Words("no failures"), Within).means("Makes the first launches fail."),
        ],
    },
    KeyTable {
        header: "[pool.NAME.provider.fail_launch]",
        about: "The first launches of the pool fail. The provider counts across processes, and starts again when \
                this table changes.",
        keys: &[
            key("class", Word(CLASSES), Required, Pass).means("Class of the error.").interacts(
                "With `\"unknown\"` the launch succeeds, and only its answer is lost: see `relaunch_after`.",
            ),
            key("first", Range(0, u32::MAX), Required, Pass)
                .unit("launches")
                .means("Number of launches that fail."),
        ],
    },
];
