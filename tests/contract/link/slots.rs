//! One link for each slot, whichever call starts it and whatever blocks its path.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use greenroom_core::execution::Shell;
use greenroom_ports::connector::{Connector, StageEnd};
use greenroom_testkit::pace::Pace;

use super::caller::{Caller, Task};
use super::{figures, figures_of, links, only_link, place, runs, said, saying, until_no_link, until_ready};
use crate::linked::sshd::{KEEPALIVE, Set, Sshd};
use crate::linked::support::{Stuck, eventually, lives, never, stage};

const MANY: usize = 20;
/// The options of a server on which [`MANY`] callers may log in concurrently.
const ROOM: Set<'_> = Set {
    login: None,
    profile: "",
    config: "MaxStartups 100",
    linger: Duration::from_secs(10),
    first_line: Duration::from_mins(10),
    keepalive: KEEPALIVE,
};

#[tokio::test]
async fn twenty_processes_that_check_at_once_start_one_link() {
    let sshd = Sshd::with(ROOM).await;
    let start = |n: usize| Caller::start(&sshd, &n.to_string(), Task::Check, |_| {});
    let callers: Vec<Caller> = (0..MANY).map(start).collect();
    for caller in callers {
        assert_eq!(caller.finish().await.said, "Ok");
    }
    eventually("those that came too late have ended", || links(sshd.dir.path()).len() == 1).await;
    assert_eq!(figures(&sshd).await[0].pid, only_link(&sshd));
    let log = std::fs::read_to_string(sshd.path("log")).unwrap();
    assert_eq!(log.matches("Accepted publickey").count(), 1, "one connection served them all: {log}");
}

#[tokio::test]
async fn twenty_stages_at_once_have_a_link_each_and_no_slot_has_two() {
    let sshd = Sshd::with(ROOM).await;
    let gate = sshd.path("gate");
    let script = format!("echo up; until [ -e {} ]; do sleep 0.05; done\n", gate.display());
    let start = |n: usize| Caller::start(&sshd, &n.to_string(), Task::Run(script.clone()), |_| {});
    let callers: Vec<Caller> = (0..MANY).map(start).collect();
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let found = figures(&sshd).await;
        let mut pids: Vec<u32> = found.iter().map(|link| link.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        assert_eq!(pids.len(), found.len(), "each slot has a link of its own");
        if found.iter().filter(|link| link.busy && link.connected_ms.is_some()).count() == MANY {
            break;
        }
        assert!(Instant::now() < until, "{found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eventually("nobody else is there", || links(sshd.dir.path()).len() == MANY).await;
    std::fs::write(&gate, "").unwrap();
    for caller in callers {
        let report = caller.finish().await;
        assert_eq!((report.said.as_str(), report.taken), ("Exited(0)", 3));
    }
    sshd.connector().discard_keys(&sshd.id).await;
    until_no_link(&sshd).await;
    eventually("their directory is gone", || !place(&sshd).exists()).await;
}

/// Sends a message to the link of a slot directly.
fn ask(sshd: &Sshd, slot: u32, request: &str) -> String {
    let mut stream = UnixStream::connect(place(sshd).join(format!("{slot}.sock"))).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer.trim().to_owned()
}

#[tokio::test]
async fn a_link_of_another_version_makes_room_at_once_when_it_is_idle() {
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    let first = only_link(&sshd);
    assert_eq!(ask(&sshd, 0, r#"{"protocol":99,"what":["nobody","knows"]}"#), r#""closing""#);
    eventually("it ends", || !lives(first)).await;
    said(&sshd, "true\n").await;
    assert_ne!(only_link(&sshd), first);
}

#[tokio::test]
async fn a_link_of_another_version_serves_its_stage_to_the_end() {
    let sshd = Sshd::start().await;
    let gate = sshd.path("gate");
    let wait = format!("until [ -e {} ]; do sleep 0.05; done; echo done; exit 3", gate.display());
    let script = saying(&sshd, &wait);
    let meanwhile = async {
        runs(&sshd).await;
        let first = only_link(&sshd);
        assert_eq!(ask(&sshd, 0, r#"{"protocol":99}"#), r#""busy""#);
        // A concurrent stage of the present version has a slot, and a link, of its own.
        assert_eq!(said(&sshd, "echo other\n").await, "other\n");
        assert!(lives(first));
        std::fs::write(&gate, "").unwrap();
        first
    };
    let ((end, kept), first) = tokio::join!(sshd.run(stage(Shell::Bash, script), never()), meanwhile);
    assert_eq!((end.unwrap(), kept.out().as_str()), (StageEnd::Exited(3), "done\n"));
    eventually("the old link ends", || !lives(first)).await;
    said(&sshd, "true\n").await;
    assert!(!links(sshd.dir.path()).contains(&first));
}

#[tokio::test]
async fn what_is_no_request_ends_nothing() {
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    let first = only_link(&sshd);
    for rubbish in ["rubbish", "", "[]", &"x".repeat(200_000)] {
        let mut stream = UnixStream::connect(place(&sshd).join("0.sock")).unwrap();
        // It may close the connection in the middle.
        let _cut = stream.write_all(format!("{rubbish}\n").as_bytes());
    }
    let _silent = UnixStream::connect(place(&sshd).join("0.sock")).unwrap();
    until_ready(&sshd).await;
    said(&sshd, "true\n").await;
    assert_eq!(only_link(&sshd), first);
}

/// Plays an old link of slot 0 that answers every call with `answers`, in order, and then exits.
fn old_link(sshd: &Sshd, answers: &'static [&'static str]) -> std::thread::JoinHandle<()> {
    let dir = place(sshd);
    std::fs::create_dir_all(&dir).unwrap();
    let lock = std::fs::File::create(dir.join("0.lock")).unwrap();
    lock.lock().unwrap();
    let socket = dir.join("0.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
            assert!(request.starts_with(r#"{"protocol":"#), "{request}");
            writeln!(stream, "\"{answer}\"").unwrap();
        }
        std::fs::remove_file(&socket).unwrap();
        std::fs::remove_file(dir.join("0.lock")).unwrap();
        drop(lock);
    })
}

#[tokio::test]
async fn an_old_link_that_makes_room_is_followed_by_a_new_one() {
    let sshd = Sshd::start().await;
    let old = old_link(&sshd, &["closing"]);
    assert_eq!(said(&sshd, "echo new\n").await, "new\n");
    old.join().unwrap();
    assert_eq!(figures(&sshd).await.len(), 1);
}

#[tokio::test]
async fn beside_an_old_link_that_has_a_stage_a_new_one_serves() {
    let sshd = Sshd::start().await;
    let old = old_link(&sshd, &["busy", "busy", "closing"]);
    assert_eq!(said(&sshd, "echo one\n").await, "one\n");
    let beside = only_link(&sshd);
    assert_eq!(said(&sshd, "echo two\n").await, "two\n");
    assert_eq!(only_link(&sshd), beside);
    assert_eq!(said(&sshd, "echo three\n").await, "three\n");
    old.join().unwrap();
    assert_eq!(links(sshd.dir.path()).len(), 2, "slot 0 has a new one");
}

#[tokio::test]
async fn a_directory_deeper_than_a_socket_address_holds_is_no_obstacle() {
    let sshd = Sshd::start().await;
    let deep = sshd.dir.path().join("d".repeat(150)).join("e".repeat(150));
    std::fs::create_dir_all(&deep).unwrap();
    let linked = crate::linked::support::linked_through(&sshd.settings, &deep);
    linked.check(&sshd.id, &sshd.at, Duration::from_secs(10)).await.unwrap();
    for _ in 0..2 {
        let mut kept = crate::linked::support::Kept::default();
        let end = linked.run(&sshd.id, &sshd.at, stage(Shell::Bash, "echo deep\n"), &mut kept, never()).await;
        assert_eq!((end.unwrap(), kept.out().as_str()), (StageEnd::Exited(0), "deep\n"));
    }
    let links_dir = deep.join("links");
    assert_eq!(figures_of(&links_dir, &sshd).await[0].stages, 2, "a link served them");
    linked.discard_keys(&sshd.id).await;
    eventually("it ends", || links(&deep).is_empty()).await;
    assert_eq!(std::fs::read_dir(&links_dir).unwrap().count(), 0);
}

#[tokio::test]
async fn a_reader_that_stalls_does_not_hold_the_other_job() {
    let sshd = Rc::new(Sshd::start().await);
    let script = saying(&sshd, "yes");
    let done = Rc::new(tokio::sync::Notify::new());
    let told = Rc::clone(&done);
    let stop: greenroom_ports::connector::Stop<'static> = Box::pin(async move { told.notified().await });
    let mut stuck = Stuck;
    let stalled = sshd.connector().run(&sshd.id, &sshd.at, stage(Shell::Bash, script), &mut stuck, stop);
    let other = async {
        runs(&sshd).await;
        let (begun, pace) = (Instant::now(), Pace::watch());
        for n in 0..5 {
            assert_eq!(
                said(&sshd, &format!("echo {n}; head -c 300000 /dev/zero >&2\n")).await,
                format!("{n}\n")
            );
        }
        let took = begun.elapsed();
        eprintln!("five stages beside a stalled one: {took:?}");
        assert!(took < pace.stretched(Duration::from_secs(10)), "{took:?}");
        assert_eq!(links(sshd.dir.path()).len(), 2);
        done.notify_one();
    };
    let (end, ()) = tokio::join!(stalled, other);
    assert_eq!(end.unwrap(), StageEnd::Stopped);
}
