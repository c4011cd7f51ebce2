//! Greenroom's own part of cleaning: the variables of the script, and the script itself (clean.sh).

use super::settings::Settings;
use crate::core::ids::PoolName;
use crate::keys::problem::Problems;
use crate::provider::CleanDirs;

/// The script for `/bin/sh`; `None`: the table turns it off. Its one argument is the mark of the host's jobs.
pub(super) fn script(
    pool: &PoolName,
    table: &toml::Table,
    dirs: &CleanDirs<'_>,
) -> Result<Option<String>, Problems> {
    let settings = Settings::read(pool, table)?;
    if !settings.clean {
        return Ok(None);
    }
    let variables = [
        format!("builds={}", quoted(dirs.builds)),
        format!("cache={}", quoted(dirs.cache.unwrap_or_default())),
        format!("dedicated={}", u8::from(settings.dedicated_user)),
    ];
    Ok(Some(format!("{}\n{}", variables.join("\n"), include_str!("clean.sh"))))
}

/// Quotes any text as one word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::shells::shells;

    const MARK: &str = "owner.pool.host";

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

        fn notes(&self) -> PathBuf {
            self.path(".greenroom").join(MARK)
        }

        fn note(&self, session: u32, builds: &Path) {
            self.note_since(session, 0, builds);
        }

        fn note_since(&self, session: u32, start: u32, builds: &Path) {
            symlink(builds, self.notes().join("x1.builds")).unwrap();
            std::fs::write(self.notes().join(format!("x1.{session}.{start}")), "").unwrap();
        }

        /// Whether the script succeeded, and its output.
        fn clean(&self, shell: &[&str], edit: impl Fn(&str) -> String) -> (bool, String) {
            let table =
                "user = \"ci\"\nkey = \"/k\"\n[[host]]\nname = \"h\"\naddress = \"h\"".parse().unwrap();
            let (builds, cache) = (self.path("builds"), self.path("cache"));
            let (builds, cache) = (builds.to_str().unwrap(), cache.to_str().unwrap());
            let dirs = CleanDirs { builds, cache: Some(cache) };
            let script = script(&PoolName::new("macs"), &table, &dirs).unwrap().unwrap();
            let file = self.path("script");
            std::fs::write(&file, edit(&script)).unwrap();
            let output = Command::new(shell[0])
                .args(&shell[1..])
                .args(["-s", "--", MARK])
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
        let stat = format!("/proc/{}/stat", child.id());
        let leads = || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap().to_owned();
            session == child.id().to_string()
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
                let (mut noted, mut marked) = (sleeper(None), sleeper(Some(MARK)));
                let (mut other, mut plain) = (sleeper(Some("owner.pool.host-2")), sleeper(None));
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
        let dirs = CleanDirs { builds: "/it's here", cache: None };
        let script = |table: &str| script(&PoolName::new("macs"), &table.parse().unwrap(), &dirs).unwrap();
        assert_eq!(script(table), None);
        let text = script(&table.replace("false", "true")).unwrap();
        assert!(text.starts_with("builds='/it'\\''s here'\ncache=''\ndedicated=0\n"), "{text}");
    }
}
