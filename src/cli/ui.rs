//! Writing for people. Write errors are ignored: a closed pipe must not stop a cleanup half-way.

use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};

/// To standard output.
pub fn out(text: &str) {
    anstream::stdout().write_all(text.as_bytes()).ok();
}

/// Whether a stage's output may have left a line open.
static LINE_IS_OPEN: AtomicBool = AtomicBool::new(false);

/// To standard error.
pub fn err(text: &str) {
    // In one piece: the runner reads the stage's output from another pipe, and could put it between two.
    let text =
        if LINE_IS_OPEN.swap(false, Ordering::Relaxed) { format!("\n{text}") } else { text.to_owned() };
    anstream::stderr().write_all(text.as_bytes()).ok();
}

/// What `err` or `tell` write next begins on a line of its own, if the job's output has left one open.
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
