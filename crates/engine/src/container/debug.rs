//! `CI_DEBUG_SERVICES`: what a job's services write, in the job log.
//!
//! While `prepare` waits for them, as they write it. Later, after each stage in the container: a stream beside a stage
//! could stall it, or split its lines.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::container::engine::EnginePlace;
use greenroom_core::container::name::JobContainer;
use greenroom_core::container::report::{Lines, Report};
use greenroom_ports::attempts::Assignment;
use greenroom_ports::connector::{Output, RemoteCommand, Stream};

use crate::Engine;

/// Reports what services have written.
pub(super) const RECENT: &str = include_str!("services.sh");

/// The part of a service's output that is shown at a time, in bytes.
pub(super) const MOST: usize = 64 << 10;

/// The time that a job waits for the output of its services after a stage.
const WITHIN: Duration = Duration::from_secs(5);

/// The line of the job log for one that a service wrote. `at`: the time of day.
pub fn written(service: &str, at: &str, line: &str) -> String {
    format!("  {service} {at} | {line}")
}

/// The line of the job log for what is not shown.
pub fn skipped(service: &str, bytes: u64) -> String {
    format!("  {service} | ({} KiB are left out here)", bytes.div_ceil(1024))
}

impl Engine {
    /// Shows what the services of a job have written since the last call. A problem changes nothing for the stage.
    pub(crate) async fn show_services(
        &self,
        assignment: &Assignment,
        container: &JobContainer,
        output: &mut dyn Output,
    ) {
        let place = EnginePlace::of(&container.name);
        let script = format!(
            "name={} last={} shared=\"{}\" most={MOST}\n{RECENT}recent\n",
            container.name,
            container.shown_services.len(),
            place.dir()
        );
        let mut reader = WrittenLines {
            services: &container.shown_services,
            lines: Lines::default(),
            text: String::new(),
        };
        let start_within = assignment.timeouts.start_within;
        let text = &place.reader();
        let command = RemoteCommand { text, input: &script, within: WITHIN, start_within, shared: true };
        let run = self.connector.command(&assignment.instance, &assignment.endpoint, command, &mut reader);
        if let Err(problem) = run.await {
            tracing::debug!(pool = %self.pool, "cannot show the output of services: {problem}");
        }
        let text = reader.text;
        if let Err(problem) = output.write(Stream::Stderr, text.as_bytes()).await {
            tracing::debug!(pool = %self.pool, "cannot show the output of services: {problem}");
        }
    }
}

/// Turns reports into lines of the job log, in bounded memory.
struct WrittenLines<'a> {
    services: &'a [String],
    lines: Lines,
    text: String,
}

#[async_trait(?Send)]
impl Output for WrittenLines<'_> {
    async fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let Self { services, lines, text } = self;
        if stream == Stream::Stderr {
            return Ok(());
        }
        let most = 2 * MOST * services.len();
        let name = |number: usize| number.checked_sub(1).and_then(|at| services.get(at));
        lines.push(bytes, |line| {
            let line = match Report::parse(line) {
                Some(Report::Wrote { number, at, line }) => {
                    name(number).map(|name| written(name, &at, &line))
                }
                Some(Report::Skipped { number, bytes }) => name(number).map(|name| skipped(name, bytes)),
                _ => None,
            };
            if let Some(line) = line.filter(|line| text.len() + line.len() < most) {
                _ = writeln!(text, "greenroom: {line}");
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use futures_util::FutureExt as _;

    use super::*;

    /// The script's report of one service in this directory.
    fn recent(dir: &std::path::Path, most: usize) -> String {
        let script = format!("name=job last=2 shared='{}' most={most}\n{RECENT}recent\n", dir.display());
        let ended = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    }

    #[test]
    fn each_line_is_reported_once_and_the_first_of_too_many_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("job-2.log");
        assert_eq!(recent(dir.path(), 100), "");
        std::fs::write(&log, "one\ntwo\n").unwrap();
        assert_eq!(recent(dir.path(), 100), "wrote 2 one\nwrote 2 two\n");
        assert_eq!(recent(dir.path(), 100), "");
        std::fs::write(&log, "one\ntwo\nthree\nfour\n").unwrap();
        assert_eq!(recent(dir.path(), 5), "skipped 2 6\nwrote 2 four\n");
        // The engine renames a new file over a full one.
        let new = dir.path().join("new");
        std::fs::write(&new, "five\n").unwrap();
        std::fs::rename(new, &log).unwrap();
        assert_eq!(recent(dir.path(), 100), "wrote 2 five\n");
    }

    #[test]
    fn the_text_names_the_service_and_is_bounded_whatever_the_instance_sends() {
        let services = ["db".to_owned()];
        let mut reader = WrittenLines { services: &services, lines: Lines::default(), text: String::new() };
        let mut send = |bytes: &[u8]| {
            reader.write(Stream::Stdout, bytes).now_or_never().unwrap().unwrap();
            reader.text.clone()
        };
        let line =
            b"wrote 1 2026-01-02T03:04:05.6+00:00 stdout F ready\nwrote 2 x y F z\nnoise\nskipped 1 5\n";
        let expected = "greenroom:   db 03:04:05 | ready\ngreenroom:   db | (1 KiB are left out here)\n";
        assert_eq!(send(line), expected);
        for _ in 0..100 {
            send(&[b"wrote 1 x y F ".as_slice(), &[b'x'; 4000], b"\n"].concat());
        }
        assert!(send(b"").len() < 3 * MOST);
    }
}
