"""Instances and disks of the project: creation, representation, deletion."""

import base64
import dataclasses
import datetime
import ipaddress
import itertools
import json
import time
import zlib

from shared import machines

from . import catalog
from .errors import Refused
from .operations import now

# States in which an instance uses capacity and quota.
TAKING = ("PROVISIONING", "STAGING", "RUNNING", "STOPPING")

# The value of the metadata `maintenance-event` just before maintenance that stops the instance.
EVENT = "TERMINATE_ON_HOST_MAINTENANCE"


@dataclasses.dataclass
class Instance:
    """One instance: the visible resource, and internal data."""

    shown: dict
    wish: object
    # Emulator time of its creation; seconds of the monotonic clock.
    born: float
    address: str
    public: str | None
    ipv6: str | None
    # Why it ended, if not by a request.
    reason: str | None = None
    # What its own metadata says about maintenance.
    event: str = "NONE"

    @property
    def machine(self):
        """Its name among the emulator's machines: names are unique in a zone only."""
        return f"{self.wish.zone}.{self.wish.name}"

    @property
    def target(self):
        return self.shown["id"], self.shown["selfLink"]

    def announce(self, kind):
        """Announces maintenance of its host: a day ahead if it is scheduled, otherwise half an hour.

        `EVENT` is about to begin, and only the instance's own metadata says so.
        """
        if kind == EVENT:
            self.event = kind
            return
        ahead = datetime.timedelta(days=1) if kind == "SCHEDULED" else datetime.timedelta(minutes=30)
        start = datetime.datetime.now(datetime.UTC) + ahead
        self.shown["resourceStatus"] = {
            "upcomingMaintenance": {
                "type": kind,
                "maintenanceStatus": "PENDING",
                "canReschedule": False,
                "windowStartTime": start.isoformat(timespec="seconds"),
                "latestWindowStartTime": start.isoformat(timespec="seconds"),
                "windowEndTime": (start + datetime.timedelta(hours=4)).isoformat(timespec="seconds"),
            }
        }

    def status(self, status):
        self.shown["status"] = status


class Project:
    """All instances and disks. All methods run under the emulator's lock."""

    def __init__(self, settings):
        self._settings = settings
        self.instances, self.disks = {}, {}
        self._numbers = itertools.count((1 << 42) + 1)

    def clear(self):
        self.instances.clear()
        self.disks.clear()

    def get(self, zone, name):
        catalog.check_zone(zone)
        if (zone, name) not in self.instances:
            path = catalog.project_path(f"zones/{zone}/instances/{name}")
            raise Refused("notFound", f"The resource '{path}' was not found")
        return self.instances[zone, name]

    def listed(self):
        """The instances that lists show."""
        now = time.monotonic()
        return [one for one in self.instances.values() if now - one.born >= self._settings.visible]

    def disk(self, zone, name):
        catalog.check_zone(zone)
        if (zone, name) not in self.disks:
            raise Refused(
                "notFound", f"The resource '{catalog.project_path(f'zones/{zone}/disks/{name}')}' was not found"
            )
        return self.disks[zone, name]

    def make(self, wish):
        """Creates an instance with its disks, whose names must be free."""
        address = self._address(catalog.ZONES[wish.zone], wish.subnetwork)
        wanted = wish.body["networkInterfaces"][0]
        public = address.replace("127.78.", "127.80.", 1) if wanted.get("accessConfigs") else None
        ipv6 = machines.IPV6 if wish.ipv6 else None
        instance = Instance(self._shown(wish, address, public, ipv6), wish, time.monotonic(), address, public, ipv6)
        self.instances[wish.zone, wish.name] = instance
        for disk in wish.disks:
            self.disks[wish.zone, disk["name"]] = self._shown_disk(wish.zone, disk, instance)
        return instance

    def check_names(self, wish):
        """Raises `Refused` if a name is taken."""
        self._free_name("instances", self.instances, wish.zone, wish.name)
        for disk in wish.disks:
            self._free_name("disks", self.disks, wish.zone, disk["name"])

    def remove(self, instance, every_disk=False):
        """Removes an instance and its auto-delete disks, or all its disks; detaches the others."""
        zone, name = instance.wish.zone, instance.wish.name
        if self.instances.get((zone, name)) is not instance:
            return
        del self.instances[zone, name]
        for disk in instance.wish.disks:
            if disk["auto_delete"] or every_disk:
                self.disks.pop((zone, disk["name"]), None)
            elif (zone, disk["name"]) in self.disks:
                self.disks[zone, disk["name"]].pop("users", None)

    def label(self, instance, labels, fingerprint):
        """Raises `Refused` if another request came first."""
        if fingerprint != instance.shown["labelFingerprint"]:
            raise Refused("conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
        instance.shown.update(labels=labels, labelFingerprint=fingerprint_of(labels))

    def quotas(self, region):
        """Metric -> (limit, usage) of a region."""

        def cpus(spot):
            return sum(catalog.MACHINE_TYPES[one.wish.kind][0] for one in inside if one.wish.spot == spot)

        inside = [
            one
            for one in self.instances.values()
            if catalog.ZONES[one.wish.zone] == region and one.shown["status"] in TAKING
        ]
        size = sum(int(disk["sizeGb"]) for (zone, _), disk in self.disks.items() if catalog.ZONES[zone] == region)
        usage = {"CPUS": cpus(False), "PREEMPTIBLE_CPUS": cpus(True), "INSTANCES": len(inside), "DISKS_TOTAL_GB": size}
        return {
            metric: (float(self._settings.quotas.get(metric, catalog.UNLIMITED)), float(usage[metric]))
            for metric in catalog.METRICS
        }

    def taken(self, place):
        return sum(one.wish.place == place and one.shown["status"] in TAKING for one in self.instances.values())

    def _id(self):
        return str(next(self._numbers))

    def _free_name(self, kind, there, zone, name):
        if (zone, name) in there:
            path = catalog.project_path(f"zones/{zone}/{kind}/{name}")
            raise Refused("alreadyExists", f"The resource '{path}' already exists")

    def has_ipv6_left(self):
        return all(one.ipv6 is None for one in self.instances.values())

    def _address(self, region, subnetwork):
        taken = {one.address for one in self.instances.values()}
        network = ipaddress.ip_network(f"{catalog.PREFIXES[region, subnetwork]}.0/24")
        # The first address of a network is its gateway, the last two are reserved by Google.
        free = (str(one) for one in list(network.hosts())[1:-1] if str(one) not in taken)
        address = next(free, None)
        if address is None:
            raise Refused("invalid", f"IP space of subnetwork '{subnetwork}' in {region} is exhausted.")
        return address

    def _shown(self, wish, address, public, ipv6):
        path = catalog.project_path(f"zones/{wish.zone}/instances/{wish.name}")
        wanted = wish.body["networkInterfaces"][0]
        labels, metadata = wish.body.get("labels", {}), wish.body.get("metadata", {"items": []})
        interface = {
            "kind": "compute#networkInterface",
            "name": "nic0",
            "networkIP": address,
            "network": catalog.url("global/networks/default"),
            "subnetwork": catalog.url(f"regions/{catalog.ZONES[wish.zone]}/subnetworks/{wish.subnetwork}"),
            "stackType": wanted.get("stackType", "IPV4_ONLY"),
            "fingerprint": fingerprint_of(address),
        }
        if public:
            access = wanted["accessConfigs"][0]
            interface["accessConfigs"] = [
                {
                    "kind": "compute#accessConfig",
                    "type": "ONE_TO_ONE_NAT",
                    "name": access.get("name", "external-nat"),
                    "natIP": public,
                }
            ]
        if ipv6:
            interface.update(_ipv6(catalog.SUBNETWORKS[wish.subnetwork], wanted, ipv6))
        disks = [
            {
                "kind": "compute#attachedDisk",
                "type": "PERSISTENT",
                "mode": "READ_WRITE",
                "index": number,
                "boot": number == 0,
                "deviceName": disk["device"],
                "autoDelete": disk["auto_delete"],
                "diskSizeGb": str(disk["size"]),
                "source": catalog.url(f"zones/{wish.zone}/disks/{disk['name']}"),
            }
            for number, disk in enumerate(wish.disks)
        ]
        scheduling = {
            "automaticRestart": not wish.spot,
            "onHostMaintenance": "TERMINATE" if wish.spot else "MIGRATE",
            "preemptible": wish.spot,
            "provisioningModel": "SPOT" if wish.spot else "STANDARD",
        }
        kept = {
            key: value
            for key, value in wish.body.items()
            if key in ("description", "tags", "serviceAccounts", "canIpForward")
        }
        return {
            **kept,
            "kind": "compute#instance",
            "id": self._id(),
            "name": wish.name,
            "selfLink": catalog.API + path,
            "creationTimestamp": now(),
            "zone": catalog.url(f"zones/{wish.zone}"),
            "status": "PROVISIONING",
            "machineType": catalog.url(f"zones/{wish.zone}/machineTypes/{wish.kind}"),
            "networkInterfaces": [interface],
            "disks": disks,
            "labels": labels,
            "labelFingerprint": fingerprint_of(labels),
            "fingerprint": fingerprint_of(path),
            "metadata": {"kind": "compute#metadata", **metadata, "fingerprint": fingerprint_of(metadata)},
            "scheduling": {**scheduling, **wish.body.get("scheduling", {})},
        }

    def _shown_disk(self, zone, disk, instance):
        path = catalog.project_path(f"zones/{zone}/disks/{disk['name']}")
        image = {"sourceImage": disk["image"]["selfLink"]} if disk["image"] else {}
        return {
            **image,
            "kind": "compute#disk",
            "id": self._id(),
            "name": disk["name"],
            "selfLink": catalog.API + path,
            "creationTimestamp": now(),
            "zone": catalog.url(f"zones/{zone}"),
            "sizeGb": str(disk["size"]),
            "status": "READY",
            "labels": disk["labels"],
            "labelFingerprint": fingerprint_of(disk["labels"]),
            "type": disk["type"],
            "users": [instance.shown["selfLink"]],
        }


def _ipv6(access, wanted, address):
    """The IPv6 fields of an interface, by its subnetwork's access type."""
    if access == "INTERNAL":
        return {"ipv6AccessType": access, "ipv6Address": address, "internalIpv6PrefixLength": 96}
    shown = {
        "kind": "compute#accessConfig",
        "type": "DIRECT_IPV6",
        "name": wanted["ipv6AccessConfigs"][0].get("name", "external-ipv6"),
        "externalIpv6": address,
        "externalIpv6PrefixLength": 96,
        "networkTier": "PREMIUM",
    }
    return {"ipv6AccessType": access, "ipv6AccessConfigs": [shown]}


def fingerprint_of(value):
    """A fingerprint in Compute Engine's form: base64 for URLs, different for each value."""
    return base64.urlsafe_b64encode(zlib.crc32(json.dumps(value, sort_keys=True).encode()).to_bytes(8, "big")).decode()
