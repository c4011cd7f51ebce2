//! Boots a machine by the fastest way that works, with its image store if possible, and records how.

use std::io;
use std::time::{Duration, Instant};

use fs_err as fs;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::images::FoundImage;
use tokio::net::UnixStream;

use super::agent::{Agent, Identity};
use super::command::{Hardware, Rig};
use super::exec::QemuProgram;
use super::machine::{BootError, Console, Ending, Machine};
use super::qcow2::new_layer;
use crate::qemu::accel::{self, Accelerator};
use crate::qemu::egress::Guard;
use crate::qemu::image::Image;
use crate::qemu::image_store::{ImageStoreError, Stores};
use crate::qemu::launch::{DiskError, disk_bytes};
use crate::qemu::settings::{Boot, BootSource, Network};
use crate::qemu::spec::{Booted, Spec, StoreUse};
use crate::supervised::instance_dir::InstanceDir;
use crate::supervised::supervisor::{failpoint, note};

mod cloud;
mod snapshot;

use snapshot::ResumeError;

/// The proxy of `network = "proxy"`, as the guest reaches it.
const PROXY: &str = "http://10.0.2.100:3128";

/// A machine's directory, spec and console.
#[derive(Debug)]
pub(super) struct MachineSite {
    pub(super) dir: InstanceDir,
    pub(super) spec: Spec,
    pub(super) console: Console,
    /// The time when the machine's supervisor started.
    pub(super) begun: Instant,
}

/// A site with everything that is needed to start its machine.
#[derive(Debug)]
struct BootAttempt<'a> {
    site: &'a MachineSite,
    /// For templates, which belong to all machines.
    runner: &'a QemuProgram,
    /// The program that runs this machine.
    own: &'a QemuProgram,
    guard: Option<&'a Guard>,
    hardware: Hardware,
    identity: Identity,
    limit: Duration,
}

/// A guest that answers.
#[derive(Debug)]
struct BootedGuest {
    tier: &'static str,
    /// The reason the machine does not boot in the requested tier.
    because: Option<ResumeError>,
    user: String,
    /// The guest's agent, kept open: a guest that finds its port closed may retry without pause.
    agent: Option<Agent>,
    store: MountedStore,
    /// Images of containers that it has from its template.
    images: Vec<FoundImage>,
    /// A sentence for each one that the template lacks.
    without: Vec<String>,
    /// The connection to the template's holder, which counts this clone as long as it is open.
    holder: Option<UnixStream>,
}

/// Boots a machine, and returns when it has ended: how it ended, or why it did not boot. The rules in `guard` have to
/// stay as long as the machine lives.
pub(super) async fn boot_and_watch(
    site: &MachineSite,
    slot: &mut Option<Machine>,
    guard: &mut Option<Guard>,
) -> Result<Ending, BootError> {
    let Spec { settings, state_dir, .. } = &site.spec;
    let runner = QemuProgram::configured(settings)?;
    let choice = accel::choose(settings.accel, state_dir, &runner).await?;
    if let Some(news) = &choice.news {
        note(news);
    }
    let engine = choice.engine;
    if engine == Accelerator::Tcg {
        // QEMU inherits it. Large pages would round up its memory for translated code and tables, by 3 MB for each
        // machine, and make nothing faster.
        rustix::thread::disable_transparent_huge_pages(true).map_err(io::Error::from)?;
    }
    if let Some(internet) = settings.network.internet() {
        *guard = Some(Guard::raise(internet).await?);
    }
    let guard = guard.as_ref();
    let own = guard.map_or_else(|| runner.clone(), |guard| runner.under(guard.uid(), settings.accel));
    let start = BootAttempt {
        site,
        runner: &runner,
        own: &own,
        guard,
        hardware: Hardware { engine, vcpus: settings.vcpus, memory: settings.memory },
        identity: identity(site)?,
        limit: settings.boot_timeout.unwrap_or_else(|| default_limit(engine, settings.boot)),
    };
    let ending = tokio::select! {
        ending = start.run(slot) => ending,
        ending = unguarded(guard) => Ok(ending),
    };
    if matches!(ending, Ok(Ending::KvmFailed) | Err(BootError::Ended(Ending::KvmFailed))) {
        accel::failed(state_dir, &runner, &Ending::KvmFailed.to_string())?;
    }
    ending
}

/// Returns when the machine has to end because its network rules cannot be kept.
pub(super) async fn unguarded(guard: Option<&Guard>) -> Ending {
    match guard {
        Some(guard) => Ending::Unguarded(guard.keep().await.to_string()),
        None => std::future::pending().await,
    }
}

/// The default of `boot_timeout`.
fn default_limit(engine: Accelerator, boot: Boot) -> Duration {
    match (engine, boot) {
        (Accelerator::Kvm, Boot::Snapshot | Boot::Direct) => Duration::from_secs(30),
        (Accelerator::Kvm, Boot::Disk) => Duration::from_mins(2),
        (Accelerator::Tcg, Boot::Snapshot | Boot::Direct) => Duration::from_mins(3),
        (Accelerator::Tcg, Boot::Disk) => Duration::from_mins(10),
    }
}

fn identity(site: &MachineSite) -> io::Result<Identity> {
    let Spec { launched, settings, .. } = &site.spec;
    Ok(Identity {
        hostname: hostname(launched.instance.as_str()),
        host_key: fs::read_to_string(site.dir.file("host_key"))?,
        authorized_key: fs::read_to_string(site.dir.file("authorized_keys"))?,
        proxy: matches!(settings.network, Network::Proxy(_)).then(|| PROXY.to_owned()),
    })
}

/// An instance's name as a valid host name.
fn hostname(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(plain).take(63).collect();
    name.trim_matches('-').to_owned()
}

impl BootAttempt<'_> {
    async fn run(&self, slot: &mut Option<Machine>) -> Result<Ending, BootError> {
        let up = match &self.site.spec.settings.source {
            BootSource::Foreign(disk) => self.cloud(disk, slot).await?,
            BootSource::Image(name) => {
                let image = Image::open(&self.images(), name)?;
                self.image(&image, slot).await?
            }
        };
        let Some(machine) = slot else { return Ok(Ending::Exited(0)) };
        self.announce(machine, &up).await?;
        let ending = machine.ended().await;
        drop((up.agent, up.holder));
        Ok(ending)
    }

    fn images(&self) -> std::path::PathBuf {
        self.site.spec.settings.images_dir(&self.site.spec.state_dir)
    }

    /// Resumes from a template if the settings request one; boots if that fails.
    async fn image(&self, image: &Image, slot: &mut Option<Machine>) -> Result<BootedGuest, BootError> {
        let store = self.store(image);
        let because = match self.site.spec.settings.boot {
            Boot::Snapshot => match self.resume(image, &store, slot).await {
                Ok(up) => return Ok(up),
                Err(why) => Some(why),
            },
            Boot::Direct | Boot::Disk => None,
        };
        if let Some(why) = &because {
            note(&format!("cannot resume from the template, booting instead: {why}"));
        }
        let up = self.direct(image, &store, slot).await?;
        Ok(BootedGuest { because, ..up })
    }

    async fn direct(
        &self,
        image: &Image,
        store: &StoreForGuest,
        slot: &mut Option<Machine>,
    ) -> Result<BootedGuest, BootError> {
        let layer = new_layer(&self.fresh("disk.qcow2")?, self.disk_bytes(image.manifest.disk_bytes)?)?;
        let (command, agent) = self.rig(image, store).assemble(None, vec![layer], &self.site.console)?;
        let machine = slot.insert(Machine::start(self.own, command, &self.site.console).await?);
        let mut agent = Agent::new(agent);
        let talk = async {
            agent.hello().await?;
            let store = store.mounted(&mut agent).await?;
            agent.become_itself(&self.identity).await?;
            Ok(store)
        };
        let store = machine.within(self.limit, "the guest did not come up", talk).await?;
        let user = image.manifest.user.clone();
        Ok(BootedGuest {
            tier: "direct",
            because: None,
            user,
            agent: Some(agent),
            store,
            images: Vec::new(),
            without: Vec::new(),
            holder: None,
        })
    }

    fn rig<'a>(&'a self, image: &'a Image, store: &'a StoreForGuest) -> Rig<'a> {
        let Spec { launched, settings, program, .. } = &self.site.spec;
        let name = launched.instance.as_str();
        let network = &settings.network;
        Rig { name, hardware: &self.hardware, network, image, program, store: store.file() }
    }

    /// The path of a new file of the machine's. Removes an existing one: an earlier boot may have failed.
    fn fresh(&self, name: &str) -> io::Result<std::path::PathBuf> {
        let path = self.site.dir.file(name);
        greenroom_system::remove::tree(&path)?;
        Ok(path)
    }

    /// The size of the disk: the image's at least, which may have been rebuilt since the launch.
    fn disk_bytes(&self, image: u64) -> Result<u64, DiskError> {
        Ok(disk_bytes(&self.site.spec.settings, image)?)
    }

    /// Writes how the machine booted, and then its address: a machine with an address answers.
    async fn announce(&self, machine: &mut Machine, up: &BootedGuest) -> Result<(), BootError> {
        let MachineSite { dir, begun, .. } = self.site;
        let port = machine.ssh_port().await?;
        if let Some(guard) = self.guard {
            guard.guard_port(port).await?;
        }
        let booted = Booted {
            tier: up.tier.to_owned(),
            accel: self.hardware.engine.name().to_owned(),
            ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            because: up.because.as_ref().map(ToString::to_string),
            image_store: up.store.used.clone(),
            without_store: up.store.problem.clone(),
            images: up.images.clone(),
            without_images: up.without.clone(),
        };
        failpoint("boot.up");
        dir.put("boot.json", &booted)?;
        failpoint("boot.told");
        let endpoint = Endpoint {
            address: "127.0.0.1".to_owned(),
            port,
            user: up.user.clone(),
            host_key: fs::read_to_string(dir.file("host_key.pub"))?.trim_end().to_owned(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        dir.put("endpoint.json", &endpoint)?;
        failpoint("boot.announced");
        note(&format!("up: {booted}; reachable at 127.0.0.1:{port}"));
        Ok(())
    }
}

/// The image store of a machine before it boots; `None`: its pool names none.
#[derive(Debug, Default)]
struct StoreForGuest(Option<Result<AttachedStore, NoStore>>);

/// The data of an image store, open for QEMU.
#[derive(Debug)]
struct AttachedStore {
    used: StoreUse,
    file: fs::File,
}

/// The reason a machine boots without the image store that its pool names.
#[derive(Debug, thiserror::Error)]
enum NoStore {
    #[error("image `{image}` has no support for image stores")]
    Unsupported { image: String },
    #[error(transparent)]
    Store(#[from] ImageStoreError),
}

/// The image store that a guest has mounted, or why it has mounted none, for `boot.json`.
#[derive(Debug, Default)]
struct MountedStore {
    used: Option<StoreUse>,
    problem: Option<String>,
}

impl BootAttempt<'_> {
    /// Opens the current data of the store that the settings name.
    fn store(&self, image: &Image) -> StoreForGuest {
        let settings = &self.site.spec.settings;
        let Some(name) = &settings.image_store else { return StoreForGuest::default() };
        let stores = Stores::beside(&settings.images_dir(&self.site.spec.state_dir));
        let attached = attach_store(&stores, name, image);
        if let Err(problem) = &attached {
            note(&format!("booting without an image store: {problem}"));
        }
        StoreForGuest(Some(attached))
    }
}

fn attach_store(stores: &Stores, name: &str, image: &Image) -> Result<AttachedStore, NoStore> {
    if !image.manifest.image_store {
        return Err(NoStore::Unsupported { image: image.manifest.name.clone() });
    }
    let (store, file) = stores.attach(name)?;
    Ok(AttachedStore { used: StoreUse { name: name.to_owned(), digest: store.manifest.digest }, file })
}

impl StoreForGuest {
    fn file(&self) -> Option<&fs::File> {
        Some(&self.0.as_ref()?.as_ref().ok()?.file)
    }

    /// Has the guest mount the store, if there is one.
    async fn mounted(&self, agent: &mut Agent) -> io::Result<MountedStore> {
        let mut mounted = MountedStore::default();
        match &self.0 {
            None => {}
            Some(Err(error)) => mounted.problem = Some(error.to_string()),
            Some(Ok(AttachedStore { used, .. })) => match agent.image_store().await? {
                None => mounted.used = Some(used.clone()),
                Some(why) => {
                    note(&format!("the guest cannot mount image store `{}`: {why}", used.name));
                    mounted.problem = Some(format!("the guest cannot mount `{}`: {why}", used.name));
                }
            },
        }
        Ok(mounted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::image::tests::image;
    use crate::qemu::image_store::tests::store;

    #[test]
    fn an_instances_name_becomes_a_hosts() {
        assert_eq!(hostname("linux-7f3a-12"), "linux-7f3a-12");
        assert_eq!(hostname("CI_big.1-"), "ci-big-1");
        assert_eq!(hostname(&"x".repeat(80)).len(), 63);
    }

    #[test]
    fn a_machine_gets_the_current_store_or_the_reason_why_not() {
        let images = tempfile::tempdir().unwrap();
        let stores = Stores::beside(images.path());
        let mut image = image();
        let problem = |attached: Result<AttachedStore, NoStore>| attached.unwrap_err().to_string();
        let old = problem(attach_store(&stores, "ci", &image));
        assert_eq!(old, "image `light` has no support for image stores");
        image.manifest.image_store = true;
        assert!(problem(attach_store(&stores, "ci", &image)).starts_with("no image store `ci`"));
        let store = store(images.path(), "ci", b"data");
        let attached = attach_store(&stores, "ci", &image);
        assert_eq!(attached.unwrap().used.digest, store.manifest.digest);
    }
}
