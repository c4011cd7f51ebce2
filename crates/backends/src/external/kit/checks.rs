//! What the kit checks: each check has a stable name, the promise behind it, and what to do if it fails.

use greenroom_providers::conformance::report::{Check, CheckGroup, check};

/// All checks, in the order of the report.
pub(super) const CHECKS: &[Check] = &[
    check(
        "call-in-time",
        CheckGroup::Calls,
        "Each call ends within its time limit.",
        "pass time limits to the tools that the program calls; return from `launch` and `terminate` without waiting for \
         the machine",
    ),
    check(
        "call-output-limit",
        CheckGroup::Calls,
        "The output of each call stays below the limit.",
        "print the answer and nothing else to standard output; the log goes to standard error",
    ),
    check(
        "call-one-document",
        CheckGroup::Calls,
        "Standard output has exactly one JSON object.",
        "redirect the output of the tools that the program calls to standard error",
    ),
    check(
        "call-exit-code",
        CheckGroup::Calls,
        "Each call ends with 0 and an answer, or with a documented exit code.",
        "catch the error in the program, print its reason as `{\"error\": …}`, and end with the code of its class: 10 to 16",
    ),
    check(
        "call-error-exit-code",
        CheckGroup::Calls,
        "An answer with exit code 0 has no `error`.",
        "end with the exit code of the error's class; in a shell script, check the status of each command",
    ),
    check(
        "call-error-reason",
        CheckGroup::Calls,
        "An exit code other than 0 comes with its reason: `{\"error\": …}`.",
        "print the reason to standard output, as one JSON object; `explain` and `pool status` show it",
    ),
    check(
        "call-no-process-left",
        CheckGroup::Calls,
        "No process of a call outlives it.",
        "wait for child processes; give a daemon a session of its own (`setsid`) and close its standard streams",
    ),
    check(
        "call-keeps-secrets",
        CheckGroup::Calls,
        "The host key and other secrets appear neither in the log nor in answers.",
        "remove `set -x` and messages that print the request",
    ),
    check(
        "capabilities",
        CheckGroup::Cheap,
        "`capabilities` describes the program with the fields of the protocol.",
        "compare the answer with the table of `capabilities` in docs/providers/external.md",
    ),
    check(
        "protocol-version",
        CheckGroup::Cheap,
        "`capabilities` chooses one of the protocol versions that the request offers.",
        "answer `\"protocol\": 1`",
    ),
    check(
        "protocol-claimed",
        CheckGroup::Cheap,
        "The program claims no protocol version that it cannot have.",
        "answer the version that the program implements, whatever the request offers",
    ),
    check(
        "verb-unknown",
        CheckGroup::Cheap,
        "An unknown verb is refused with exit code 14.",
        "end with 14 in the default branch: a later version of Greenroom may call verbs that the program lacks",
    ),
    check(
        "request-unreadable",
        CheckGroup::Cheap,
        "A request that is not valid JSON is refused with exit code 14.",
        "parse all of standard input before doing anything, and end with exit code 14 if that fails",
    ),
    check(
        "settings-checked",
        CheckGroup::Cheap,
        "A setting that the program does not have is refused with exit code 14.",
        "compare the names in `settings` with those that the program reads: otherwise, a typing mistake stays unnoticed",
    ),
    check(
        "list-of-unknown-pool",
        CheckGroup::Cheap,
        "The list of a pool without machines is complete, and has no machine with that pool's tag.",
        "answer `\"complete\": true, \"machines\": []` if the cloud has none, and the tags of each machine as they are",
    ),
    check(
        "list-concurrent",
        CheckGroup::Cheap,
        "Concurrent calls of `list` all answer.",
        "let calls wait for a lock instead of failing, and use no fixed name for temporary files",
    ),
    check(
        "endpoint-unknown",
        CheckGroup::Cheap,
        "`endpoint` of an unknown machine is refused with exit code 10, or 14 if its ID is impossible.",
        "map the cloud's *not found* to exit code 10",
    ),
    check(
        "console-unknown",
        CheckGroup::Cheap,
        "`console` of an unknown machine is refused with exit code 10, or 14 if its ID is impossible.",
        "map the cloud's *not found* to exit code 10",
    ),
    check(
        "terminate-unknown",
        CheckGroup::Cheap,
        "`terminate` of an unknown machine is refused with exit code 10, or 14 if its ID is impossible.",
        "answer `gone` only if the cloud shows the machine as terminated; map *not found* to exit code 10",
    ),
    check(
        "delete-unknown",
        CheckGroup::Cheap,
        "`delete` of an unknown resource is refused with exit code 10, or 14 if its ID is impossible.",
        "map the cloud's *not found* to exit code 10",
    ),
    check(
        "resources-of-unknown-pool",
        CheckGroup::Cheap,
        "The resources of a pool without any are complete and empty.",
        "filter by the request's `pool`",
    ),
    check(
        "examine",
        CheckGroup::Cheap,
        "`examine` answers with findings.",
        "compare the answer with the table of `examine` in docs/providers/external.md",
    ),
    check(
        "launch",
        CheckGroup::Live,
        "`launch` answers with the ID of a machine.",
        "call `launch` by hand with the request below, and read the log",
    ),
    check(
        "launch-listed",
        CheckGroup::Live,
        "A launched machine is listed within `appears_within_s`.",
        "set `appears_within_s` to the time after which a new machine is certainly listed",
    ),
    check(
        "identity-exact",
        CheckGroup::Live,
        "A machine is listed with the tags of its launch, or with its name, unchanged.",
        "store every tag as it is given; if the cloud cannot, answer `\"identity\": \"names\"`",
    ),
    check(
        "list-complete",
        CheckGroup::Live,
        "Each list that says `\"complete\": true` has every machine that an earlier list had.",
        "read all pages; answer `\"complete\": false` if a part could not be read",
    ),
    check(
        "list-other-pools",
        CheckGroup::Live,
        "A list has no machine of another pool, at least not as one of its own.",
        "filter by the tag `greenroom-pool`, and answer the tags of each machine as they are",
    ),
    check(
        "list-other-owners",
        CheckGroup::Live,
        "A list has the pool's machines of every owner.",
        "filter by the tag `greenroom-pool` alone: Greenroom compares the owner itself",
    ),
    check(
        "launch-repeated",
        CheckGroup::Live,
        "A second launch with the same token creates no second machine.",
        "pass the token to the cloud, or look for a machine with it before creating one; if neither is possible, answer \
         `\"idempotent_launch\": false`",
    ),
    check(
        "launch-concurrent",
        CheckGroup::Live,
        "Concurrent launches create one machine for each token.",
        "take a lock for each token, or let the cloud compare tokens",
    ),
    check(
        "launch-refusal",
        CheckGroup::Live,
        "A launch that is refused with exit code 11 or 12 has created no machine, nor has an earlier call with its token.",
        "look for the machine of the token first, then for quota and capacity",
    ),
    check(
        "launch-killed",
        CheckGroup::Live,
        "A launch that is killed at any moment leaves at most one machine, which a repeat finds and lists show.",
        "record the token before the machine is created, or with it in one call; never only afterwards",
    ),
    check(
        "launch-answer-lost",
        CheckGroup::Live,
        "A machine whose launch got no answer is listed, and a repeat answers with its ID.",
        "store the token with the machine, and look for it before creating one",
    ),
    check(
        "offering-unknown",
        CheckGroup::Live,
        "A launch with an unknown offering is refused with exit code 14 and creates no machine.",
        "compare `offering` with the names in `capabilities` before anything is created",
    ),
    check(
        "ids-unique",
        CheckGroup::Live,
        "The ID of a machine is never used for another one.",
        "use the cloud's own IDs, not counters or names that become free",
    ),
    check(
        "list-offline",
        CheckGroup::Live,
        "Without a network, `list` fails, says `\"complete\": false`, or has every machine.",
        "end with exit code 16 if the cloud cannot be reached; in a shell script, check the status of each command of a \
         pipeline",
    ),
    check(
        "endpoint-answers",
        CheckGroup::Live,
        "An SSH server answers at the machine's address within the boot timeout.",
        "check the address, the port, the firewall and the console; `--boot-timeout` allows more time",
    ),
    check(
        "host-key",
        CheckGroup::Live,
        "The SSH server presents the host key that the launch, the list or the console names, or a certificate for it.",
        "install the `host_key` of the launch, for example by `user_data`; or answer with the real key in `list`",
    ),
    check(
        "login",
        CheckGroup::Live,
        "The launch's `authorized_key` can log in.",
        "name the account with `--user`, and install `authorized_key` for it, for example by `user_data`",
    ),
    check(
        "running-listed",
        CheckGroup::Live,
        "A machine that accepts logins is listed as `running`.",
        "map each state of the cloud; `pending`, `refused` and `starting` are for machines that do not run yet",
    ),
    check(
        "console",
        CheckGroup::Live,
        "`console` answers with the end of the machine's console, at most 64 KiB.",
        "cut the text at its beginning",
    ),
    check(
        "resources",
        CheckGroup::Live,
        "`resources` is complete, and has only what belongs to the pool's machines.",
        "filter by the tag `greenroom-pool`",
    ),
    check(
        "terminate-unknown-live",
        CheckGroup::Live,
        "`terminate` of an unknown machine is refused with exit code 10 or 14 and ends no other machine.",
        "look for the exact ID; answer 10 if it is not found",
    ),
    check(
        "terminate",
        CheckGroup::Live,
        "`terminate` answers `stopping` or `gone`, until the machine is gone.",
        "request the termination and return; answer `gone` only if the cloud shows that the machine is gone",
    ),
    check(
        "terminate-ends",
        CheckGroup::Live,
        "A machine that `terminate` calls `gone` is not listed as running, and does not answer.",
        "answer `stopping` as long as the machine exists",
    ),
    check(
        "terminate-repeated",
        CheckGroup::Live,
        "`terminate` of a machine that is gone answers `gone`, or is refused with exit code 10.",
        "make `terminate` repeatable: Greenroom calls it until the machine is gone",
    ),
    check(
        "terminate-spares-others",
        CheckGroup::Live,
        "`terminate` ends only the machine of its request.",
        "look for the exact ID, not for a prefix or a pool",
    ),
    check(
        "deleted-elsewhere",
        CheckGroup::Live,
        "A machine that is deleted without the program is no longer listed as running, and `terminate` does not fail.",
        "ask the cloud in each call, instead of a file of the program's own",
    ),
    check(
        "lifetime",
        CheckGroup::Live,
        "A machine ends by itself after `lifetime_s`, if the program says `\"lifetime\": true`.",
        "pass `lifetime_s` to the cloud, or answer `\"lifetime\": false`",
    ),
    check(
        "nothing-left",
        CheckGroup::Live,
        "At the end, neither `list` nor `resources` has anything of the kit's pools.",
        "delete disks and addresses with their machine, or offer `delete`; run the command with `--clean`",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_harness::kit_page::hold_to_page;

    #[test]
    fn the_documentation_lists_the_same_checks() {
        let page = include_str!("../../../../../docs/providers/external-kit.md");
        hold_to_page(CHECKS, page);
        let rows =
            page.lines().filter(|line| line.starts_with("| `call-") || line.starts_with("| `launch")).count();
        let listed =
            CHECKS.iter().filter(|check| check.name.starts_with("call-") || check.name.starts_with("launch"));
        assert_eq!(rows, listed.count(), "the page lists a check that does not exist");
    }
}
