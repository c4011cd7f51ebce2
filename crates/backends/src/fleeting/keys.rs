//! The keys of provider `fleeting`.

use greenroom_keys::Applies::{Launch, Pass};
use greenroom_keys::Takes::{Duration, Flag, HostPath, Map, Range, Text, TextOrTexts, Values, Word};
use greenroom_keys::Unset::{Required, Value, Words};
use greenroom_keys::{KeyTable, key};

/// The values of `protocol` and `host_keys`.
const PROTOCOLS: &[&str] = &["ssh", "winrm", "winrm+https"];
pub(super) const HOST_KEYS: &[&str] = &["ca", "command", "first-use"];

pub(super) const TABLES: &[KeyTable] = &[KeyTable {
    header: "[pool.NAME.provider]",
    about: "Instances are machines that a plugin of GitLab's autoscaler creates, unmodified: those of AWS, Google Cloud, Azure, \
            Hetzner and others. [providers/fleeting.md](providers/fleeting.md) describes how Greenroom drives them, and which \
            promises hold.",
    keys: &[
        key("plugin", Text, Required, Pass)
            .means("The plugin: an installed one such as `googlecloud:latest`, a path, or a program in `PATH` with a plugin's name.")
            .interacts("It runs with the keeper's rights: only the operator may be able to write it."),
        key("plugin_config", Values, Words("none"), Pass)
            .means("The plugin's own configuration: the content of GitLab Runner's `[runners.autoscaler.plugin_config]`.")
            .interacts("A change starts the plugin anew. If it names another group, instances of the earlier one are left alone \
                        until it is named again."),
        key("env", TextOrTexts, Words("none"), Pass)
            .means("Environment variables of the keeper that the plugin gets, beside `PATH`, `HOME` and the language.")
            .interacts("A keeper in the background does not have them; the service `greenroom keep` does. Use `secrets` \
                        for passwords and tokens."),
        key("secrets", Map, Words("none"), Pass)
            .means("Environment variables with the contents of files: `secrets = { HCLOUD_TOKEN = \"/etc/greenroom/hcloud\" }`.")
            .interacts("The files are read when the plugin starts. Only the keeper's account may be able to read them."),
        key("host_keys", Word(HOST_KEYS), Required, Launch)
            .means("How Greenroom verifies an instance, because plugins report no host keys. `\"ca\"`: the image has a \
                    host certificate. `\"command\"`: `host_key_command` prints the fingerprint. `\"first-use\"`: the key of the first \
                    connection is recorded for the instance, and any other one is refused.")
            .interacts("With `\"first-use\"`, an attacker between the runner host and a new instance can read its jobs."),
        key("host_key_command", HostPath, Words("none"), Pass)
            .means("The program that prints the fingerprint `SHA256:…` or the public host key of an instance. Its arguments are \
                    the plugin's id of the instance, and the address.")
            .interacts("Required with `host_keys = \"command\"`, otherwise refused. Its environment is that of the plugin."),
        key("host_key_ca", TextOrTexts, Words("none"), Launch)
            .means("The public keys of the SSH certificate authorities that sign the instances' host keys, `ssh-ed25519 AAAA…`.")
            .interacts("Required with `host_keys = \"ca\"`, otherwise refused."),
        key("host_key_name", Text, Words("the instance's address, or the plugin's id of it"), Launch)
            .means("The name that each instance's certificate must contain, if all instances share one.")
            .interacts("Each instance can then impersonate the others. Refused without `host_keys = \"ca\"`."),
        key("user", Text, Words("what the plugin reports"), Launch)
            .means("The account that logs in and runs jobs.")
            .interacts("The plugin gets it as `username`. If it reports another one, that one logs in."),
        key("ssh_port", Range(1, 65535), Value("22"), Pass)
            .means("Port of the image's SSH server.")
            .interacts("A port that the plugin reports comes first."),
        key("key_file", HostPath, Words("one that Greenroom creates for the pool"), Pass)
            .means("The private key of logins, without a passphrase: Ed25519, ECDSA, or RSA of 2048 to 4096 bits.")
            .interacts("The plugin gets it, in order to put its public half on the machines."),
        key("password_file", HostPath, Words("none"), Pass)
            .means("A file with the password of `user`, for images that accept no key.")
            .interacts("The plugin gets the password, and no key. Refused with `key_file`. Only the keeper's account may be able \
                        to read the file."),
        key("static_credentials", Flag, Words("`true` if the plugin makes a key of its own, `user` is set, and the plugin accepts it"), Pass)
            .means("Whether the plugin uses `user` and the key or password as they are, and creates no credentials of its own.")
            .interacts("Needs `user`. Some plugins need `true`, such as Hetzner's; others refuse it. Without the key, Greenroom starts the \
                        plugin without them until `ConnectInfo` gives another key than the pool's, and then with them."),
        key("use_external_address", Flag, Value("false"), Launch)
            .means("Whether Greenroom connects to the external address of an instance.")
            .interacts("Without it, the external address is used only where there is no internal one."),
        key("os", Text, Words("what the plugin assumes"), Launch).means("The operating system that the plugin gets."),
        key("arch", Text, Words("what the plugin assumes"), Launch).means("The architecture that the plugin gets."),
        key("protocol", Word(PROTOCOLS), Value("\"ssh\""), Launch)
            .means("How Greenroom connects. Only `\"ssh\"` is supported."),
        key("adopt", Flag, Value("false"), Pass)
            .means("Whether launches use instances of the group that Greenroom did not request, before they request others.")
            .interacts("Jobs then run on machines with whatever is on them. Without it, such instances are reported only."),
        key("appears_within", Duration(1_000), Value("\"10m\""), Pass)
            .means("How long a requested instance may take to appear in the plugin's list.")
            .interacts("Then another one is requested. If the first one appears after all, it is terminated."),
    ],
}];
