//! Sizes as operators write them.

/// Parses a size in bytes. K, M, G and T are powers of 1024, with or without `iB`; `None`: the text is not a size.
pub fn parse(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].trim_end_matches("iB");
    let shift = match unit {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_whole_number_with_a_unit() {
        assert_eq!(parse("512M"), Some(512 << 20));
        assert_eq!(parse("2GiB"), Some(2 << 30));
        assert_eq!(parse("0G"), Some(0));
        for wrong in ["2", "1.5G", "99999999999T", "2GB", "", "-1G", "2 G"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
