"""CreateFleet of type instant: spreads a target over overrides, launches what fits, reports what failed."""

import copy
import uuid

from .errors import Refused
from .launch import Spec, Unsupported

# The order of overrides: in turn, or one until it is full. Prices are not emulated.
IN_TURN = {"diversified"}
BY_PRIORITY = {"prioritized", "capacity-optimized-prioritized", "capacityOptimizedPrioritized"}
OVERRIDABLE = {"ImageId", "InstanceType", "MaxPrice", "Priority", "SubnetId"}


class Override:
    """One override of a fleet, and its result."""

    def __init__(self, template, version, wanted, spot):
        strange = sorted(set(wanted) - OVERRIDABLE)
        if strange:
            raise Unsupported(f"the lab does not play {', '.join(strange)} of a fleet's override")
        self.template, self.version, self.wanted, self.spot = template, version, wanted, spot
        self.instances = []
        self.error = None

    def request(self, tags):
        """The launch parameters of this override."""
        launch = data_of(self.version)
        for key in ("ImageId", "InstanceType", "SubnetId"):
            if key in self.wanted:
                launch[key] = self.wanted[key]
        if "SubnetId" in self.wanted and launch.get("NetworkInterfaces"):
            launch["NetworkInterfaces"][0]["SubnetId"] = launch.pop("SubnetId")
        if self.spot:
            launch["InstanceMarketOptions"] = {"MarketType": "spot"}
        launch["TagSpecifications"] = merged(launch.get("TagSpecifications", []), tags)
        return launch

    def shown(self):
        """The override as shown in the answer."""
        specification = {"LaunchTemplateId": self.template.id, "Version": str(self.version.number)}
        return {"LaunchTemplateSpecification": specification, "Overrides": self.wanted}


def merged(base, over):
    """Tag specifications, those of `over` before those of `base`."""
    kinds = {}
    for specification in [*base, *over]:
        tags = kinds.setdefault(specification["ResourceType"], {})
        tags.update({tag["Key"]: tag.get("Value", "") for tag in specification.get("Tags", ())})
    return [
        {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        for kind, tags in kinds.items()
    ]


def create(account, launcher, wanted):
    """Launches a fleet and returns its answer. Raises `Refused` or `Unsupported` if nothing can be launched."""
    if wanted.get("Type") != "instant":
        raise Unsupported("the lab plays fleets of type `instant` only")
    target = wanted["TargetCapacitySpecification"]
    spot = target.get("DefaultTargetCapacityType", "on-demand") == "spot"
    if target.get("SpotTargetCapacity") or target.get("OnDemandTargetCapacity"):
        raise Unsupported("the lab plays fleets of the default target type only")
    options = wanted.get("SpotOptions" if spot else "OnDemandOptions", {})
    overrides = _overrides(account, wanted, spot, options)
    fleet = f"fleet-{uuid.uuid4()}"
    tags = [one for one in wanted.get("TagSpecifications", []) if one["ResourceType"] != "fleet"]
    least = options.get("MinTargetCapacity", 0)
    try:
        _fill(launcher, overrides, target["TotalTargetCapacity"], tags, fleet, options)
    except Unsupported:
        _undo(launcher, overrides)
        raise
    if sum(len(override.instances) for override in overrides) < least:
        _undo(launcher, overrides)
    return {
        "FleetId": fleet,
        "Instances": [
            {
                **_common(override),
                "InstanceIds": [one.id for one in override.instances],
                "InstanceType": override.instances[0].instance_type,
            }
            for override in overrides
            if override.instances
        ],
        "Errors": [
            {**_common(override), "ErrorCode": override.error.code, "ErrorMessage": override.error.message}
            for override in overrides
            if override.error
        ],
    }


def _undo(launcher, overrides):
    for override in overrides:
        for instance in override.instances:
            launcher.undo(instance)
        override.instances = []


def _common(override):
    return {"LaunchTemplateAndOverrides": override.shown(), "Lifecycle": "spot" if override.spot else "on-demand"}


def _overrides(account, wanted, spot, options):
    found = []
    for config in wanted["LaunchTemplateConfigs"]:
        template, version = template_of(account, config.get("LaunchTemplateSpecification", {}))
        for override in config.get("Overrides") or [{}]:
            found.append(Override(template, version, override, spot))
    if options.get("AllocationStrategy") in BY_PRIORITY:
        found.sort(key=lambda override: override.wanted.get("Priority", float("inf")))
    return found


def template_of(account, specification):
    """A launch template and its version. Raises `Refused` if it does not exist."""
    name, identity = specification.get("LaunchTemplateName"), specification.get("LaunchTemplateId")
    for template in account.backend.launch_templates.values():
        if identity == template.id or (name and name == template.name):
            wanted = str(specification.get("Version", "$Default"))
            if wanted.startswith("$") or (wanted.isdigit() and 0 < int(wanted) <= len(template.versions)):
                return template, template.get_version(wanted)
            raise Refused("InvalidLaunchTemplateId.VersionNotFound", f"Could not find launch template version {wanted}")
    code = "InvalidLaunchTemplateId.NotFound" if identity else "InvalidLaunchTemplateName.NotFoundException"
    raise Refused(
        code,
        f"The specified launch template, with template {'ID' if identity else 'name'} {identity or name}, "
        "does not exist.",
    )


def data_of(version):
    """The data of a launch template's version, in the form of a request."""
    data = copy.deepcopy(dict(version.data))
    return {**data, "UserData": str(data["UserData"])} if data.get("UserData") else data


def _fill(launcher, overrides, target, tags, fleet, options):
    """Takes instances from the overrides until the target is met or all have failed."""
    turn = options.get("AllocationStrategy") in IN_TURN
    left = target
    while left > 0:
        willing = [override for override in overrides if override.error is None]
        if not willing:
            return
        for override in willing:
            if left == 0:
                return
            left -= _take(launcher, override, 1 if turn else left, tags, fleet)
            if not turn and left == 0:
                return


def _take(launcher, override, most, tags, fleet):
    """Launches up to `most` instances; an override that gives fewer has an error from then on."""
    try:
        spec = Spec(override.request(tags), launcher.world)
        count = launcher.room("CreateFleet", spec, 1, most)
    except Refused as refused:
        override.error = refused
        return 0
    extra = {
        "aws:ec2:fleet-id": fleet,
        "aws:ec2launchtemplate:id": override.template.id,
        "aws:ec2launchtemplate:version": str(override.version.number),
    }
    reservation = launcher.launch("CreateFleet", spec, count, None, extra)
    override.instances += reservation.instances
    return count
