//! Notices: to a real command, and to a real HTTP server on loopback.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::{Home, Keeper};
use std::process::Stdio;

/// Three launches fail, so the circuit breaker opens.
fn broken(notify: &str) -> Home {
    let home = Home::new();
    let config = fs::read_to_string(home.path("greenroom.toml")).unwrap();
    let config = format!(
        "{config}fail_launch = {{ class = \"invalid\", first = 3 }}\n[timing]\nlaunch_backoff = \"1ms\"\n\
         launch_backoff_max = \"1ms\"\nbreaker_failures = 1\n[notify]\n{notify}\n"
    );
    // Long enough to be seen, and ended by the operator.
    let config = config.replace("launch_backoff_max = \"1ms\"", "launch_backoff_max = \"1h\"");
    fs::write(home.path("greenroom.toml"), config).unwrap();
    home
}

impl Home {
    fn keep_broken(&self) -> Keeper<'_> {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("keep.log")).unwrap();
        let child = self.command(&["keep"]).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Keeper { home: Some(self), child }
    }

    /// A program for notices.
    fn script(&self, text: &str) -> String {
        let path = self.path("notice");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path.display().to_string()
    }
}

fn is_breaker_notice(document: &str) {
    let notice: Value = serde_json::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"));
    let text = |field: &str| notice[field].as_str().unwrap_or_default().to_owned();
    assert_eq!((text("event").as_str(), text("pool").as_str()), ("breaker-open", "linux"), "{document}");
    assert!(
        text("message").contains("pauses launches") && text("help").contains("greenroom explain linux"),
        "{document}"
    );
    assert_eq!(
        (notice["version"].as_u64(), notice["number"].as_u64(), notice["dropped"].as_u64()),
        (Some(1), Some(1), Some(0))
    );
    assert!(
        notice["instance"].is_null() && text("at").ends_with('Z') && !text("host").is_empty(),
        "{document}"
    );
}

#[test]
fn a_command_gets_the_notice_again_after_a_failure_and_only_once_after_that() {
    let home = broken("command = [\"PROGRAM\", \"argument\"]");
    let out = home.path("notice.out").display().to_string();
    let tried = home.path("notice.tried").display().to_string();
    let program = home.script(&format!(
        "[ \"$1\" = argument ] || exit 9\n[ -e {tried} ] || {{ : >{tried}; exit 3; }}\ncat >>{out}"
    ));
    let config = fs::read_to_string(home.path("greenroom.toml")).unwrap();
    fs::write(home.path("greenroom.toml"), config.replace("PROGRAM", &program)).unwrap();
    let keeper = home.keep_broken();
    home.until("the notice is delivered", || {
        fs::read_to_string(home.path("notice.out")).is_ok_and(|text| text.ends_with('\n'))
    });
    is_breaker_notice(&fs::read_to_string(home.path("notice.out")).unwrap());
    home.until("it is recorded", || {
        fs::read_to_string(home.path("keep.log"))
            .is_ok_and(|log| log.contains("notice 1 (breaker-open) is delivered"))
    });
    let log = fs::read_to_string(home.path("keep.log")).unwrap();
    assert!(log.contains("is not delivered: ") && log.contains("exit status: 3"), "{log}");
    assert!(!log.contains("argument"), "{log}");
    // A killed keeper's successor knows what was told.
    let mut keeper = keeper;
    keeper.child.kill().unwrap();
    keeper.child.wait().unwrap();
    std::mem::forget(keeper);
    let second = home.keep_broken();
    home.until("another keeper passes", || {
        let starts = fs::read_to_string(home.path("state/keeper-starts")).unwrap_or_default();
        starts.contains("\"starts\":2")
    });
    assert_eq!(home.run(&["pool", "resume"]).code, 0);
    drop(second);
    assert_eq!(fs::read_to_string(home.path("notice.out")).unwrap().lines().count(), 1);
}

#[test]
fn a_webhook_gets_the_notice_and_its_secret_is_in_no_log() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let home = broken(&format!("webhook = \"http://{address}/hook?key=secret\""));
    let keeper = home.keep_broken();
    let answers = ["HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n"];
    for answer in answers {
        let (stream, _) = server.accept().unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_owned());
        }
        assert_eq!(head.first().map(String::as_str), Some("POST /hook?key=secret HTTP/1.1"), "{head:?}");
        let length = head.iter().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        is_breaker_notice(std::str::from_utf8(&body).unwrap());
        reader.into_inner().write_all(answer.as_bytes()).unwrap();
    }
    home.until("it is recorded", || {
        fs::read_to_string(home.path("keep.log"))
            .is_ok_and(|log| log.contains("notice 1 (breaker-open) is delivered"))
    });
    let log = fs::read_to_string(home.path("keep.log")).unwrap();
    assert!(log.contains("answered with status 503") && !log.contains("secret"), "{log}");
    assert_eq!(home.run(&["pool", "resume"]).code, 0);
    drop(keeper);
}

#[test]
fn a_command_that_does_not_exist_is_a_finding_and_stops_nothing() {
    let home = Home::new();
    let config = fs::read_to_string(home.path("greenroom.toml")).unwrap();
    fs::write(home.path("greenroom.toml"), format!("{config}[notify]\ncommand = [\"/no/such/program\"]\n"))
        .unwrap();
    let said = home.doctor(&[]);
    assert_eq!(said.code, 1);
    assert!(said.out.contains("error [notify-command]"), "{said:?}");
    drop(home.keep());
}
