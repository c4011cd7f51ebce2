//! Greenroom's own part of [`Cleaning`]: the variables of the scripts, and who runs which of them (clean.sh, clean_root.sh).

use std::collections::BTreeMap;

use greenroom_core::container::engine::EnginePlace;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::text::quoted;
use greenroom_keys::problem::Problems;
use greenroom_ports::dialect::{GuestDialect as _, Posix, RootAccess};
use greenroom_ports::setup::{Cleaning, KEEP_CACHE, RootCleaning, SudoRule};

use super::settings::{Host, Settings};
use crate::registration::CleanDirs;

/// Pristine copies of homes, by the name of their account. Only root enters this directory.
const SKELETONS: &str = "/var/lib/greenroom-homes";
/// The script of an account that needs `sudo`, without the name of the account that it cleans.
const PROGRAM: &str = "/usr/local/sbin/greenroom-clean";
/// The argument of the script that only checks whether cleaning is possible.
const CHECK: &str = "--check";

/// Greenroom's own part of cleaning; `None`: the table turns it off.
pub(super) fn cleaning(
    pool: &PoolName,
    table: &toml::Table,
    dirs: &CleanDirs<'_>,
) -> Result<Option<Cleaning>, Problems> {
    let settings = Settings::read(pool, table)?;
    if !settings.clean {
        return Ok(None);
    }
    let variables = [
        format!("builds={}", quoted(dirs.builds)),
        format!("cache={}", quoted(dirs.cache)),
        format!("dedicated={}", u8::from(settings.dedicated_user)),
        format!("keep_builds={}", u8::from(dirs.keep_builds)),
    ];
    // Hosts of one pool share this script, so what differs between them, the mark of their jobs, is an argument.
    let by_account = format!("{}\n{}", variables.join("\n"), include_str!("clean.sh"));
    let by_root = settings.hosts.iter().filter_map(|host| {
        let user = host.clean_user.as_ref()?;
        Some((InstanceId::new(&host.name), root_cleaning(user, host, dirs)))
    });
    let by_root: BTreeMap<_, _> = by_root.collect();
    let all_by_root = by_root.len() == settings.hosts.len();
    let engine = if dirs.containers {
        format!("{}\n{}", EnginePlace::Account.prepares(), include_str!("clean_engine.sh"))
    } else {
        String::new()
    };
    let proof = format!("{engine}{}", include_str!("clean_proof.sh"));
    Ok(Some(Cleaning { by_account, by_root, all_by_root, proof }))
}

/// The part of [`Cleaning`] that `user` does on a host, as root.
fn root_cleaning(user: &str, host: &Host, dirs: &CleanDirs<'_>) -> RootCleaning {
    let account = &host.server.user;
    let variables = [
        "#!/bin/sh".to_owned(),
        format!("account={}", quoted(account)),
        format!("builds={}", quoted(dirs.builds)),
        format!("cache={}", quoted(dirs.cache)),
        format!("keep_builds={}", u8::from(dirs.keep_builds)),
        format!("skeleton={}", quoted(&format!("{SKELETONS}/{account}"))),
        format!("containers={}", u8::from(dirs.containers)),
    ];
    // The values are part of the script, not arguments: with `sudo`, the rule then fixes what can be cleaned.
    let script = format!("{}\n{}", variables.join("\n"), include_str!("clean_root.sh"));
    let program = (user != "root").then(|| format!("{PROGRAM}-{account}"));
    let access = match &program {
        Some(program) => RootAccess::Sudo { program, host: &host.name },
        None => RootAccess::Login,
    };
    let command = |argument| Posix.clean_as_root(access, argument);
    let (clean, clean_keeping_cache, check) = (command(""), command(KEEP_CACHE), command(CHECK));
    let user = user.to_owned();
    let sudo = program.map(|program| {
        let line =
            format!("{user} ALL=(root) NOPASSWD: {program} \"\", {program} {KEEP_CACHE}, {program} {CHECK}");
        SudoRule { program, line }
    });
    RootCleaning { user, clean, clean_keeping_cache, check, script, sudo }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use greenroom_testkit::shells::shells;

    use super::*;

    /// An account's home with builds and a cache in it.
    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Self {
            let home = Self(tempfile::tempdir().unwrap());
            std::fs::create_dir_all(home.notes()).unwrap();
            std::fs::create_dir_all(home.path("builds/x1/group/project/locked")).unwrap();
            std::fs::create_dir_all(home.path("cache/project")).unwrap();
            home
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// No other test's cleaning finds its processes.
        fn mark(&self) -> String {
            let name = self.0.path().file_name().unwrap().to_str().unwrap();
            format!("owner.pool.{}", name.trim_start_matches('.'))
        }

        fn notes(&self) -> PathBuf {
            self.path(".greenroom").join(self.mark())
        }

        fn note(&self, session: u32, builds: &Path) {
            self.note_since(session, 0, builds);
        }

        fn note_since(&self, session: u32, start: u32, builds: &Path) {
            symlink(builds, self.notes().join("x1.builds")).unwrap();
            std::fs::write(self.notes().join(format!("x1.{session}.{start}")), "").unwrap();
        }

        /// Runs the script; returns true if it succeeded, and its output.
        fn clean(&self, shell: &[&str], edit: impl Fn(&str) -> String) -> (bool, String) {
            self.clean_with(shell, &[], edit)
        }

        /// Runs the script like `clean`, with more arguments; `keep_builds` is set.
        fn clean_with(
            &self,
            shell: &[&str],
            arguments: &[&str],
            edit: impl Fn(&str) -> String,
        ) -> (bool, String) {
            let table =
                "user = \"ci\"\nkey = \"/k\"\n[[host]]\nname = \"h\"\naddress = \"h\"".parse().unwrap();
            let builds = self.path("builds");
            let cache = self.path("cache");
            let builds = builds.to_str().unwrap();
            let cache = cache.to_str().unwrap();
            let dirs = CleanDirs { builds, cache, keep_builds: true, containers: false };
            let script = cleaning(&PoolName::new("macs"), &table, &dirs).unwrap().unwrap().by_account;
            let file = self.path("script");
            std::fs::write(&file, edit(&script)).unwrap();
            let output = Command::new(shell[0])
                .args(&shell[1..])
                .args(["-s", "--", &self.mark()])
                .args(arguments)
                .env("HOME", self.0.path())
                .stdin(std::fs::File::open(&file).unwrap())
                .output()
                .unwrap();
            let text = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&text).trim().to_owned())
        }
    }

    /// A process in a session, and so in a group, of its own.
    fn sleeper(mark: Option<&str>) -> Child {
        let mut command = Command::new("setsid");
        command.args(["sleep", "600"]).env_remove("GREENROOM_TRACE");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(mark) = mark {
            command.env("GREENROOM_TRACE", format!("/{mark}/"));
        }
        let child = command.spawn().unwrap();
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
        // While it becomes `sleep`, its environment cannot be read.
        let leads = || {
            let stat = read("stat");
            let (name, rest) = stat.rsplit_once(") ").unwrap();
            let is_leader = rest.split(' ').nth(3) == Some(&child.id().to_string());
            is_leader && name.ends_with("(sleep") && read("environ").contains(mark.unwrap_or_default())
        };
        let until = Instant::now() + Duration::from_secs(30);
        while !leads() {
            assert!(Instant::now() < until, "setsid makes a session");
            std::thread::sleep(Duration::from_millis(1));
        }
        child
    }

    fn quick(script: &str) -> String {
        script.replace("grace=5 ", "grace=1 ")
    }

    #[test]
    fn what_a_job_left_goes_and_what_is_not_its_own_stays() {
        for shell in shells() {
            // BusyBox runs on Linux: its `ps` lacks the options that the variant without /proc uses.
            // Then as on a kernel that does not show sessions in `status`.
            let linux = [("/proc/", "/proc/"), ("NSsid:", "Nothing:")];
            let without_proc = ("/proc/", "/nowhere/");
            let elsewhere = (shell[0] != "busybox").then_some(without_proc);
            for (text, way) in linux.into_iter().chain(elsewhere) {
                let home = Home::new();
                let mut noted = sleeper(None);
                let mut marked = sleeper(Some(&home.mark()));
                let mut other = sleeper(Some(&format!("{}-2", home.mark())));
                let mut plain = sleeper(None);
                home.note(noted.id(), &home.path("builds/x1"));
                std::fs::create_dir_all(home.path("builds/x1.tmp")).unwrap();
                std::fs::create_dir_all(home.path("builds/x2")).unwrap();
                let cleaned = home.clean(shell, |script| quick(script).replace(text, way));
                assert_eq!(cleaned, (true, String::new()), "{shell:?} {way}");
                for (which, ended) in [("noted", &mut noted), ("marked", &mut marked)] {
                    let end = ended.try_wait().unwrap();
                    assert_eq!(end.and_then(|end| end.signal()), Some(15), "{which}: {shell:?} {way}");
                }
                for stays in [&mut other, &mut plain] {
                    assert!(stays.try_wait().unwrap().is_none(), "{shell:?} {way}");
                    stays.kill().unwrap();
                    stays.wait().unwrap();
                }
                let left = |name: &str| home.path(name).exists();
                assert!(!left("builds/x1") && !left("builds/x1.tmp") && !left("cache/project"));
                assert!(left("builds/x2") && left("cache") && !home.notes().exists());
            }
        }
    }

    #[test]
    fn kept_builds_stay_until_a_cleaning_that_keeps_nothing() {
        for shell in shells() {
            let home = Home::new();
            std::fs::create_dir_all(home.path("builds/x1.tmp/t")).unwrap();
            home.note(999_999_999, &home.path("builds/x1"));
            for round in ["the first", "a second, without a job between"] {
                let kept = home.clean_with(shell, &[KEEP_CACHE], quick);
                assert_eq!(kept, (true, String::new()), "{shell:?} {round}");
                assert!(home.path("builds/x1/group/project").exists() && home.path("cache/project").exists());
                let notes = std::fs::read_dir(home.notes()).unwrap().flatten().map(|note| note.file_name());
                assert_eq!(notes.collect::<Vec<_>>(), ["kept.x1.builds"], "{shell:?} {round}");
            }
            assert!(!home.path("builds/x1.tmp").exists(), "temporary files go in any case");
            assert_eq!(home.clean(shell, quick), (true, String::new()), "{shell:?}");
            assert!(!home.path("builds/x1").exists() && !home.notes().exists());
        }
    }

    #[test]
    fn a_process_with_the_name_of_a_zombie_goes() {
        for shell in shells() {
            let home = Home::new();
            let script = "printf 'a) Z\\nb' > /proc/$$/comm; trap '' TERM; while :; do sleep 600; done";
            let mut named = Command::new("setsid").args(["sh", "-c", script]).spawn().unwrap();
            let comm = format!("/proc/{}/comm", named.id());
            let until = Instant::now() + Duration::from_secs(30);
            while std::fs::read_to_string(&comm).unwrap() != "a) Z\nb\n" {
                assert!(Instant::now() < until, "it takes the name");
                std::thread::sleep(Duration::from_millis(1));
            }
            home.note(named.id(), &home.path("builds/x1"));
            assert_eq!(home.clean(shell, quick), (true, String::new()), "{shell:?}");
            let end = named.try_wait().unwrap();
            assert_eq!(end.and_then(|end| end.signal()), Some(9), "{shell:?}");
        }
    }

    #[test]
    fn a_file_in_place_of_the_notes_goes() {
        let home = Home::new();
        std::fs::remove_dir_all(home.path(".greenroom")).unwrap();
        std::fs::write(home.path(".greenroom"), "").unwrap();
        assert_eq!(home.clean(&["sh"], quick), (true, String::new()));
        assert!(home.path(".greenroom").is_dir(), "the next stage can leave its note");
        // A directory that cannot be made means that no stage would begin.
        std::fs::remove_dir_all(home.path(".greenroom")).unwrap();
        symlink(home.path("away/from/here"), home.path(".greenroom")).unwrap();
        assert_eq!(home.clean(&["sh"], quick), (true, String::new()));
        let (cleaned, output) = home.clean(&["sh"], |script| quick(script).replace("/try", "/no/try"));
        assert!(!cleaned && output.starts_with("cannot make "), "{output}");
    }

    #[test]
    fn read_only_directories_go_and_what_links_lead_to_stays_as_it_is() {
        let set_mode = |path: &Path, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        // Root is bound by permissions only without its capabilities.
        let is_root = rustix::process::geteuid().is_root();
        let bound: &[&str] =
            if is_root { &["setpriv", "--inh-caps=-all", "--bounding-set=-all"] } else { &["env"] };
        for shell in shells() {
            let home = Home::new();
            home.note(999_999_999, &home.path("builds/x1"));
            let kept = home.path("kept");
            std::fs::create_dir(&kept).unwrap();
            set_mode(&kept, 0o500);
            symlink(&kept, home.path("cache/link")).unwrap();
            symlink(&kept, home.path("builds/x1/link")).unwrap();
            for closed in ["builds/x1/group/project/locked", "builds/x1/group", "builds/x1", "cache"] {
                std::fs::write(home.path(closed).join("file"), "").unwrap();
                set_mode(&home.path(closed), 0o500);
            }
            let cleaned = home.clean(&[bound, shell].concat(), quick);
            assert_eq!(cleaned, (true, String::new()), "{shell:?}");
            assert!(!home.path("builds/x1").exists());
            assert_eq!(std::fs::read_dir(home.path("cache")).unwrap().count(), 0);
            assert_eq!(std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o500);
        }
    }

    #[test]
    fn no_note_makes_it_remove_what_is_no_directory_of_a_job() {
        let home = Home::new();
        let own = home.path("").to_str().unwrap().trim_end_matches('/').to_owned();
        let above = Path::new(&own).parent().unwrap().to_str().unwrap().to_owned();
        for target in ["/", "/etc", "relative/path", "/var/../etc/x", "//etc/x", "/etc/./x", &own, &above] {
            let _before = std::fs::remove_dir_all(home.notes());
            std::fs::create_dir_all(home.notes()).unwrap();
            home.note(999_999_999, Path::new(target));
            let (cleaned, output) = home.clean(&["sh"], quick);
            assert!(!cleaned && output.starts_with("refuses to remove "), "{target}: {output}");
        }
        assert!(home.path("builds/x1").exists());
    }

    #[test]
    fn a_number_that_a_later_session_was_given_is_not_taken_for_the_jobs() {
        let home = Home::new();
        let mut later = sleeper(None);
        home.note_since(later.id(), 17, &home.path("builds/x1"));
        assert_eq!(home.clean(&["sh"], quick), (true, String::new()));
        assert!(later.try_wait().unwrap().is_none());
        later.kill().unwrap();
        later.wait().unwrap();
    }

    #[test]
    fn without_room_afterwards_it_fails_with_what_is_left() {
        let home = Home::new();
        let (cleaned, output) =
            home.clean(&["sh"], |script| script.replace("least=100 ", "least=999999999 "));
        assert!(!cleaned && output.contains("MiB are free in "), "{output}");
    }

    #[test]
    fn a_table_may_want_none_and_paths_may_hold_anything() {
        let table = "user = \"ci\"\nkey = \"/k\"\nclean = false\n[[host]]\nname = \"h\"\naddress = \"h\"";
        let dirs = CleanDirs { builds: "/it's here", cache: "/cache", keep_builds: false, containers: false };
        let cleaning =
            |table: &str| cleaning(&PoolName::new("macs"), &table.parse().unwrap(), &dirs).unwrap();
        assert_eq!(cleaning(table), None);
        let text = cleaning(&table.replace("false", "true")).unwrap().by_account;
        assert!(
            text.starts_with("builds='/it'\\''s here'\ncache='/cache'\ndedicated=0\nkeep_builds=0\n"),
            "{text}"
        );
    }

    #[test]
    fn root_cleans_over_its_own_login_or_by_a_rule_without_a_choice() {
        let table = "user = \"ci\"\nkey = \"/k\"\ndedicated_user = true\nclean_user = \"root\"\n\
                     [[host]]\nname = \"a\"\naddress = \"a\"\n\
                     [[host]]\nname = \"b\"\naddress = \"b\"\nuser = \"it\"\nclean_user = \"janitor\"";
        let dirs = CleanDirs { builds: "/it's here", cache: "/cache", keep_builds: false, containers: false };
        let cleaning = cleaning(&PoolName::new("macs"), &table.parse().unwrap(), &dirs).unwrap().unwrap();
        let [a, b] = ["a", "b"].map(|name| &cleaning.by_root[&InstanceId::new(name)]);
        assert_eq!((a.user.as_str(), a.clean.as_str(), &a.sudo), ("root", "exec /bin/sh -s", &None));
        let begins = "#!/bin/sh\naccount='it'\nbuilds='/it'\\''s here'\ncache='/cache'\nkeep_builds=0\n\
                      skeleton='/var/lib/greenroom-homes/it'\ncontainers=0\n# ";
        assert!(b.script.starts_with(begins), "{}", b.script);
        let rule = b.sudo.as_ref().unwrap();
        let program = "/usr/local/sbin/greenroom-clean-it";
        assert_eq!(rule.program, program);
        assert_eq!(
            rule.line,
            format!("janitor ALL=(root) NOPASSWD: {program} \"\", {program} --keep-cache, {program} --check")
        );
        assert!(b.clean.ends_with(&format!("exec sudo -n {program}")), "{}", b.clean);
    }
}
