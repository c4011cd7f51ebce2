//! A pool's offerings: machine types, places, spot or on demand, images.
//!
//! A table lists types, places and markets. All combinations are tried, the first of each list first, and all places
//! of one type before the next type. `[[offering]]` tables do the same one after another; each takes its missing keys
//! from the provider's table.

use std::borrow::Cow;

use greenroom_core::ids::OfferingName;
use greenroom_core::inventory::Capabilities;
use greenroom_keys::table::{Table, Texts};
use greenroom_keys::value_error::{Got, ValueError};
use serde::{Deserialize, Serialize};

/// Maximum number of offerings: more would not be tried in a day, and each refusal is recorded.
const MAX_OFFERINGS: usize = 200;

/// The way in which a machine is paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Market {
    OnDemand,
    /// Cheaper, but the cloud may reclaim the machine.
    Spot,
}

/// A combination of machine type, place, market and image that a launch can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offering {
    pub name: OfferingName,
    pub machine_type: String,
    /// A zone, or a subnet.
    pub place: String,
    pub market: Market,
    pub image: String,
}

impl Offering {
    /// The offering of a provider that knows offerings by their names alone.
    pub fn named(name: &str) -> Self {
        Self {
            name: OfferingName::new(name),
            machine_type: name.to_owned(),
            place: String::new(),
            market: Market::OnDemand,
            image: String::new(),
        }
    }
}

/// A cloud's keys for the lists from which [`read`] makes offerings.
#[derive(Debug, Clone, Copy)]
pub struct KeyNames {
    /// `instance_types`, `machine_types`.
    pub types: &'static str,
    /// The keys of which one lists the places.
    pub places: &'static [&'static str],
    /// Checks a value of a key; here for the lists and for `image`.
    pub check: fn(&str, &str) -> Result<(), ValueError>,
}

/// The content of one table, which may be incomplete.
#[derive(Debug, Clone)]
struct Lists {
    types: Got<Texts>,
    /// The places, with the key that lists them.
    places: Got<(&'static str, Texts)>,
    markets: Got<Vec<&'static str>>,
    image: Got<String>,
}

/// Reads all offerings of a provider's table, the preferred one first; none if something is missing or wrong.
pub fn read(table: &Table<'_>, key_names: &KeyNames) -> Vec<Offering> {
    let common = Lists::read(table, key_names);
    let tables = table.tables("offering").or_default();
    let mut groups: Vec<_> =
        tables.iter().map(|inner| (inner, Lists::read(inner, key_names).or(&common))).collect();
    if groups.is_empty() {
        groups.push((table, common));
    }
    // Collected first, so that the mistakes of all groups are reported.
    let groups: Vec<_> = groups.iter().map(|(table, lists)| lists.offerings(table, key_names)).collect();
    let complete: Option<Vec<Vec<Offering>>> = groups.into_iter().collect();
    let mut offerings: Vec<Offering> = Vec::new();
    for offering in complete.into_iter().flatten().flatten() {
        // The names are still empty, so that equal offerings compare equal.
        if !offerings.contains(&offering) {
            offerings.push(offering);
        }
    }
    if offerings.len() > MAX_OFFERINGS {
        let why = format!("and places make {} offerings, expected at most {MAX_OFFERINGS}", offerings.len());
        table.refuse(key_names.types, why);
    }
    name(&mut offerings);
    offerings
}

impl Lists {
    fn read(table: &Table<'_>, key_names: &KeyNames) -> Self {
        let mut places = Got::Absent(None);
        for key in key_names.places {
            let named = table.texts(key).map(|texts| (*key, texts));
            match &places {
                Got::Good((other, _), _) if !named.is_absent() => {
                    table.refuse(key, format!("conflicts with `{other}`: remove one of the two"));
                    places = Got::Bad(None);
                }
                Got::Absent(_) => places = named,
                Got::Good(..) | Got::Bad(_) => {}
            }
        }
        let types = table.texts(key_names.types);
        let markets = table.words("market");
        Self { types, places, markets, image: table.text("image") }
    }

    fn or(&self, other: &Self) -> Self {
        Self {
            types: self.types.over(&other.types).clone(),
            places: self.places.over(&other.places).clone(),
            markets: self.markets.over(&other.markets).clone(),
            image: self.image.over(&other.image).clone(),
        }
    }

    /// All combinations. `table` takes the mistakes; values that no group uses are not checked.
    fn offerings(&self, table: &Table<'_>, key_names: &KeyNames) -> Option<Vec<Offering>> {
        let check = |key, text: &str| (key_names.check)(key, text);
        let image = table.required("image", self.image.clone(), "name the image that instances boot from");
        let image = table.parsed("image", image, |image| check("image", &image).map(|()| image));
        let types = "list them, the preferred one first";
        let types = table.required(key_names.types, self.types.clone(), types);
        let places = format!("list where instances may run, by {}", either(key_names.places));
        let places = table.required(key_names.places[0], self.places.clone(), places);
        if let Some(types) = types.value() {
            table.check_each(key_names.types, types, |text| check(key_names.types, text.trim()));
        }
        if let Some((key, places)) = places.value() {
            table.check_each(key, places, |text| check(key, text.trim()));
        }
        let markets = self.markets.effective().filter(|_| !self.markets.is_bad())?;
        let image = image.into_value()?;
        let types = types.value()?;
        let (_, places) = places.value()?;
        let mut offerings = Vec::new();
        for market in markets {
            for (machine_type, _) in types {
                for (place, _) in places {
                    offerings.push(Offering {
                        name: OfferingName::new(""),
                        machine_type: machine_type.trim().to_owned(),
                        place: place.trim().to_owned(),
                        market: if *market == "spot" { Market::Spot } else { Market::OnDemand },
                        image: image.clone(),
                    });
                }
            }
        }
        Some(offerings)
    }
}

fn either(keys: &[&str]) -> String {
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(" or ")
}

/// The offering of a launch; for a pool without offerings, one without a name.
pub fn find<'a>(offerings: &'a [Offering], named: Option<&OfferingName>) -> Option<Cow<'a, Offering>> {
    match named {
        None if offerings.is_empty() => Some(Cow::Owned(Offering::named(""))),
        None => None,
        Some(named) => offerings.iter().find(|offering| offering.name == *named).map(Cow::Borrowed),
    }
}

/// The capabilities of a provider with these offerings.
pub fn capabilities(offerings: &[Offering]) -> Capabilities {
    let offerings = offerings.iter().map(|offering| offering.name.clone()).collect();
    Capabilities { offerings, ..Capabilities::default() }
}

/// Names each offering; names the image only if the pool has several.
fn name(offerings: &mut [Offering]) {
    let several = offerings.windows(2).any(|two| two[0].image != two[1].image);
    for offering in offerings {
        let Offering { machine_type, place, .. } = &*offering;
        let market = if offering.market == Market::Spot { " spot" } else { "" };
        let image = if several { format!(" {}", offering.image) } else { String::new() };
        offering.name = OfferingName::new(format!("{place} {machine_type}{market}{image}"));
    }
}

#[cfg(test)]
mod tests {
    use greenroom_keys::DefaultValue::Required;
    use greenroom_keys::TakesEffect::Launch;
    use greenroom_keys::problem::Problems;
    use greenroom_keys::{KeySpec, KeyTable, ValueType, key, table};

    use super::*;
    use crate::cloud::settings::{MARKET, OFFERING};

    const KEY_NAMES: KeyNames =
        KeyNames { types: "machine_types", places: &["zones", "subnets"], check: not_x };

    fn not_x(_key: &str, text: &str) -> Result<(), ValueError> {
        if text == "x" { Err(ValueError::entry(text, "another letter")) } else { Ok(()) }
    }

    const IMAGE: KeySpec = key("image", ValueType::Text, Required, Launch);
    const TYPES: KeySpec = key("machine_types", ValueType::TextOrTexts, Required, Launch);
    const ZONES: KeySpec = key("zones", ValueType::TextOrTexts, Required, Launch);
    const SUBNETS: KeySpec = key("subnets", ValueType::TextOrTexts, Required, Launch);
    const TABLES: &[KeyTable] = &[
        KeyTable {
            header: "[pool.NAME.provider]",
            about: "",
            keys: &[OFFERING, MARKET, IMAGE, TYPES, ZONES, SUBNETS],
        },
        KeyTable {
            header: "[[pool.NAME.provider.offering]]",
            about: "",
            keys: &[MARKET, IMAGE, TYPES, ZONES, SUBNETS],
        },
    ];

    fn read_all(text: &str) -> Result<Vec<Offering>, Problems> {
        table::read(TABLES, "linux", &text.parse().unwrap(), |table| read(table, &KEY_NAMES))
    }

    fn names(text: &str) -> Result<Vec<String>, String> {
        let name = |offering: &Offering| offering.name.to_string();
        let read = read_all(text).map_err(|problems| problems.to_string());
        read.map(|offerings| offerings.iter().map(name).collect())
    }

    #[test]
    fn the_preferred_one_of_each_list_comes_first() {
        let text = "image = \"i\"\nmachine_types = [\"big\", \"small\"]\nzones = [\"a\", \"b\"]\n\
                    market = [\"spot\", \"on-demand\"]\n";
        let wanted = [
            "a big spot",
            "b big spot",
            "a small spot",
            "b small spot",
            "a big",
            "b big",
            "a small",
            "b small",
        ];
        assert_eq!(names(text).unwrap(), wanted);
        assert_eq!(names("image = \"i\"\nmachine_types = \"big\"\nsubnets = \"s\"\n").unwrap(), ["s big"]);
    }

    #[test]
    fn offerings_follow_one_another_and_take_what_they_do_not_say() {
        let text = "image = \"i\"\nzones = [\"a\", \"b\"]\n[[offering]]\nmachine_types = \"arm\"\nimage = \"j\"\n\
                    zones = \"b\"\n[[offering]]\nmachine_types = \"x86\"\nmarket = \"spot\"\n\
                    [[offering]]\nmachine_types = \"x86\"\nmarket = [\"spot\", \"on-demand\"]\nzones = \"a\"\n";
        assert_eq!(
            names(text).unwrap(),
            ["b arm j", "a x86 spot i", "b x86 spot i", "a x86 i"],
            "none twice"
        );
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let rest = "image = \"i\"\nzones = \"a\"\n";
        for (text, expected) in [
            (
                "machine_types = \"a\"\nzones = \"a\"",
                "`image` is missing in `[pool.linux.provider]` (name the image that instances boot from)",
            ),
            (rest, "`machine_types` is missing in `[pool.linux.provider]`"),
            (
                "image = \"i\"\nmachine_types = \"a\"",
                "`zones` is missing in `[pool.linux.provider]` (list where instances may run, by `zones` or `subnets`)",
            ),
            (
                "image = \"i\"\nmachine_types = \"a\"\nzones = \"a\"\nsubnets = \"b\"",
                "`subnets` conflicts with `zones`: remove one of the two",
            ),
            (
                "image = \"i\"\nzones = \"a\"\nmachine_types = \"a\"\nmarket = \"spto\"",
                "`market` in `[pool.linux.provider]` must be one of \"spot\", \"on-demand\", or a list of them \
                 (did you mean \"spot\"?)",
            ),
            (
                "image = \"i\"\nzones = \"a\"\nmachine_types = []",
                "`machine_types` in `[pool.linux.provider]` must be a string or a list of strings",
            ),
            (
                "image = \"i\"\nzones = \"a\"\nmachine_types = [\"a\", \" \"]",
                "`machine_types` in `[pool.linux.provider]` must be a string or a list of strings",
            ),
            (
                "image = \"i\"\n[[offering]]\nzones = \"a\"",
                "`machine_types` is missing in `[[pool.linux.provider.offering]]`",
            ),
            (
                "image = \"i\"\nmachine_types = \"a\"\nzones = \"a\"\n[[offering]]\nzone = \"a\"",
                "`zone` is not a key of `[[pool.linux.provider.offering]]` (did you mean `zones`?)",
            ),
        ] {
            let error = names(text).unwrap_err();
            assert!(error.starts_with(expected) && !error.contains("; "), "{text}: {error}");
        }
        let many: Vec<String> = (0..=MAX_OFFERINGS).map(|n| format!("\"t{n}\"")).collect();
        let text = format!("image = \"i\"\nzones = \"a\"\nmachine_types = [{}]", many.join(","));
        assert!(names(&text).unwrap_err().contains("expected at most 200"));
    }

    #[test]
    fn a_wrong_value_is_named_once_and_only_if_it_is_used() {
        let groups = "[[offering]]\nmachine_types = \"a\"\n[[offering]]\nmachine_types = [\"b\", \" x \"]\n";
        let problems = read_all(&format!("image = \"x\"\nzones = \"a\"\n{groups}")).unwrap_err();
        let found: Vec<String> = problems
            .0
            .iter()
            .map(|problem| format!("{} at {}", problem.title, problem.marks[0].0.path))
            .collect();
        assert_eq!(
            found,
            [
                "`image` contains \"x\", expected another letter at pool.linux.provider.image",
                "`machine_types` contains \"x\", expected another letter at pool.linux.provider.offering.1.machine_types.1",
            ]
        );
        let unused = "image = \"x\"\nzones = \"a\"\n[[offering]]\nmachine_types = \"a\"\nimage = \"i\"";
        assert_eq!(names(unused).unwrap(), ["a a"]);
    }
}
