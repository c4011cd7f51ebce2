//! What the check of an engine has shown: a container of Greenroom's own started, or why not.

use crate::text::clean_line;

/// The longest reason, in characters.
const REASON: usize = 400;

/// The result of `engine/container/sound.sh`, from lines that no container can write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Soundness {
    /// The job's container has run.
    Ran,
    /// The engine started a container, and there is room on the disk.
    Sound,
    /// Why it did not, or which disk is full.
    Unsound(String),
}

impl Soundness {
    /// Reads the script's standard output; `None`: it did not come to a result.
    pub fn parse(output: &str) -> Option<Self> {
        output.lines().find_map(|line| match line.split_once(' ') {
            None if line == "sound" => Some(Self::Sound),
            None if line == "ran" => Some(Self::Ran),
            Some(("unsound", why)) => Some(Self::Unsound(clean_line(why.as_bytes(), REASON))),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_scripts_own_lines_are_a_result() {
        let unsound = |why: &str| Some(Soundness::Unsound(why.to_owned()));
        for (output, expected) in [
            ("sound\n", Some(Soundness::Sound)),
            (
                "unsound the disk is full: 3 MiB free in /var\n",
                unsound("the disk is full: 3 MiB free in /var"),
            ),
            ("a remark\nsound\n", Some(Soundness::Sound)),
            ("ran\n", Some(Soundness::Ran)),
            ("unsound a\x1b[1mb\n", unsound("ab")),
            ("", None),
            ("sound as a bell\n", None),
            ("not sound\n", None),
        ] {
            assert_eq!(Soundness::parse(output), expected, "{output:?}");
        }
    }
}
