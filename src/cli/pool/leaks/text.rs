//! Orphaned resources, for a terminal.

use super::{Deletion, Seen};
use crate::cli::rows::{Rows, wrapped};
use crate::cli::ui::plural;
use crate::cli::when::When;
use crate::core::inventory::Resource;
use crate::core::orphan::{Ownership, instance_of};

/// All resources: orphaned ones first, then those that are not counted; recorded ones as a number.
pub(super) fn found(seen: &Seen, when: &When, width: usize) -> String {
    let mut text = head(seen);
    text.push_str(&table(seen, when, width, |ownership| matches!(ownership, Ownership::Orphaned(_))));
    let others = table(seen, when, width, |ownership| {
        !matches!(ownership, Ownership::Orphaned(_) | Ownership::Recorded)
    });
    if !others.is_empty() {
        text.push_str("\nnot counted, and left alone:\n");
        text.push_str(&others);
    }
    if seen.has_strangers() {
        let error = "error: a copy of this state directory is in use, or a part of the directory is lost: nothing of this \
                     pool is deleted while such resources exist";
        let help =
            "help: stop the keeper of the copy; if there is none, delete these resources at the provider";
        text.push('\n');
        text.push_str(&wrapped(error, width, "  ", "    "));
        text.push_str(&wrapped(help, width, "  ", "    "));
    }
    text
}

/// The result in one line.
pub(super) fn head(seen: &Seen) -> String {
    let recorded = seen.that_are(|ownership| ownership == Ownership::Recorded).count();
    let left = match seen.orphans().len() {
        0 => "no orphaned resources".to_owned(),
        count => plural(count, "orphaned resource"),
    };
    format!("pool {}: {left}, {recorded} recorded\n", seen.pool)
}

fn table(seen: &Seen, when: &When, width: usize, is: impl Fn(Ownership) -> bool) -> String {
    let mut rows = Rows::new(&["KIND", "NAME", "INSTANCE", "AGE"]);
    for (resource, ownership) in seen.that_are(is) {
        let instance = instance_of(resource).map_or("-".to_owned(), |id| id.to_string());
        let age = resource.created.map_or("-".to_owned(), |at| when.age(at).to_string());
        let cells = vec![resource.kind.to_string(), resource.name.clone(), instance, age];
        rows.row(cells, vec![sentence(seen, resource, *ownership)]);
    }
    if rows.is_empty() { String::new() } else { rows.render(width) }
}

/// With the provider's detail.
fn sentence(seen: &Seen, resource: &Resource, ownership: Ownership) -> String {
    let why = seen.why(resource, ownership);
    match &resource.detail {
        Some(detail) => format!("{why} ({detail})"),
        None => why,
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

/// The plan of a dry run.
pub(super) fn plan(deletion: &Deletion) -> String {
    deletion
        .gone
        .iter()
        .fold(String::new(), |text, resource| text + "would delete " + &named(resource) + "\n")
}
