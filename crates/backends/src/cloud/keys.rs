//! The keys that every cloud's table has.

use std::time::Duration;

use greenroom_keys::Applies::{Launch, Pass, Within};
use greenroom_keys::Takes::{HostPath, Map, Range, Size, Tables, Text, Word};
use greenroom_keys::Unset::{Value, Words};
use greenroom_keys::{Key, Takes, Unset, key};

/// The values of `market`, `address` and `user_data`.
const MARKETS: &[&str] = &["spot", "on-demand"];
const ADDRESSES: &[&str] = &["private", "public", "ipv6"];
pub const USER_DATA: &[&str] = &["cloud-init", "script"];

/// Default of `max_lifetime`: instances of a manager that is lost cost money for at most a day.
pub const LIFETIME: Duration = Duration::from_hours(24);

/// Default in the tables of offerings.
pub const AS_ABOVE: Unset = Words("that of the provider's table");

/// Description of `[[…offering]]`.
pub const OFFERINGS: &str = "Offerings are tried one table after another, each with all its combinations. Use \
                             these tables where types and images belong together.";

pub const MARKET: Key = key("market", Takes::Words(MARKETS), Value("\"on-demand\""), Launch)
    .means("Spot or on-demand capacity, the preferred one first.")
    .interacts(
        "All types and places of the first market come before the second market. The cloud may reclaim a \
                spot instance; its job ends as a system failure.",
    );

pub const OFFERING: Key = key("offering", Tables, Words("one, from the keys of this table"), Within)
    .means("Other combinations of type, place, market and image, in their order.");

pub const ENDPOINT: Key = key("endpoint", Text, Words("the cloud's public address"), Pass)
    .means("Address of the cloud's API, `https://…`, for private endpoints.");

pub const CREDENTIALS_FILE: Key = key("credentials_file", HostPath, Words("none"), Pass);

pub const ADDRESS: Key = key("address", Word(ADDRESSES), Value("\"private\""), Launch)
    .means("Which address of an instance Greenroom connects to.");

pub const USER: Key = key("user", Text, Value("\"ci\""), Launch)
    .means("Linux user that logs in and runs jobs. The first boot creates a missing one, with `sudo`.")
    .interacts("Idle instances with the earlier user fail their next probe and are replaced.");

pub const SSH_PORT: Key = key("ssh_port", Range(1, 65535), Value("22"), Pass)
    .means("Port of the image's SSH server.")
    .interacts("The network must allow it.");

pub const DISK: Key = key("disk", Size, Words("the size of the image"), Launch)
    .means("Size of the root disk, in whole GiB.")
    .interacts("Must not be smaller than the image.");

pub const DISK_TYPE: Key = key("disk_type", Text, Words("the cloud's default"), Launch);

pub const TAGS: Key = key("tags", Map, Words("none"), Launch);
