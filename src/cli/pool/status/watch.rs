//! Shows a text repeatedly, until interrupted.

use std::future::Future;
use std::io;
use std::time::Duration;

/// The interval.
pub const EVERY: Duration = Duration::from_secs(1);

/// A screen of its own without a cursor, where long lines are cut. What was on the terminal before comes back afterwards.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// The beginning of a text. Until its end, a terminal that can shows nothing: no reader sees half of a text.
const BEGIN: &str = "\x1b[?2026h\x1b[H";
const END: &str = "\x1b[J\x1b[?2026l";

/// The place where the text is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Screen {
    /// A terminal, whose text is redrawn in place.
    Terminal,
    /// One block after the other, an empty line between.
    Pipe,
}

/// The reasons to show the text again before its time, or to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Stop,
    /// The terminal has another size.
    Resized,
    /// The user suspends the program (Ctrl-Z).
    Suspend,
}

/// The outside of a watch.
pub trait Viewer {
    /// The lines that the terminal shows.
    fn rows(&self) -> usize;

    fn write(&mut self, text: &str) -> io::Result<()>;

    /// Resolves with the next signal.
    fn signal(&mut self) -> impl Future<Output = Signal>;

    /// Suspends the program, and returns when it continues.
    fn suspend(&mut self);
}

/// Reads and shows, each time `every` has passed, until a signal stops it or the output is closed. Starts immediately. The
/// terminal is as it was before in any case.
pub async fn watch<E>(
    screen: Screen,
    every: Duration,
    mut look: impl AsyncFnMut() -> Result<String, E>,
    viewer: &mut impl Viewer,
) -> Result<(), E> {
    if screen == Screen::Terminal && viewer.write(ENTER).is_err() {
        return Ok(());
    }
    let ended = repeat(screen, every, &mut look, viewer).await;
    if screen == Screen::Terminal {
        viewer.write(LEAVE).ok();
    }
    ended
}

async fn repeat<E>(
    screen: Screen,
    every: Duration,
    look: &mut impl AsyncFnMut() -> Result<String, E>,
    viewer: &mut impl Viewer,
) -> Result<(), E> {
    let mut is_first = true;
    let mut signal = None;
    loop {
        if signal.is_none() {
            let block = tokio::select! {
                biased;
                next = viewer.signal() => { signal = Some(next); None }
                block = look() => Some(block?),
            };
            if let Some(block) = block {
                if viewer.write(&framed(&block, screen, is_first, viewer.rows())).is_err() {
                    // The output was closed (`| head`): the end of the watch, not an error.
                    return Ok(());
                }
                is_first = false;
                signal = tokio::select! {
                    next = viewer.signal() => Some(next),
                    () = tokio::time::sleep(every) => None,
                };
            }
        }
        match signal.take() {
            Some(Signal::Stop) => return Ok(()),
            Some(Signal::Suspend) if screen == Screen::Terminal => {
                viewer.write(LEAVE).ok();
                viewer.suspend();
                viewer.write(ENTER).ok();
            }
            Some(Signal::Suspend) => viewer.suspend(),
            Some(Signal::Resized) | None => {}
        }
    }
}

/// A block as it is written. On a terminal, each line overwrites the previous one, and lines without room are left out.
fn framed(block: &str, screen: Screen, is_first: bool, rows: usize) -> String {
    match screen {
        Screen::Pipe if is_first => block.to_owned(),
        Screen::Pipe => format!("\n{block}"),
        Screen::Terminal => {
            let lines: Vec<&str> = block.lines().collect();
            let room = rows.max(1);
            let mut shown: Vec<String> = lines.iter().take(room).map(|line| (*line).to_owned()).collect();
            if lines.len() > room {
                let hidden = lines.len() - room + 1;
                shown.truncate(room - 1);
                shown.push(format!("… {hidden} more lines: enlarge the terminal, or name one pool"));
            }
            // The last line ends without a newline: the terminal would scroll.
            format!("{BEGIN}{}\x1b[K{END}", shown.join("\x1b[K\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stops at a read; closes at a write.
    struct Watched {
        written: Vec<String>,
        broken_at: usize,
        signals: Vec<(usize, Signal)>,
        suspended: usize,
    }

    impl Viewer for Watched {
        fn rows(&self) -> usize {
            3
        }

        fn write(&mut self, text: &str) -> io::Result<()> {
            self.written.push(text.to_owned());
            if self.written.len() == self.broken_at { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
        }

        async fn signal(&mut self) -> Signal {
            match self.signals.first() {
                Some((after, signal)) if self.written.len() >= *after => {
                    let signal = *signal;
                    self.signals.remove(0);
                    signal
                }
                _ => std::future::pending().await,
            }
        }

        fn suspend(&mut self) {
            self.suspended += 1;
        }
    }

    /// Runs until the signals have come, each after so many writes.
    async fn watched(screen: Screen, signals: &[(usize, Signal)], broken_at: usize) -> Watched {
        let mut viewer = Watched { written: Vec::new(), broken_at, signals: signals.to_vec(), suspended: 0 };
        let mut looks = 0;
        let look = async || {
            looks += 1;
            Ok::<_, ()>(format!("look {looks}\n"))
        };
        watch(screen, Duration::from_millis(1), look, &mut viewer).await.unwrap();
        viewer
    }

    #[tokio::test]
    async fn a_pipe_gets_blocks_until_it_is_stopped() {
        let seen = watched(Screen::Pipe, &[(3, Signal::Stop)], 0).await;
        assert_eq!(seen.written, ["look 1\n", "\nlook 2\n", "\nlook 3\n"]);
    }

    #[tokio::test]
    async fn a_terminal_is_drawn_over_and_given_back() {
        let seen = watched(Screen::Terminal, &[(3, Signal::Stop)], 0).await;
        let frame = |n| format!("{BEGIN}look {n}\x1b[K{END}");
        assert_eq!(seen.written, [ENTER.to_owned(), frame(1), frame(2), LEAVE.to_owned()]);
    }

    #[tokio::test]
    async fn a_terminal_is_given_back_while_the_program_is_suspended() {
        let seen = watched(Screen::Terminal, &[(2, Signal::Suspend), (5, Signal::Stop)], 0).await;
        let frame = |n| format!("{BEGIN}look {n}\x1b[K{END}");
        let expected = [ENTER.to_owned(), frame(1), LEAVE.into(), ENTER.into(), frame(2), LEAVE.into()];
        assert_eq!((seen.written, seen.suspended), (expected.to_vec(), 1));
    }

    #[tokio::test]
    async fn an_error_gives_the_terminal_back() {
        let mut viewer = Watched { written: Vec::new(), broken_at: 0, signals: Vec::new(), suspended: 0 };
        let look = async || Err::<String, _>("no state");
        assert_eq!(watch(Screen::Terminal, EVERY, look, &mut viewer).await, Err("no state"));
        assert_eq!(viewer.written, [ENTER, LEAVE]);
    }

    #[tokio::test]
    async fn a_new_size_is_drawn_immediately() {
        let mut viewer = Watched {
            written: Vec::new(),
            broken_at: 0,
            signals: vec![(2, Signal::Resized), (3, Signal::Stop)],
            suspended: 0,
        };
        let look = async || Ok::<_, ()>("a\nb\nc\nd\ne\n".to_owned());
        watch(Screen::Terminal, Duration::from_hours(1), look, &mut viewer).await.unwrap();
        assert_eq!(viewer.written.len(), 4, "{:?}", viewer.written);
        let cut = "a\x1b[K\nb\x1b[K\n… 3 more lines: enlarge the terminal, or name one pool\x1b[K";
        assert_eq!(viewer.written[2], format!("{BEGIN}{cut}{END}"));
    }

    #[tokio::test]
    async fn a_reader_that_goes_ends_it_quietly() {
        assert_eq!(watched(Screen::Pipe, &[], 2).await.written.len(), 2);
    }
}
