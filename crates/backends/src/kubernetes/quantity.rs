//! Quantities of Kubernetes: `500m`, `4Gi`.

use greenroom_keys::value_error::ValueError;

/// Suffixes, and by how many thousandths they multiply.
const UNITS: [(&str, u128); 14] = [
    ("", 1_000),
    ("m", 1),
    ("k", 1_000_000),
    ("M", 1_000_000_000),
    ("G", 1_000_000_000_000),
    ("T", 1_000_000_000_000_000),
    ("P", 1_000_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000_000),
    ("Ki", 1_000 << 10),
    ("Mi", 1_000 << 20),
    ("Gi", 1_000 << 30),
    ("Ti", 1_000 << 40),
    ("Pi", 1_000 << 50),
    ("Ei", 1_000 << 60),
];

/// A quantity in thousandths, rounded down; `None` if it is not one, or has an exponent.
pub(super) fn milli(text: &str) -> Option<u128> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, factor) = UNITS.iter().find(|(suffix, _)| *suffix == unit)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || whole.len() > 15 || part.len() > 9 {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    Some(digits(whole)? * factor + digits(part)? * factor / scale)
}

/// A quantity of a pod's resource.
pub(super) fn checked(text: &str) -> Result<String, ValueError> {
    match milli(text) {
        Some(amount) if amount > 0 => Ok(text.trim().to_owned()),
        _ => Err(ValueError::value(text, "a quantity of Kubernetes such as \"2\", \"500m\" or \"4Gi\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_read_as_kubernetes_reads_it() {
        for (text, expected) in [
            ("2", Some(2_000)),
            ("500m", Some(500)),
            ("0.5", Some(500)),
            (".5", Some(500)),
            ("1.", Some(1_000)),
            ("4Gi", Some(4_000 << 30)),
            ("1.5Ki", Some(1_536_000)),
            ("2G", Some(2_000_000_000_000)),
            ("", None),
            (".", None),
            ("4gi", None),
            ("4GiB", None),
            ("1.5.1", None),
            ("-1", None),
            ("1e3", None),
        ] {
            assert_eq!(milli(text), expected, "{text}");
        }
        assert_eq!(checked(" 4Gi "), Ok("4Gi".to_owned()));
        assert!(checked("0").is_err() && checked("4 GB").is_err());
    }
}
