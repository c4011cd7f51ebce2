//! Jobs in containers, as far as the runner host shows: the files with passwords and certificates, and rights.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use greenroom_core::container::image::ImageName;
use greenroom_core::container::settings::{ContainerSettings, Privileged};
use greenroom_core::glob::Glob;
use greenroom_ports::finding::Finding;
use greenroom_providers::qemu::store_use::PoolStore;
use serde_json::Value;

use super::code;
use crate::cli::containers::jobs_meet;
use crate::config::PoolConfig;
use crate::provider;

/// Checks one pool's settings. Static hosts are refused elsewhere: with the configuration.
pub(super) fn check(pool: &PoolConfig, settings: &ContainerSettings) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(path) = &settings.registry_auth {
        found.extend(auth(pool, path));
        found.extend(withheld(pool, settings));
    }
    if let Some(path) = &settings.ca {
        found.extend(ca(pool, path));
    }
    found.extend(shared(pool, &settings.privileged));
    found.extend(warm(pool, settings));
    found.extend(without_store(pool, settings));
    found
}

fn auth(pool: &PoolConfig, path: &Path) -> Vec<Finding> {
    let title = format!("pool `{}`: `registry_auth`", pool.name);
    let shown = path.display();
    let (text, mode) = match read(path) {
        Ok(read) => read,
        Err(error) => {
            let what = format!("{title} cannot be read: `{shown}`: {error}");
            let remedy = "correct the path, or make the file readable for the user that runs Greenroom";
            return vec![code::CONTAINERS_AUTH_UNREADABLE.found(what, remedy)];
        }
    };
    let mut found = Vec::new();
    if let Err(why) = passwords(&text) {
        let remedy = "write it with `podman login --authfile FILE REGISTRY`, or copy Docker's `config.json`";
        found.push(code::CONTAINERS_AUTH_INVALID.found(format!("{title}: `{shown}` {why}"), remedy));
    }
    if mode & 0o077 != 0 {
        let what = format!("{title}: other users can read `{shown}` (mode {mode:04o})");
        found.push(code::CONTAINERS_AUTH_MODE.found(what, format!("run `chmod 600 {shown}`")));
    }
    found
}

/// Passwords that no job gets, because its instance serves several jobs.
fn withheld(pool: &PoolConfig, settings: &ContainerSettings) -> Option<Finding> {
    let known = provider::find(&pool.provider.kind).ok()?;
    if settings.registry_auth_shared || !jobs_meet(pool, known) {
        return None;
    }
    let name = &pool.name;
    let policy = &pool.policy;
    let (why, remedy) = if policy.capacity_per_instance > 1 || !known.launches() {
        ("run beside others on an instance (`capacity_per_instance`)", "capacity_per_instance")
    } else {
        ("follow others on an instance (`max_use_count`)", "max_use_count")
    };
    let what = format!(
        "pool `{name}`: jobs do not get the passwords in `registry_auth`, because they {why}: they pull with DOCKER_AUTH_CONFIG, \
         or with the credentials that GitLab gives them"
    );
    let remedy = format!(
        "set `{remedy} = 1`, or `registry_auth_shared = true` if all jobs of the pool may know the passwords"
    );
    Some(code::CONTAINERS_AUTH_WITHHELD.found(what, remedy))
}

fn read(path: &Path) -> io::Result<(String, u32)> {
    Ok((std::fs::read_to_string(path)?, std::fs::metadata(path)?.mode() & 0o7777))
}

/// Checks that a file contains passwords. The reason quotes nothing of it.
fn passwords(text: &str) -> Result<(), &'static str> {
    let config: Value = serde_json::from_str(text).map_err(|_| "is not valid JSON")?;
    let has = |key: &str| match config.get(key) {
        Some(Value::Object(entries)) => !entries.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        _ => false,
    };
    let inside =
        |entry: &Value| ["auth", "username"].iter().any(|key| entry.get(key).is_some_and(Value::is_string));
    let mut entries =
        config.get("auths").and_then(Value::as_object).into_iter().flat_map(|auths| auths.values());
    if entries.any(inside) {
        Ok(())
    } else if has("credsStore") || has("credHelpers") {
        Err("names a credential helper instead of passwords, and Greenroom runs none")
    } else {
        Err("has no password under `auths`")
    }
}

fn ca(pool: &PoolConfig, path: &Path) -> Option<Finding> {
    let why = match read(path) {
        Ok((text, _)) if text.contains("-----BEGIN CERTIFICATE-----") => return None,
        Ok(_) => "it contains no certificate in PEM format".to_owned(),
        Err(error) => error.to_string(),
    };
    let what = format!("pool `{}`: `ca` cannot be used: `{}`: {why}", pool.name, path.display());
    let remedy = "name a file with the certificates that registries are verified with";
    Some(code::CONTAINERS_CA_UNREADABLE.found(what, remedy))
}

/// Privileged containers have all rights of their instance, whatever their user.
fn shared(pool: &PoolConfig, privileged: &Privileged) -> Option<Finding> {
    let jobs = pool.policy.capacity_per_instance;
    let which = match privileged {
        Privileged::All => "containers",
        Privileged::Images(_) => "containers of some images",
        // Where jobs share an instance, it serves more than one.
        Privileged::SingleUse | Privileged::None => return None,
    };
    (jobs > 1).then(|| {
        let what = format!(
            "pool `{}`: {which} are privileged, and {jobs} jobs share an instance (`capacity_per_instance`): each can \
             control the others",
            pool.name
        );
        let remedy = "set `capacity_per_instance = 1`, or `privileged = false`";
        code::CONTAINERS_PRIVILEGED_SHARED.found(what, remedy)
    })
}

/// Images that are pulled in advance, although jobs may use them neither as `image:` nor for a service.
fn warm(pool: &PoolConfig, settings: &ContainerSettings) -> Option<Finding> {
    let allowed = |list: &Option<Vec<Glob>>, image: &ImageName| {
        list.as_ref().is_none_or(|list| list.iter().any(|pattern| image.is_covered_by(pattern)))
    };
    let default = settings.default_image.as_deref().map(ImageName::parse);
    let refused = settings.images_warm.iter().filter(|image| {
        let is_default = default.as_ref().is_some_and(|default| default.as_ref() == Ok(image));
        !is_default && !allowed(&settings.images, image) && !allowed(&settings.services, image)
    });
    let refused: Vec<String> = refused.map(|image| format!("`{image}`")).collect();
    (!refused.is_empty()).then(|| {
        let what = format!(
            "pool `{}`: `images_warm` has images that neither `images` nor `services` allows: {}",
            pool.name,
            refused.join(", ")
        );
        code::CONTAINERS_WARM_REFUSED.found(what, "remove them from `images_warm`, or allow them")
    })
}

/// Virtual machines that pull what an image store would give them from their start.
fn without_store(pool: &PoolConfig, settings: &ContainerSettings) -> Option<Finding> {
    let provider = &pool.provider;
    let pulls = !settings.images_warm.is_empty() || settings.images_learned.is_some();
    let is_list = settings.images_learned.is_none();
    (pulls && PoolStore::is_missing(&pool.name, &provider.kind, &provider.table, is_list)).then(|| {
        let images: Vec<String> = settings.images_warm.iter().map(ToString::to_string).collect();
        let images = if images.is_empty() { "IMAGE…".to_owned() } else { images.join(" ") };
        let what = format!(
            "pool `{}`: each new instance pulls `images_warm`, and a job that comes before has no image yet",
            pool.name
        );
        let remedy = format!(
            "run `greenroom image store build NAME {images}`, and set `image_store = \"NAME\"` in the provider's table"
        );
        code::CONTAINERS_WARM_WITHOUT_STORE.found(what, remedy)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::Config;

    const AUTH: &str = "{\"auths\": {\"registry.example.com\": {\"auth\": \"aHVudGVyMg==\"}}}";

    fn checked(pool: &str, table: &str) -> Vec<Finding> {
        checked_with(pool, "", table)
    }

    fn checked_with(pool: &str, provider: &str, table: &str) -> Vec<Finding> {
        let text = format!(
            "[pool.linux]\nmax_instances = 4\n{pool}\n[pool.linux.provider]\nkind = \"qemu\"\n{provider}\n\
             [pool.linux.containers]\n{table}\n"
        );
        let config = Config::parse(&text, "greenroom.toml").unwrap();
        let pool = config.pools.values().next().unwrap();
        check(pool, pool.containers.as_ref().unwrap())
    }

    /// The findings about a file behind a key.
    fn file(key: &str, text: &str, mode: u32) -> Vec<Finding> {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        checked("", &format!("{key} = \"{}\"", path.display()))
    }

    #[test]
    fn right_files_and_no_files_have_no_finding() {
        assert_eq!(checked("", ""), []);
        assert_eq!(file("registry_auth", AUTH, 0o600), []);
        assert_eq!(file("ca", "-----BEGIN CERTIFICATE-----\n", 0o644), []);
    }

    #[test]
    fn a_file_without_passwords_is_named_and_not_quoted() {
        for (text, why) in [
            ("hunter2", "is not valid JSON"),
            ("{\"auths\": {}}", "has no password under `auths`"),
            ("{\"auths\": {\"docker.io\": {}}, \"credsStore\": \"pass\"}", "names a credential helper"),
            ("{\"credHelpers\": {\"docker.io\": \"hunter2\"}}", "names a credential helper"),
            ("[\"hunter2\"]", "has no password under `auths`"),
        ] {
            let found = file("registry_auth", text, 0o600);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].code, "containers-auth-invalid");
            assert!(found[0].message.contains(why) && !found[0].message.contains("hunter2"), "{found:?}");
        }
    }

    #[test]
    fn passwords_that_jobs_do_not_get_are_a_warning() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("auth.json");
        std::fs::write(&path, AUTH).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let table = format!("registry_auth = {path:?}");
        for (pool, table, key) in [
            ("", table.clone(), None),
            ("max_use_count = 5", table.clone(), Some("max_use_count")),
            ("max_use_count = 0", table.clone(), Some("max_use_count")),
            ("capacity_per_instance = 2\nmax_use_count = 2", table.clone(), Some("capacity_per_instance")),
            ("max_use_count = 5", format!("{table}\nregistry_auth_shared = true"), None),
            ("max_use_count = 5", String::new(), None),
        ] {
            let found = checked(pool, &table);
            assert_eq!(found.len(), usize::from(key.is_some()), "{pool} {table}: {found:?}");
            for (found, key) in found.iter().zip(key) {
                assert_eq!(found.code, "containers-auth-withheld");
                assert!(found.message.contains(&format!("(`{key}`)")), "{found:?}");
            }
        }
    }

    #[test]
    fn passwords_that_others_can_read_are_a_warning() {
        for mode in [0o640, 0o604] {
            let found = file("registry_auth", AUTH, mode);
            assert_eq!(found.iter().map(|found| found.code).collect::<Vec<_>>(), ["containers-auth-mode"]);
        }
    }

    #[test]
    fn privileged_jobs_that_share_an_instance_are_a_warning() {
        let pool = "capacity_per_instance = 2\nmax_use_count = 2";
        for (table, found) in [
            ("", false),
            ("privileged = false", false),
            ("privileged = true", true),
            ("privileged = [\"docker:*\"]", true),
        ] {
            assert_eq!(!checked(pool, table).is_empty(), found, "{table}");
            assert_eq!(checked("", table), [], "{table}");
        }
    }

    #[test]
    fn an_image_that_no_job_may_use_is_not_pulled_silently() {
        for (table, refused) in [
            ("images_warm = [\"ruby:3.3\"]", None),
            (
                "images_warm = [\"ruby:3.3\", \"go\"]\nimages = \"ruby:*\"\nservices = \"postgres:*\"",
                Some("library/go:latest`"),
            ),
            ("images_warm = \"postgres:16\"\nimages = \"ruby:*\"\nservices = \"postgres:*\"", None),
            (
                "images_warm = \"go\"\nimages = \"ruby:*\"\nservices = \"postgres:*\"\ndefault_image = \"go:latest\"",
                None,
            ),
        ] {
            let mut found = checked("", table);
            found.retain(|found| found.code != "containers-warm-without-store");
            assert_eq!(found.len(), usize::from(refused.is_some()), "{table}: {found:?}");
            assert!(
                found.iter().all(|found| found.message.ends_with(refused.unwrap_or_default())),
                "{found:?}"
            );
        }
    }

    #[test]
    fn machines_that_could_have_a_store_of_the_images_that_they_pull_are_a_note() {
        let named = "run `greenroom image store build NAME docker.io/library/ruby:3.3`, and ";
        for (provider, table, remedy) in [
            ("", "images_warm = [\"ruby:3.3\"]", Some(named)),
            ("", "images_warm = \"learn\"", Some("run `greenroom image store build NAME IMAGE…`, and ")),
            ("", "", None),
            ("image_store = \"ci\"", "images_warm = [\"ruby:3.3\"]", None),
            ("network = \"open\"", "images_warm = [\"ruby:3.3\"]", None),
            ("network = \"open\"\nboot = \"direct\"", "images_warm = [\"ruby:3.3\"]", Some(named)),
            (
                "network = \"open\"",
                "images_warm = \"learn\"",
                Some("run `greenroom image store build NAME IMAGE…`, and "),
            ),
            ("image = \"/disk.qcow2\"", "images_warm = [\"ruby:3.3\"]", None),
        ] {
            let found = checked_with("", provider, table);
            assert_eq!(found.len(), usize::from(remedy.is_some()), "{provider} {table}: {found:?}");
            for found in found {
                assert_eq!(found.code, "containers-warm-without-store");
                let help = found.remedy.unwrap_or_default();
                assert!(help.starts_with(remedy.unwrap_or_default()), "{help}");
            }
        }
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        let missing = checked("", "registry_auth = \"/no/such/file\"\nca = \"/no/such/file\"");
        let shared = checked("capacity_per_instance = 2\nmax_use_count = 2", "privileged = true");
        let warm = checked("", "images_warm = \"go\"\nimages = \"ruby:*\"\nservices = \"ruby:*\"");
        let reused = checked("max_use_count = 5", "registry_auth = \"/no/such/file\"");
        [missing, reused, shared, warm, file("registry_auth", "", 0o644), file("ca", "", 0o644)].concat()
    }
}
