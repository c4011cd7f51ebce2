//! `pool status`: instances, waiting jobs and the active policy.

mod bar;
pub(in crate::cli) mod command;
pub(in crate::cli) mod links;
mod ordered;
mod reason;
mod text;
mod until;
mod view;
pub mod watch;

use serde_json::{Value, json};

use crate::cli::when::When;

pub(crate) use reason::{hosts, is_suspended, job_on_what, on_what};
pub use view::{ContainerUse, KeeperStatus, StatusInput};
pub(crate) use view::{InstanceView, LaunchBackoff, offerings};

use view::PoolView;

/// One pool as text, for a terminal of `width` columns. Ends with a newline.
pub fn render(input: StatusInput<'_>, when: &When, width: usize) -> String {
    text::text(&PoolView::of(input, when), when, width, None)
}

/// The same for a screen: what is many is counted. `lines`: about how many there is room for; `None`, any number. `bar`:
/// with a bar of the pool's slots.
pub fn render_on(
    input: StatusInput<'_>,
    when: &When,
    (width, lines): (usize, Option<usize>),
    bar: bool,
) -> String {
    let view = PoolView::of(input, when);
    let bar = if bar { bar::bar(&input, width) } else { String::new() };
    let text = text::text(&view, when, width, lines.map(|lines| lines.saturating_sub(bar.lines().count())));
    match text.split_once('\n') {
        Some((first, rest)) => format!("{first}\n{bar}{rest}"),
        None => text,
    }
}

/// One pool as JSON.
pub fn as_json(input: StatusInput<'_>, when: &When) -> Value {
    json!(PoolView::of(input, when))
}

#[cfg(test)]
mod screen_tests;
#[cfg(test)]
mod tests;
