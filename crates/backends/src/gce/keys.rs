//! The keys of provider `gce`.

use greenroom_keys::Applies::{Launch, Pass};
use greenroom_keys::Takes::{Flag, Text, TextOrTexts, Word};
use greenroom_keys::Unset::{Required, Value, Words};
use greenroom_keys::{Key, KeyTable, key};

use crate::cloud::keys::{
    ADDRESS, AS_ABOVE, CREDENTIALS_FILE, DISK, DISK_TYPE, ENDPOINT, MARKET, OFFERING, OFFERINGS, SSH_PORT,
    TAGS, USER, USER_DATA,
};

pub(super) const TABLES: &[KeyTable] = &[
    KeyTable {
        header: "[pool.NAME.provider]",
        about: "Instances are Compute Engine instances of a Google Cloud project. \
                [providers/gce.md](providers/gce.md) explains permissions, addresses and costs; `greenroom doctor` \
                checks this table against the project.",
        keys: &[
            key("project", Text, Required, Pass)
                .means("Id of the project that the instances belong to and that pays for them.")
                .interacts("A keeper refuses a change while the pool has instances: drain the pool first."),
            CREDENTIALS_FILE
                .means("File with the key of a service account.")
                .interacts("Without it, credentials come from where Google's own tools find them: \
                            `GOOGLE_APPLICATION_CREDENTIALS`, `gcloud auth application-default login`, the service \
                            account of the runner host."),
            ENDPOINT,
            IMAGE,
            MACHINE_TYPES,
            ZONES,
            MARKET,
            OFFERING,
            key("network", Text, Value("\"default\""), Launch)
                .means("Network of the instances, by its name or its path.")
                .interacts("No default with `subnetwork`. The network must allow SSH from the runner host on \
                            `ssh_port`."),
            key("subnetwork", Text, Words("as the network says"), Launch)
                .means("Subnetwork of the instances, by its path, or by its name in the region of each zone.")
                .interacts("Required with `address = \"ipv6\"`."),
            key("network_tags", TextOrTexts, Words("none"), Launch)
                .means("Network tags of the instances, which firewall rules refer to."),
            key("service_account", Text, Words("none, and no permissions"), Launch)
                .means("Address of the instances' service account.")
                .interacts("Jobs have its permissions."),
            key("scopes", TextOrTexts, Words("`\"cloud-platform\"`, all that the account's roles allow"), Launch)
                .means("Access scopes of the service account.")
                .interacts("Only with `service_account`."),
            key("public_ip", Flag, Words("`true` with `address = \"public\"`, otherwise `false`"), Launch)
                .means("Whether an instance has an external address: of IPv6 with `address = \"ipv6\"`, otherwise \
                        of IPv4.")
                .interacts("Without an external address, instances reach the internet through Cloud NAT only. Must \
                            not be `false` with `address = \"public\"`."),
            ADDRESS.interacts("`\"ipv6\"` needs a `subnetwork` with IPv6 addresses. Idle instances without such an \
                               address fail their next probe and are replaced."),
            USER,
            SSH_PORT,
            key("user_data", Word(USER_DATA), Value("\"script\""), Launch)
                .means("What reads the user data at the first boot: the startup script of Google's images, or \
                        cloud-init."),
            DISK,
            DISK_TYPE
                .means("Compute Engine's name of the kind of boot disk, such as `\"pd-balanced\"`.")
                .or(Words("`pd-standard`")),
            TAGS.means("Labels for instances and their disks.")
                .interacts("Names and values consist of lower-case letters, digits, `-` and `_`. Names that begin \
                            with `greenroom-` are reserved."),
        ],
    },
    KeyTable {
        header: "[[pool.NAME.provider.offering]]",
        about: OFFERINGS,
        keys: &[
            MACHINE_TYPES.or(AS_ABOVE).interacts(""),
            ZONES.or(AS_ABOVE).interacts(""),
            MARKET.or(AS_ABOVE).interacts(""),
            IMAGE.or(AS_ABOVE).interacts("It must fit the architecture of the types."),
        ],
    },
];

const IMAGE: Key = key("image", Text, Required, Launch)
    .means("Image that instances boot from, by its path, or the newest image of a family (`…/family/NAME`). In the \
            same project, its name is enough.")
    .interacts("Required here or in each `offering`. It needs an SSH server, and what `user_data` names.");

const MACHINE_TYPES: Key = key("machine_types", TextOrTexts, Required, Launch)
    .means("Machine types, the preferred ones first.")
    .interacts("Required here or in each `offering`. All zones of a type are tried before the next type.");

const ZONES: Key = key("zones", TextOrTexts, Required, Launch)
    .means("Zones, the preferred ones first.")
    .interacts("Required here or in each `offering`. `subnetwork` must be in their regions.");
