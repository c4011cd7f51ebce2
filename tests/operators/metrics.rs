//! Metrics: the command, the keeper's endpoint, its clients of all kinds, and a real Prometheus.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_testkit::program;
use greenroom_testkit::skipped::skipped;
use rustix::process::Signal;

use super::{DEADLINE, Home, Keeper, signal};

const REQUEST: &str = "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n";

impl Home {
    /// A keeper that serves metrics; returns when it does.
    fn serve(&self, address: &str) -> Keeper<'_> {
        let log = fs::File::create(self.path("keep.log")).unwrap();
        let mut command = self.command(&["keep", "--metrics", address]);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let keeper = Keeper { home: Some(self), child };
        self.until("an instance is ready", || self.ready().is_some());
        self.until("metrics are served", || self.address().is_some());
        keeper
    }

    /// The address at which metrics are served.
    fn address(&self) -> Option<String> {
        let text = fs::read_to_string(self.path("state/metrics-address")).ok()?;
        text.strip_suffix('\n').map(str::to_owned)
    }

    /// The response to a request over TCP, as text.
    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        all_of(&mut stream)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address().unwrap()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("keep.log")).unwrap_or_default()
    }
}

fn all_of(stream: &mut impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The value of a series.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[track_caller]
fn has(text: &str, series: &str, expected: f64) {
    let found = value(text, series);
    assert!(found.is_some_and(|found| (found - expected).abs() < 1e-9), "{series} is {found:?} in\n{text}");
}

/// True if `promtool` accepts the text. What it calls bad style is an error, too.
fn promtool_accepts(home: &Home, text: &str) {
    let mut command = program::command("promtool", home.dir.path());
    let spawned = command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = spawned else {
        return skipped("no promtool: install Debian's package prometheus");
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&said));
}

#[test]
fn the_command_shows_what_a_job_did_and_counters_outlive_the_keeper() {
    let home = Home::new();
    let keeper = home.keep();
    let tried = home.run(&["try"]);
    assert_eq!(tried.code, 0, "{tried:?}");
    let said = home.run(&["metrics"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    promtool_accepts(&home, &said.out);
    has(&said.out, "greenroom_keeper_up", 1.0);
    has(&said.out, "greenroom_keeper_starts_total", 1.0);
    has(&said.out, "greenroom_jobs_started_total{pool=\"linux\",start=\"warm\"}", 1.0);
    has(&said.out, "greenroom_job_wait_seconds_count{pool=\"linux\"}", 1.0);
    has(&said.out, "greenroom_slots_limit{pool=\"linux\"}", 2.0);
    has(&said.out, "greenroom_breaker_open{pool=\"linux\"}", 0.0);
    has(&said.out, "greenroom_disk_reserve{pool=\"linux\"}", 1.0);
    has(&said.out, "greenroom_pool_info{pool=\"linux\",provider=\"local\"}", 1.0);
    assert!(value(&said.out, "greenroom_last_list_timestamp_seconds{pool=\"linux\"}").unwrap() > 1.7e9);
    assert!(
        said.out.contains("greenroom_boot_duration_seconds_bucket{pool=\"linux\",offering=\"\",le=\"+Inf\"}")
    );
    drop(keeper);

    let after = home.run(&["metrics", "--openmetrics"]);
    assert!(after.out.ends_with("\n# EOF\n"), "{after:?}");
    has(&after.out, "greenroom_keeper_up", 0.0);
    has(&after.out, "greenroom_jobs_started_total{pool=\"linux\",start=\"warm\"}", 1.0);
    let drained =
        value(&after.out, "greenroom_instances_drained_total{pool=\"linux\",reason=\"by-operator\"}");
    assert!(drained.unwrap() >= 1.0, "{}", after.out);
}

#[test]
fn the_collectors_file_is_replaced_and_an_error_names_it() {
    let home = Home::new();
    let file = home.path("greenroom.prom");
    let name = file.display().to_string();
    fs::write(&file, "old").unwrap();
    let said = home.run(&["metrics", "--output", &name]);
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, "", ""));
    let text = fs::read_to_string(&file).unwrap();
    has(&text, "greenroom_keeper_up", 0.0);
    promtool_accepts(&home, &text);
    let nowhere = home.path("none/greenroom.prom").display().to_string();
    let said = home.run(&["metrics", "--output", &nowhere]);
    assert_eq!(said.code, 2);
    assert!(said.err.contains("none/") && said.err.contains("help: "), "{said:?}");
}

#[test]
fn damaged_state_is_a_metric_and_a_status() {
    let home = Home::new();
    drop(home.keep());
    super::damage(&home.path("state"));
    let said = home.run(&["metrics"]);
    assert_eq!(said.code, 1);
    has(&said.out, "greenroom_pool_readable{pool=\"linux\"}", 0.0);
    assert!(!said.out.contains("greenroom_slots{"), "{said:?}");
    assert_eq!(
        home.doctor(&["--repair"]).out.lines().next().map(|line| line.starts_with("repaired")),
        Some(true)
    );
}

#[test]
fn the_endpoint_answers_in_the_format_that_is_asked_for_and_survives_bad_clients() {
    let home = Home::new();
    let keeper = home.serve("127.0.0.1:0");
    let text = home.ask(REQUEST);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{text}");
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    promtool_accepts(&home, body);
    has(body, "greenroom_keeper_up", 1.0);
    let accept =
        REQUEST.replace("\r\n\r\n", "\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n");
    let open = home.ask(&accept);
    assert!(open.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.ends_with("\n# EOF\n"));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc".to_owned(), "405"),
        ("\r\n\r\n".to_owned(), "400"),
        (format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(1 << 16)), "431"),
    ] {
        let mut stream = home.connect();
        // It may answer before it has read everything.
        let _sent = stream.write_all(request.as_bytes());
        let _ended = stream.shutdown(Shutdown::Write);
        let mut text = Vec::new();
        let _read = stream.read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {text}");
    }
    // More silent and slow clients than connections are allowed: a scrape still gets through, immediately.
    let mut slow: Vec<TcpStream> = (0..64).map(|_| home.connect()).collect();
    for stream in &mut slow {
        let _sent = stream.write_all(b"GET /met");
    }
    let again = home.ask(REQUEST);
    assert!(again.starts_with("HTTP/1.1 200 OK"), "{again}");
    // The keeper passes on meanwhile.
    let tried = home.run(&["try"]);
    assert_eq!(tried.code, 0, "{tried:?}");
    drop(slow);
    drop(keeper);
    assert_eq!(home.address(), None, "the address goes with the endpoint");
}

#[test]
fn a_socket_is_replaced_after_a_kill_and_never_taken_from_a_living_process() {
    let home = Home::new();
    let path = home.path("metrics.sock");
    let address = format!("unix:{}", path.display());
    let mut keeper = home.serve(&address);
    let kind = fs::metadata(&path).unwrap();
    assert!(kind.file_type().is_socket() && kind.permissions().mode() & 0o777 == 0o660, "{kind:?}");
    keeper.child.kill().unwrap();
    keeper.child.wait().unwrap();
    // It has ended; the next one empties the pool.
    std::mem::forget(keeper);
    fs::remove_file(home.path("state/metrics-address")).unwrap();
    assert!(path.exists(), "a killed process leaves its socket");

    let next = home.serve(&address);
    let ask = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(REQUEST.as_bytes()).unwrap();
        all_of(&mut stream)
    };
    let text = ask();
    has(&text, "greenroom_keeper_starts_total", 2.0);
    has(&text, "greenroom_keeper_crashes_total", 1.0);

    // The keeper of another state directory finds the socket taken: it says so, and does its work.
    let other = Home::new();
    let log = fs::File::create(other.path("keep.log")).unwrap();
    let child = other.command(&["keep", "--metrics", &address]).stdout(Stdio::null()).stderr(log).spawn();
    let second = Keeper { home: Some(&other), child: child.unwrap() };
    other.until("an instance is ready", || other.ready().is_some());
    other.until("the problem is logged", || other.log().contains("another process serves this socket"));
    has(&ask(), "greenroom_keeper_starts_total", 2.0);
    drop(second);
    drop(next);
    assert!(!path.exists(), "a keeper that exits removes its socket");
}

#[test]
fn an_address_that_is_none_is_refused_with_what_is_expected() {
    let home = Home::new();
    for (address, expected) in [("9252", "ADDRESS:PORT"), ("unix:here", "absolute path")] {
        let said = home.run(&["keep", "--metrics", address]);
        assert_eq!(said.code, 2);
        assert!(said.err.contains(expected), "{said:?}");
    }
    let config = fs::read_to_string(home.path("greenroom.toml")).unwrap();
    fs::write(home.path("greenroom.toml"), format!("metrics = \"localhost:9252\"\n{config}")).unwrap();
    let said = home.run(&["metrics"]);
    assert!(said.err.contains("ADDRESS:PORT") && said.err.contains("greenroom.toml:1"), "{said:?}");
}

/// A real Prometheus; ended by its process ID.
struct Prometheus {
    child: Child,
    address: String,
}

impl Prometheus {
    /// Starts Prometheus with the example's rules; `None`: it is not installed.
    fn start(dir: &Path, target: &str) -> Option<Self> {
        let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/prometheus/greenroom.rules.yml");
        let config = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: [{rules}]\nscrape_configs:\n\
             - job_name: greenroom\n  static_configs:\n  - targets: ['{target}']\n"
        );
        fs::write(dir.join("prometheus.yml"), config).unwrap();
        let log = fs::File::create(dir.join("prometheus.log")).unwrap();
        let mut command: Command = program::command("prometheus", dir);
        command.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("prometheus").display()));
        command.args(["--web.listen-address=127.0.0.1:0", "--storage.tsdb.retention.time=1h"]);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().ok()?;
        let mut it = Self { child, address: String::new() };
        let begun = Instant::now();
        while it.address.is_empty() {
            let log = fs::read_to_string(dir.join("prometheus.log")).unwrap();
            let listening = log
                .lines()
                .find_map(|line| line.split_once("msg=\"Listening on\" address=")?.1.split(' ').next());
            listening.unwrap_or_default().clone_into(&mut it.address);
            assert!(begun.elapsed() < DEADLINE, "{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(it)
    }

    /// The result of a query, as its API gives it.
    fn query(&self, query: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(&self.address) else { return String::new() };
        let request = format!("GET /api/v1/{query} HTTP/1.0\r\nHost: test\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        all_of(&mut stream)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        signal(&self.child, Signal::TERM);
        self.child.wait().unwrap();
    }
}

#[test]
fn a_real_prometheus_scrapes_it_as_openmetrics() {
    let home = Home::new();
    let keeper = home.serve("127.0.0.1:0");
    let Some(prometheus) = Prometheus::start(home.dir.path(), &home.address().unwrap()) else {
        return skipped("no prometheus: install Debian's package prometheus");
    };
    home.until("Prometheus has the metrics", || {
        let found = prometheus.query("query?query=greenroom_slots_limit");
        found.contains("\"pool\":\"linux\"") && found.contains(",\"2\"]")
    });
    let targets = prometheus.query("targets");
    assert!(targets.contains("\"health\":\"up\"") && targets.contains("\"lastError\":\"\""), "{targets}");
    // Only OpenMetrics has families without `_total`: it was the format of the scrape.
    let metadata = prometheus.query("metadata?metric=greenroom_keeper_starts");
    assert!(metadata.contains("\"type\":\"counter\""), "{metadata}");
    let rules = prometheus.query("rules");
    assert!(rules.contains("GreenroomBreakerOpen") && !rules.contains("\"health\":\"err\""), "{rules}");
    drop(prometheus);
    drop(keeper);
}

#[test]
fn the_alert_rules_fire_on_recorded_series() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/prometheus");
    let mut command = program::command("promtool", Path::new(dir));
    let output = command.args(["test", "rules", "greenroom.test.yml"]).current_dir(dir).output();
    let Ok(output) = output else { return skipped("no promtool: install Debian's package prometheus") };
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}
