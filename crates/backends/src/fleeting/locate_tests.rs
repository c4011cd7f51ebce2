//! Tests of the search for plugins.

use super::*;

struct Scene {
    dir: tempfile::TempDir,
    places: Places,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = vec!["".into(), "relative".into(), dir.path().join("bin"), dir.path().join("sbin")];
        let places = Places { plugins: Some(dir.path().join("plugins")), path };
        Self { dir, places }
    }

    fn file(&self, path: &str, mode: u32) -> PathBuf {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn version(&self, folder: &str, version: &str) -> PathBuf {
        self.file(&format!("plugins/{folder}/{version}/plugin"), 0o755)
    }

    fn find(&self, text: &str) -> Result<PathBuf, LocateError> {
        locate(&Source::parse(text).unwrap(), &self.places).map(|located| located.program)
    }
}

const OFFICIAL: &str = "registry.gitlab.com/gitlab-org/fleeting/plugins";

#[test]
fn the_newest_allowed_version_is_found() {
    let scene = Scene::new();
    let aws = format!("{OFFICIAL}/aws");
    for version in ["0.9.0", "1.2.0", "1.10.0", "1.10.1-rc.1", "2.0.0-beta"] {
        scene.version(&aws, version);
    }
    // Neither half a version nor one without a program counts.
    scene.file(&format!("plugins/{aws}/3.0.0/README"), 0o644);
    scene.file(&format!("plugins/{aws}/3.0.1/plugin"), 0o644);
    scene.version(&aws, "4.0");
    for (text, version) in [
        ("aws", "1.10.0"),
        ("aws:latest", "1.10.0"),
        ("aws:1", "1.10.0"),
        ("aws:1.2", "1.2.0"),
        ("aws:0", "0.9.0"),
        ("aws:2.0.0-beta", "2.0.0-beta"),
        ("gitlab-org/fleeting/plugins/aws:1", "1.10.0"),
        ("registry.gitlab.com/gitlab-org/fleeting/plugins/aws", "1.10.0"),
    ] {
        let expected = scene.dir.path().join(format!("plugins/{aws}/{version}/plugin"));
        assert_eq!(scene.find(text), Ok(expected), "{text}");
    }
    let error = scene.find("aws:3").unwrap_err();
    let message = error.to_string();
    for part in ["`aws:3`", &aws, "only 0.9.0, 1.2.0, 1.10.0, 1.10.1-rc.1, 2.0.0-beta"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let help = format!("greenroom plugin install aws:3 --dir {}", scene.dir.path().join("plugins").display());
    assert!(error.help().contains(&help), "{}", error.help());
}

#[test]
fn a_path_is_a_file_that_may_be_executed() {
    let scene = Scene::new();
    let program = scene.file("own/plugin", 0o755);
    let plain = scene.file("own/notes", 0o644);
    assert_eq!(scene.find(program.to_str().unwrap()), Ok(program));
    let folder = scene.dir.path().join("own");
    for path in [plain, folder, "/nonexistent".into()] {
        assert_eq!(scene.find(path.to_str().unwrap()), Err(LocateError::Path(path)));
    }
    for relative in ["./plugin", "../plugin", "a\nb", "/a\0b", ""] {
        assert!(Source::parse(relative).is_err(), "{relative:?}");
    }
}

#[test]
fn a_name_never_means_a_file_of_the_working_directory() {
    // The tests run in the package's directory, which has a folder `src` and a file `Cargo.toml`.
    let scene = Scene::new();
    assert!(Path::new("Cargo.toml").exists() && Path::new("src/lib.rs").exists());
    for text in ["Cargo.toml", "src/lib.rs"] {
        let error = locate(&Source::parse(text).unwrap(), &scene.places).unwrap_err();
        assert!(matches!(error, LocateError::Missing { .. }), "{text}: {error}");
    }
}

#[test]
fn a_bare_name_is_on_path_or_installed() {
    let scene = Scene::new();
    scene.file("bin/fleeting-plugin-a", 0o644);
    let first = scene.file("sbin/fleeting-plugin-a", 0o755);
    assert_eq!(scene.find("fleeting-plugin-a"), Ok(first));
    // Any other name is not looked for on PATH.
    scene.file("bin/aws", 0o755);
    assert!(scene.find("aws").is_err());
    let error = scene.find("fleeting-plugin-b").unwrap_err().to_string();
    let path = format!("({0}/bin:{0}/sbin)", scene.dir.path().display());
    assert!(error.contains(&path) && error.contains(OFFICIAL), "{error}");
    let installed = scene.version(&format!("{OFFICIAL}/fleeting-plugin-b"), "1.0.0");
    assert_eq!(scene.find("fleeting-plugin-b"), Ok(installed));
}

#[test]
fn without_a_home_the_error_says_so() {
    let places = Places { plugins: None, path: Vec::new() };
    let error = locate(&Source::parse("aws").unwrap(), &places).unwrap_err();
    assert!(error.to_string().contains("FLEETING_PLUGIN_PATH"), "{error}");
}

#[test]
fn all_installed_plugins_are_listed_and_links_are_not_followed() {
    let scene = Scene::new();
    scene.version(&format!("{OFFICIAL}/aws"), "1.2.0");
    scene.version(&format!("{OFFICIAL}/aws"), "1.10.0");
    scene.version("127.0.0.1:5000/!team/own", "0.1.0-!r!c.1");
    scene.version("ci.example/own", "3.0.0");
    // A version's own folders are no plugins.
    scene.file("plugins/ci.example/own/3.0.0/lib/1.0.0/data", 0o644);
    let plugins = scene.places.plugins.clone().unwrap();
    std::os::unix::fs::symlink(&plugins, plugins.join("ci.example/circle")).unwrap();
    let found: Vec<String> =
        installed(&plugins).iter().map(|one| format!("{} {}", one.plugin, one.version)).collect();
    assert_eq!(
        found,
        [
            "127.0.0.1:5000/Team/own 0.1.0-RC.1",
            "ci.example/own 3.0.0",
            &format!("{OFFICIAL}/aws 1.2.0"),
            &format!("{OFFICIAL}/aws 1.10.0"),
        ]
    );
    assert!(installed(Path::new("/nonexistent")).is_empty());
}

#[test]
fn the_home_directory_is_that_of_the_account() {
    let id = rustix::process::getuid().as_raw();
    let accounts =
        |path| format!("other:x:{id}7:{id}::/wrong:/bin/sh\nbad\nown:x:{id}:0:a name:{path}:/bin/sh\n");
    assert_eq!(home(&accounts("/home/own")), Some("/home/own".into()));
    assert_eq!(home(&accounts("relative")), None);
    assert_eq!(home(""), None);
}
