//! Writing for people: text, and tables with sentences below their rows. Write errors are ignored: a closed pipe must not
//! stop a cleanup half-way.

use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use comfy_table::Table;
use comfy_table::presets::NOTHING;

/// Writes text to standard output.
pub fn out(text: &str) {
    anstream::stdout().write_all(text.as_bytes()).ok();
}

/// True if a stage's output may have left a line open, as [`note_line`] was told.
static LINE_IS_OPEN: AtomicBool = AtomicBool::new(false);

/// Writes text to standard error, on a new line if a stage has left one open.
pub fn err(text: &str) {
    // In one piece: the runner reads the stage's output from another pipe, and could put it between two.
    let text =
        if LINE_IS_OPEN.swap(false, Ordering::Relaxed) { format!("\n{text}") } else { text.to_owned() };
    anstream::stderr().write_all(text.as_bytes()).ok();
}

/// Notes whether the job's output has left a line open: then [`err`] and [`tell`] begin a new one.
pub fn note_line(is_open: bool) {
    LINE_IS_OPEN.store(is_open, Ordering::Relaxed);
}

/// A line in the job log.
pub fn tell(line: &str) {
    err(&format!("greenroom: {line}\n"));
}

/// `1 job`, `2 jobs`.
pub fn plural(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    }
}

/// Text in a colour, if the terminal shows colours.
pub fn paint(colour: AnsiColor, text: &str) -> String {
    let style = Style::new().fg_color(Some(colour.into()));
    format!("{style}{text}{style:#}")
}

/// True if standard output is a terminal.
pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// True if standard error shows colours: it is a terminal, and `NO_COLOR` and `CLICOLOR` do not forbid them.
pub fn colours() -> bool {
    let stderr = std::io::stderr();
    stderr.is_terminal() && anstream::AutoStream::choice(&stderr) != anstream::ColorChoice::Never
}

/// True if standard output is a terminal that moves its cursor.
pub fn draws() -> bool {
    is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Lines to write for: the terminal's own; 40 without a terminal.
pub fn height() -> usize {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 => usize::from(size.ws_row),
        _ => 40,
    }
}

/// Columns to write for: the terminal's own, within limits; 80 without a terminal.
pub fn width() -> usize {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col).clamp(60, 120),
        _ => 80,
    }
}

/// The indentation of sentences.
const INDENT: &str = "    ";

/// Rows under a header, each with the sentences about it.
///
/// A reason does not fit into a column of a terminal with 80 of them, and a command in it must not be broken: rows are
/// short, and the sentences about a row follow below it, indented and wrapped.
#[derive(Debug)]
pub struct Rows {
    table: Table,
    beneath: Vec<Vec<String>>,
}

impl Rows {
    pub fn new(header: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(header.to_vec());
        Self { table, beneath: Vec::new() }
    }

    /// One row, and sentences about it.
    pub fn row(&mut self, cells: Vec<String>, beneath: Vec<String>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| printable(&cell)).collect();
        self.table.add_row(cells);
        self.beneath.push(beneath);
    }

    pub fn is_empty(&self) -> bool {
        self.beneath.is_empty()
    }

    /// The whole table, with line ends; sentences are wrapped at `width`.
    pub fn render(mut self, width: usize) -> String {
        self.table.discover_columns();
        for column in self.table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let mut text = String::new();
        let mut beneath = self.beneath.iter();
        for (at, line) in self.table.lines().enumerate() {
            text.push_str(line.trim_end());
            text.push('\n');
            if at == 0 {
                continue;
            }
            for sentence in beneath.next().into_iter().flatten() {
                text.push_str(&wrapped(sentence, width, INDENT, INDENT));
            }
        }
        text
    }
}

/// Breaks a text between words, never inside backticks, so that a command can be copied. Ends with a newline.
pub fn wrapped(text: &str, width: usize, first: &str, further: &str) -> String {
    let mut lines = String::new();
    let mut line = first.to_owned();
    let mut is_fresh = true;
    for piece in pieces(&printable(text)) {
        let gap = usize::from(!is_fresh);
        if !is_fresh && columns(&line) + gap + columns(&piece) > width {
            lines.push_str(&line);
            lines.push('\n');
            further.clone_into(&mut line);
            is_fresh = true;
        }
        if !is_fresh {
            line.push(' ');
        }
        line.push_str(&piece);
        is_fresh = false;
    }
    lines.push_str(line.trim_end());
    lines.push('\n');
    lines
}

/// Words; a text in backticks counts as one word.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    let mut inside = false;
    for word in text.split_whitespace() {
        match pieces.last_mut() {
            Some(last) if inside => {
                last.push(' ');
                last.push_str(word);
            }
            _ => pieces.push(word.to_owned()),
        }
        if word.matches('`').count() % 2 == 1 {
            inside = !inside;
        }
    }
    pieces
}

/// Keeps the end of a name that is too long, because projects differ there.
pub fn shortened(text: &str, width: usize) -> String {
    let surplus = columns(text).saturating_sub(width);
    if surplus == 0 {
        return text.to_owned();
    }
    let kept: String = text.chars().skip(surplus + 1).collect();
    format!("…{kept}")
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

/// The text without line breaks and terminal escapes.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_stand_beneath_their_row() {
        let mut rows = Rows::new(&["NAME", "FOR"]);
        rows.row(vec!["a".into(), "3m".into()], vec![]);
        rows.row(
            vec!["longer".into(), "1 s".into()],
            vec!["because of `a long command` that is kept".into()],
        );
        let expected =
            "NAME    FOR\na       3m\nlonger  1 s\n    because of\n    `a long command`\n    that is kept\n";
        assert_eq!(rows.render(20), expected);
    }

    #[test]
    fn a_text_without_room_is_never_lost() {
        assert_eq!(wrapped("one two", 1, "- ", "  "), "- one\n  two\n");
        assert_eq!(wrapped("", 10, "- ", "  "), "-\n");
    }

    #[test]
    fn foreign_text_moves_no_cursor() {
        assert_eq!(wrapped("a\n\u{1b}[2Jb", 40, "", ""), "a [2Jb\n");
        let mut rows = Rows::new(&["A"]);
        rows.row(vec!["x\ny".into()], vec![]);
        assert_eq!(rows.render(40), "A\nx y\n");
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("group/sub/project", 9), "…/project");
        assert_eq!(shortened("short", 9), "short");
        assert_eq!(shortened("ab", 0), "…");
    }
}
