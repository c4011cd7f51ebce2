//! The keys of provider `static`.

use greenroom_keys::Applies::{Pass, Within};
use greenroom_keys::Takes::{Flag, HostPath, Range, Table, Tables, Text};
use greenroom_keys::Unset::{Required, Value, Words};
use greenroom_keys::{Key, KeyTable, key};

pub(super) const TABLES: &[KeyTable] = &[
    KeyTable {
        header: "[pool.NAME.provider]",
        about: "Instances are hosts of the operator's, Linux or macOS, reached over SSH: adopted, and cleaned \
                between jobs. [providers/static.md](providers/static.md) explains what a host needs, and what \
                cleaning does and does not do. `user`, `port` and the login key may stand here for all hosts, or \
                in the table of a host.",
        keys: &[
            USER.or(Words("each host names its own")),
            KEY.or(Words("each host names its own")),
            AGENT,
            AGENT_KEY,
            PORT.or(Value("22")).interacts("A jump host does not take this value."),
            key("clean", Flag, Value("true"), Pass)
                .means("Whether Greenroom cleans a host after each job: stops processes, removes builds, temporary \
                        files and the cache.")
                .interacts("`clean_command` runs afterwards, even with `false`. A host that stays with its trust domain keeps the cache."),
            key("dedicated_user", Flag, Value("false"), Pass)
                .means("Whether only jobs use the account; cleaning then stops every process of it, and removes \
                        its files from temporary directories.")
                .interacts("Refused where the account is root. No effect with `clean = false`."),
            CLEAN_USER
                .or(Words("the jobs' own account cleans"))
                .interacts("Each host may have its own. Only with `dedicated_user = true`."),
            key("jump", Table, Words("none: direct connections"), Within)
                .means("A host through which all connections go."),
            key("host", Tables, Required, Within).means("The hosts, one table each.").interacts(
                "A host that is removed from the file is forgotten when its jobs have ended.",
            ),
        ],
    },
    KeyTable {
        header: "[[pool.NAME.provider.host]]",
        about: "A host that runs jobs. Two hosts with the same address, port and user are refused.",
        keys: &[
            key("name", Text, Required, Pass)
                .means("Name of the host in commands and messages: letters, digits, `-`, `_` and `.`, at most 63.")
                .interacts("Another name is another host. `\"jump\"` is reserved."),
            ADDRESS,
            PORT.or(Words("`port` of the provider's table")),
            USER.or(Words("`user` of the provider's table")),
            KEY.or(Words("the login key of the provider's table")),
            AGENT,
            AGENT_KEY,
            HOST_KEY,
            CLEAN_USER.or(Words("`clean_user` of the provider's table")),
            key("capacity", Range(1, u32::MAX), Words("`capacity_per_instance` of the pool"), Pass)
                .unit("jobs")
                .means("Jobs that may share the host at the same time.")
                .interacts("A lower value applies as soon as the present jobs fit."),
        ],
    },
    KeyTable {
        header: "[pool.NAME.provider.jump]",
        about: "A host that passes connections on and runs no jobs.",
        keys: &[
            ADDRESS,
            PORT.or(Value("22")),
            USER.or(Words("`user` of the provider's table")).means("Account that logs in."),
            KEY.or(Words("the login key of the provider's table")),
            AGENT,
            AGENT_KEY,
            HOST_KEY,
        ],
    },
];

const ADDRESS: Key = key("address", Text, Required, Pass).means("IP address or name of the host.");
const USER: Key = key("user", Text, Required, Pass).means("Account that logs in and runs jobs.");
const CLEAN_USER: Key = key("clean_user", Text, Required, Pass).means(
    "Account that cleans: `root`, or one that a rule of `sudo` lets run the cleaning script. It logs in with \
            the key of `user`.",
);
const PORT: Key = key("port", Range(1, 65535), Required, Pass).means("Port of the SSH server.");
const KEY: Key = key("key", HostPath, Required, Pass)
    .means("File of the private key that logs in, without a passphrase: Ed25519, ECDSA, or RSA of 2048 to 4096 bits.")
    .interacts("Excludes `agent`.");
const AGENT: Key = key("agent", HostPath, Words("none"), Pass)
    .means("Socket of an ssh-agent that logs in instead of `key`.")
    .interacts("Excludes `key`.");
const AGENT_KEY: Key = key("agent_key", Text, Words("all keys of the agent"), Pass)
    .means("Public key, in OpenSSH form, that chooses among the agent's keys.")
    .interacts("Only with `agent`.");
const HOST_KEY: Key = key("host_key", Text, Words("the pinned key"), Pass)
    .means(
        "Host key in OpenSSH form, Ed25519 or ECDSA: the line of `/etc/ssh/ssh_host_ed25519_key.pub` on the \
            host.",
    )
    .interacts("`greenroom doctor --pin NAME` pins a key instead; without either the host gets no job.");
