//! Resumes a clone of a template: gets the memory from the template's holder, and starts one if there is none.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use greenroom_core::text::clean_line;
use greenroom_ports::setup::PublicPull;
use serde_json::json;
use tokio::net::UnixStream;

use super::{BootAttempt, BootedGuest, MachineSite, StoreForGuest};
use crate::qemu::image::Image;
use crate::qemu::process::agent::Agent;
use crate::qemu::process::channel;
use crate::qemu::process::command::{MemoryFile, Sharing};
use crate::qemu::process::machine::{BootError, Machine};
use crate::qemu::process::qcow2::new_layer;
use crate::qemu::process::template::memory::{LENT, REFUSED, socket};
use crate::qemu::process::template::{Pulls, Recipe, Template, TemplateFiles, TemplateRecord, capabilities};
use crate::qemu::spec::PULLS;
use crate::supervised::launch::{InstanceProgram, StartError, start};
use crate::supervised::supervisor::{failpoint, note};

impl BootAttempt<'_> {
    /// Starts a clone of the template that the settings make.
    pub(super) async fn resume(
        &self,
        image: &Image,
        store: &StoreForGuest,
        slot: &mut Option<Machine>,
    ) -> Result<BootedGuest, ResumeError> {
        let recipe = self.recipe(image)?;
        let template = Template::of(&recipe)?;
        let lent = lend(&template, &recipe, self.limit * 2).await?;
        failpoint("clone.lent");
        match self.clone_of(lent, image, store, slot).await {
            Ok(up) => Ok(up),
            Err(problem) => {
                if let Some(machine) = slot {
                    machine.kill().await;
                }
                // The next clone has it built anew.
                if let Err(error) = template.discard() {
                    note(&format!("cannot discard the template: {error}"));
                }
                Err(problem.into())
            }
        }
    }

    fn recipe(&self, image: &Image) -> Result<Recipe, BootError> {
        Ok(Recipe {
            images: self.images(),
            image: image.manifest.name.clone(),
            digest: image.manifest.digest.clone(),
            disk: self.disk_bytes(image.manifest.disk_bytes)?,
            hardware: self.hardware.clone(),
            runner: self.runner.clone(),
            program: self.site.spec.program.clone(),
            limit: self.limit,
            kept: self.site.spec.settings.template_retention,
            pulls: self.pulls(image)?,
        })
    }

    /// The images that a template gets; `None`: it gets none.
    fn pulls(&self, image: &Image) -> io::Result<Option<Pulls>> {
        let MachineSite { dir, spec, .. } = self.site;
        let images: Option<Vec<PublicPull>> = dir.read(PULLS)?;
        let images = images.filter(|images| !images.is_empty() && image.manifest.engine.is_some());
        Ok(images.map(|images| Pulls {
            network: spec.settings.network.clone(),
            proxy: self.identity.proxy.clone(),
            images,
        }))
    }

    async fn clone_of(
        &self,
        lent: LentTemplate,
        image: &Image,
        store: &StoreForGuest,
        slot: &mut Option<Machine>,
    ) -> Result<BootedGuest, BootError> {
        let LentTemplate { memory, files: TemplateFiles { disk, state, done }, holder } = lent;
        let memory = MemoryFile { file: memory, sharing: Sharing::Private };
        let below = OwnedFd::from(disk.into_file());
        let own = new_layer(&self.fresh("disk.qcow2")?, self.disk_bytes(image.manifest.disk_bytes)?)?;
        failpoint("clone.disk-made");
        let (mut command, agent) =
            self.rig(image, store).assemble(Some(memory), vec![below, own], &self.site.console)?;
        command.incoming();
        let state = command.pass(state.into_file().into());
        let machine = slot.insert(Machine::start(self.own, command, &self.site.console).await?);
        failpoint("clone.started");
        machine.qmp.execute("migrate-set-capabilities", capabilities()).await?;
        machine.qmp.execute("migrate-incoming", json!({ "uri": format!("fd:{state}") })).await?;
        failpoint("clone.resumes");
        let mut agent = Agent::new(agent);
        let talk = async {
            agent.ping().await?;
            let store = store.mounted(&mut agent).await?;
            agent.become_itself(&self.identity).await?;
            Ok(store)
        };
        let store = machine.within(self.limit, "the clone did not respond", talk).await?;
        let user = image.manifest.user.clone();
        let TemplateRecord { images, without, .. } = done;
        Ok(BootedGuest {
            tier: "snapshot",
            because: None,
            user,
            agent: Some(agent),
            store,
            images,
            without,
            holder: Some(holder),
        })
    }
}

/// The number of times a holder may exit while a request reaches it.
const TRIES: u32 = 5;

/// A template to resume from.
#[derive(Debug)]
struct LentTemplate {
    /// Sealed.
    memory: OwnedFd,
    /// The rest of the template.
    files: TemplateFiles,
    /// The connection to the holder, which keeps the memory as long as it is open.
    holder: UnixStream,
}

/// The reason no clone of a template runs.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResumeError {
    #[error("no template within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the holder of the template exits repeatedly")]
    HolderExits,
    /// The holder refused, with this message.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Holder(#[from] StartError),
    #[error(transparent)]
    Boot(#[from] BootError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Requests the memory, and waits while the template is built.
async fn lend(template: &Template, recipe: &Recipe, limit: Duration) -> Result<LentTemplate, ResumeError> {
    let reply = async {
        for _ in 0..TRIES {
            if let Some(lent) = request(template, recipe).await? {
                return Ok(lent);
            }
        }
        Err(ResumeError::HolderExits)
    };
    tokio::time::timeout(limit, reply).await.map_err(|_| ResumeError::Late(limit))?
}

/// Requests the memory once; `None`: the holder exited before it answered, or replaced the template.
async fn request(template: &Template, recipe: &Recipe) -> Result<Option<LentTemplate>, ResumeError> {
    let stream = match connect(template).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            template.prepare(recipe)?;
            failpoint("template.prepared");
            let holder = InstanceProgram {
                program: "/proc/self/exe".into(),
                arguments: ["instance", "qemu", "template", "--dir"].map(Into::into).to_vec(),
            };
            start(&holder, &template.dir).await?;
            match connect(template).await {
                Ok(stream) => stream,
                Err(_) => return Ok(None),
            }
        }
        Err(error) => return Err(error.into()),
    };
    failpoint("template.asked");
    let mut bytes = [0; 512];
    let Ok((read, descriptor)) = channel::receive_descriptor(&stream, &mut bytes).await else {
        return Ok(None);
    };
    match (bytes[..read].split_first(), descriptor) {
        (Some((&LENT, token)), Some(memory)) => {
            // RACE: `None` if a template with other images has just replaced that of the memory.
            let files = template.open(&String::from_utf8_lossy(token))?;
            Ok(files.map(|files| LentTemplate { memory, files, holder: stream }))
        }
        (Some((&REFUSED, message)), _) => Err(ResumeError::Refused(clean_line(message, 300))),
        _ => Ok(None),
    }
}

async fn connect(template: &Template) -> io::Result<UnixStream> {
    let (path, _folder) = socket(&template.dir)?;
    UnixStream::connect(path).await
}
