//! Man pages, from the same definition as the help texts.

use std::path::Path;

use clap::CommandFactory as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use greenroom_keys::near::nearest_or_all;

use super::args::Cli;
use super::error::CliError;
use super::ui;

/// Prints the page of a command, or writes the pages of all commands into a directory.
pub(super) fn man(command: &[String], dir: Option<&Path>) -> Result<(), CliError> {
    let root = definition();
    if let Some(dir) = dir {
        fs_err::create_dir_all(dir)?;
        return write_all(&root, dir);
    }
    let mut found = &root;
    for word in command {
        let below = visible(found);
        found = below.clone().find(|command| command.get_name() == word).ok_or_else(|| {
            CliError::say(format!("`{}` has no command `{word}`", spoken_name(found)))
                .help(nearest_or_all(word, below.map(clap::Command::get_name)))
        })?;
    }
    ui::out(&page(found)?.1);
    Ok(())
}

fn definition() -> clap::Command {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    root
}

fn visible(command: &clap::Command) -> std::vec::IntoIter<&clap::Command> {
    let visible: Vec<_> = command.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    visible.into_iter()
}

fn spoken_name(command: &clap::Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

fn write_all(command: &clap::Command, dir: &Path) -> Result<(), CliError> {
    let (name, text) = page(command)?;
    greenroom_system::replace::replace(&dir.join(name), text.as_bytes(), 0o644)?;
    visible(command).try_for_each(|command| write_all(command, dir))
}

/// The name of a page's file, and its text. The same program makes the same bytes: the page has no date.
fn page(command: &clap::Command) -> Result<(String, String), CliError> {
    let man = Man::new(command.clone())
        .source(concat!("Greenroom ", env!("CARGO_PKG_VERSION")))
        .manual("Greenroom Manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if visible(command).next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(notes) = command.get_after_help() {
        text.extend(sections(&notes.to_string()).to_roff().into_bytes());
    }
    Ok((man.get_filename(), String::from_utf8_lossy(&text).into_owned()))
}

/// The end of a help text. There, `Exit status:` opens a section, and indented lines are tables.
fn sections(notes: &str) -> Roff {
    let mut roff = Roff::new();
    let mut opened = false;
    let mut in_table = false;
    for line in notes.lines() {
        let indented = line.starts_with(' ');
        if indented != in_table && !line.is_empty() {
            roff.control(if indented { "nf" } else { "fi" }, []);
            in_table = indented;
        }
        let heading = line.strip_suffix(':').filter(|heading| !indented && !heading.contains(". "));
        if let Some(heading) = heading {
            roff.control("SH", [heading.to_uppercase().as_str()]);
        } else if line.is_empty() {
            roff.control("PP", []);
        } else {
            if !opened {
                roff.control("SH", ["NOTES"]);
            }
            roff.text([roman(line.trim_start())]);
        }
        opened |= !line.is_empty();
    }
    if in_table {
        roff.control("fi", []);
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_help_text_becomes_sections() {
        let text =
            sections("It waits. It ends.\n\nExit status:\n  0  success\n  1  .none\n\nMore of it.").to_roff();
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with(".SH")).collect();
        let expected = [
            ".SH NOTES",
            "It waits. It ends.",
            ".PP",
            ".SH \"EXIT STATUS\"",
            ".nf",
            "0  success",
            "1  .none",
            ".PP",
            ".fi",
            "More of it.",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn every_visible_command_has_a_page_with_its_own_name() {
        fn names(command: &clap::Command, found: &mut Vec<String>) {
            let (name, text) = page(command).unwrap();
            assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{name}: {text}");
            found.push(name);
            visible(command).for_each(|command| names(command, found));
        }
        let mut found = Vec::new();
        names(&definition(), &mut found);
        for name in
            ["greenroom.1", "greenroom-keep.1", "greenroom-pool-status.1", "greenroom-image-store-build.1"]
        {
            assert!(found.iter().any(|page| page == name), "{name}: {found:?}");
        }
        assert!(!found.iter().any(|page| page.contains("instance") || page.contains("help")), "{found:?}");
    }
}
