//! Shows a text repeatedly, until interrupted.

use std::future::Future;
use std::io;
use std::time::Duration;

/// The interval.
pub const EVERY: Duration = Duration::from_secs(1);

/// Where the text is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Screen {
    /// Redrawn in place.
    Terminal,
    /// One block after the other, an empty line between.
    Pipe,
}

/// Reads and shows, each second, until `stop` resolves or the output is closed. Starts immediately.
pub async fn watch<E>(
    screen: Screen,
    every: Duration,
    mut look: impl AsyncFnMut() -> Result<String, E>,
    mut write: impl FnMut(&str) -> io::Result<()>,
    stop: impl Future<Output = ()>,
) -> Result<(), E> {
    let mut stop = std::pin::pin!(stop);
    let mut is_first = true;
    loop {
        let block = look().await?;
        if write(&framed(&block, screen, is_first)).is_err() {
            // The output was closed (`| head`): the end of the watch, not an error.
            return Ok(());
        }
        is_first = false;
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = tokio::time::sleep(every) => {}
        }
    }
}

/// A block as it is written. On a terminal, each line overwrites the previous one, so that nothing flickers.
fn framed(block: &str, screen: Screen, is_first: bool) -> String {
    match screen {
        Screen::Pipe if is_first => block.to_owned(),
        Screen::Pipe => format!("\n{block}"),
        Screen::Terminal => {
            let clear = if is_first { "\x1b[2J" } else { "" };
            format!("{clear}\x1b[H{}\x1b[J", block.replace('\n', "\x1b[K\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs until the `stop_after`-th read; returns the output.
    async fn watched(screen: Screen, stop_after: usize, broken_at: usize) -> Vec<String> {
        let mut written = Vec::new();
        let mut looks = 0;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let mut stop = Some(stop);
        let look = async || {
            looks += 1;
            if looks == stop_after {
                drop(stop.take());
            }
            Ok::<_, ()>(format!("look {looks}\n"))
        };
        let write = |text: &str| {
            written.push(text.to_owned());
            if written.len() == broken_at { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
        };
        let stop = async { drop(stopped.await) };
        watch(screen, Duration::from_millis(1), look, write, stop).await.unwrap();
        written
    }

    #[tokio::test]
    async fn a_pipe_gets_blocks_until_it_is_stopped() {
        assert_eq!(watched(Screen::Pipe, 3, 0).await, ["look 1\n", "\nlook 2\n", "\nlook 3\n"]);
    }

    #[tokio::test]
    async fn a_terminal_is_drawn_over() {
        let written = watched(Screen::Terminal, 2, 0).await;
        assert_eq!(written, ["\x1b[2J\x1b[Hlook 1\x1b[K\n\x1b[J", "\x1b[Hlook 2\x1b[K\n\x1b[J"]);
    }

    #[tokio::test]
    async fn a_reader_that_goes_ends_it_quietly() {
        assert_eq!(watched(Screen::Pipe, usize::MAX, 2).await.len(), 2);
    }
}
