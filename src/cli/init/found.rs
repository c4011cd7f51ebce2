//! What is on this machine. Nothing is started, connected to or changed, and no cloud is called.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use greenroom_providers::qemu::image::store::Images;

use super::kubeconfig::Clusters;
use super::ssh_config::{self, SshHost};

const QEMU: &str = "qemu-system-x86_64";
const KVM: &str = "/dev/kvm";
/// What a virtual machine of 1 GiB takes, its QEMU included.
const MACHINE_BYTES: u64 = (1024 + 128) << 20;

/// The facts, as far as this user may see them.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) qemu: Option<PathBuf>,
    /// Why virtual machines are emulated; `None`: they are not.
    pub(super) no_kvm: Option<String>,
    pub(super) images: Vec<String>,
    pub(super) hosts: Vec<SshHost>,
    /// Where credentials were found.
    pub(super) aws: Option<String>,
    pub(super) region: Option<String>,
    pub(super) gce: Option<String>,
    pub(super) project: Option<String>,
    pub(super) clusters: Clusters,
    pub(super) processors: u32,
    /// Virtual machines of 1 GiB that fit into three quarters of the memory.
    pub(super) machines: u32,
    pub(super) home: Option<PathBuf>,
}

impl Found {
    pub(super) fn look(state_dir: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = set("HOME").map(PathBuf::from);
        let at_home = |path: &str| home.as_ref().map(|home| home.join(path)).filter(|path| path.is_file());
        let read = |path: &str| at_home(path).and_then(|path| std::fs::read_to_string(path).ok());
        let file_in = |name: &str| set(name).map(PathBuf::from).filter(|path| path.is_file());
        let from = |place: Option<PathBuf>| place.map(|path| path.display().to_string());
        let aws_variable = ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"]
            .into_iter()
            .find(|name| set(name).is_some())
            .map(str::to_owned);
        let text = |value: OsString| value.into_string().ok();
        let config = read(".aws/config");
        let gcloud = read(".config/gcloud/configurations/config_default");
        let images = Images::at(state_dir.join("images")).list().unwrap_or_default();
        Self {
            qemu: program(QEMU, set("PATH").as_ref()),
            no_kvm: no_kvm(Path::new(KVM)),
            images: images.into_iter().filter(|entry| entry.image.is_ok()).map(|entry| entry.name).collect(),
            hosts: read(".ssh/config").map(|text| ssh_config::hosts(&text)).unwrap_or_default(),
            aws: aws_variable.or_else(|| from(at_home(".aws/credentials"))),
            region: set("AWS_REGION")
                .or_else(|| set("AWS_DEFAULT_REGION"))
                .and_then(text)
                .or_else(|| value(config.as_deref()?, "region")),
            gce: from(
                file_in("GOOGLE_APPLICATION_CREDENTIALS")
                    .or_else(|| at_home(".config/gcloud/application_default_credentials.json")),
            ),
            project: set("GOOGLE_CLOUD_PROJECT")
                .and_then(text)
                .or_else(|| value(gcloud.as_deref()?, "project")),
            clusters: Clusters::look(home.as_deref(), set),
            processors: std::thread::available_parallelism()
                .map_or(1, |count| u32::try_from(count.get()).unwrap_or(1)),
            machines: std::fs::read_to_string("/proc/meminfo").ok().map_or(1, |text| machines(&text)),
            home,
        }
    }

    /// The provider that suits what is here.
    pub(super) fn suggestion(&self) -> &'static str {
        match (&self.qemu, self.hosts.is_empty()) {
            (None, false) => "static",
            _ => "qemu",
        }
    }

    /// A line for each kind of provider.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("Found on this machine:\n");
        let mut line = |name: &str, what: String| {
            writeln!(text, "  {name:<10} {what}").ok();
        };
        line(
            "qemu",
            match (&self.qemu, &self.no_kvm) {
                (None, _) => "QEMU is not installed".to_owned(),
                (Some(path), None) => format!("{}, with /dev/kvm{}", path.display(), self.image_names()),
                (Some(path), Some(why)) => {
                    format!("{}, emulating ({why}){}", path.display(), self.image_names())
                }
            },
        );
        let names: Vec<&str> = self.hosts.iter().map(|host| host.alias.as_str()).collect();
        line(
            "static",
            match names.as_slice() {
                [] => "no hosts in ~/.ssh/config".to_owned(),
                few if few.len() <= 6 => format!("in ~/.ssh/config: {}", few.join(", ")),
                many => format!("in ~/.ssh/config: {}, and {} more", many[..5].join(", "), many.len() - 5),
            },
        );
        let cloud = |place: &Option<String>, of: &Option<String>| match (place, of) {
            (None, _) => "no credentials of this user; the machine itself may have some".to_owned(),
            (Some(place), None) => format!("credentials: {place}"),
            (Some(place), Some(of)) => format!("credentials: {place}, {of}"),
        };
        line("aws-ec2", cloud(&self.aws, &self.region));
        line("gce", cloud(&self.gce, &self.project));
        line("kubernetes", self.clusters.text());
        text
    }

    fn image_names(&self) -> String {
        match self.images.as_slice() {
            [] => ", no image".to_owned(),
            names => format!(", images: {}", names.join(", ")),
        }
    }
}

/// The first such file of a search path, and of the folders that the search path of a user may lack.
fn program(name: &str, path: Option<&OsString>) -> Option<PathBuf> {
    let folders: Vec<PathBuf> = path.into_iter().flat_map(std::env::split_paths).collect();
    let usual = ["/usr/bin", "/usr/local/bin"].map(PathBuf::from);
    folders.into_iter().chain(usual).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn no_kvm(device: &Path) -> Option<String> {
    match std::fs::OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => None,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Some(format!("{} is missing", device.display()))
        }
        Err(error) => Some(format!("{}: {error}", device.display())),
    }
}

/// The first value of a key in a file of the clouds' tools.
fn value(text: &str, key: &str) -> Option<String> {
    let values = text.lines().filter_map(|line| line.split_once('='));
    let found = values.into_iter().find(|(name, _)| name.trim() == key);
    found.map(|(_, value)| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn machines(meminfo: &str) -> u32 {
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let bytes = kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) << 10;
    u32::try_from(bytes / 4 * 3 / MACHINE_BYTES).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_hosts_and_places_are_found_where_their_tools_keep_them() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let look = || {
            let variable = |name: &str| (name == "HOME").then(|| home.path().into());
            Found::look(&home.path().join("state"), variable)
        };
        let nothing = look();
        assert!(nothing.aws.is_none() && nothing.gce.is_none() && nothing.hosts.is_empty());
        assert!(nothing.text().contains("  kubernetes no kubeconfig\n"), "{}", nothing.text());
        assert!(nothing.text().contains("  static     no hosts in ~/.ssh/config\n"), "{}", nothing.text());
        write(".ssh/config", "Host build-1\n");
        write(".aws/credentials", "[default]\naws_secret_access_key = hunter2\n");
        write(".aws/config", "[default]\noutput = json\nregion = eu-west-1\n");
        write(".config/gcloud/application_default_credentials.json", "{}");
        write(".config/gcloud/configurations/config_default", "[core]\nproject = my-project\n");
        let found = look();
        assert_eq!(found.region.as_deref(), Some("eu-west-1"));
        assert_eq!(found.project.as_deref(), Some("my-project"));
        let text = found.text();
        assert!(text.contains("/.aws/credentials, eu-west-1\n") && !text.contains("hunter2"), "{text}");
        assert!(text.contains("credentials.json, my-project\n"), "{text}");
        assert_eq!(Found { qemu: None, ..found }.suggestion(), "static");
        assert_eq!(nothing.suggestion(), "qemu");
    }

    #[test]
    fn machines_are_counted_by_the_memory() {
        assert_eq!(machines("MemFree: 1 kB\nMemTotal:       16384000 kB\n"), 10);
        assert_eq!(machines("MemTotal: 1024 kB\n"), 1);
        assert_eq!(machines("rubbish"), 1);
    }
}
