"""The account's initial content: a network inside 127/8, images, a group; and a record of each instance."""

import dataclasses
import ipaddress
import os

# Read by moto when it is imported.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"

from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

ACCOUNT = "123456789012"
REGION = "eu-west-1"
# An account, and a region, without anything in it. Every other access key is one of `ACCOUNT`.
OTHER_ACCOUNT, OTHER_KEY = "210987654321", "AKIAI44QH8DHBEXAMPLE"
OTHER_REGION = "eu-west-3"
# moto accepts these, and all of 127/8 is this machine: a private address is reachable directly.
NETWORK = "127.77.0.0/16"
SUBNETS = {"a": "127.77.1.0/24", "b": "127.77.2.0/24", "c": "127.77.3.0/24"}
# A subnet with eleven addresses, which a test can use up.
SMALL = ("a", "127.77.9.0/28")
# The account's default network, with a default subnet in each zone.
DEFAULT_NETWORK = "127.76.0.0/16"
DEFAULT_SUBNETS = {"a": "127.76.1.0/24", "b": "127.76.2.0/24", "c": "127.76.3.0/24"}
# Prefix of the public addresses of a network's instances.
PUBLIC = {"127.76.": "127.81.", "127.77.": "127.79."}
IMAGES = {
    "ami-0a000000000000001": ("debian-12-amd64", "x86_64"),
    "ami-0a000000000000002": ("debian-12-arm64", "arm64"),
}
# States in which an instance costs money, or soon will.
LIVE = ("pending", "running", "stopping", "stopped", "shutting-down")


@dataclasses.dataclass
class Record:
    """EC2's data of an instance that moto lacks."""

    # Emulator time of the launch's answer, of running, of being terminated; seconds of the monotonic clock.
    born: float
    running_at: float | None = None
    gone_at: float | None = None
    token: str | None = None
    spot: bool = False
    # The source of its capacity: "type/zone", with "/spot" appended for a spot instance.
    place: str = ""
    user_data: bytes = b""
    # The launch, for a copy of the instance.
    spec: object = None
    # Stands in for the public address; on the same machine.
    public: str | None = None
    ipv6: str | None = None
    # Why it ends, as (code, message), once it is shutting down.
    reason: tuple | None = None
    # The id and tags of its spot request, and when EC2 announced that it takes the instance back.
    request: str | None = None
    request_tags: list = dataclasses.field(default_factory=list)
    reclaimed_at: object = None
    # When EC2 recommended to replace it.
    rebalance_at: object = None
    # Scheduled events, as EC2 shows them.
    events: list = dataclasses.field(default_factory=list)


def caller(authorization):
    """The access key that signed a request, and its account."""
    key = authorization.partition("Credential=")[2].partition("/")[0]
    return key, OTHER_ACCOUNT if key == OTHER_KEY else ACCOUNT


class World:
    """moto's backend for the emulator's account and region, with its initial content."""

    def __init__(self):
        self.reset()

    def reset(self):
        """Restores the account's initial content, with new ids."""
        self.backend = backend = ec2_backends[ACCOUNT][REGION]
        backend.reset()
        backend = self.backend = ec2_backends[ACCOUNT][REGION]
        # The addresses of moto's own default network are not reachable.
        backend.subnets.clear()
        backend.vpcs.clear()
        backend.groups.clear()
        vpc = backend.create_vpc(NETWORK, amazon_provided_ipv6_cidr_block=True)
        self.vpc = vpc.id
        self.subnets = {REGION + zone: self._subnet(zone, block) for zone, block in SUBNETS.items()}
        self._give_ipv6(vpc)
        self.small_subnet = self._subnet(*SMALL)
        self.default_vpc = backend.create_vpc(DEFAULT_NETWORK, is_default=True).id
        self.default_subnets = {REGION + zone: self._default_subnet(zone) for zone in DEFAULT_SUBNETS}
        self.group = self._group("lab", vpc.id)
        # Allows TCP from the machine of the tests, which is the runner host, and from nowhere else.
        runner_host = [{"CidrIp": "127.0.0.1/32"}, {"CidrIpv6": "::1/128"}]
        self._allow(self.group, runner_host)
        self.default_network_group = self._group("lab-default", self.default_vpc)
        self._allow(self.default_network_group, runner_host)
        # Groups that allow more: everything, IPv6 alone, the network's own addresses, and the group's own members.
        ranges = {
            "world": [{"CidrIp": "0.0.0.0/0"}],
            "world_ipv6": [{"CidrIpv6": "::/0"}],
            "network": [{"CidrIp": NETWORK}],
        }
        self.open_groups = {name: self._group(f"lab-{name}", vpc.id) for name in (*ranges, "members")}
        for name, sources in ranges.items():
            self._allow(self.open_groups[name], sources)
        members = self.open_groups["members"]
        backend.authorize_security_group_ingress(
            members, "-1", None, None, [], source_groups=[{"GroupId": members, "OwnerId": ACCOUNT}]
        )
        for image, (name, architecture) in IMAGES.items():
            backend.amis[image] = Ami(
                backend,
                image,
                name=name,
                architecture=architecture,
                owner_id=ACCOUNT,
                public=False,
                virtualization_type="hvm",
                hypervisor="xen",
                root_device_type="ebs",
                root_device_name="/dev/xvda",
                description=f"{name} of the lab",
                region_name=REGION + "a",
            )
        self.records = {}

    def _group(self, name, vpc):
        return self.backend.create_security_group(name, "instances of the lab", vpc_id=vpc, tags={}).id

    def _allow(self, group, sources):
        """Lets sources connect to every port of TCP."""
        self.backend.authorize_security_group_ingress(group, "tcp", "1", "65535", sources)

    def _subnet(self, zone, block):
        """A subnet whose instances get a public address only on request."""
        subnet = self.backend.create_subnet(self.vpc, block, availability_zone=REGION + zone)
        # moto uses the first subnet of a zone as the zone's default.
        subnet.default_for_az = subnet.map_public_ip_on_launch = False
        return subnet.id

    def _give_ipv6(self, vpc):
        """Adds an IPv6 block to each zone's subnet; the small subnet and the default ones have none."""
        block = ipaddress.ip_network(vpc.get_cidr_block_association_set(ipv6=True)[0]["cidr_block"])
        for name, part in zip(self.subnets.values(), block.subnets(new_prefix=64), strict=False):
            self.backend.get_subnet(name).attach_ipv6_cidr_block_associations(str(part))

    def _default_subnet(self, zone):
        """The default subnet, for a launch that names only a zone; its instances get a public address."""
        subnet = self.backend.create_subnet(
            self.default_vpc, DEFAULT_SUBNETS[zone], availability_zone=REGION + zone
        )
        subnet.default_for_az = subnet.map_public_ip_on_launch = True
        return subnet.id

    def default_group(self, vpc):
        """The group of launches without one: it allows inbound traffic from its own members only."""
        return self.backend.get_security_group_from_name("default", vpc).id

    def described(self):
        """The account's content, for tests."""
        return {
            "region": REGION,
            "account": ACCOUNT,
            "other_account": OTHER_ACCOUNT,
            "other_region": OTHER_REGION,
            "vpc": self.vpc,
            "subnets": self.subnets,
            "small_subnet": self.small_subnet,
            "security_group": self.group,
            "open_groups": self.open_groups,
            "default": {
                "vpc": self.default_vpc,
                "subnets": self.default_subnets,
                "security_group": self.default_group(self.default_vpc),
                "closed_group": self.default_network_group,
            },
            "images": {architecture: image for image, (_, architecture) in IMAGES.items()},
        }

    def instances(self):
        """Every instance, the oldest first, whatever its state."""
        return [one for reservation in self.backend.reservations.values() for one in reservation.instances]

    def live(self):
        return [one for one in self.instances() if one.state in LIVE]


def public(private):
    """The address that stands in for an instance's public one; on the same machine."""
    network = next(network for network in PUBLIC if private.startswith(network))
    return private.replace(network, PUBLIC[network], 1)


def vcpus(kind):
    return INSTANCE_TYPES[kind]["VCpuInfo"]["DefaultVCpus"]


def architectures(kind):
    return INSTANCE_TYPES[kind]["ProcessorInfo"]["SupportedArchitectures"]


def known(kind):
    return kind in INSTANCE_TYPES


def offered(kind, zone):
    offers = INSTANCE_TYPE_OFFERINGS["availability-zone"][REGION]
    return any(offer["InstanceType"] == kind and offer["Location"] == zone for offer in offers)
