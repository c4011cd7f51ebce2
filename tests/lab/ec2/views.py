"""Instances in EC2's lists: moto's data in EC2's form."""

import time

from . import world
from .lives import visible


class Instance:
    """An instance in an answer. Other attributes are moto's; moto's serializer depends on the class name."""

    def __init__(self, instance, record):
        self._instance, self._record = instance, record
        self.client_token = record.token
        self.instance_lifecycle = self.lifecycle = "spot" if record.spot else None
        self.spot_instance_request_id = record.request
        self.tags = [{"Key": tag["key"], "Value": tag["value"]} for tag in instance.get_tags()]
        self.state_reason = instance.state_reason if record.reason else None
        self.ipv6_address = record.ipv6
        if instance.state == "terminated":
            # A terminated instance has neither an address nor a subnet.
            self.private_ip_address = self.private_ip = self.public_ip_address = self.public_ip = None
            self.ipv6_address = None
            self.subnet_id = self.vpc_id = self.private_dns_name = self.public_dns_name = None
            self.network_interfaces, self.block_device_mappings, self.security_groups = [], [], []

    def __getattr__(self, name):
        return getattr(self._instance, name)


class Reservation:
    def __init__(self, identity, owner, instances):
        self.reservation_id = identity
        self.owner_id = owner
        self.instances = instances
        self.groups = []


def reservations(account, instances):
    """Instances, grouped by their reservations."""
    shown = {instance.id for instance in instances}
    found = []
    for reservation in account.backend.reservations.values():
        inside = [Instance(one, account.records[one.id]) for one in reservation.instances if one.id in shown]
        if inside:
            found.append(Reservation(reservation.id, world.ACCOUNT, inside))
    return found


def listed(account, settings):
    """The instances that lists show."""
    return [one for one in account.instances() if visible(account.records[one.id], settings)]


def _tags(item):
    return {tag["key"]: tag["value"] for tag in item.get_tags()}


def instance_filters(account):
    """The filters of DescribeInstances that the emulator supports."""
    record = account.records

    def there(one):
        return one.state != "terminated"

    return {
        "tags": _tags,
        "architecture": lambda one: one.architecture,
        "availability-zone": lambda one: one.availability_zone,
        "client-token": lambda one: record[one.id].token,
        "image-id": lambda one: one.image_id,
        "instance-id": lambda one: one.id,
        "instance-lifecycle": lambda one: "spot" if record[one.id].spot else None,
        "instance-state-code": lambda one: one.state_code,
        "instance-state-name": lambda one: one.state,
        "instance-type": lambda one: one.instance_type,
        "instance.group-id": lambda one: [group.id for group in one.security_groups],
        "ip-address": lambda one: record[one.id].public if there(one) else None,
        "key-name": lambda one: one.key_name,
        "launch-time": lambda one: one.launch_time.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "private-ip-address": lambda one: one.private_ip if there(one) else None,
        "reservation-id": lambda one: next(
            r.id for r in account.backend.reservations.values() if any(i.id == one.id for i in r.instances)
        ),
        "state-reason-code": lambda one: one.state_reason.code if record[one.id].reason else None,
        "subnet-id": lambda one: one.subnet_id if there(one) else None,
        "vpc-id": lambda one: one.vpc_id if there(one) else None,
    }


def _attached(read):
    return lambda volume: read(volume.attachment) if volume.attachment else None


VOLUME_FILTERS = {
    "tags": _tags,
    "attachment.device": _attached(lambda attachment: attachment.device),
    "attachment.instance-id": _attached(lambda attachment: attachment.instance.id),
    "attachment.status": _attached(lambda attachment: "attached"),
    "availability-zone": lambda volume: volume.zone.name,
    "create-time": lambda volume: volume.create_time.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
    "encrypted": lambda volume: bool(volume.encrypted),
    "size": lambda volume: volume.size,
    "status": lambda volume: volume.status,
    "volume-id": lambda volume: volume.id,
    "volume-type": lambda volume: volume.volume_type,
}


def truth(account, machines):
    """All existing instances and volumes, whatever lists show: for the test, not for the client."""
    instances = [_shown(account, machines, one) for one in account.instances()]
    volumes = [
        {
            "cloud": "ec2",
            "id": one.id,
            "tags": _tags(one),
            "status": one.status,
            "size_gib": one.size,
            "instance": one.attachment.instance.id if one.attachment else None,
        }
        for one in account.backend.volumes.values()
    ]
    return instances, volumes


def _shown(account, machines, one):
    record = account.records[one.id]
    return {
        "cloud": "ec2",
        "id": one.id,
        "machine": one.id,
        "state": one.state,
        "live": one.state in world.LIVE,
        "tags": _tags(one),
        "type": one.instance_type,
        "zone": one.availability_zone,
        "spot": record.spot,
        "token": record.token,
        "address": one.private_ip,
        "public_address": record.public,
        "ipv6_address": record.ipv6,
        "port": machines.port,
        "process": machines.pid(one.id),
        "reason": record.reason[0] if record.reason else None,
        "age": round(time.monotonic() - record.born, 3),
        "volumes": [
            {"id": disk.volume_id, "delete_on_termination": disk.delete_on_termination}
            for disk in one.block_device_mapping.values()
        ],
    }
