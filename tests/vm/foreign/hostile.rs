//! Jobs that would stay on a static host with a real systemd: by lingering, by units and timers of their user manager, in
//! other control groups, by cron and `at`. A `clean_user` cleans, and the next trust domain finds nothing of them.

use std::time::{Duration, Instant};

use greenroom_harness::place::Place;
use greenroom_harness::provider::{Fixture as _, leave_nothing};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use toml::{Table, Value};

use super::machines;
use crate::cleaned::cleaned;
use crate::fixture::{Guest, VmFixture};

/// The time for anything on an emulated host.
const PATIENCE: Duration = Duration::from_mins(5);

/// Prepares the host as docs/providers/static.md says; the variable `login` has the public key.
const SET_UP: &str = r#"set -e
useradd --create-home --shell /bin/bash ci
install -d -o ci /builds /cache
install -d -m 700 ~root/.ssh
echo "$login" >> ~root/.ssh/authorized_keys
install -d -m 700 -o ci ~ci/.ssh
echo "$login" > ~ci/.ssh/authorized_keys
chown ci ~ci/.ssh/authorized_keys
install -d -m 700 /var/lib/greenroom-homes
cp -a ~ci /var/lib/greenroom-homes/ci
systemctl is-active cron atd polkit || systemctl start cron atd polkit
"#;

/// `becomes TEXT COMMAND…` waits until the command prints the text, and fails the job if it does not.
/// Every process, file, unit and word of a hostile job has a name that begins with `left-`.
const BEGIN: &str = r#"becomes() { expected=$1; shift; n=0
  until [ "$("$@" 2>/dev/null)" = "$expected" ]; do
    n=$((n + 1)); [ $n -lt 600 ] || { echo "not in time: $* prints $expected"; exit 1; }; sleep 0.2
  done; }
runs() { becomes yes sh -c "pgrep -u ci -f '^$1' >/dev/null && echo yes"; }
exists() { becomes "$1" ls -d "$1"; }
units=~/.config/systemd/user; mkdir -p $units
echo "manager: $(systemctl show -P InvocationID user@$UID.service)"; systemctl --user set-environment LEFT=left-manager"#;

/// Scripts that fail unless everything they start runs, and everything they plan is there.
const ATTACKS: [(&str, &str); 3] = [
    (
        "a user who lingers, and units",
        r#"loginctl enable-linger; exists /var/lib/systemd/linger/ci
        cat > $units/left-unit.service <<'END'
[Service]
ExecStart=/bin/bash -c 'trap "" TERM; touch %t/left-unit /tmp/left-unit; exec -a left-unit sleep 1000'
Restart=always
RestartSec=0
[Install]
WantedBy=default.target
END
        printf '[Service]\nExecStart=touch /tmp/left-calendar\n' > $units/left-calendar.service
        printf '[Timer]\nOnCalendar=*:*:0/5\nPersistent=true\n[Install]\nWantedBy=timers.target\n' > $units/left-calendar.timer
        systemctl --user daemon-reload; systemctl --user enable --now left-unit.service left-calendar.timer
        runs left-unit; exists $XDG_RUNTIME_DIR/left-unit; exists /tmp/left-calendar
        rm /tmp/left-unit; pkill -KILL -f ^left-unit; exists /tmp/left-unit; runs left-unit
        setsid bash -c 'trap "" TERM; : left-loop; while :; do loginctl enable-linger; done' >/dev/null 2>&1 </dev/null &
        becomes yes loginctl show-user -P Linger ci"#,
    ),
    (
        "transient units, and control groups of its own",
        r#"systemd-run --user --unit left-service bash -c 'trap "" TERM; exec -a left-service sleep 1000'
        systemd-run --user --scope --unit left-scope setsid bash -c 'trap "" TERM; exec -a left-scope sleep 1000' \
            >/dev/null 2>&1 </dev/null &
        systemd-run --user --unit left-timed --on-active=0 --on-unit-inactive=1s --timer-property=AccuracySec=100ms \
            touch /tmp/left-timed /var/tmp/left-timed /dev/shm/left-timed
        cat > ~/left-move <<'END'
trap "" TERM
top=/sys/fs/cgroup/user.slice/user-$UID.slice/user@$UID.service
for group in left-group left-frozen; do
  mkdir -p $top/$group
  (setsid bash -c "echo \$BASHPID > $top/$group/cgroup.procs && { exec -a $group sleep 1000 & }" &)
done
END
        systemd-run --user --scope --unit left-begin setsid bash ~/left-move >/dev/null 2>&1 </dev/null
        top=/sys/fs/cgroup/user.slice/user-$UID.slice/user@$UID.service
        runs left-group; runs left-frozen
        becomes "0::${top#/sys/fs/cgroup}/left-group" sh -c 'cat /proc/$(pgrep -f ^left-group)/cgroup'
        echo 1 > $top/left-frozen/cgroup.freeze
        becomes 'frozen 1' grep frozen $top/left-frozen/cgroup.events
        becomes 'populated 1' grep populated $top/left-frozen/cgroup.events
        runs left-service; runs left-scope; becomes active systemctl --user is-active left-scope.scope
        exists /dev/shm/left-timed; rm /tmp/left-timed; exists /tmp/left-timed"#,
    ),
    (
        "a crontab, jobs of at, words in the journal, keys in the kernel",
        // The journal's service notices within seconds that cleaning removed its file; until then, words are lost.
        r#"echo '* * * * * touch /tmp/left-cron; exec bash -c "trap \"\" TERM; exec -a left-cron sleep 1000"' | crontab -
        echo 'touch /tmp/left-at; exec bash -c "trap \"\" TERM; exec -a left-at sleep 1000"' | at now
        echo 'exec bash -c "exec -a left-at sleep 1000"' | at now + 1 hour
        [ "$(crontab -l | wc -l)" = 1 ]; [ "$(atq | grep -c -v =)" = 1 ]
        perl -e '($call, $add, $type, $name, $words) = (250, 248, "user", "left-key", "left-words");
            for (-4, -5, syscall $call, 22, -1, -2) { syscall($add, $type, $name, $words, 10, $_) < 0 and die $! }'
        [ "$(grep -c left-key /proc/keys)" = 3 ]
        systemd-run --user --unit left-speaker echo left-words
        becomes yes sh -c 'logger left-words; journalctl -q --no-pager -o cat | grep -q -x left-words && echo yes'
        exists /tmp/left-at; runs left-at; exists /tmp/left-cron; runs left-cron"#,
    ),
];

/// A script that prints what a job of another project finds of the one before: a line each. It never writes what it
/// looks for.
const LOOK: &str = r#"word='left[-]'
look() {
  own=$(cat /proc/self/cgroup)
  ps -eo uid=,ruid=,pid=,args= | while read -r u r p args; do
    [ "$u" = $UID ] || [ "$r" = $UID ] || continue
    group=$(cat /proc/$p/cgroup 2>/dev/null) || continue
    case $group in "$own" | 0::*/user@$UID.service/init.scope) ;; *) echo "process $p in $group: $args" ;; esac
  done
  find /var/lib/systemd/linger -type f
  [ "$(loginctl show-user -P Linger ci)" = no ] || echo "it lingers"
  systemctl --user list-units --all --plain --no-legend | grep "$word" || :
  systemctl --user list-unit-files --no-legend | grep "$word" || :
  systemctl --user show-environment | grep "$word" || :
  crontab -l 2>/dev/null | grep . || :
  atq
  find /run/user/$UID /builds /cache ~ /dev/mqueue /run/lock -name "$word*" 2>/dev/null
  find /tmp /var/tmp /dev/shm -user ci 2>/dev/null
  find /sys/fs/cgroup/user.slice -name "$word*"
  journalctl -q --no-pager | grep "$word" || :
  grep "$word" /proc/keys || :
}
echo "manager: $(systemctl show -P InvocationID user@$UID.service)"
found=$(look 2>&1); [ -z "$found" ] || { echo "FOUND: $found"; exit 1; }; echo "found: nothing" | tr -d :"#;

/// A script that prints, as root sees it, what the job before has left.
const LOOK_AS_ROOT: &str = r"ps -eo uid=,pid=,args= | grep 'left[-]' | grep -v grep
diff -r --no-dereference ~ci /var/lib/greenroom-homes/ci | grep -v '^Only in /home/ci: .greenroom$'
ls -A ~ci/.greenroom/* /builds /cache | grep 'left[-]'
ls /var/lib/systemd/linger
find /tmp /var/tmp /dev/shm /dev/mqueue /run/lock /run/user /var/spool/cron /var/mail -user ci -name '*left[-]*'
find /tmp /var/tmp /dev/shm /dev/mqueue /run/lock /var/spool/cron /var/mail -user ci
find /sys/fs/cgroup/user.slice -name 'left[-]*'
:";

fn setting(fixture: &VmFixture, host: &Guest<'_>) -> Setting {
    let text = |text: &str| Value::String(text.to_owned());
    let endpoint = &host.endpoint;
    let table = Table::from_iter([
        ("name".to_owned(), text("a")),
        ("address".to_owned(), text(&endpoint.address)),
        ("port".to_owned(), Value::Integer(endpoint.port.into())),
        ("host_key".to_owned(), text(&endpoint.host_key)),
    ]);
    let key = fixture.state_dir().join("client").display().to_string();
    let mut setting = Setting::new().pool("max_instances", 1);
    setting.patience = PATIENCE;
    let setting = setting.timing("connect_timeout", "1m").timing("ready_timeout", "2m");
    let setting =
        setting.timing("launch_timeout", "5m").timing("clean_grace", "1m").timing("stop_grace", "10s");
    // A login between two jobs is a process of the account, too.
    let setting = setting.timing("health_interval", "1h").timing("loss_reason_timeout", "10s");
    let setting = setting.provider("kind", "static").provider("user", "ci").provider("key", key);
    let setting = setting.provider("dedicated_user", true).provider("clean_user", "root");
    setting.provider("host", Value::Array(vec![Value::Table(table)]))
}

/// The user manager that a job's log names.
fn manager(log: &str) -> &str {
    let named = log.lines().find_map(|line| line.strip_prefix("manager: "));
    let named = named.unwrap_or_default().trim_end();
    assert_eq!(named.len(), 32, "no user manager ran: {log}");
    named
}

/// Runs each attack and a job of another project after it; what was left, a paragraph for each look that saw something.
fn withstand(host: &Guest<'_>, place: &Place) -> Vec<String> {
    let mut left = Vec::new();
    for (number, (name, script)) in ATTACKS.into_iter().enumerate() {
        let id = number as u64 * 2;
        let begun = Instant::now();
        let hostile = place.run(&Job::new(id).project(1, "g/hostile").script([BEGIN, script]));
        let log = hostile.log_text();
        assert_eq!(hostile.outcome, Outcome::Success, "{name}: {log}");
        let (ran, ended) = (begun.elapsed(), Instant::now());
        assert_eq!(cleaned(place), None, "{name}");
        let cleaning = ended.elapsed();
        let as_root = host.says(LOOK_AS_ROOT);
        if !as_root.is_empty() {
            left.push(format!("{name}: root found: {as_root}"));
        }
        let next = place.run(&Job::new(id + 1).project(2, "g/next").script([LOOK]));
        let seen = next.log_text();
        if next.outcome != Outcome::Success || !seen.contains("found nothing") {
            left.push(format!("{name}: the next job: {seen}"));
        }
        if manager(&log) == manager(&seen) {
            left.push(format!("{name}: the user manager stayed"));
        }
        assert_eq!(cleaned(place), None, "{name}");
        eprintln!("{name}: the job took {ran:?}, cleaning {cleaning:?}, all {:?}", begun.elapsed());
    }
    left
}

#[test]
#[ignore = "makes a disk of its own"]
fn nothing_that_systemd_cron_or_at_keeps_for_a_job_outlives_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let fixture = machines("");
    let begun = Instant::now();
    let (_provider, host) = runtime.block_on(fixture.one(""));
    eprintln!("a host with systemd answers {:?} after its launch", begun.elapsed());
    host.says("cloud-init status --wait");
    host.says(&format!("login='{}'\n{SET_UP}", fixture.keys().authorized_key));
    let place = setting(&fixture, &host).open();
    assert_eq!(withstand(&host, &place), Vec::<String>::new());
    place.expect_sound();
    drop(place);
    runtime.block_on(leave_nothing(&fixture));
}
