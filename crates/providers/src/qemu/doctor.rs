//! Checks whether virtual machines can work here.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use greenroom_ports::finding::{Finding, Severity};

use super::accel::{self, KvmCheck};
use super::egress;
use super::image::{Image, ImageError, Problem};
use super::image_store::{ImageStoreError, Stores};
use super::launch::{self, DiskTooSmall};
use super::process::exec::{ProgramError, QemuProgram, is_shared_user};
use super::settings::{Accel, BootSource, Network, Settings};
use super::store_use::{is_old, old};
use crate::mistakes::{self, finding};
use crate::registration::BuildContext;
use crate::supervised::launch::{Scopes, scopes};

pub(super) fn doctor(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    findings(context, table, metadata_answers)
}

/// The findings for a pool. `has_metadata`: whether guests of an open network reach a cloud's metadata service.
fn findings(context: &BuildContext, table: &toml::Table, has_metadata: fn() -> bool) -> Vec<Finding> {
    let settings = match Settings::read(&context.pool, table) {
        Ok(settings) => settings,
        Err(problems) => return mistakes::findings("qemu-table", &problems),
    };
    let mut found = images(context, &settings);
    found.extend(image_store(context, &settings));
    found.extend(small_disk(context, &settings));
    found.extend(room(context, &settings));
    found.extend(network(context, &settings, has_metadata));
    found.extend(ssh_port(&settings));
    match QemuProgram::configured(&settings) {
        Ok(runner) => {
            found.extend(shared_user(&settings));
            found.extend(acceleration(context, &settings, &runner));
        }
        Err(error @ ProgramError::Missing(_)) => {
            let remedy = "apt-get install --no-install-recommends qemu-system-x86";
            found.push(finding("qemu-missing", Severity::Error, error.to_string(), remedy));
        }
        Err(error) => {
            let what = format!("cannot run QEMU for pool `{}`: {error}", context.pool);
            found.push(finding("qemu-user", Severity::Error, what, ADD_USER));
        }
    }
    found.extend(survival(scopes()));
    found
}

/// The commands that add a user for QEMU alone.
const ADD_USER: &str =
    "adduser --system --no-create-home --group greenroom-vm (and `adduser greenroom-vm kvm`)";

fn images(context: &BuildContext, settings: &Settings) -> Vec<Finding> {
    let name = match &settings.source {
        BootSource::Image(name) => name,
        BootSource::Foreign(path) if path.is_file() => return Vec::new(),
        BootSource::Foreign(path) => {
            let what = format!("pool `{}` boots from {}, which does not exist", context.pool, path.display());
            return vec![finding("qemu-image-missing", Severity::Error, what, "correct `image`")];
        }
    };
    let folder = settings.images_dir(&context.state_dir);
    let build = format!("greenroom image build {name} --images {}", folder.display());
    let image = match Image::open(&folder, name) {
        Ok(image) => image,
        Err(error @ ImageError::Missing { .. }) => {
            return vec![finding("qemu-image-missing", Severity::Error, error.to_string(), build)];
        }
        Err(error) => return vec![finding("qemu-image-damaged", Severity::Error, error.to_string(), build)],
    };
    match image.check() {
        Ok(problems) => {
            let problems = problems.iter().map(|problem| image_problem(name, problem, &build));
            problems.chain(without_engine(context, &image, &build)).collect()
        }
        Err(error) => vec![finding("qemu-image-damaged", Severity::Error, error.to_string(), build)],
    }
}

fn without_engine(context: &BuildContext, image: &Image, build: &str) -> Option<Finding> {
    (context.containers && image.manifest.engine.is_none()).then(|| {
        let pool = &context.pool;
        let name = &image.manifest.name;
        let what = format!("pool `{pool}` runs jobs in containers, but its image `{name}` has no engine");
        let helper = if image.manifest.helper { " --gitlab-runner /usr/bin/gitlab-runner" } else { "" };
        finding("qemu-image-engine-missing", Severity::Error, what, format!("{build} --containers{helper}"))
    })
}

fn image_problem(name: &str, problem: &Problem, build: &str) -> Finding {
    let what = format!("image `{name}`: {problem}");
    match problem {
        Problem::NoHelper => {
            let remedy = format!("{build} --gitlab-runner /usr/bin/gitlab-runner");
            finding("qemu-image-helper-missing", Severity::Warning, what, remedy)
        }
        _ => finding("qemu-image-damaged", Severity::Error, what, build),
    }
}

/// Checks that an image, if there is one, fits on the disk of its machines.
fn small_disk(context: &BuildContext, settings: &Settings) -> Option<Finding> {
    let source = launch::source_bytes(settings, &context.state_dir).ok()?;
    let too_small = launch::disk_bytes(settings, source).err()?;
    let what = format!("pool `{}` can launch no virtual machine: {too_small}", context.pool);
    Some(finding("qemu-disk-small", Severity::Error, what, DiskTooSmall::HELP))
}

/// Checks that at least one machine fits.
fn room(context: &BuildContext, settings: &Settings) -> Vec<Finding> {
    let judge = |resource: &str, code, one: u64, budget: u64| {
        let what = format!(
            "one virtual machine of pool `{}` needs {} MiB of {resource}, but all of them together may use at \
             most {} MiB",
            context.pool,
            one >> 20,
            budget >> 20
        );
        let remedy = format!("lower `{resource}`, or raise `{resource}_budget`");
        (one > budget).then(|| finding(code, Severity::Error, what, remedy))
    };
    let memory = launch::memory_budget(settings).ok();
    let memory =
        memory.and_then(|budget| judge("memory", "qemu-memory", launch::memory_of_one(settings), budget));
    let disk = settings.disk.zip(launch::disk_budget(settings, &context.state_dir).ok());
    let disk = disk.and_then(|(one, budget)| judge("disk", "qemu-disk", one, budget));
    memory.into_iter().chain(disk).collect()
}

fn network(context: &BuildContext, settings: &Settings, has_metadata: fn() -> bool) -> Vec<Finding> {
    match &settings.network {
        Network::Open => {
            let what = format!(
                "guests of pool `{}` reach everything that the runner host reaches: services on its loopback \
                 (as 10.0.2.2), the local network, a cloud's metadata",
                context.pool
            );
            let mut found = vec![finding("qemu-network-open", Severity::Warning, what, CLOSE)];
            if has_metadata() {
                let what = format!(
                    "guests of pool `{}` reach the cloud's metadata service ({METADATA}), and with it the \
                     credentials of the runner host",
                    context.pool
                );
                found.push(finding("qemu-metadata-reachable", Severity::Error, what, CLOSE));
            }
            found
        }
        Network::Internet(internet) => egress::findings(&context.pool, internet),
        Network::Proxy(_) if rustix::process::geteuid().is_root() => {
            let Some(blocked) = unreachable(&context.program) else { return Vec::new() };
            let what = format!(
                "QEMU's user cannot start the proxy's helper: it has no access to {}",
                blocked.display()
            );
            let remedy = "install greenroom where every user can run it, such as /usr/local/bin";
            vec![finding("qemu-proxy-helper", Severity::Error, what, remedy)]
        }
        Network::Isolated | Network::Proxy(_) => Vec::new(),
    }
}

/// QEMU of Debian 12 and 13 forwards no Unix socket, which would have an owner.
fn ssh_port(settings: &Settings) -> Option<Finding> {
    let what = "every local user can connect to the SSH ports of virtual machines, and hold the few connections that \
                each accepts before a login";
    let remedy = "set `network = \"internet\"`, where only root can connect, if other users of this host are not trusted";
    let note = || finding("qemu-ssh-port", Severity::Note, what.to_owned(), remedy);
    settings.network.internet().is_none().then(note)
}

/// The remedy for an open network.
const CLOSE: &str = "set `network = \"internet\"` or `\"proxy\"`";

/// The metadata service of most clouds.
const METADATA: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80);

/// The time limit for the metadata service to accept a connection. The service is in the runner host's own network.
const METADATA_WITHIN: Duration = Duration::from_secs(1);

fn metadata_answers() -> bool {
    TcpStream::connect_timeout(&METADATA, METADATA_WITHIN).is_ok()
}

/// The first part of a path that other users can neither run nor enter.
fn unreachable(program: &Path) -> Option<&Path> {
    let is_closed = |path: &&Path| std::fs::metadata(path).is_ok_and(|found| found.mode() & 0o001 == 0);
    program.ancestors().filter(is_closed).last()
}

fn shared_user(settings: &Settings) -> Option<Finding> {
    let what = "QEMU runs as `nobody`, a user that other programs of the runner host may share";
    let shared = || finding("qemu-user-shared", Severity::Note, what.to_owned(), ADD_USER);
    is_shared_user(settings).then(shared)
}

/// Reports why KVM cannot be used, if the settings allow KVM.
fn acceleration(context: &BuildContext, settings: &Settings, runner: &QemuProgram) -> Option<Finding> {
    if settings.accel == Accel::Tcg {
        return None;
    }
    let problem = match examine(&context.state_dir, runner) {
        Ok(verdict) => verdict.problem?,
        Err(error) => error.to_string(),
    };
    let remedy = "allow QEMU's user to open /dev/kvm (group `kvm`), use a runner host with working KVM, or \
                  set `accel = \"tcg\"` for emulation";
    Some(if settings.accel == Accel::Kvm {
        let what = format!("pool `{}` requires KVM, which cannot be used: {problem}", context.pool);
        finding("qemu-kvm-unusable", Severity::Error, what, remedy)
    } else {
        let what = format!(
            "virtual machines are emulated (5 to 30 times slower), because KVM cannot be used: {problem}"
        );
        finding("qemu-emulated", Severity::Warning, what, remedy)
    })
}

/// Runs on a thread of its own: the caller may be inside a runtime.
fn examine(state_dir: &Path, runner: &QemuProgram) -> io::Result<KvmCheck> {
    let check = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(accel::examine(state_dir, runner)).map(|(verdict, _)| verdict)
    };
    let panicked = |_| io::Error::other("the check of KVM panicked");
    std::thread::scope(|scope| scope.spawn(check).join().map_err(panicked)?)
}

fn survival(scopes: Scopes) -> Option<Finding> {
    let what = "without systemd, virtual machines have no scopes of their own: they are killed together with \
                the service that started them, unless it has `KillMode=process`";
    let remedy = "run `greenroom keep` as a service of its own, with `KillMode=process`";
    (scopes == Scopes::None).then(|| finding("qemu-no-scope", Severity::Note, what.to_owned(), remedy))
}

/// The findings about the store that a pool's table names.
pub(in crate::qemu) fn image_store(context: &BuildContext, settings: &Settings) -> Vec<Finding> {
    let Some(name) = &settings.image_store else { return Vec::new() };
    let folder = settings.images_dir(&context.state_dir);
    let pool = &context.pool;
    let build = format!("greenroom image store build {name} --images {}", folder.display());
    let mut found = Vec::new();
    match Stores::beside(&folder).open(name) {
        Err(error) => {
            let is_missing = matches!(error, ImageStoreError::Missing { .. });
            let code = if is_missing { "qemu-image-store-missing" } else { "qemu-image-store-damaged" };
            let what = format!("instances of pool `{pool}` start without an image store: {error}");
            found.push(finding(code, Severity::Error, what, format!("{build} IMAGE…")));
        }
        Ok(store) => {
            if let Some(damage) = store.problem() {
                let what = format!(
                    "instances of pool `{pool}` start without an image store: image store `{name}`: {damage}"
                );
                found.push(finding("qemu-image-store-damaged", Severity::Error, what, build));
            } else if is_old(&store.manifest, jiff::Timestamp::now()) {
                let what = format!("image store `{name}` {}", old(&store.manifest));
                found.push(finding("qemu-image-store-old", Severity::Warning, what, build));
            }
        }
    }
    if let BootSource::Image(image) = &settings.source
        && let Ok(image) = Image::open(&folder, image)
        && !image.manifest.image_store
    {
        let image = image.manifest.name;
        let what = format!(
            "instances of pool `{pool}` start without an image store, because image `{image}` has no support for it"
        );
        let remedy = format!("greenroom image build {image} --containers --images {}", folder.display());
        found.push(finding("qemu-image-store-unsupported", Severity::Error, what, remedy));
    }
    found
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::{Path, PathBuf};
    use std::rc::Rc;

    use fs_err as fs;
    use greenroom_core::ids::PoolName;
    use greenroom_core::time::{BootId, ManagerId, Stamp};
    use greenroom_ports::clock::Clock;

    use super::*;
    use crate::qemu::image_store::MANIFEST;
    use crate::qemu::image_store::tests::store;

    #[derive(Debug)]
    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Stamp {
            Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: 0 }
        }
    }

    pub(in crate::qemu) fn context() -> BuildContext {
        BuildContext {
            pool: PoolName::new("linux"),
            state_dir: PathBuf::from("/no/such/state"),
            program: PathBuf::from("/bin/sh"),
            containers: false,
            pulls: None,
            clock: Rc::new(Fixed),
            host_keys: Rc::new(greenroom_ports::host_keys::Unconnected),
        }
    }

    /// Codes for a table; KVM is not tested.
    fn codes(table: &str) -> Vec<&'static str> {
        let table = format!("accel = \"tcg\"\n{table}").parse().unwrap();
        findings(&context(), &table, || false).iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn a_mistake_in_the_table_comes_first_and_alone() {
        assert_eq!(codes("vcpu = 1"), ["qemu-table"]);
    }

    #[test]
    fn what_is_missing_or_open_is_named() {
        for (table, code) in [
            ("", "qemu-image-missing"),
            ("image = \"/no/such.qcow2\"", "qemu-image-missing"),
            ("qemu = \"/no/such/qemu\"", "qemu-missing"),
            ("network = \"open\"", "qemu-network-open"),
            ("memory = \"900G\"\nmemory_budget = \"900G\"", "qemu-memory"),
        ] {
            assert!(codes(table).contains(&code), "{table}: {:?}", codes(table));
        }
        assert!(codes("").contains(&"qemu-ssh-port"));
        assert!(!codes("").contains(&"qemu-network-open") && !codes("").contains(&"qemu-memory"));
    }

    #[test]
    fn an_open_way_to_the_metadata_service_is_an_error() {
        let settings = |table: &str| Settings::read(&context().pool, &table.parse().unwrap()).unwrap();
        let of = |table: &str, has_metadata| {
            let found = network(&context(), &settings(table), has_metadata);
            found.iter().map(|finding| (finding.code, finding.severity)).collect::<Vec<_>>()
        };
        let open = ("qemu-network-open", Severity::Warning);
        let reached = ("qemu-metadata-reachable", Severity::Error);
        assert_eq!(of("network = \"open\"", || false), [open]);
        assert_eq!(of("network = \"open\"", || true), [open, reached]);
        assert_eq!(of("", || true), []);
    }

    #[test]
    fn a_disk_larger_than_the_file_system_of_all_is_found() {
        let state = tempfile::tempdir().unwrap();
        let context = BuildContext { state_dir: state.path().to_owned(), ..context() };
        let settings = Settings::read(&context.pool, &"disk = \"9000T\"".parse().unwrap()).unwrap();
        let codes: Vec<&str> = room(&context, &settings).iter().map(|finding| finding.code).collect();
        assert_eq!(codes, ["qemu-disk"]);
    }

    #[test]
    fn a_disk_smaller_than_the_image_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("debian.qcow2");
        crate::qemu::process::qcow2::write_empty(&mut std::fs::File::create(&path).unwrap(), 4 << 30)
            .unwrap();
        let found = |disk: &str| {
            let table = format!("image = \"{}\"\n{disk}", path.display()).parse().unwrap();
            let settings = Settings::read(&context().pool, &table).unwrap();
            small_disk(&context(), &settings).map(|finding| finding.to_string())
        };
        assert_eq!((found(""), found("disk = \"4G\"")), (None, None));
        let small = format!(
            "error [qemu-disk-small]: pool `linux` can launch no virtual machine: `disk` is 1024 MiB, but the boot disk \
             {} has 4096 MiB\n  help: set `disk` to at least that, or remove it",
            path.display()
        );
        assert_eq!(found("disk = \"1G\""), Some(small));
    }

    #[test]
    fn a_closed_folder_on_the_way_is_found() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("greenroom");
        std::fs::write(&program, "").unwrap();
        for (path, mode) in [(program.as_path(), 0o755), (folder.path(), 0o700)] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        }
        assert_eq!(unreachable(&program), Some(folder.path()));
        assert_eq!(unreachable(Path::new("/bin/sh")), None);
    }

    #[test]
    fn a_missing_helper_is_no_damage() {
        assert_eq!(image_problem("light", &Problem::NoHelper, "build").severity, Severity::Warning);
        let damaged = image_problem("light", &Problem::FileMissing(PathBuf::from("/x")), "build");
        assert_eq!((damaged.code, damaged.severity), ("qemu-image-damaged", Severity::Error));
    }

    #[test]
    fn an_image_without_an_engine_is_missed_only_by_containers() {
        let engine = |has_containers, engine: Option<&str>| {
            let mut image = crate::qemu::image::tests::image();
            image.manifest.engine = engine.map(str::to_owned);
            let context = BuildContext { containers: has_containers, ..context() };
            without_engine(&context, &image, "greenroom image build light")
        };
        assert_eq!(engine(false, None), None);
        assert_eq!(engine(true, Some("podman 4.3.1")), None);
        assert_eq!(
            engine(true, None).unwrap().to_string(),
            "error [qemu-image-engine-missing]: pool `linux` runs jobs in containers, but its image `light` has no \
             engine\n  help: greenroom image build light --containers --gitlab-runner /usr/bin/gitlab-runner"
        );
    }

    #[test]
    fn scopes_are_missed_only_where_there_are_none() {
        assert!(survival(Scopes::System).is_none() && survival(Scopes::None).is_some());
    }

    fn store_codes(state: &Path, table: &str) -> Vec<&'static str> {
        let context = BuildContext { state_dir: state.to_owned(), containers: true, ..context() };
        let settings = Settings::read(&context.pool, &table.parse().unwrap()).unwrap();
        image_store(&context, &settings).iter().map(|finding| finding.code).collect()
    }

    /// An image of machines, with or without support.
    fn write_image(images: &Path, has_support: bool) {
        let mut image = crate::qemu::image::tests::image();
        image.manifest.image_store = has_support;
        fs::create_dir_all(images.join("light")).unwrap();
        fs::write(images.join("light/manifest.json"), serde_json::to_vec(&image.manifest).unwrap()).unwrap();
    }

    #[test]
    fn each_reason_to_start_without_a_store_is_found() {
        let state = tempfile::tempdir().unwrap();
        let images = state.path().join("images");
        let table = "image_store = \"ci\"";
        write_image(&images, true);
        assert_eq!(store_codes(state.path(), ""), [] as [&str; 0]);
        assert_eq!(store_codes(state.path(), table), ["qemu-image-store-missing"]);
        let mut store = store(&images, "ci", b"data");
        let mut refreshed = |days: i64| {
            store.manifest.refreshed = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(24 * days);
            fs::write(store.dir.join(MANIFEST), serde_json::to_vec(&store.manifest).unwrap()).unwrap();
        };
        refreshed(15);
        assert_eq!(store_codes(state.path(), table), ["qemu-image-store-old"]);
        refreshed(13);
        assert_eq!(store_codes(state.path(), table), [] as [&str; 0]);
        write_image(&images, false);
        assert_eq!(store_codes(state.path(), table), ["qemu-image-store-unsupported"]);
        write_image(&images, true);
        fs::write(store.file(), b"dada").unwrap();
        assert!(store.check().unwrap().is_some());
        assert_eq!(store_codes(state.path(), table), ["qemu-image-store-damaged"]);
        fs::write(store.dir.join(MANIFEST), b"{").unwrap();
        assert_eq!(store_codes(state.path(), table), ["qemu-image-store-damaged"]);
    }
}
