//! Pods for single jobs: the images that jobs may name, and the resources of their services.

use greenroom_core::container::ordering::{AllowedOrders, OrderSettings};
use greenroom_core::container::settings::PullPolicy;
use greenroom_core::glob::{self, Glob};
use greenroom_keys::table::Table;

use super::placement::Placement;
use super::settings::{PULL, checked_quantity, milli};

/// Keys without effect if jobs cannot have pods of their own.
const DEPENDENT: [&str; 7] = [
    "images",
    "services",
    "services_limit",
    "allowed_pull_policies",
    "service_cpu",
    "service_cpu_limit",
    "service_memory",
];

/// The limits of what jobs may order, and the resources of each of their services.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Orders {
    pub(super) settings: OrderSettings,
    pub(super) service_cpu: Option<String>,
    pub(super) service_cpu_limit: Option<String>,
    /// Reserved, and the limit.
    pub(super) service_memory: Option<String>,
}

/// `None`: jobs get the pool's own pods only.
pub(super) fn read(table: &Table<'_>, placements: &[Placement], pull: Option<&str>) -> Option<Orders> {
    let globs = |key| {
        let texts = table.texts(key).into_value()?;
        table.check_each(key, &texts, glob::pattern);
        Some(texts.iter().map(|(text, _)| Glob::new(text)).collect())
    };
    let amount = |key| table.parsed(key, table.text(key), |text| checked_quantity(&text)).into_value();
    let allowed = AllowedOrders {
        images: globs("images"),
        services: globs("services"),
        services_limit: table.count("services_limit").into_value(),
        pull_policies: pull_policies(table, pull),
        may_be_privileged: table.has("pod"),
    };
    let service_cpu = amount("service_cpu");
    let service_memory = amount("service_memory");
    let service_cpu_limit = amount("service_cpu_limit");
    let milli = |amount: &Option<String>| amount.as_deref().and_then(milli);
    if let (Some(reserved), Some(limit)) = (milli(&service_cpu), milli(&service_cpu_limit))
        && limit < reserved
    {
        table.refuse("service_cpu_limit", "is less than `service_cpu`");
    }
    if !table.flag("image_from_job").or_declared() {
        for key in DEPENDENT.into_iter().filter(|key| table.has(key)) {
            table.refuse(key, "has no effect without `image_from_job = true`");
        }
        return None;
    }
    if !table.has("server_image") {
        table.refuse(
            "image_from_job",
            "requires `server_image`, because images of jobs have no SSH server: build and name its image",
        );
    }
    let own = placements.iter().map(|placement| placement.image.clone()).collect();
    let settings = OrderSettings::new(own, allowed);
    Some(Orders { settings, service_cpu, service_cpu_limit, service_memory })
}

/// The pull policies that jobs may name; by default those that Kubernetes itself chooses from.
fn pull_policies(table: &Table<'_>, pull: Option<&str>) -> Vec<PullPolicy> {
    let words = table.words("allowed_pull_policies").into_value();
    let words = words.map(|words| words.into_iter().filter_map(|word| named(&PullPolicy::NAMES, word)));
    let default = || match pull.and_then(|word| named(PULL, word)) {
        Some(policy) => vec![policy],
        None => vec![PullPolicy::Always, PullPolicy::IfNotPresent],
    };
    words.map_or_else(default, Iterator::collect)
}

/// The policy with this name among the names of all, in their order.
fn named(names: &[&str], word: &str) -> Option<PullPolicy> {
    let found = PullPolicy::ALL.into_iter().zip(names).find(|(_, name)| **name == word);
    found.map(|(policy, _)| policy)
}

#[cfg(test)]
mod tests {
    use greenroom_core::container::judge::JobContext;
    use greenroom_core::container::request::{ContainerRequest, ImageRequest};
    use greenroom_core::ids::PoolName;

    use super::super::settings::Settings;
    use super::*;

    fn read(text: &str) -> Result<Option<Orders>, String> {
        let table = format!("namespace = \"ci\"\nimage = \"ci:12\"\n{text}").parse().unwrap();
        let settings = Settings::read(&PoolName::new("linux"), &table);
        settings.map(|settings| settings.orders).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn jobs_order_only_where_the_table_says_so() {
        assert_eq!(read(""), Ok(None));
        assert_eq!(read("image_from_job = false\nserver_image = \"s\""), Ok(None));
        let orders = read(
            "image_from_job = true\nserver_image = \"s\"\nimages = \"ruby:*\"\nservice_memory = \"1Gi\"",
        );
        assert_eq!(orders.unwrap().unwrap().service_memory.as_deref(), Some("1Gi"));
        for (text, expected) in [
            ("image_from_job = true", "`image_from_job` requires `server_image`, because"),
            ("images = \"ruby:*\"", "`images` has no effect without `image_from_job = true`"),
            (
                "service_cpu_limit = \"1\"",
                "`service_cpu_limit` has no effect without `image_from_job = true`",
            ),
            (
                "image_from_job = true\nserver_image = \"s\"\nservice_cpu = \"2\"\nservice_cpu_limit = \"1\"",
                "`service_cpu_limit` is less than `service_cpu`",
            ),
            ("service_cpu = \"1\"", "`service_cpu` has no effect without `image_from_job = true`"),
            (
                "image_from_job = true\nserver_image = \"s\"\nservices = [\"a[b]\"]",
                "`services` contains `[`, but patterns know only `*`, `**` and `?`",
            ),
            (
                "image_from_job = true\nserver_image = \"s\"\nservice_memory = \"1 GB\"",
                "`service_memory` is \"1 GB\", expected a quantity",
            ),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.contains(expected), "{text}: {wrong}");
        }
    }

    #[test]
    fn pull_policies_are_those_of_the_pool_unless_it_names_more() {
        for (text, word, expected) in [
            ("", "always", Some(PullPolicy::Always)),
            ("", "if-not-present", Some(PullPolicy::IfNotPresent)),
            ("", "never", None),
            ("image_pull_policy = \"Never\"", "never", Some(PullPolicy::Never)),
            ("image_pull_policy = \"Always\"", "if-not-present", None),
            (
                "image_pull_policy = \"Always\"\nallowed_pull_policies = \"never\"",
                "never",
                Some(PullPolicy::Never),
            ),
        ] {
            let orders =
                read(&format!("image_from_job = true\nserver_image = \"s\"\n{text}")).unwrap().unwrap();
            let image = ImageRequest {
                name: "ruby".to_owned(),
                pull_policy: vec![word.to_owned()],
                ..ImageRequest::default()
            };
            let request = ContainerRequest { image: Some(image), ..ContainerRequest::default() };
            let judged = orders.settings.judge(&request, &JobContext::default(), &[]).ok().flatten();
            assert_eq!(judged.and_then(|order| order.launch.pull_policy), expected, "{text} {word}");
        }
    }
}
