//! Orphaned resources, for a terminal.

use greenroom_core::inventory::Resource;
use greenroom_core::orphan::{Ownership, instance_of};

use super::view::{PoolView, ResourceView};
use crate::cli::rows::{Rows, wrapped};
use crate::cli::ui::plural;
use crate::cli::when::whole;

/// All resources: orphaned ones first, then those that are not counted; recorded ones as a number.
pub(super) fn found(seen: &PoolView, width: usize) -> String {
    let mut text = head(seen);
    text.push_str(&table(seen, width, |ownership| matches!(ownership, Ownership::Orphaned(_))));
    let others =
        table(seen, width, |ownership| !matches!(ownership, Ownership::Orphaned(_) | Ownership::Recorded));
    if !others.is_empty() {
        text.push_str("\nnot counted, and left alone:\n");
        text.push_str(&others);
    }
    if seen.unknown_generation > 0 {
        let error = "error: a copy of this state directory is in use, or a part of the directory is lost: nothing of this \
                     pool is deleted while such resources exist";
        let help =
            "help: stop the keeper of the copy; if there is none, delete these resources at the provider";
        text.push_str(&alarm(error, help, width));
    }
    if seen.copied > 0 {
        let error = "error: resources bear this owner's tags, but Greenroom did not launch them: copies of an instance, as \
                     the console's `Launch more like this` makes them. They cost money, and Greenroom never touches them";
        let help = "help: delete them at the provider, or remove their tags `greenroom-…`";
        text.push_str(&alarm(error, help, width));
    }
    text
}

fn alarm(error: &str, help: &str, width: usize) -> String {
    format!("\n{}{}", wrapped(error, width, "  ", "    "), wrapped(help, width, "  ", "    "))
}

/// The result in one line.
pub(super) fn head(seen: &PoolView) -> String {
    let recorded = seen.resources.iter().filter(|one| one.ownership == Ownership::Recorded).count();
    let left = match seen.orphaned {
        0 => "no orphaned resources".to_owned(),
        count => plural(count, "orphaned resource"),
    };
    format!("pool {}: {left}, {recorded} recorded\n", seen.pool)
}

fn table(seen: &PoolView, width: usize, is: impl Fn(Ownership) -> bool) -> String {
    let mut rows = Rows::new(&["KIND", "NAME", "INSTANCE", "AGE"]);
    for one in seen.resources.iter().filter(|one| is(one.ownership)) {
        let instance = one.instance.as_ref().map_or("-".to_owned(), ToString::to_string);
        let age = one.age_s.map_or("-".to_owned(), |age| whole(age).to_string());
        rows.row(vec![one.kind.to_string(), one.name.clone(), instance, age], vec![sentence(one)]);
    }
    if rows.is_empty() { String::new() } else { rows.render(width) }
}

/// With the provider's detail.
fn sentence(one: &ResourceView) -> String {
    match &one.detail {
        Some(detail) => format!("{} ({detail})", one.reason),
        None => one.reason.clone(),
    }
}

/// `instance i-0a1b2c3d (linux-7f3a01c2-12)`.
pub(super) fn named(resource: &Resource) -> String {
    let Resource { kind, name, .. } = resource;
    match instance_of(resource) {
        Some(id) if id.as_str() != name => format!("{kind} {name} ({id})"),
        _ => format!("{kind} {name}"),
    }
}
