//! Platforms of images: `linux/arm64/v8`.

/// The platform in full; `None`: the machine's. The error completes a sentence that begins with the platform.
///
/// `arm64` alone means `linux/arm64`, as for Docker, and the names of `uname -m` are understood.
pub fn complete(text: &str) -> Result<Option<String>, &'static str> {
    if text.is_empty() {
        return Ok(None);
    }
    let lower = text.to_ascii_lowercase();
    let mut parts: Vec<&str> = lower.split('/').collect();
    if parts.len() == 1 && parts[0] != "linux" {
        parts.insert(0, "linux");
    }
    let is_word = |part: &&str| {
        part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !part.is_empty() && part.len() <= 32
    };
    if parts.len() > 3 || !parts.iter().all(is_word) {
        return Err("it is not like `linux/arm64`");
    }
    if parts[0] != "linux" {
        return Err("images for Linux only can run here");
    }
    if let Some(machine) = parts.get_mut(1) {
        *machine = match *machine {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "i386" | "i686" => "386",
            other => other,
        };
    }
    Ok(Some(parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_is_completed_or_refused() {
        for (text, expected) in [
            ("", Ok(None)),
            ("linux", Ok(Some("linux"))),
            ("linux/amd64", Ok(Some("linux/amd64"))),
            ("linux/arm64/v8", Ok(Some("linux/arm64/v8"))),
            ("Linux/x86_64", Ok(Some("linux/amd64"))),
            ("aarch64", Ok(Some("linux/arm64"))),
            ("windows/amd64", Err("images for Linux only can run here")),
            ("linux/", Err("it is not like `linux/arm64`")),
            ("linux/a/b/c", Err("it is not like `linux/arm64`")),
            ("linux/a b", Err("it is not like `linux/arm64`")),
            ("--os=x", Err("it is not like `linux/arm64`")),
        ] {
            assert_eq!(complete(text), expected.map(|platform| platform.map(str::to_owned)), "{text}");
        }
    }
}
