"""The operations of EC2 that the emulator implements, and the filters of those that moto answers."""

from .launch import Unsupported

# Answered by moto without changes.
BY_MOTO = {
    "AuthorizeSecurityGroupIngress",
    "CreateKeyPair",
    "CreateLaunchTemplate",
    "CreateSecurityGroup",
    "CreateTags",
    "DeleteKeyPair",
    "DeleteLaunchTemplate",
    "DeleteSecurityGroup",
    "DeleteTags",
    "DeleteVolume",
    "DescribeAvailabilityZones",
    "DescribeImages",
    "DescribeInstanceTypeOfferings",
    "DescribeInstanceTypes",
    "DescribeKeyPairs",
    "DescribeLaunchTemplateVersions",
    "DescribeLaunchTemplates",
    "DescribeRegions",
    "DescribeSecurityGroups",
    "DescribeSpotPriceHistory",
    "DescribeSubnets",
    "DescribeTags",
    "DescribeVpcs",
    "ImportKeyPair",
    "ModifySubnetAttribute",
    "DescribeInstanceAttribute",
}
BY_THE_LAB = {
    "CreateFleet",
    "DescribeInstanceStatus",
    "DescribeInstances",
    "DescribeSpotInstanceRequests",
    "DescribeVolumes",
    "GetConsoleOutput",
    "RunInstances",
    "TerminateInstances",
}
SUPPORTED = BY_MOTO | BY_THE_LAB
# EC2's filters that moto supports; it ignores others silently, or fails on them.
FILTERS = {
    "DescribeAvailabilityZones": {"region-name", "state", "zone-id", "zone-name", "zone-type"},
    "DescribeImages": {
        "architecture",
        "image-id",
        "is-public",
        "name",
        "owner-alias",
        "owner-id",
        "root-device-type",
        "state",
        "virtualization-type",
    },
    "DescribeInstanceTypeOfferings": {"instance-type", "location"},
    "DescribeInstanceTypes": {
        "current-generation",
        "instance-type",
        "processor-info.supported-architecture",
        "vcpu-info.default-vcpus",
    },
    "DescribeKeyPairs": {"fingerprint", "key-name"},
    "DescribeLaunchTemplates": {"launch-template-name"},
    "DescribeSecurityGroups": {"description", "group-id", "group-name", "owner-id", "vpc-id"},
    "DescribeSpotPriceHistory": {"availability-zone", "instance-type", "product-description"},
    "DescribeSubnets": {"availability-zone", "cidr-block", "default-for-az", "state", "subnet-id", "vpc-id"},
    "DescribeTags": {"key", "resource-id", "resource-type", "value"},
    "DescribeVpcs": {"cidr", "is-default", "state", "vpc-id"},
}
TAGGED = {
    "DescribeImages",
    "DescribeKeyPairs",
    "DescribeLaunchTemplates",
    "DescribeSecurityGroups",
    "DescribeSubnets",
    "DescribeVpcs",
}


def check_filters(action, values):
    """Raises `Unsupported` for a filter that moto would ignore."""
    for one in values.get("Filters", ()):
        name = one.get("Name", "")
        tag = action in TAGGED and (name == "tag-key" or name.startswith("tag:"))
        if not tag and name not in FILTERS.get(action, ()):
            raise Unsupported(f"the lab does not play the filter `{name}` of {action}")
