//! The offerings of a table: kinds of nodes on which pods may run.

use greenroom_keys::table::{Table, Texts};
use greenroom_keys::value_error::{Got, ValueError};
use serde::{Deserialize, Serialize};

use crate::cloud::offerings::Offering;

/// Maximum number of offerings, as for clouds.
const MAX_OFFERINGS: usize = 200;
/// The name of the only offering of a table without `offering`.
const ONLY: &str = "default";
/// Greenroom itself tolerates these taints, for 30 s.
const OWN_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// A tolerated taint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Toleration {
    pub(super) key: String,
    /// `None`: any value.
    pub(super) value: Option<String>,
    /// `None`: any effect.
    pub(super) effect: Option<String>,
}

/// An offering: a kind of node, and the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) node_selector: Vec<(String, String)>,
    pub(super) tolerations: Vec<Toleration>,
    pub(super) runtime_class: Option<String>,
    pub(super) priority_class: Option<String>,
    pub(super) architecture: Option<String>,
}

impl Placement {
    pub(super) fn offering(&self) -> Offering {
        Offering::named(&self.name)
    }
}

/// The content of one table, which may be incomplete.
#[derive(Debug, Clone)]
struct Partial {
    image: Got<String>,
    node_selector: Got<Vec<(String, String)>>,
    tolerations: Got<Texts>,
    runtime_class: Got<String>,
    priority_class: Got<String>,
    architecture: Got<String>,
}

impl Partial {
    fn read(table: &Table<'_>) -> Self {
        Self {
            image: table.parsed("image", table.text("image"), image),
            node_selector: table.map("node_selector"),
            tolerations: table.texts("tolerations"),
            runtime_class: table.parsed("runtime_class", table.text("runtime_class"), name),
            priority_class: table.parsed("priority_class", table.text("priority_class"), name),
            architecture: table.parsed("architecture", table.text("architecture"), name),
        }
    }

    fn or(&self, other: &Self) -> Self {
        Self {
            image: self.image.over(&other.image).clone(),
            node_selector: self.node_selector.over(&other.node_selector).clone(),
            tolerations: self.tolerations.over(&other.tolerations).clone(),
            runtime_class: self.runtime_class.over(&other.runtime_class).clone(),
            priority_class: self.priority_class.over(&other.priority_class).clone(),
            architecture: self.architecture.over(&other.architecture).clone(),
        }
    }

    fn placement(self, name: String, table: &Table<'_>) -> Placement {
        let image = table.required("image", self.image, "name the image of the container that jobs run in");
        let tolerations = self.tolerations.or_default();
        table.check_each("tolerations", &tolerations, |text| toleration(text).map(drop));
        Placement {
            name,
            image: image.or_default(),
            node_selector: self.node_selector.or_default(),
            tolerations: tolerations.iter().filter_map(|(text, _)| toleration(text).ok()).collect(),
            runtime_class: self.runtime_class.into_value(),
            priority_class: self.priority_class.into_value(),
            architecture: self.architecture.into_value(),
        }
    }
}

/// All offerings of a table, the preferred one first; at least one.
pub(super) fn read(table: &Table<'_>) -> Vec<Placement> {
    let common = Partial::read(table);
    let inner = table.tables("offering").or_default();
    if inner.is_empty() {
        return vec![common.placement(ONLY.to_owned(), table)];
    }
    if inner.len() > MAX_OFFERINGS {
        table.refuse("offering", format!("has {} entries, expected at most {MAX_OFFERINGS}", inner.len()));
    }
    let mut placements: Vec<Placement> = Vec::new();
    for one in &inner {
        let name =
            one.required("name", one.text("name"), "name the offering, as messages show it").or_default();
        if placements.iter().any(|known| !name.is_empty() && known.name == name) {
            one.refuse("name", "is also that of another offering");
        }
        placements.push(Partial::read(one).or(&common).placement(name, one));
    }
    placements
}

/// The name of an object of Kubernetes.
pub(super) fn name(text: String) -> Result<String, ValueError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = text.len() <= 253 && text.chars().all(plain) && text.starts_with(ends) && text.ends_with(ends);
    if fits {
        return Ok(text);
    }
    Err(ValueError::value(text, "a name of lower-case letters, digits, `-` and `.`"))
}

/// An image's name, which Kubernetes itself judges further.
pub(super) fn image(text: String) -> Result<String, ValueError> {
    if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(ValueError::value(text, "the name of an image"));
    }
    Ok(text)
}

/// `key=value:Effect`, `key:Effect` or `key`.
fn toleration(text: &str) -> Result<Toleration, ValueError> {
    let (taint, effect) = match text.trim().split_once(':') {
        Some((taint, effect)) => (taint, Some(effect)),
        None => (text.trim(), None),
    };
    if effect.is_some_and(|effect| !EFFECTS.contains(&effect)) {
        return Err(ValueError::unusable_entry(
            text,
            format!("whose effect is none of {}", EFFECTS.join(", ")),
        ));
    }
    let (key, value) = match taint.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (taint, None),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if key.is_empty() || !key.chars().all(plain) || !value.unwrap_or_default().chars().all(plain) {
        return Err(ValueError::entry(text, "taints such as \"spot=true:NoSchedule\" or \"spot\""));
    }
    if OWN_TAINTS.contains(&key) {
        return Err(ValueError::unusable_entry(text, "which Greenroom itself tolerates for 30 s"));
    }
    Ok(Toleration { key: key.to_owned(), value: value.map(str::to_owned), effect: effect.map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taint_is_read_as_kubectl_writes_it() {
        let of = |key: &str, value: Option<&str>, effect: Option<&str>| Toleration {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            effect: effect.map(str::to_owned),
        };
        for (text, expected) in [
            ("spot", of("spot", None, None)),
            ("spot:NoSchedule", of("spot", None, Some("NoSchedule"))),
            ("example.com/spot=true:NoExecute", of("example.com/spot", Some("true"), Some("NoExecute"))),
            ("spot=", of("spot", Some(""), None)),
        ] {
            assert_eq!(toleration(text), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("spot:Never", "whose effect is none of NoSchedule, PreferNoSchedule, NoExecute"),
            ("=x", "expected taints such as"),
            ("a b", "expected taints such as"),
            ("node.kubernetes.io/unreachable:NoExecute", "which Greenroom itself tolerates for 30 s"),
        ] {
            let wrong = toleration(text).unwrap_err();
            assert!(wrong.to_string().contains(expected), "{text}: {wrong}");
        }
    }

    #[test]
    fn a_name_is_one_of_kubernetes() {
        for (text, fits) in
            [("ci-jobs", true), ("a.b", true), ("CI", false), ("-a", false), ("", false), ("a_b", false)]
        {
            assert_eq!(name(text.to_owned()).is_ok(), fits, "{text}");
        }
    }
}
