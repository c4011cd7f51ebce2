//! The keys of provider `aws-ec2`.

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
        about: "Instances are EC2 instances of an AWS account. [providers/aws-ec2.md](providers/aws-ec2.md) \
                explains permissions, costs and limits; `greenroom doctor` checks this table against the account.",
        keys: &[
            key("region", Text, Words("`AWS_REGION`, or the region of the profile"), Pass)
                .means("Region of the pool.")
                .interacts("A keeper refuses a change while the pool has instances: drain the pool first."),
            key("profile", Text, Words("the default profile"), Pass)
                .means("Profile in the files of the AWS tools that credentials come from."),
            CREDENTIALS_FILE
                .means("File with credentials, in the format of `~/.aws/credentials`.")
                .interacts("Without it, credentials come from where AWS's own tools find them: environment, web \
                            identity, `~/.aws`, the role of the runner host. A keeper that a job has started has \
                            no secrets in its environment."),
            ENDPOINT.interacts("`greenroom doctor` queries quotas there, too."),
            key("sts_endpoint", Text, Words("`endpoint`, or AWS's public address"), Pass)
                .means("Address of AWS STS, `https://…`, for private endpoints.")
                .interacts("STS says which account an empty list of instances is from."),
            IMAGE,
            INSTANCE_TYPES,
            SUBNETS,
            ZONES,
            MARKET,
            key("spot_price", Text, Words("the on-demand price"), Launch)
                .unit("US dollars per hour")
                .means("Highest price of a spot instance, such as `\"0.05\"`.")
                .interacts("Only with `\"spot\"` in `market`."),
            OFFERING,
            key("security_groups", TextOrTexts, Required, Launch)
                .means("Ids of security groups.")
                .interacts("One of them must allow inbound SSH from the runner host on `ssh_port`, and none anything \
                            else. With `zones`, groups of the default VPC."),
            key("instance_profile", Text, Words("none"), Launch)
                .means("Name or ARN of the instance profile.")
                .interacts("Jobs have its permissions."),
            key("public_ip", Flag, Words("as the subnet says"), Launch)
                .means("Whether an instance gets a public IPv4 address.")
                .interacts("Must not be `false` with `address = \"public\"`."),
            ADDRESS.interacts("`\"ipv6\"` needs subnets with an IPv6 block, and a group that allows the runner \
                               host's IPv6 address. Idle instances without such an address fail their next probe \
                               and are replaced."),
            USER,
            SSH_PORT,
            key("user_data", Word(USER_DATA), Value("\"cloud-init\""), Launch)
                .means("What reads the user data at the first boot: cloud-init, or an image that runs a script."),
            DISK,
            DISK_TYPE.means("EC2's name of the kind of root disk, such as `\"gp3\"`.").or(Words("that of the image")),
            TAGS.means("Tags for instances and their disks.").interacts("Names that begin with `greenroom-` are \
                                                                         reserved."),
        ],
    },
    KeyTable {
        header: "[[pool.NAME.provider.offering]]",
        about: OFFERINGS,
        keys: &[
            INSTANCE_TYPES.or(AS_ABOVE).interacts(""),
            SUBNETS.or(AS_ABOVE).interacts("Excludes `zones`."),
            ZONES.or(AS_ABOVE),
            MARKET.or(AS_ABOVE).interacts(""),
            IMAGE.or(AS_ABOVE).interacts("It must fit the architecture of the types."),
        ],
    },
];

const IMAGE: Key = key("image", Text, Required, Launch)
    .means("Id of the image (`ami-…`) that instances boot from.")
    .interacts("Required here or in each `offering`. It needs an SSH server, and what `user_data` names.");

const INSTANCE_TYPES: Key = key("instance_types", TextOrTexts, Required, Launch)
    .means("Instance types, the preferred ones first.")
    .interacts("Required here or in each `offering`. All places of a type are tried before the next type.");

const SUBNETS: Key = key("subnets", TextOrTexts, Words("`zones` is required"), Launch)
    .means("Ids of subnets, the preferred ones first.")
    .interacts("Here or in each `offering`, `subnets` or `zones` is required, and only one of them.");

const ZONES: Key = key("zones", TextOrTexts, Words("`subnets` is required"), Launch)
    .means("Availability zones: instances use the default subnet of each.")
    .interacts("Excludes `subnets`.");
