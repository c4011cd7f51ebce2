//! The version of the state's files.

/// The format that this version writes: journals, snapshots, `job` files and launch specs.
pub const FORMAT: u32 = 2;

/// The operator's remedy for files of an older format.
pub const OUTDATED_REMEDY: &str =
    "run `greenroom pool drain --wait` of the version that wrote it, then move the state directory away";

/// The sentence about why a file of an older format is refused.
pub fn outdated(file: &str, found: u32) -> String {
    format!("{file} has format {found}, from before the first release; this version reads format {FORMAT}")
}

/// The sentence about why a file of a newer format is refused.
pub fn newer(file: &str, found: u32) -> String {
    format!("{file} was written by a newer version (format {found}, this one knows {FORMAT})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_file_is_named_with_both_formats() {
        for (sentence, number) in [(outdated("`job`", 1), "1"), (newer("`job`", 7), "7")] {
            let words: Vec<&str> = sentence.split([' ', ',', ')']).collect();
            assert!(words.contains(&"`job`") && words.contains(&number), "{sentence}");
            assert!(words.contains(&FORMAT.to_string().as_str()), "{sentence}");
        }
    }
}
