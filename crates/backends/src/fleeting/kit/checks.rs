//! What the kit checks: each check has a stable name, the promise behind it, and what to do if it fails.

use greenroom_providers::conformance::report::{Check, CheckGroup, check};

/// All checks, in the order of the report.
pub const CHECKS: &[Check] = &[
    check(
        "call-answers",
        CheckGroup::Calls,
        "The plugin answers each call in time, and survives it.",
        "read the plugin's words below; Greenroom does not know what such a call has done",
    ),
    check(
        "list-states",
        CheckGroup::Calls,
        "Each list has only states that the protocol has.",
        "map each state of the cloud to one of the protocol; Greenroom takes an unknown one for *starting*",
    ),
    check(
        "start",
        CheckGroup::Cheap,
        "The plugin starts, and accepts its configuration with `Init`.",
        "correct `plugin_config`, the credentials, or the version of the plugin",
    ),
    check(
        "group-named",
        CheckGroup::Cheap,
        "`Init` names the group.",
        "answer the group's ID in the cloud: Greenroom's record belongs to a group, and messages name it",
    ),
    check(
        "list",
        CheckGroup::Cheap,
        "`Update` lists the group.",
        "check the plugin's rights and its connection to the cloud",
    ),
    check(
        "end",
        CheckGroup::Cheap,
        "The plugin exits within 2 seconds after go-plugin's controller call `Shutdown`.",
        "handle the controller's call `Shutdown`; otherwise, each stop of the keeper waits, and then kills the plugin",
    ),
    check(
        "start-again",
        CheckGroup::Cheap,
        "A second start has the same group.",
        "derive the group's ID from the configuration alone",
    ),
    check(
        "increase",
        CheckGroup::Live,
        "`Increase` accepts one instance.",
        "check quota, capacity and the plugin's rights",
    ),
    check(
        "increase-listed",
        CheckGroup::Live,
        "A requested instance is listed within the boot timeout.",
        "list instances from their creation on, in state *creating*",
    ),
    check(
        "running",
        CheckGroup::Live,
        "A requested instance is listed as running within the boot timeout.",
        "map the cloud's states; `--boot-timeout` allows more time",
    ),
    check(
        "connect-info",
        CheckGroup::Live,
        "`ConnectInfo` says how an instance is reached: an address, SSH, an account, and credentials that Greenroom can use.",
        "read docs/providers/fleeting.md about logins; `user`, `key_file`, `password_file` and `static_credentials` replace what is missing",
    ),
    check(
        "given-key",
        CheckGroup::Live,
        "`ConnectInfo` gives the key of `Init`'s settings, or none.",
        "set `user` and `static_credentials = true`, which Greenroom's pools of this plugin try by default",
    ),
    check(
        "endpoint-answers",
        CheckGroup::Live,
        "An SSH server answers at the instance's address within the boot timeout.",
        "check the address, the firewall and the image; `use_external_address` selects the other address",
    ),
    check(
        "host-key",
        CheckGroup::Live,
        "The SSH server presents the host key that `host_keys` expects, and the same one each time.",
        "check the certificate or the command; an image must not contain a host key that changes later",
    ),
    check(
        "login",
        CheckGroup::Live,
        "The credentials of `ConnectInfo` can log in.",
        "check `user`, and how the image installs the key",
    ),
    check(
        "heartbeat",
        CheckGroup::Live,
        "`Heartbeat` accepts an instance that accepts logins.",
        "answer success for what runs; Greenroom replaces instances that `Heartbeat` refuses",
    ),
    check(
        "increase-count",
        CheckGroup::Live,
        "As many instances appear as `Increase` has accepted.",
        "answer what was requested from the cloud, neither less nor more",
    ),
    check(
        "list-complete",
        CheckGroup::Live,
        "Each list has every instance that was not removed.",
        "read all pages; end the stream with an error if a part cannot be read",
    ),
    check(
        "restart-listed",
        CheckGroup::Live,
        "A plugin that was killed lists the same instances after its next start.",
        "ask the cloud in each `Update`, instead of the process's memory",
    ),
    check(
        "restart-login",
        CheckGroup::Live,
        "The next start of the plugin can log in to the instances of the earlier one.",
        "use the key of `Init`'s settings for new instances, instead of one that is created at each start; or set \
         `static_credentials`",
    ),
    check(
        "suspend",
        CheckGroup::Live,
        "`Suspend` stops an instance, which is then listed as suspended.",
        "leave out the capability `suspend_resume`, or show the states *suspending* and *suspended*",
    ),
    check(
        "resume",
        CheckGroup::Live,
        "`Resume` starts a suspended instance, which then accepts logins.",
        "answer the new address in `ConnectInfo` if the cloud gives another one",
    ),
    check(
        "decrease",
        CheckGroup::Live,
        "`Decrease` accepts the removal of an instance.",
        "answer the IDs whose removal was requested from the cloud",
    ),
    check(
        "decrease-ends",
        CheckGroup::Live,
        "A removed instance is no longer listed, or is listed as deleted, within the end timeout.",
        "remove instances also from the group's list; `--end-timeout` allows more time",
    ),
    check(
        "decrease-spares-others",
        CheckGroup::Live,
        "`Decrease` ends only the instances of its request.",
        "pass the exact IDs to the cloud, instead of a new size of the group",
    ),
    check(
        "decrease-gone",
        CheckGroup::Live,
        "`Decrease` of an instance that is gone ends nothing, and the plugin survives it.",
        "leave an unknown ID out of the answer: Greenroom repeats a removal whose answer was lost",
    ),
    check(
        "nothing-left",
        CheckGroup::Live,
        "At the end, the group has no instances.",
        "look into the cloud's console, and run the command with `--clean`",
    ),
];

#[cfg(test)]
mod tests {
    use super::CHECKS;
    use greenroom_harness::kit_page::hold_to_page;

    #[test]
    fn the_documentation_lists_the_same_checks() {
        hold_to_page(CHECKS, include_str!("../../../../../docs/providers/fleeting-kit.md"));
    }
}
