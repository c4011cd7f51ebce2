//! Shell text from files of its own, as a guest gets it.
//!
//! ShellCheck reads `*.sh` (`scripts/lint`), and no Rust string with more than about two lines of shell. The first line of such
//! a file says its subject. A script gets its values by positional parameters or by variables that are set before it. Where
//! neither fits, because the text is a part of a command line, `${NAME}` in capitals stands for a value, or for commands:
//! [`one_line`] puts them there.

/// The text of a file as one line of commands, with each of `values` in the place of its `${NAME}`.
///
/// A command line that the login shell of an account hands on in quotes has one line: csh takes no line break there. Comments,
/// indentation and line breaks go, so each command of such a file ends with `;` or an operator, and no quotes contain a line break.
/// An empty value takes the space after it along. Other expansions, such as `${f%/stat}`, stay.
pub fn one_line(file: &str, values: &[(&str, &str)]) -> String {
    let lines = file.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    filled(&lines.collect::<Vec<_>>().join(" "), values)
}

/// A text with its values. Values are not searched for the names of others.
fn filled(text: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from)) = rest.split_once("${") {
        filled.push_str(before);
        let named = from.split_once('}');
        let value = named.and_then(|(name, _)| values.iter().find(|(known, _)| *known == name));
        match (named, value) {
            (Some((_, after)), Some((_, ""))) => rest = after.strip_prefix(' ').unwrap_or(after),
            (Some((_, after)), Some((_, value))) => {
                filled.push_str(value);
                rest = after;
            }
            _ => {
                filled.push_str("${");
                rest = from;
            }
        }
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_one_line_with_its_values_and_without_comments() {
        let file = "# A subject.\nfor f in /proc/*; do\n  # A remark.\n  p=${f#/proc/};\n\n  ${EACH}\n  ${ONCE} echo \"${EACH}$p\";\ndone\n";
        let values = [("EACH", "echo ${ONCE};"), ("ONCE", "")];
        assert_eq!(
            one_line(file, &values),
            "for f in /proc/*; do p=${f#/proc/}; echo ${ONCE}; echo \"echo ${ONCE};$p\"; done"
        );
        assert_eq!(one_line("echo ${x##*) } ${", &[]), "echo ${x##*) } ${");
    }
}
