//! Jobs that fight back, on hosts that a `clean_user` cleans: the next trust domain finds nothing of them, or the host is
//! out of service.
//!
//! `GREENROOM_HOSTILE=N` repeats each attack N times. Each attack runs as a job of another domain than the one before it.

use std::time::Duration;

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;

use crate::cleaned::cleaned;
use crate::machine::{Hosts, Machine, Make, SUBORDINATE, possible};

/// `apart` starts a program beyond its job's session. The program `$wait` waits until root cleans: whoever stops all
/// processes before that stops the job itself.
const APART: &str = r#"apart() { setsid "$@" >/dev/null 2>&1 </dev/null & }
wait='$SIG{TERM} = "IGNORE"; sub cleans { open my $f, "<", shift; <$f> =~ m(^/bin/sh\0-s) }
1 until grep { cleans $_ } glob "/proc/[0-9]*/cmdline";'"#;
/// Lists what is left of a job, as root. Servers of ended connections may take a moment to go.
const LEFT: &str = r#"
ps -eo uid=,pid=,stat=,args= | while read -r u p s a; do
  case $s$a in Z*|*sshd*) continue ;; esac
  [ "$u" = 4711 ] || [ "$u" -ge 200000 ] && echo "process $u $p $s $a"
done
diff -r --no-dereference -x containers /home/ci /var/lib/greenroom-homes/ci | grep -v '^Only in /home/ci: .greenroom$'
for d in /home/ci/.greenroom/run /home/ci/.config/containers; do [ ! -e $d ] || echo "$d"; done
ls -A /home/ci/.greenroom/* 2>/dev/null
find /tmp /var/tmp /dev/shm /run /var/spool /var/lib/systemd \( -uid 4711 -o -uid +199999 \) -a ! -path '*/.greenroom*'
find /var/lib/systemd/linger /var/spool/cron -type f ! -name .SEQ
while read -r key id perms size cpid lpid nattch u x; do [ "$u" != 4711 ] || echo "memory $id"; done </proc/sysvipc/shm
"#;
/// A script that makes the files and processes of others, which have to stay.
const OTHERS: &str = "cd /; mkdir -p /home/other /tmp/other; echo kept > /home/other/file; echo kept > /tmp/other/file; \
    chown -R 7777 /home/other /tmp/other; chmod 777 /tmp/other /home/other; \
    setpriv --reuid=7777 --regid=7777 --clear-groups setsid sleep 4711 >/dev/null 2>&1 </dev/null &";
const OTHERS_STAY: &str = "cat /home/other/file /tmp/other/file; pgrep -u 7777 -x sleep | wc -l";

/// Real programs of other packages, which plan or start processes for a job beyond its session.
const BY_OTHERS: [(&str, Attack); 4] = [
    (
        "newuidmap",
        sure(
            "subordinate ids by newuidmap",
            "apart unshare --user --map-users=200000,0,1000 --setuid 5 sh -c 'trap \"\" TERM; touch /tmp/mapped; \
             while :; do sleep 100; done'; until [ -e /tmp/mapped ]; do sleep 0.05; done; \
             [ $(stat -c %u /tmp/mapped) = 200005 ]",
        ),
    ),
    (
        "crontab",
        sure("a crontab", "echo '* * * * * sleep 1000' | crontab - && [ -e /var/spool/cron/crontabs/ci ]"),
    ),
    (
        "crontab",
        sure(
            "a crontab that is written again and again",
            "apart sh -c 'trap \"\" TERM; while :; do echo \"* * * * * sleep 1000\" | crontab -; done'; \
             apart sh -c 'sleep 1000 | crontab -'; \
             until [ -e /var/spool/cron/crontabs/ci ] && ls /var/spool/cron/crontabs/tmp.*; do sleep 0.05; done",
        ),
    ),
    (
        "atd",
        sure(
            "jobs of at",
            "echo 'trap \"\" TERM; touch /tmp/by-at; sleep 1000' | at now; until [ -e /tmp/by-at ]; do sleep 0.05; done; \
             echo 'sleep 1000' | at now + 1 hour; [ $(atq | wc -l) -ge 1 ]",
        ),
    ),
];

pub struct Attack {
    name: &'static str,
    /// The job.
    script: &'static str,
    /// A script that does what programs with more rights would do for the job; run as root after the job has begun.
    helped: &'static str,
    /// True if the script fails when what it plans or starts is missing.
    is_sure: bool,
}

const fn attack(name: &'static str, script: &'static str) -> Attack {
    Attack { name, script, helped: "", is_sure: false }
}

pub const fn sure(name: &'static str, script: &'static str) -> Attack {
    Attack { is_sure: true, ..attack(name, script) }
}

const PROCESSES: [Attack; 8] = [
    attack(
        "the name of a zombie",
        r#"apart sh -c "printf 'a) Z\nx' > /proc/\$\$/comm; trap '' TERM; while :; do sleep 100; done""#,
    ),
    attack(
        "a storm of forks",
        "for i in 1 2; do apart perl -e 'while (1) { fork and exit; select undef, undef, undef, 0.00015 }'; done",
    ),
    Attack {
        name: "subordinate ids",
        script: "echo plain",
        helped: "setpriv --reuid=200005 --regid=200005 --clear-groups sh -c 'touch /tmp/sub; mkdir /tmp/subs; \
                 touch /tmp/subs/file; cp /bin/true /tmp/set-uid; chmod 4755 /tmp/set-uid; trap \"\" TERM; \
                 setsid sleep 1000 & setsid sleep 1000 &' >/dev/null 2>&1 </dev/null",
        is_sure: false,
    },
    attack(
        "sessions and double forks",
        "trap '' TERM; for how in '' setsid 'setsid env -i' nohup; do $how sleep 1000 >/dev/null 2>&1 </dev/null & done; \
         (setsid sh -c 'sleep 1000 & sleep 1000 & exit' >/dev/null 2>&1 </dev/null &)",
    ),
    attack("stopping whoever comes", r#"apart perl -e "$wait"'fork; kill STOP => -1 while 1'"#),
    attack(
        "tracing whoever comes",
        // Attaches to each process of the account, which stops it.
        r#"apart perl -e "$wait"'while (1) { for (glob "/proc/[0-9]*") { /(\d+)/; syscall 101, 16, $1 + 0, 0, 0 } }'"#,
    ),
    attack(
        "a first thread that has ended",
        "apart /usr/bin/python3 -c 'import threading, time, ctypes; \
         threading.Thread(target=time.sleep, args=(1000,)).start(); ctypes.CDLL(None).pthread_exit(None)'",
    ),
    attack(
        "as many processes as it may have",
        "ulimit -u 400; perl -e 'while (1) { defined($p = fork) or exit; $p or do { setpgrp; sleep 1000 } }' \
         >/dev/null 2>&1 </dev/null",
    ),
];

const HOMES: [Attack; 4] = [
    attack(
        "a profile that says all is well",
        "echo 'echo all is well; exit 0' > ~/.bashrc; cp ~/.bashrc ~/.bash_profile",
    ),
    attack("a black hole", "rm -rf ~/.greenroom; touch ~/.greenroom"),
    Attack {
        name: "plans for later",
        script: "mkdir -p ~/.config/systemd/user/default.target.wants ~/.config/autostart; \
                 echo x > ~/.config/systemd/user/x.service; \
                 ln -s ../x.service ~/.config/systemd/user/default.target.wants/x.service",
        helped: "for f in /var/spool/cron/crontabs/ci /var/spool/cron/atjobs/a00001 /var/lib/systemd/linger/ci; do \
                 echo '* * * * * sleep 1000' > $f; chown 4711 $f; done",
        is_sure: false,
    },
    attack("memory without a file", "ipcmk -M 1000 -p 0666; ipcmk -Q; ipcmk -S 2; echo data > /dev/shm/data"),
];

const FILES: [Attack; 5] = [
    attack(
        "links",
        "ln -s /home/other /home/ci/builds/other; ln -s /home/other ~/.cache; ln -s / /tmp/root; ln -s /home/other/file l; \
         rm -rf ~/cache; ln -s /home/other ~/cache; mv ~/builds ~/moved; ln -s /home/other ~/builds",
    ),
    attack(
        "names",
        "cd /tmp; for d in ~/builds ~ /tmp /var/tmp /dev/shm; do for n in 'a b' '*' '-rf' $'two\nlines' $'\n/home/other'; \
         do mkdir -p -- \"$d/x$n/$n\"; : > \"$d/x$n/$n/file\"; : > \"$d/./-$n\" || :; done; done",
    ),
    attack(
        "pipes, set-uid files and closed directories",
        "mkfifo ~/builds/pipe ~/pipe /tmp/pipe; cp /bin/true ~/builds/true; chmod 6755 ~/builds/true; cp ~/builds/true /tmp; \
         mkdir -p closed/in/it; touch closed/in/it/file; chmod -R 0 closed; mkdir /tmp/closed; chmod 0 /tmp/closed; \
         chmod 0 ~/builds",
    ),
    attack(
        "files in the directories of others",
        "touch /tmp/other/mine /home/other/mine; ln -s /etc /tmp/other/etc",
    ),
    attack(
        "a full home",
        "dd if=/dev/zero of=$HOME/fill bs=1M 2>/dev/null; touch ~/more; mkdir ~/more.d; true",
    ),
];

pub fn rounds() -> u64 {
    std::env::var("GREENROOM_HOSTILE").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Makes what belongs to others.
pub fn others(host: &Machine) {
    host.sh(OTHERS);
}

fn host() -> Option<Hosts> {
    if !possible() {
        return None;
    }
    let hosts = Hosts::boot(&[Make { disk: 150, ..Make::named("a") }]);
    others(&hosts.machines[0]);
    Some(hosts)
}

fn open(hosts: &Hosts) -> Place {
    // A login between two jobs is a process of the account, too.
    hosts.cleaned_by("root").timing("health_interval", "1h").open()
}

/// Runs the attacks one after the other, and looks for what they left as root. `more`: lists what else is left.
pub fn withstand(hosts: &Hosts, place: &Place, attacks: &[Attack], more: &str) {
    let host: &Machine = &hosts.machines[0];
    let mut id = 0;
    for _ in 0..rounds() {
        for Attack { name, script, helped, is_sure } in attacks {
            id += 1;
            let job = Job::new(id).project(id % 2, &format!("g/{}", id % 2));
            // The first line fails where the job before left its directory unusable.
            let lines = [
                "touch here && echo begun",
                APART,
                script,
                "while [ -e /tmp/other/wait ]; do sleep 0.05; done",
            ];
            if helped.is_empty() {
                let result = place.run(&job.script(lines));
                let log = result.log_text();
                assert!(log.contains("begun"), "{name}: {log}");
                assert!(!is_sure || result.outcome == Outcome::Success, "{name}: {log}");
            } else {
                host.sh("touch /tmp/other/wait");
                let handle = place.runner().start(&job.script(lines));
                handle.wait_for_log("begun");
                host.sh(helped);
                host.sh("rm /tmp/other/wait");
                handle.finish().expect_outcome(&Outcome::Success);
            }
            let out_of_service = cleaned(place);
            assert_eq!(out_of_service, None, "{name}");
            let mut left;
            let until = std::time::Instant::now() + Duration::from_secs(20);
            while {
                left = host.sh(&format!("{LEFT}{more}"));
                !left.is_empty()
            } && std::time::Instant::now() < until
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(left, "", "{name}");
            assert_eq!(host.sh(OTHERS_STAY), "kept\nkept\n1\n", "{name}");
        }
    }
    place.run(&Job::new(id + 1).project(7, "g/last")).expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(place), None);
    place.expect_sound();
}

#[test]
fn no_process_outlives_its_job() {
    let Some(hosts) = host() else { return };
    if hosts.machines[0].sh("cat /etc/subuid").trim() != format!("ci:{SUBORDINATE}:65536") {
        skipped("there is no /etc/subuid");
        return;
    }
    withstand(&hosts, &open(&hosts), &PROCESSES, "");
}

#[test]
fn what_other_programs_do_for_a_job_goes_with_it() {
    let Some(hosts) = host() else { return };
    let host = &hosts.machines[0];
    // The daemon that starts the jobs of `at`.
    host.sh("export PATH=$PATH:/usr/sbin; command -v atd && { cd /var/spool/cron/atjobs; touch .SEQ; chmod 600 .SEQ; \
             mkdir -m 1770 ../atspool; chown 1:1 . .SEQ ../atspool; setsid atd -f >/dev/null 2>&1 </dev/null & }");
    let mut attacks = Vec::new();
    for (program, attack) in BY_OTHERS {
        if host.sh(&format!("PATH=$PATH:/usr/sbin command -v {program}")).is_empty() {
            skipped(format_args!("`{program}` is missing"));
        } else {
            attacks.push(attack);
        }
    }
    withstand(&hosts, &open(&hosts), &attacks, "");
}

#[test]
fn no_home_is_handed_on() {
    let Some(hosts) = host() else { return };
    withstand(&hosts, &open(&hosts), &HOMES, "");
}

#[test]
fn no_file_outlives_its_job() {
    let Some(hosts) = host() else { return };
    withstand(&hosts, &open(&hosts), &FILES, "");
}

#[test]
fn a_host_that_cannot_be_cleaned_serves_nobody() {
    let Some(hosts) = host() else { return };
    let (place, host) = (open(&hosts), &hosts.machines[0]);
    for (id, (broken, mended, why)) in [
        (
            "mount -t tmpfs own /tmp/other; mkdir /tmp/other/in; chown 4711 /tmp/other/in; mkdir -p /tmp/mine/in; \
             touch /tmp/mine/in/file; chown -R 4711 /tmp/mine; chown 0 /tmp/mine/in/file; umount /tmp/other",
            "rm -r /tmp/mine",
            "cannot remove /tmp/mine",
        ),
        ("chmod 755 /var/lib/greenroom-homes", "chmod 700 /var/lib/greenroom-homes", "others than root can reach"),
        (
            "mv /var/lib/greenroom-homes/ci /var/lib/greenroom-homes/it",
            "mv /var/lib/greenroom-homes/it /var/lib/greenroom-homes/ci",
            "there is no copy of the home",
        ),
        (
            "echo 'exit 3' > /var/lib/greenroom-homes/ci/.bashrc",
            ": > /var/lib/greenroom-homes/ci/.bashrc",
            "no stage begins on the clean host: ",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let handle = place.runner().start(&Job::new(id as u64).script(["echo begun", "sleep 1"]));
        handle.wait_for_log("begun");
        host.sh(broken);
        handle.finish().expect_outcome(&Outcome::Success);
        let reason = cleaned(&place).unwrap_or_default();
        assert!(reason.contains(why), "{why}: {reason}");
        host.sh(mended);
        place.order(&["pool", "resume", "--instance", "a"]);
        let back = || (cleaned(&place).is_none()).then_some(());
        wait_for("the host to be back", SOON, back);
    }
    place.expect_sound();
}
