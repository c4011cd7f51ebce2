//! Instances and volumes as EC2 lists them.

use aws_sdk_ec2::types::{
    Instance, InstanceIpv6Address, InstanceLifecycleType, InstanceNetworkInterface, InstanceStateName, Tag,
    Volume, VolumeAttachment, VolumeState, VolumeType,
};
use greenroom_core::ids::InstanceId;
use greenroom_core::inventory::{Resource, ResourceKind, Tags};
use greenroom_core::metadata::MetadataService;
use greenroom_core::text::clean_line;
use greenroom_core::time::Stamp;

use super::handle;
use crate::cloud::api::Disk;
use crate::cloud::machine::{Addresses, Handle, Machine, MachineState, moment};
use crate::cloud::tags;

/// Maximum length of EC2's message in a reason, in characters.
const MAX_MESSAGE: usize = 200;

/// A listed instance; `None` if one of Greenroom's tags is missing.
pub(super) fn read(instance: &Instance) -> Option<Machine> {
    let (id, tags) = tags_of(instance.tags())?;
    let state = machine_state(instance.state().and_then(|state| state.name())?);
    let text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    Some(Machine {
        handle: Handle { name: instance.instance_id()?.to_owned(), zone: String::new() },
        instance: id,
        tags,
        token: text(instance.client_token()),
        disks: disks(instance),
        state,
        created_ms: instance.launch_time().and_then(|time| time.to_millis().ok()),
        addresses: Addresses {
            private: text(instance.private_ip_address()),
            public: text(instance.public_ip_address()),
            ipv6: text(ipv6(instance)),
        },
        what: what(instance),
        why: why(instance).filter(|_| state <= MachineState::Stopped),
        by_job: false,
        refused: None,
        notice: None,
        // All else that it may announce is in lists.
        metadata: is_spot(instance).then_some(MetadataService::AwsEc2),
    })
}

fn disks(instance: &Instance) -> Vec<String> {
    let attached = instance.block_device_mappings().iter().filter_map(|mapping| mapping.ebs()?.volume_id());
    attached.map(str::to_owned).collect()
}

/// EC2 does not promise to show the first address of an interface with the instance, too.
fn ipv6(instance: &Instance) -> Option<&str> {
    let of_interfaces = || {
        let mut addresses =
            instance.network_interfaces().iter().flat_map(InstanceNetworkInterface::ipv6_addresses);
        addresses.find_map(InstanceIpv6Address::ipv6_address)
    };
    instance.ipv6_address().or_else(of_interfaces)
}

/// The instance and tags of a resource; `None` if one of Greenroom's tags is missing.
pub(super) fn tags_of(all: &[Tag]) -> Option<(InstanceId, Tags)> {
    tags::read(|name| all.iter().find(|tag| tag.key() == Some(name))?.value())
}

fn machine_state(state: &InstanceStateName) -> MachineState {
    match state {
        InstanceStateName::Pending => MachineState::Starting,
        InstanceStateName::Running => MachineState::Running,
        InstanceStateName::Terminated => MachineState::Gone,
        // It stays until a call terminates it, and its disks cost money until then.
        InstanceStateName::Stopped => MachineState::Stopped,
        _ => MachineState::Ending,
    }
}

fn what(instance: &Instance) -> String {
    let kind = instance.instance_type().map_or("unknown type", |kind| kind.as_str());
    let zone =
        instance.placement().and_then(|placement| placement.availability_zone()).unwrap_or("unknown zone");
    format!(
        "{kind}{}, {zone}, {}",
        if is_spot(instance) { " spot" } else { "" },
        instance.instance_id().unwrap_or("")
    )
}

fn is_spot(instance: &Instance) -> bool {
    instance.instance_lifecycle() == Some(&InstanceLifecycleType::Spot)
}

/// True for a spot instance that runs, or soon will.
pub(super) fn is_living_spot(instance: &Instance) -> bool {
    let state = instance.state().and_then(|state| state.name()).map(machine_state);
    is_spot(instance) && state.is_some_and(|state| state > MachineState::Stopped)
}

/// The reason of an end, as the predicate of a sentence about the instance; `None` if a call requested it, or EC2 reports no
/// reason.
fn why(instance: &Instance) -> Option<String> {
    let reason = instance.state_reason()?;
    let code = reason.code()?;
    let message = reason.message().unwrap_or_default();
    let at = instance.state_transition_reason().and_then(time).map(|time| format!(" at {time} UTC"));
    let at = at.unwrap_or_default();
    let message =
        clean_line(message.trim_start_matches(code).trim_start_matches(": ").as_bytes(), MAX_MESSAGE);
    match code {
        "Client.UserInitiatedShutdown" | "Client.UserInitiatedHibernate" => None,
        "Client.InstanceInitiatedShutdown" => Some(format!("shut itself down{at}")),
        "Server.SpotInstanceTermination" | "Server.SpotInstanceShutdown" => {
            Some(format!("was reclaimed by EC2{at} (spot)"))
        }
        server if server.starts_with("Server.") => {
            Some(format!("was terminated by EC2{at} ({server}: {message})"))
        }
        client => Some(format!("could not be started by EC2 ({client}: {message})")),
    }
}

/// The time of day out of `User initiated (2026-11-21 14:03:07 GMT)`.
fn time(transition: &str) -> Option<&str> {
    let inside = transition.rsplit_once('(')?.1.strip_suffix(')')?;
    let time = inside.split(' ').nth(1)?;
    (time.len() == 8 && time.bytes().all(|byte| byte.is_ascii_digit() || byte == b':')).then_some(time)
}

/// A listed volume; `None` if it is being deleted.
pub(super) fn read_volume(volume: &Volume, now: Stamp) -> Option<Disk> {
    if matches!(volume.state(), Some(VolumeState::Deleting | VolumeState::Deleted)) {
        return None;
    }
    let (instance, tags) = tags_of(volume.tags()).unzip();
    let made = volume.create_time().and_then(|time| time.to_millis().ok());
    let size = volume.size().map(|gib| format!("{gib} GiB"));
    let details = [size.as_deref(), volume.volume_type().map(VolumeType::as_str), volume.availability_zone()];
    let attached = volume.attachments().iter().find_map(VolumeAttachment::instance_id).map(handle);
    let resource = Resource {
        kind: ResourceKind::Volume,
        name: volume.volume_id()?.to_owned(),
        instance,
        tags,
        created: made.map(|at_ms| moment(at_ms, now)),
        detail: Some(details.into_iter().flatten().collect::<Vec<_>>().join(", ")),
    };
    Some(Disk { resource, attached })
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::{InstanceState, StateReason};

    use super::*;

    fn instance(state: InstanceStateName, code: &str, transition: &str) -> Instance {
        let tag = |name: &str, value: &str| Tag::builder().key(name).value(value).build();
        Instance::builder()
            .instance_id("i-0abc")
            .client_token("greenroom-5d3a")
            .state(InstanceState::builder().name(state).build())
            .state_reason(StateReason::builder().code(code).message(format!("{code}: no luck")).build())
            .state_transition_reason(transition)
            .instance_lifecycle(InstanceLifecycleType::Spot)
            .tags(tag("greenroom-pool", "linux"))
            .tags(tag("greenroom-owner", "owner"))
            .tags(tag("greenroom-generation", "c0ffee"))
            .tags(tag("greenroom-number", "7"))
            .build()
    }

    #[test]
    fn an_end_is_told_in_words_that_follow_its_name() {
        use InstanceStateName::{Running, Terminated};
        let spot = "Server.SpotInstanceTermination";
        for (state, code, transition, expected) in [
            (
                Terminated,
                spot,
                "Server.SpotInstanceTermination (2026-11-21 14:03:07 GMT)",
                Some("was reclaimed by EC2 at 14:03:07 UTC (spot)"),
            ),
            (Terminated, spot, "", Some("was reclaimed by EC2 (spot)")),
            (Running, spot, "", None),
            (Terminated, "Client.UserInitiatedShutdown", "", None),
            (Terminated, "Client.InstanceInitiatedShutdown", "", Some("shut itself down")),
            (
                Terminated,
                "Server.InternalError",
                "",
                Some("was terminated by EC2 (Server.InternalError: no luck)"),
            ),
            (
                Terminated,
                "Client.VolumeLimitExceeded",
                "",
                Some("could not be started by EC2 (Client.VolumeLimitExceeded: no luck)"),
            ),
        ] {
            let machine = read(&instance(state, code, transition)).unwrap();
            assert_eq!(machine.why.as_deref(), expected, "{code}");
            assert_eq!(machine.instance.as_str(), "linux-c0ffee-7");
            assert_eq!(machine.token.as_deref(), Some("greenroom-5d3a"));
        }
    }

    #[test]
    fn a_stopped_machine_is_not_about_to_go() {
        use InstanceStateName::{ShuttingDown, Stopped, Stopping};
        for (state, wanted) in [
            (Stopping, MachineState::Ending),
            (Stopped, MachineState::Stopped),
            (ShuttingDown, MachineState::Ending),
        ] {
            assert_eq!(read(&instance(state, "", "")).unwrap().state, wanted);
        }
    }

    #[test]
    fn a_spot_instance_that_ends_is_not_a_living_one() {
        use InstanceStateName::{Pending, Running, ShuttingDown, Terminated};
        for (state, wanted) in [(Pending, true), (Running, true), (ShuttingDown, false), (Terminated, false)]
        {
            assert_eq!(is_living_spot(&instance(state, "", "")), wanted);
        }
        let mut on_demand = instance(Running, "", "");
        on_demand.instance_lifecycle = None;
        assert!(!is_living_spot(&on_demand));
    }

    #[test]
    fn an_ipv6_address_is_the_instances_or_its_interfaces() {
        let address = InstanceIpv6Address::builder().ipv6_address("2001:db8::7").build();
        let interface = InstanceNetworkInterface::builder().ipv6_addresses(address).build();
        let mut running = instance(InstanceStateName::Running, "", "");
        let ipv6 = |instance: &Instance| read(instance).unwrap().addresses.ipv6;
        assert_eq!(ipv6(&running), None);
        running.network_interfaces = Some(vec![interface]);
        assert_eq!(ipv6(&running).as_deref(), Some("2001:db8::7"));
        running.ipv6_address = Some("2001:db8::8".to_owned());
        assert_eq!(ipv6(&running).as_deref(), Some("2001:db8::8"));
    }

    #[test]
    fn what_lacks_one_of_our_tags_is_not_ours() {
        let mut tags = instance(InstanceStateName::Running, "", "").tags().to_vec();
        tags.pop();
        let stranger = Instance::builder().instance_id("i-1").set_tags(Some(tags)).build();
        assert!(read(&stranger).is_none());
    }
}
