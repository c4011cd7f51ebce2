"""Parses inserts, with Compute Engine's checks beyond its schemas."""

import dataclasses
import re

from . import catalog
from .errors import Refused
from .filters import Unplayed

# Fields of an instance that the emulator acts on or stores.
PLAYED = {
    "canIpForward",
    "description",
    "disks",
    "labels",
    "machineType",
    "metadata",
    "name",
    "networkInterfaces",
    "scheduling",
    "serviceAccounts",
    "shieldedInstanceConfig",
    "tags",
}
# The same, for nested objects: other fields would be ignored silently.
PLAYED_INSIDE = {
    "disks": {"autoDelete", "boot", "deviceName", "diskSizeGb", "initializeParams", "mode", "type"},
    "initializeParams": {"description", "diskName", "diskSizeGb", "diskType", "labels", "sourceImage"},
    "networkInterfaces": {"accessConfigs", "ipv6AccessConfigs", "network", "nicType", "stackType", "subnetwork"},
    "scheduling": {
        "automaticRestart",
        "instanceTerminationAction",
        "maxRunDuration",
        "onHostMaintenance",
        "preemptible",
        "provisioningModel",
    },
}
LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}")
LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
# The range of a maximum run duration, in seconds.
RUN = (30, 120 * 24 * 3600)
LONGEST_METADATA = 256 * 1024


@dataclasses.dataclass
class Wish:
    """A requested instance."""

    name: str
    zone: str
    kind: str
    # As in the request, checked.
    body: dict
    # The name of its subnetwork.
    subnetwork: str
    # Whether it gets an IPv6 address.
    ipv6: bool
    # For each disk: name, image (or `None`), size in GiB, labels, auto_delete, device, type.
    disks: list
    spot: bool
    # STOP or DELETE: the effect of a preemption or of the maximum run duration.
    action: str
    # Seconds, or `None`.
    longest_run: float | None

    @property
    def place(self):
        """The source of its capacity, as named in the setting `capacity`."""
        return f"{self.kind}/{self.zone}" + ("/spot" if self.spot else "")

    def candidate(self):
        """The values that fault rules match."""
        return {"machineType": self.kind, "zone": self.zone, "provisioningModel": "SPOT" if self.spot else "STANDARD"}

    def metadata(self, key):
        items = self.body.get("metadata", {}).get("items", [])
        return next((item.get("value", "") for item in items if item.get("key") == key), None)


def read(zone, body):
    """Raises `Refused` or `Unplayed`."""
    catalog.check_zone(zone)
    strange = sorted(set(body) - PLAYED)
    if strange:
        raise Unplayed(f"the lab does not play {', '.join(strange)} of an instance")
    for field in ("disks", "networkInterfaces"):
        for one in body.get(field, []):
            _only_played(field, one)
    _only_played("scheduling", body.get("scheduling", {}))
    kind = _machine_type(zone, body.get("machineType", ""))
    disks = [_disk(zone, number, disk, body["name"], kind) for number, disk in enumerate(body.get("disks", []))]
    if not disks or [bool(disk.get("boot")) for disk in body["disks"]] != [True] + [False] * (len(disks) - 1):
        raise invalid("disks", "", "Exactly one boot disk must be specified, as the first.")
    subnetwork = _network(zone, body.get("networkInterfaces", []))
    ipv6 = _ipv6(body["networkInterfaces"][0], subnetwork)
    check_labels(body.get("labels", {}), "labels")
    _metadata(body.get("metadata", {}).get("items", []))
    scheduling = body.get("scheduling", {})
    spot, longest = _scheduling(scheduling)
    action = scheduling.get("instanceTerminationAction", "STOP")
    return Wish(body["name"], zone, kind, body, subnetwork, ipv6, disks, spot, action, longest)


def _only_played(field, value):
    if strange := sorted(set(value) - PLAYED_INSIDE[field]):
        raise Unplayed(f"the lab does not play {', '.join(strange)} of {field}")


def invalid(field, value, why):
    return Refused("invalid", f"Invalid value for field 'resource.{field}': '{value}'. {why}")


def check_labels(labels, field):
    """Raises `Refused` for a value that is not a valid label."""
    if len(labels) > 64:
        raise invalid(field, "", "At most 64 labels are allowed.")
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
            raise invalid(
                field,
                f"{key}={value}",
                "Label keys and values can only contain lowercase letters, digits, underscores and dashes.",
            )


def _tail(url, pattern):
    """The parts of a full or partial URL."""
    match = re.fullmatch(rf"(?:https://[^/]+/compute/v1/)?(?:projects/(?P<project>[^/]+)/)?{pattern}", url)
    return match.groupdict() if match else None


def _machine_type(zone, url):
    found = _tail(url, r"zones/(?P<zone>[^/]+)/machineTypes/(?P<name>[^/]+)")
    if found is None or found["zone"] != zone:
        raise invalid("machineType", url, f"The URL must name a machine type of zone '{zone}'.")
    try:
        catalog.machine_type(zone, found["name"])
    except Refused:
        raise invalid(
            "machineType", url, f"Machine type with name '{found['name']}' does not exist in zone '{zone}'."
        ) from None
    return found["name"]


def _disk(zone, number, disk, instance, machine_type):
    wanted = disk.get("initializeParams")
    if wanted is None:
        raise Unplayed("the lab's disks are made with their instance, from an image or empty")
    _only_played("initializeParams", wanted)
    url, image = wanted.get("sourceImage"), None
    if url:
        named = _tail(url, r"global/images/(?P<name>[^/]+)")
        family = _tail(url, r"global/images/family/(?P<name>[^/]+)")
        try:
            found = named or family or {"project": None, "name": ""}
            find = catalog.newest if family else catalog.image
            image = find(found["project"] or catalog.PROJECT, found["name"])
        except Refused:
            raise invalid(
                f"disks[{number}].initializeParams.sourceImage", url, "The referenced image resource cannot be found."
            ) from None
        if image["architecture"] != catalog.MACHINE_TYPES[machine_type][2]:
            raise invalid(
                f"disks[{number}].initializeParams.sourceImage",
                url,
                f"The image's architecture is not that of machine type '{machine_type}'.",
            )
    elif disk.get("boot"):
        raise invalid(f"disks[{number}]", "", "Boot disk must have a source specified")
    check_labels(wanted.get("labels", {}), f"disks[{number}].initializeParams.labels")
    name = wanted.get("diskName") or (instance if number == 0 else f"{instance}-{number}")
    size = int(wanted.get("diskSizeGb") or disk.get("diskSizeGb") or (image or {}).get("diskSizeGb", 500))
    kind = wanted.get("diskType") or f"zones/{zone}/diskTypes/pd-standard"
    if _tail(kind, rf"zones/{zone}/diskTypes/[-a-z0-9]+") is None:
        raise invalid(
            f"disks[{number}].initializeParams.diskType", kind, f"The URL must name a disk type of zone '{zone}'."
        )
    return {
        "name": name,
        "image": image,
        "size": size,
        "labels": wanted.get("labels", {}),
        "auto_delete": disk.get("autoDelete", False),
        "device": disk.get("deviceName") or f"persistent-disk-{number}",
        "type": catalog.url(kind[kind.index("zones/") :]),
    }


def _network(zone, interfaces):
    """The name of the subnetwork that it is in."""
    if len(interfaces) != 1:
        raise invalid("networkInterfaces", "", "The lab's instances have exactly one network interface.")
    wanted = interfaces[0]
    if url := wanted.get("subnetwork"):
        found = _tail(url, r"regions/(?P<region>[^/]+)/subnetworks/(?P<name>[^/]+)")
        if found is None or found["region"] != catalog.ZONES[zone] or found["name"] not in catalog.SUBNETWORKS:
            raise invalid("networkInterfaces[0].subnetwork", url, "The referenced subnetwork resource cannot be found.")
        return found["name"]
    if url := wanted.get("network"):
        found = _tail(url, r"global/networks/(?P<name>[^/]+)")
        if found is None or found["name"] != "default":
            raise invalid("networkInterfaces[0].network", url, "The referenced network resource cannot be found.")
        return "default"
    raise invalid("networkInterfaces[0]", "", "At least one of network or subnetwork must be specified.")


def _ipv6(wanted, subnetwork):
    """Whether an interface gets an IPv6 address: an external one only if it requests access."""
    stack, requested = wanted.get("stackType", "IPV4_ONLY"), wanted.get("ipv6AccessConfigs", [])
    if stack == "IPV6_ONLY":
        raise Unplayed("the lab's instances have an IPv4 address")
    access = catalog.SUBNETWORKS[subnetwork]
    if stack == "IPV4_IPV6" and access is None:
        raise invalid("networkInterfaces[0].stackType", stack, f"Subnetwork '{subnetwork}' is IPV4_ONLY.")
    if requested and (stack != "IPV4_IPV6" or access != "EXTERNAL"):
        raise invalid(
            "networkInterfaces[0].ipv6AccessConfigs", "", "It needs a dual-stack interface in an external subnetwork."
        )
    for one in requested:
        if len(requested) > 1 or (one.get("type"), one.get("networkTier", "PREMIUM")) != ("DIRECT_IPV6", "PREMIUM"):
            raise invalid(
                "networkInterfaces[0].ipv6AccessConfigs", "", "Only one, DIRECT_IPV6 in the premium tier, is supported."
            )
    return stack == "IPV4_IPV6" and (access == "INTERNAL" or bool(requested))


def _metadata(items):
    keys = [item.get("key", "") for item in items]
    if len(keys) != len(set(keys)):
        raise invalid("metadata", "", "Metadata has duplicate keys.")
    for item in items:
        if (
            not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", item.get("key", ""))
            or len(item.get("value", "")) > LONGEST_METADATA
        ):
            raise invalid("metadata.items", item.get("key", ""), "The key is malformed or the value too long.")


def _scheduling(scheduling):
    """Whether it is a spot instance, and how long it may run."""
    spot = scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible", False)
    if spot and (
        scheduling.get("automaticRestart", False) or scheduling.get("onHostMaintenance", "TERMINATE") != "TERMINATE"
    ):
        raise invalid(
            "scheduling",
            "",
            "Scheduling must have preemptible be false when AutomaticRestart is true or OnHostMaintenance is MIGRATE.",
        )
    duration = scheduling.get("maxRunDuration")
    if duration is None:
        if "instanceTerminationAction" in scheduling and not spot:
            raise invalid(
                "scheduling.instanceTerminationAction",
                scheduling["instanceTerminationAction"],
                "A termination action needs a spot instance or a limited run.",
            )
        return spot, None
    seconds = int(duration.get("seconds", "0")) + duration.get("nanos", 0) / 1e9
    if not RUN[0] <= seconds <= RUN[1]:
        raise invalid("scheduling.maxRunDuration", seconds, f"It must be from {RUN[0]} seconds to {RUN[1]} seconds.")
    if "instanceTerminationAction" not in scheduling:
        raise invalid("scheduling.instanceTerminationAction", "", "A limited run needs a termination action.")
    return spot, seconds
