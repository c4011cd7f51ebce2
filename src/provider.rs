//! The list of providers of this program.
//!
//! Adding one: a folder in `crates/providers/` or `crates/backends/`, its name in `providers!`, a fixture of its contract.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::OnceLock;

use greenroom_backends::{aws_ec2, external, fleeting, gce, kubernetes, program};
use greenroom_keys::KeyTable;
use greenroom_keys::near::nearest_or_all;
use greenroom_keys::problem::Problem;
use greenroom_providers::registration::Registration;
use greenroom_providers::{local, qemu, static_hosts};

/// The lists: first the providers whose calls both programs make, then those of `greenroom-backends`.
macro_rules! providers {
    ([$($here:ident),*], [$($delegated:ident),*]) => {
        /// All providers, those of clouds without their calls: for a program that has to start fast.
        pub const WITHOUT_BACKENDS: &[Registration] =
            &[$($here::REGISTRATION,)* $($delegated::REGISTRATION),*];

        /// All providers, with the cloud calls that were compiled in.
        pub const WITH_BACKENDS: &[Registration] = &[$($here::REGISTRATION,)* $($delegated::WITH_CALLS),*];

        /// The keys of every provider: first those of its table, then those of inner tables. For docs/configuration.md;
        /// each provider reads its table by its own.
        pub const KEYS: &[(&str, &[KeyTable])] = &[
            $(($here::REGISTRATION.kind, $here::KEYS),)*
            $(($delegated::REGISTRATION.kind, $delegated::KEYS)),*
        ];
    };
}

providers!([local, qemu, static_hosts], [aws_ec2, gce, external, fleeting, kubernetes]);

/// All providers in the order in which a person reads about them: the usual choices first.
const IN_HELP: [&Registration; 8] = [
    &qemu::REGISTRATION,
    &static_hosts::REGISTRATION,
    &local::REGISTRATION,
    &aws_ec2::REGISTRATION,
    &gce::REGISTRATION,
    &kubernetes::REGISTRATION,
    &external::REGISTRATION,
    &fleeting::REGISTRATION,
];

/// The kinds of all providers, for a help text: `qemu, static … or fleeting`.
pub fn kinds_in_help() -> String {
    alternatives(IN_HELP.map(|known| known.kind))
}

/// The usual names of pools, in the order of [`kinds_in_help`]; providers may share one.
pub fn pool_names_in_help() -> String {
    alternatives(IN_HELP.map(|known| known.first_pool.name))
}

/// The texts as a list, each once.
fn alternatives<const N: usize>(texts: [&str; N]) -> String {
    let mut once: Vec<&str> = Vec::new();
    for text in texts {
        if !once.contains(&text) {
            once.push(text);
        }
    }
    match once.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The providers of this program, once [`install`] has set them.
static PROVIDERS: OnceLock<&'static [Registration]> = OnceLock::new();

/// Sets the providers of this program; the first call counts. The default is [`WITHOUT_BACKENDS`].
pub fn install(providers: &'static [Registration]) {
    PROVIDERS.set(providers).ok();
}

/// True for the program with the calls that were compiled in.
pub fn has_calls() -> bool {
    PROVIDERS.get().is_some()
}

/// Every provider that this program has.
pub fn all() -> &'static [Registration] {
    PROVIDERS.get().copied().unwrap_or(WITHOUT_BACKENDS)
}

/// True if a provider needs an environment variable in the keeper.
pub fn needs_variable(name: &str) -> bool {
    all().iter().any(|known| known.environment.contains(&name))
}

/// The hidden command `instance`, which runs a process of a provider's; `arguments` follow its name.
pub fn instance(arguments: &[OsString]) -> ExitCode {
    match arguments.split_first() {
        Some((kind, rest)) if kind == qemu::REGISTRATION.kind => qemu::process::main(rest),
        Some((kind, rest)) if kind == program::guard::KIND => program::guard::main(rest),
        Some((kind, rest)) if kind == fleeting::plugin_guard::KIND => fleeting::plugin_guard::main(rest),
        _ => local::server::main(arguments),
    }
}

/// The provider of a kind; the error suggests the most similar one.
pub fn find(kind: &str) -> Result<&'static Registration, Problem> {
    all().iter().find(|known| known.kind == kind).ok_or_else(|| {
        let kinds = all().iter().map(|known| known.kind);
        Problem::new(format!("there is no provider `{kind}`")).help(nearest_or_all(kind, kinds))
    })
}

#[cfg(test)]
mod tests {
    use greenroom_providers::registration::Calls;

    use super::*;

    #[test]
    fn an_unknown_kind_names_the_nearest_one() {
        assert_eq!(find("local").unwrap().kind, "local");
        let error = |kind| find(kind).unwrap_err().to_string();
        assert_eq!(error("locla"), "there is no provider `locla` (did you mean `local`?)");
        let all = "there is no provider `0` (name one of `local`, `qemu`, `static`, `aws-ec2`, `gce`, `external`, `fleeting`, `kubernetes`)";
        assert_eq!(error("0"), all);
    }

    #[test]
    fn help_texts_have_each_provider() {
        for provider in WITHOUT_BACKENDS {
            assert!(IN_HELP.iter().any(|known| known.kind == provider.kind), "{}", provider.kind);
        }
        assert_eq!(kinds_in_help(), "qemu, static, local, aws-ec2, gce, kubernetes, external or fleeting");
        assert_eq!(pool_names_in_help(), "vm, hosts, local, ec2, gce, pods or machines");
    }

    #[test]
    fn kinds_are_unique_and_examples_parse() {
        for (at, provider) in all().iter().enumerate() {
            assert!(all()[..at].iter().all(|other| other.kind != provider.kind), "{}", provider.kind);
            assert!(provider.example.parse::<toml::Table>().is_ok(), "{}", provider.kind);
        }
    }

    #[test]
    fn every_cloud_has_a_lifetime_and_no_other_provider_has() {
        for provider in WITHOUT_BACKENDS {
            let is_cloud = provider.calls == Calls::Delegated;
            assert_eq!(provider.lifetime.is_some(), is_cloud, "{}", provider.kind);
        }
    }
}
