"""Launches instances: EC2's checks that moto lacks, capacity and quotas, records of tokens, boot."""

import time

from moto.core.types import Base64EncodedString
from moto.ec2.models.instances import InstanceState
from shared import faults, machines

from . import announced, errors, quotas, world
from .errors import Refused
from .model import user_data

# Parameters of a launch that the emulator passes on or acts on.
SUPPORTED = {
    "BlockDeviceMappings",
    "ClientToken",
    "DisableApiTermination",
    "DryRun",
    "EbsOptimized",
    "IamInstanceProfile",
    "ImageId",
    "InstanceInitiatedShutdownBehavior",
    "InstanceMarketOptions",
    "InstanceType",
    "KeyName",
    "LaunchTemplate",
    "MaxCount",
    "MetadataOptions",
    "MinCount",
    "Monitoring",
    "NetworkInterfaces",
    "Placement",
    "SecurityGroupIds",
    "SubnetId",
    "TagSpecifications",
    "UserData",
    "CreditSpecification",
    "CpuOptions",
}
GIB_OF_ROOT = 8


class Unsupported(Exception):
    """A correct request that the emulator does not support; the text names the reason."""


# The same, one level down: other fields would be ignored silently.
SUPPORTED_INSIDE = {
    "InstanceMarketOptions": {"MarketType", "SpotOptions"},
    "NetworkInterfaces": {
        "AssociatePublicIpAddress",
        "DeleteOnTermination",
        "Description",
        "DeviceIndex",
        "Groups",
        "Ipv6AddressCount",
        "SubnetId",
    },
    "Placement": {"AvailabilityZone"},
}


class Spec:
    """One launch's parameters, checked against the account. Raises `Refused` or `Unsupported`."""

    def __init__(self, wanted, account):
        strange = sorted(set(wanted) - SUPPORTED)
        if strange:
            raise Unsupported(f"the lab does not play {', '.join(strange)} of a launch")
        for field, known in SUPPORTED_INSIDE.items():
            inside = wanted.get(field, {})
            for one in inside if isinstance(inside, list) else [inside]:
                if strange := sorted(set(one) - known):
                    raise Unsupported(f"the lab does not play {', '.join(strange)} of a launch's {field}")
        spot = wanted.get("InstanceMarketOptions", {}).get("SpotOptions", {})
        if (
            spot.get("InstanceInterruptionBehavior", "terminate") != "terminate"
            or spot.get("SpotInstanceType", "one-time") != "one-time"
        ):
            raise Unsupported("the lab's spot instances are asked for once, and end when they are taken away")
        self._wanted, self._world = wanted, account
        self.kind = wanted.get("InstanceType", "m1.small")
        self.image = self._image()
        self.interface = self._interface()
        self.subnet = self._subnet()
        self.zone = self.subnet.availability_zone
        self.ipv6 = self._ipv6()
        self.spot = wanted.get("InstanceMarketOptions", {}).get("MarketType") == "spot"
        self.groups = self._groups()
        self.key = self._key()
        self._check_place()
        self.user_data = user_data(wanted.get("UserData"))
        self.place = f"{self.kind}/{self.zone}" + ("/spot" if self.spot else "")

    def _image(self):
        image = self._wanted.get("ImageId")
        if not image:
            raise Refused("MissingParameter", "The request must contain the parameter ImageId")
        if image not in self._world.backend.amis:
            raise Refused("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
        return self._world.backend.amis[image]

    def _interface(self):
        interfaces = self._wanted.get("NetworkInterfaces") or [{}]
        if interfaces != [{}] and (self._wanted.get("SubnetId") or self._wanted.get("SecurityGroupIds")):
            raise Refused(
                "InvalidParameterCombination",
                "Network interfaces and an instance-level subnet ID or security groups may not be specified on the same "
                "request",
            )
        if len(interfaces) > 1 or interfaces[0].get("DeviceIndex", 0) != 0:
            raise Unsupported("the lab's instances have one network interface, made for them")
        return interfaces[0]

    def _subnet(self):
        """The named subnet, or the default one of the named zone, or of any zone."""
        name = self._wanted.get("SubnetId") or self.interface.get("SubnetId")
        defaults = self._world.default_subnets
        zone = self._wanted.get("Placement", {}).get("AvailabilityZone") or next(iter(defaults))
        if not name and zone not in defaults:
            raise Refused("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
        name = name or defaults[zone]
        found = self._world.backend.describe_subnets(filters={"subnet-id": [name]})
        if not found:
            raise Refused("InvalidSubnetID.NotFound", f"The subnet ID '{name}' does not exist")
        return found[0]

    def _ipv6(self):
        """Whether it gets an IPv6 address."""
        count = self.interface.get("Ipv6AddressCount", 0)
        if count > 1:
            raise Unsupported("the lab's instances have one IPv6 address at the most")
        if count < 0 or (count and not self.subnet.ipv6_cidr_block_associations):
            raise Refused(
                "InvalidParameterValue",
                f"Invalid value '{count}' for Ipv6AddressCount: subnet '{self.subnet.id}' has no IPv6 CIDR block.",
            )
        return count == 1

    def _groups(self):
        named = self.interface.get("Groups") or self._wanted.get("SecurityGroupIds")
        for name in named or ():
            group = self._world.backend.get_security_group_from_id(name)
            if group is None:
                raise Refused("InvalidGroup.NotFound", f"The security group '{name}' does not exist")
            if group.vpc_id != self.subnet.vpc_id:
                raise Refused(
                    "InvalidParameter",
                    f"Security group {name} and subnet {self.subnet.id} belong to different networks.",
                )
        return named or [self._world.default_group(self.subnet.vpc_id)]

    def _key(self):
        key = self._wanted.get("KeyName")
        if key and key not in self._world.backend.key_pairs:
            raise Refused("InvalidKeyPair.NotFound", f"The key pair '{key}' does not exist")
        return self._world.backend.key_pairs[key] if key else None

    def _check_place(self):
        if not world.known(self.kind):
            raise Refused("InvalidParameterValue", f"Invalid value '{self.kind}' for InstanceType.")
        if self.image.architecture not in world.architectures(self.kind):
            raise Refused(
                "InvalidParameterValue",
                f"The architecture '{self.image.architecture}' of the specified AMI does not match that of the "
                f"instance type '{self.kind}'.",
            )
        placed = self._wanted.get("Placement", {}).get("AvailabilityZone")
        if placed and placed != self.zone:
            raise Refused(
                "InvalidParameterValue", f"The availability zone {placed} is not that of the subnet, {self.zone}"
            )
        if not world.offered(self.kind, self.zone):
            raise Refused(
                "Unsupported",
                f"Your requested instance type ({self.kind}) is not supported in your requested Availability Zone "
                f"({self.zone}).",
            )

    def candidate(self):
        """The values that fault rules match, for a launch and for each override of a fleet."""
        return {
            "InstanceType": self.kind,
            "AvailabilityZone": self.zone,
            "SubnetId": self.subnet.id,
            "ImageId": self.image.id,
            "Lifecycle": "spot" if self.spot else "on-demand",
        }

    def arguments(self):
        """The arguments of moto's launch."""
        tags = {
            one["ResourceType"]: {tag["Key"]: tag.get("Value", "") for tag in one.get("Tags", ())}
            for one in self._wanted.get("TagSpecifications", ())
        }
        encoded = self._wanted.get("UserData")
        return {
            "image_id": self.image.id,
            "user_data": Base64EncodedString(encoded) if encoded else None,
            "security_group_names": [],
            "instance_type": self.kind,
            "is_instance_type_default": False,
            "region_name": world.REGION,
            "subnet_id": self.subnet.id,
            "key_name": self._wanted.get("KeyName"),
            "security_group_ids": list(self.groups),
            "tags": tags,
            "ebs_optimized": self._wanted.get("EbsOptimized", False),
            "associate_public_ip": False,
            "disable_api_termination": self._wanted.get("DisableApiTermination", False),
            "instance_initiated_shutdown_behavior": self._wanted.get("InstanceInitiatedShutdownBehavior"),
            "metadata_options": self._wanted.get("MetadataOptions", {}),
            "block_device_mappings": self._disks(),
            "monitoring_state": "enabled" if self._wanted.get("Monitoring", {}).get("Enabled") else "disabled",
            "instance_market_options": "spot" if self.spot else {},
        }

    def public(self):
        requested = self.interface.get("AssociatePublicIpAddress")
        return self.subnet.map_public_ip_on_launch is True if requested is None else requested

    def tags_of(self, kind):
        """The tags for a kind of resource that the launch creates."""
        return [
            tag
            for one in self._wanted.get("TagSpecifications", ())
            if one["ResourceType"] == kind
            for tag in one["Tags"]
        ]

    def _disks(self):
        """The requested disks, and the image's root disk if it is missing from them."""
        disks = []
        for disk in self._wanted.get("BlockDeviceMappings", ()):
            if "Ebs" not in disk or "SnapshotId" in disk["Ebs"]:
                raise Unsupported("the lab's disks are EBS volumes without a snapshot")
            root = disk.get("DeviceName") == self.image.root_device_name
            # By default, only the image's root disk is deleted with its instance.
            ebs = {"VolumeSize": GIB_OF_ROOT, "VolumeType": "gp3", "DeleteOnTermination": root, **disk["Ebs"]}
            disks.append({"DeviceName": disk["DeviceName"], "Ebs": ebs})
        if not any(disk["DeviceName"] == self.image.root_device_name for disk in disks):
            root = {"VolumeSize": GIB_OF_ROOT, "VolumeType": "gp3", "DeleteOnTermination": True}
            disks.insert(0, {"DeviceName": self.image.root_device_name, "Ebs": root})
        return disks


class Launcher:
    """Turns a checked launch into instances that boot."""

    def __init__(self, account, settings, rules, lives):
        self.world, self._settings, self._rules, self._lives = account, settings, rules, lives

    def room(self, operation, spec, least, most):
        """How many of `least` to `most` instances fit. Raises `Refused` if fewer than `least` fit."""
        words = {"type": spec.kind, "zone": spec.zone, "spot": spec.spot}
        rule = self._rules.take(operation, spec.candidate(), faults.OF_CANDIDATES)
        if rule:
            raise errors.of_fault(rule, **words)
        live = self.world.live()
        room = most
        if spec.place in self._settings.capacity:
            taken = sum(self.world.records[one.id].place == spec.place for one in live)
            room = min(room, self._settings.capacity[spec.place] - taken)
            if room < least:
                raise errors.of_fault(faults.Rule("*", "capacity"), **words)
        room = min(room, quotas.room(self.world, self._settings, spec.kind, spec.spot))
        if room < least:
            raise errors.of_fault(faults.Rule("*", "quota"), **words)
        free = spec.subnet.available_ip_address_count
        if spec.ipv6:
            free = min(free, 1 - sum(self.world.records[one.id].ipv6 is not None for one in live))
        if min(room, free) < least:
            raise Refused(
                "InsufficientFreeAddressesInSubnet",
                f"There are not enough free addresses in subnet '{spec.subnet.id}' to satisfy the requested number of "
                "instances.",
            )
        return min(room, free)

    def launch(self, operation, spec, count, token, tags=None):
        """Creates `count` instances and boots them; returns moto's reservation."""
        reservation = self.world.backend.run_instances(count=count, **spec.arguments())
        fates = faults.OF_INSTANCES if spec.spot else faults.OF_LASTING_INSTANCES
        fate = self._rules.take(operation, spec.candidate(), fates)
        for instance in reservation.instances:
            record = world.Record(
                time.monotonic(), token=token, spot=spec.spot, place=spec.place, user_data=spec.user_data, spec=spec
            )
            if spec.public():
                record.public = world.public(instance.private_ip)
            record.ipv6 = machines.IPV6 if spec.ipv6 else None
            record.request = announced.request_id() if spec.spot else None
            record.request_tags = spec.tags_of("spot-instances-request")
            self.world.records[instance.id] = record
            instance._state = InstanceState("pending", 0)
            instance.root_device_name = spec.image.root_device_name
            instance.add_tags(tags or {})
            for disk in instance.block_device_mapping.values():
                # moto shows this with the instance only, not with the volume.
                self.world.backend.volumes[disk.volume_id].attachment.delete_on_termination = disk.delete_on_termination
            for interface in instance.nics.values():
                interface.public_ip = record.public
                interface.delete_on_termination = True
                interface.ipv6_addresses = [record.ipv6] if record.ipv6 else []
                for tag in spec.tags_of("network-interface"):
                    interface.add_tag(tag["Key"], tag.get("Value", ""))
            self._lives.begin(instance, spec.key, fate)
        return reservation

    def undo(self, instance):
        """Ends an instance of a fleet that missed its minimum."""
        self._lives.end(instance)
