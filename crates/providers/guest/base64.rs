//! Standard base64, decoding only.

/// The bytes that a text stands for; `None` if it is not padded base64.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let digits = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            bits = bits << 6 | value(*digit)?;
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn every_length_of_tail_is_read() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("+/+/AA==", b"\xfb\xff\xbf\0"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["Zg", "Zg=", "Z===", "====", "Zm9-", "Zm 9", "Zm9v\n"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
