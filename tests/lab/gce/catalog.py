"""The initial content of each project: regions, zones, machine types, images, a network."""

import zlib

from .errors import Refused

PROJECT = "lab-project"
# A project without anything in it.
OTHER_PROJECT = "lab-other"
# Projects whose images may be used.
IMAGE_PROJECTS = (PROJECT, "debian-cloud")
API = "https://www.googleapis.com/compute/v1/"
SINCE = "2026-01-01T00:00:00.000-08:00"
REGIONS = {"us-east1": ("b", "c", "d"), "europe-west1": ("b", "c")}
ZONES = {f"{region}-{zone}": region for region, zones in REGIONS.items() for zone in zones}
# Subnetworks of each region, with the access type of their IPv6 addresses, or `None`.
SUBNETWORKS = {"default": None, "dual-internal": "INTERNAL", "dual-external": "EXTERNAL"}
# Addresses of each region's subnetworks: 127/8, so that an instance's address is reachable directly.
PREFIXES = {
    ("us-east1", "default"): "127.78.1",
    ("us-east1", "dual-internal"): "127.78.11",
    ("us-east1", "dual-external"): "127.78.12",
    ("europe-west1", "default"): "127.78.2",
    ("europe-west1", "dual-internal"): "127.78.21",
    ("europe-west1", "dual-external"): "127.78.22",
}
# Machine type -> virtual processors, MiB, architecture.
MACHINE_TYPES = {
    "c3-standard-4": (4, 16384, "X86_64"),
    "e2-medium": (2, 4096, "X86_64"),
    "e2-standard-2": (2, 8192, "X86_64"),
    "n2d-standard-2": (2, 8192, "X86_64"),
    "n2d-standard-4": (4, 16384, "X86_64"),
    "t2a-standard-2": (2, 8192, "ARM64"),
}
# Not every zone has every type.
NOT_IN = {("t2a-standard-2", "us-east1-d"), ("c3-standard-4", "europe-west1-c")}
# Image -> family, architecture.
IMAGES = {
    "debian-12-v20261001": ("debian-12", "X86_64"),
    "debian-12-v20260901": ("debian-12", "X86_64"),
    "debian-12-arm64-v20261001": ("debian-12-arm64", "ARM64"),
}
# Metrics of a region's quotas; their limits are settings of the emulator.
METRICS = ("CPUS", "PREEMPTIBLE_CPUS", "INSTANCES", "DISKS_TOTAL_GB")
UNLIMITED = 1_000_000.0


def number(text):
    """An id that is the same for the same text."""
    return str(zlib.crc32(text.encode()) + (1 << 40))


def _resource(kind, path, **fields):
    name = path.rsplit("/", 1)[1]
    return {
        "kind": f"compute#{kind}",
        "id": number(path),
        "name": name,
        "selfLink": API + path,
        "creationTimestamp": SINCE,
        **fields,
    }


def project_path(path):
    return f"projects/{PROJECT}/{path}"


def url(path):
    return API + project_path(path)


def zone(name):
    check_zone(name)
    region = url(f"regions/{ZONES[name]}")
    return _resource("zone", project_path(f"zones/{name}"), status="UP", region=region, description=name)


def check_zone(name):
    if name not in ZONES:
        raise Refused("invalid", f"Invalid value for field 'zone': '{name}'. Unknown zone.")


def region(name, quotas):
    """A region with its quotas, as metric -> (limit, usage)."""
    if name not in REGIONS:
        raise Refused("notFound", f"The resource '{project_path(f'regions/{name}')}' was not found")
    shown = [{"metric": metric, "limit": limit, "usage": usage} for metric, (limit, usage) in quotas.items()]
    zones = [url(f"zones/{one}") for one, its in ZONES.items() if its == name]
    return _resource(
        "region", project_path(f"regions/{name}"), status="UP", zones=zones, quotas=shown, description=name
    )


def machine_type(zone_name, name):
    check_zone(zone_name)
    path = project_path(f"zones/{zone_name}/machineTypes/{name}")
    if name not in MACHINE_TYPES or (name, zone_name) in NOT_IN:
        raise Refused("notFound", f"The resource '{path}' was not found")
    cpus, memory, architecture = MACHINE_TYPES[name]
    return _resource(
        "machineType",
        path,
        guestCpus=cpus,
        memoryMb=memory,
        architecture=architecture,
        zone=zone_name,
        isSharedCpu=name == "e2-medium",
        maximumPersistentDisks=128,
        maximumPersistentDisksSizeGb="263168",
    )


def machine_types(zone_name):
    check_zone(zone_name)
    return [machine_type(zone_name, name) for name in MACHINE_TYPES if (name, zone_name) not in NOT_IN]


def image(project, name):
    path = f"projects/{project}/global/images/{name}"
    if project not in IMAGE_PROJECTS or name not in IMAGES:
        raise Refused("notFound", f"The resource '{path}' was not found")
    family, architecture = IMAGES[name]
    return _resource(
        "image",
        path,
        family=family,
        architecture=architecture,
        status="READY",
        diskSizeGb="10",
        sourceType="RAW",
        archiveSizeBytes="1073741824",
    )


def images(project):
    return [image(project, name) for name in IMAGES] if project in IMAGE_PROJECTS else []


def newest(project, family):
    """The newest image of a family."""
    found = sorted(name for name, (its, _) in IMAGES.items() if its == family)
    if project not in IMAGE_PROJECTS or not found:
        raise Refused("notFound", f"The resource 'projects/{project}/global/images/family/{family}' was not found")
    return image(project, found[-1])


def subnetwork(region_name, name):
    path = project_path(f"regions/{region_name}/subnetworks/{name}")
    if (region_name, name) not in PREFIXES:
        raise Refused("notFound", f"The resource '{path}' was not found")
    prefix, access = PREFIXES[region_name, name], SUBNETWORKS[name]
    block = f"2001:db8:{prefix.rsplit('.', 1)[1]}::/64"
    blocks = {"EXTERNAL": {"externalIpv6Prefix": block}, "INTERNAL": {"internalIpv6Prefix": block}}
    dual = {"stackType": "IPV4_IPV6", "ipv6AccessType": access, **blocks[access]} if access else {}
    shown = {"stackType": "IPV4_ONLY", **dual}
    return _resource(
        "subnetwork",
        path,
        network=url("global/networks/default"),
        ipCidrRange=f"{prefix}.0/24",
        gatewayAddress=f"{prefix}.1",
        region=url(f"regions/{region_name}"),
        privateIpGoogleAccess=False,
        fingerprint="bGFiLXN1Ym5ldA==",
        purpose="PRIVATE",
        **shown,
    )


def subnetworks(region_name):
    return [subnetwork(region_name, name) for name in SUBNETWORKS]


def network(name):
    path = project_path(f"global/networks/{name}")
    if name != "default":
        raise Refused("notFound", f"The resource '{path}' was not found")
    inside = [url(f"regions/{region_name}/subnetworks/{one}") for region_name, one in PREFIXES]
    return _resource("network", path, autoCreateSubnetworks=False, subnetworks=inside, mtu=1460)


def firewalls():
    """Allows the machine of the tests, which is the runner host, to connect to every port; a rule applies to IPv4 or to IPv6.

    Instances with certain tags allow more: everything, the network's own addresses, or instances with the same tag.
    """
    shown = {"direction": "INGRESS", "priority": 1000, "disabled": False, "network": url("global/networks/default")}
    allowed = [{"IPProtocol": "tcp", "ports": ["1-65535"]}]
    rules = {
        "lab-allow": {"sourceRanges": ["127.0.0.1/32"]},
        "lab-allow-ipv6": {"sourceRanges": ["::1/128"]},
        "lab-world": {"sourceRanges": ["0.0.0.0/0"], "targetTags": ["world"]},
        "lab-network": {"sourceRanges": ["127.78.0.0/16"], "targetTags": ["network"]},
        "lab-members": {"sourceTags": ["members"], "targetTags": ["members"]},
    }
    return [
        _resource("firewall", project_path(f"global/firewalls/{name}"), allowed=allowed, **rule, **shown)
        for name, rule in rules.items()
    ]


def project():
    metadata = {"kind": "compute#metadata", "fingerprint": "bGFiLXByb2plY3Q=", "items": []}
    return _resource("project", f"projects/{PROJECT}", commonInstanceMetadata=metadata, quotas=[])


def described():
    """The project's content, for tests."""
    return {
        "project": PROJECT,
        "other_project": OTHER_PROJECT,
        "zones": list(ZONES),
        "ipv6_subnetworks": {access: name for name, access in SUBNETWORKS.items() if access},
        "machine_types": list(MACHINE_TYPES),
        "images": {
            "x86_64": f"projects/{PROJECT}/global/images/debian-12-v20261001",
            "arm64": f"projects/{PROJECT}/global/images/debian-12-arm64-v20261001",
        },
        "image_family": f"projects/{PROJECT}/global/images/family/debian-12",
    }
