//! The keys of provider `external`.

use greenroom_keys::Applies::{Launch, Pass};
use greenroom_keys::Takes::{HostPath, Map, Range, Size, Text, TextOrTexts, Texts, Values, Word};
use greenroom_keys::Unset::{Required, Value, Words};
use greenroom_keys::{KeyTable, key};

use crate::cloud::keys::{SSH_PORT, USER, USER_DATA};

pub(super) const TABLES: &[KeyTable] = &[KeyTable {
    header: "[pool.NAME.provider]",
    about: "Instances are machines that a program creates: a script of yours, called for one step at a time. \
            [providers/external.md](providers/external.md) describes the requests and the answers; \
            `greenroom doctor` calls it without launching anything.",
    keys: &[
        key("program", HostPath, Required, Pass)
            .means("The program. The verb is its last argument.")
            .interacts("Only the operator may be able to write it."),
        key("arguments", Texts, Words("none"), Pass).means("Arguments before the verb."),
        key("directory", HostPath, Words("the directory of the program"), Pass)
            .means("The program's working directory."),
        key("env", TextOrTexts, Words("none"), Pass)
            .means("Environment variables of the keeper that the program gets, beside `PATH`, `HOME` and the language.")
            .interacts("A keeper in the background does not have them; the service `greenroom keep` does. Use `secrets` \
                        for passwords and tokens."),
        key("secrets", Map, Words("none"), Pass)
            .means("Environment variables with the contents of files: `secrets = { HCLOUD_TOKEN = \"/etc/greenroom/hcloud\" }`.")
            .interacts("The files are read for each call. Only the keeper's account may be able to read them."),
        key("settings", Values, Words("none"), Launch)
            .means("Settings of the program itself, such as an image or a list of networks: any table. Each request contains it.")
            .interacts("TOML's dates and times arrive as strings."),
        key("offerings", TextOrTexts, Words("none: the program has one way to launch"), Launch)
            .means("The program's names for ways to launch, the preferred one first.")
            .interacts("A launch uses the first one with capacity."),
        key("host_key", Text, Words("none"), Launch)
            .means("The public host key that every machine has, `ssh-ed25519 AAAA…`.")
            .interacts("Required if the program answers `\"host_key\": \"operator\"`, otherwise without effect."),
        key("host_key_ca", TextOrTexts, Words("none"), Launch)
            .means("The public keys of the SSH certificate authorities that sign the machines' host keys, `ssh-ed25519 AAAA…`.")
            .interacts("Required if the program answers `\"host_key\": \"certificate\"`, otherwise without effect."),
        key("host_key_name", Text, Words("the machine's address, or the name of its launch"), Launch)
            .means("The name that each machine's certificate must contain.")
            .interacts("With one name for all machines, each of them can impersonate the others."),
        USER.interacts("Idle instances with the earlier user fail their next probe and are replaced."),
        SSH_PORT.interacts("A port that the program reports comes first."),
        key("user_data", Word(USER_DATA), Value("\"cloud-init\""), Launch)
            .means("What reads the user data at the first boot: cloud-init, or an image that runs a script."),
        key("appears_within", greenroom_keys::Takes::Duration(0), Words("`appears_within_s` of the program, or 60 s"), Pass)
            .means("How long the program's list may lack a new machine.")
            .interacts("A launch without an answer is not repeated earlier."),
        key("timeouts", Map, Words("`launch` 5 minutes, `console` 8 s, `capabilities` 20 s, `resources`, `delete` and `examine` \
                                    1 minute, others 50 s"), Pass)
            .means("Time limits of verbs: `timeouts = { launch = \"2m\", list = \"20s\" }`.")
            .interacts("The keeper gives up a call of any verb but `launch` after 2 minutes."),
        key("output_limit", Size, Value("\"4M\""), Pass)
            .means("Limit of the output of a call. A program that prints more is killed."),
        key("concurrent_calls", Range(1, 64), Value("4"), Pass).means("How many calls may run concurrently."),
    ],
}];
