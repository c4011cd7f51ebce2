//! Resumes a clone of a template.

use std::os::fd::OwnedFd;

use greenroom_ports::setup::PublicPull;
use serde_json::json;

use super::store::Attached;
use super::{Site, Start, Up};
use crate::halt::halt_point;
use crate::qemu::image::Image;
use crate::qemu::process::agent::Agent;
use crate::qemu::process::command::Sharing;
use crate::qemu::process::machine::{BootError, Machine};
use crate::qemu::process::rig::{MemoryFile, new_layer};
use crate::qemu::process::template::client::{self, Lent};
use crate::qemu::process::template::{Done, Files, Pulls, Recipe, Template, capabilities};
use crate::qemu::spec::PULLS;
use crate::supervisor::note;

impl Start<'_> {
    /// The error is a message.
    pub(super) async fn resume(
        &self,
        image: &Image,
        store: &Attached,
        slot: &mut Option<Machine>,
    ) -> Result<Up, String> {
        let recipe = self.recipe(image).map_err(|error| error.to_string())?;
        let template = Template::of(&recipe).map_err(|error| error.to_string())?;
        let lent = client::lend(&template, &recipe, self.limit * 2).await?;
        halt_point("clone.lent");
        match self.clone_of(lent, (image, store), slot).await {
            Ok(up) => Ok(up),
            Err(problem) => {
                if let Some(machine) = slot {
                    machine.kill().await;
                }
                // The next clone has it built anew.
                if let Err(error) = template.discard() {
                    note(&format!("cannot discard the template: {error}"));
                }
                Err(problem.to_string())
            }
        }
    }

    fn recipe(&self, image: &Image) -> std::io::Result<Recipe> {
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
    fn pulls(&self, image: &Image) -> std::io::Result<Option<Pulls>> {
        let Site { dir, spec, .. } = self.site;
        let images: Option<Vec<PublicPull>> = dir.read(PULLS)?;
        let images = images.filter(|images| !images.is_empty() && image.manifest.engine.is_some());
        let (network, proxy) = (spec.settings.network.clone(), self.identity.proxy.clone());
        Ok(images.map(|images| Pulls { network, proxy, images }))
    }

    async fn clone_of(
        &self,
        lent: Lent,
        (image, store): (&Image, &Attached),
        slot: &mut Option<Machine>,
    ) -> Result<Up, BootError> {
        let Lent { memory, files: Files { disk, state, done }, holder } = lent;
        let memory = MemoryFile { file: memory, sharing: Sharing::Private };
        let below = OwnedFd::from(disk.into_file());
        let own = new_layer(&self.fresh("disk.qcow2")?, self.disk_bytes(image.manifest.disk_bytes)?)?;
        halt_point("clone.disk-made");
        let (mut command, agent) =
            self.rig(image, store).assemble(Some(memory), vec![below, own], &self.site.console)?;
        command.incoming();
        let state = command.pass(state.into_file().into());
        let machine = slot.insert(Machine::start(self.own, command, &self.site.console).await?);
        halt_point("clone.started");
        machine.qmp.execute("migrate-set-capabilities", capabilities()).await?;
        machine.qmp.execute("migrate-incoming", json!({ "uri": format!("fd:{state}") })).await?;
        halt_point("clone.resumes");
        let mut agent = Agent::new(agent);
        let talk = async {
            agent.ping().await?;
            let store = store.mounted(&mut agent).await?;
            agent.become_itself(&self.identity).await?;
            Ok(store)
        };
        let store = machine.within(self.limit, "the clone did not respond", talk).await?;
        let user = image.manifest.user.clone();
        let Done { images, without, .. } = done;
        Ok(Up {
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
