//! A pool's offerings: machine types, places, spot or on demand, images.
//!
//! A table lists types, places and markets. All combinations are tried, the first of each list first, and all places
//! of one type before the next type. `[[offering]]` tables do the same one after another; each takes its missing keys
//! from the provider's table.

use serde::{Deserialize, Serialize};

use super::keys::MARKETS;
use crate::core::ids::OfferingName;
use crate::core::inventory::Capabilities;
use crate::provider::keys::{KeyError, Keys};

/// Maximum number of offerings: more would not be tried in a day, and each refusal is recorded.
const MAX_OFFERINGS: usize = 200;

/// How a machine is paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Market {
    OnDemand,
    /// Cheaper, but the cloud may reclaim the machine.
    Spot,
}

/// One way to launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offering {
    pub name: OfferingName,
    pub machine_type: String,
    /// A zone, or a subnet.
    pub place: String,
    pub market: Market,
    pub image: String,
}

/// A cloud's keys for the lists.
#[derive(Debug, Clone, Copy)]
pub struct KeyNames {
    /// `instance_types`, `machine_types`.
    pub types: &'static str,
    /// The keys of which one lists the places.
    pub places: &'static [&'static str],
}

/// The content of one table, which may be incomplete.
#[derive(Debug, Clone, Default)]
struct Lists {
    types: Option<Vec<String>>,
    places: Option<Vec<String>>,
    markets: Option<Vec<Market>>,
    image: Option<String>,
}

/// Reads all offerings of a provider's table, the preferred one first.
pub fn read(keys: &mut Keys<'_>, key_names: &KeyNames) -> Result<Vec<Offering>, KeyError> {
    let common = Lists::read(keys, key_names)?;
    let mut groups = Vec::new();
    for mut table in keys.tables("offering")? {
        let group = Lists::read(&mut table, key_names)?.or(&common);
        groups.push((group, table.name("")));
        table.finish()?;
    }
    if groups.is_empty() {
        groups.push((common, String::new()));
    }
    let mut offerings: Vec<Offering> = Vec::new();
    for (group, name) in &groups {
        for offering in group.offerings(name, key_names)? {
            // The names are still empty, so that equal offerings compare equal.
            if !offerings.contains(&offering) {
                offerings.push(offering);
            }
        }
    }
    if offerings.len() > MAX_OFFERINGS {
        let why = format!("and places make {} offerings, expected at most {MAX_OFFERINGS}", offerings.len());
        return Err(KeyError::new(key_names.types, why));
    }
    name(&mut offerings);
    Ok(offerings)
}

impl Lists {
    fn read(keys: &mut Keys<'_>, key_names: &KeyNames) -> Result<Self, KeyError> {
        let types = keys.texts(key_names.types)?.map(owned);
        let mut places: Option<(&str, Vec<String>)> = None;
        for key in key_names.places {
            let Some(named) = keys.texts(key)? else { continue };
            if let Some((other, _)) = &places {
                let why = format!("conflicts with `{other}`: remove one of the two");
                return Err(KeyError::new(keys.name(key), why));
            }
            places = Some((key, owned(named)));
        }
        let markets = match keys.texts("market")? {
            Some(texts) => Some(
                texts.into_iter().map(|text| market(&keys.name("market"), text)).collect::<Result<_, _>>()?,
            ),
            None => None,
        };
        let image = keys.text("image")?.map(str::to_owned);
        Ok(Self { types, places: places.map(|(_, named)| named), markets, image })
    }

    fn or(self, other: &Self) -> Self {
        Self {
            types: self.types.or_else(|| other.types.clone()),
            places: self.places.or_else(|| other.places.clone()),
            markets: self.markets.or_else(|| other.markets.clone()),
            image: self.image.or_else(|| other.image.clone()),
        }
    }

    /// All combinations. `table` is the name of the table with its dot, for messages.
    fn offerings(&self, table: &str, key_names: &KeyNames) -> Result<Vec<Offering>, KeyError> {
        let missing =
            |key: &str, what: &str| KeyError::new(format!("{table}{key}"), format!("is missing: {what}"));
        let image = self.image.as_deref().filter(|image| !image.trim().is_empty());
        let image = image.ok_or_else(|| missing("image", "the image that instances boot from"))?;
        let types =
            self.types.as_ref().ok_or_else(|| missing(key_names.types, "a list, the preferred one first"))?;
        let places = self.places.as_ref().ok_or_else(|| {
            missing(
                key_names.places[0],
                &format!("where instances may run ({})", key_names.places.join(" or ")),
            )
        })?;
        let markets = self.markets.clone().unwrap_or_else(|| vec![Market::OnDemand]);
        let mut offerings = Vec::new();
        for market in markets {
            for machine_type in types {
                for place in places {
                    offerings.push(Offering {
                        name: OfferingName::new(""),
                        machine_type: machine_type.clone(),
                        place: place.clone(),
                        market,
                        image: image.to_owned(),
                    });
                }
            }
        }
        Ok(offerings)
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

fn owned(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(|text| text.trim().to_owned()).collect()
}

fn market(key: &str, text: &str) -> Result<Market, KeyError> {
    match text {
        "spot" => Ok(Market::Spot),
        "on-demand" => Ok(Market::OnDemand),
        other => Err(KeyError::choice(key, other, MARKETS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY_NAMES: KeyNames = KeyNames { types: "machine_types", places: &["zones", "subnets"] };

    fn names(text: &str) -> Result<Vec<String>, String> {
        let table: toml::Table = text.parse().unwrap();
        let mut keys = Keys::of(&table);
        let offerings = read(&mut keys, &KEY_NAMES).and_then(|offerings| keys.finish().map(|()| offerings));
        let name = |offering: &Offering| offering.name.to_string();
        offerings.map(|offerings| offerings.iter().map(name).collect()).map_err(|error| error.to_string())
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
        for (text, expected) in [
            ("", "`image` is missing: the image that instances boot from"),
            ("image = \"i\"", "`machine_types` is missing"),
            (
                "image = \"i\"\nmachine_types = \"a\"",
                "`zones` is missing: where instances may run (zones or subnets)",
            ),
            ("zones = \"a\"\nsubnets = \"b\"", "`subnets` conflicts with `zones`"),
            (
                "market = \"spto\"",
                "`market` is \"spto\", expected \"spot\" or \"on-demand\": did you mean \"spot\"?",
            ),
            ("machine_types = []", "`machine_types` is empty"),
            ("machine_types = [\"a\", \" \"]", "`machine_types` is empty"),
            ("machine_types = [1]", "expected a string or a list of strings"),
            ("image = \"i\"\n[[offering]]\nzones = \"a\"", "`offering.0.machine_types` is missing"),
            (
                "[[offering]]\nzone = \"a\"",
                "`offering.0.zone` is not a key of this table: did you mean `zones`?",
            ),
        ] {
            let error = names(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let many: Vec<String> = (0..=MAX_OFFERINGS).map(|n| format!("\"t{n}\"")).collect();
        let text = format!("image = \"i\"\nzones = \"a\"\nmachine_types = [{}]", many.join(","));
        assert!(names(&text).unwrap_err().contains("expected at most 200"));
    }
}
