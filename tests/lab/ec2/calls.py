"""The operations that the emulator implements itself, in front of moto's own."""

import base64
import datetime
import time

from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response

from . import announced, fleet, lists, views
from .errors import Refused
from .launch import Spec
from .lives import visible


class Calls(EC2Response):
    """One request. `lab` has the account and everything else; `values` are the parsed parameters."""

    # moto reports every instance in a launch's answer as pending, which is wrong for a repeated token.
    RESPONSE_KEY_PATH_TO_TRANSFORMER = {
        path: change
        for path, change in EC2Response.RESPONSE_KEY_PATH_TO_TRANSFORMER.items()
        if not path.startswith("RunInstances.")
    }

    def __init__(self, lab, values):
        super().__init__()
        self._lab, self._values = lab, values
        # The id of the reservation that this call created.
        self.reserved = None

    def run_instances(self):
        values = self._values
        if "LaunchTemplate" in values:
            template, version = fleet.template_of(self._lab.world, values["LaunchTemplate"])
            template_data = fleet.data_of(version)
            tags = fleet.merged(template_data.get("TagSpecifications", []), values.get("TagSpecifications", []))
            values = {**template_data, **values, "TagSpecifications": tags}
            extra = {"aws:ec2launchtemplate:id": template.id, "aws:ec2launchtemplate:version": str(version.number)}
        else:
            extra = {}
        spec = Spec(values, self._lab.world)
        self._stop_if_dry()
        count = self._lab.launcher.room("RunInstances", spec, values["MinCount"], values["MaxCount"])
        reservation = self._lab.launcher.launch("RunInstances", spec, count, values.get("ClientToken"), extra)
        self.reserved = reservation.id
        return self.reservation(reservation.id)

    def create_fleet(self):
        self._stop_if_dry()
        return ActionResult(fleet.create(self._lab.world, self._lab.launcher, self._values))

    def describe_instances(self):
        self._stop_if_dry()
        account = self._lab.world
        found = self._named() if self._values.get("InstanceIds") else views.listed(account, self._lab.settings)
        found = lists.select(found, self._values.get("Filters"), views.instance_filters(account))
        shown = views.reservations(account, found)
        part, token = lists.page(
            shown, self._values.get("MaxResults"), self._values.get("NextToken"), lambda one: one.reservation_id
        )
        return ActionResult({"Reservations": part, "NextToken": token})

    def describe_instance_status(self):
        self._stop_if_dry()
        account = self._lab.world
        found = self._named() if self._values.get("InstanceIds") else views.listed(account, self._lab.settings)
        if not self._values.get("IncludeAllInstances"):
            found = [one for one in found if one.state == "running"]
        found = [announced.status(account, one) for one in found]
        return self._selected("InstanceStatuses", found, announced.STATUS_FILTERS, "InstanceId")

    def describe_spot_instance_requests(self):
        self._stop_if_dry()
        found = announced.requests(self._lab.world)
        wanted = self._values.get("SpotInstanceRequestIds")
        known = {one["SpotInstanceRequestId"] for one in found}
        for name in wanted or ():
            if name not in known:
                raise Refused("InvalidSpotInstanceRequestID.NotFound", f"The spot request '{name}' does not exist")
        found = [one for one in found if not wanted or one["SpotInstanceRequestId"] in wanted]
        return self._selected("SpotInstanceRequests", found, announced.REQUEST_FILTERS, "SpotInstanceRequestId")

    def describe_volumes(self):
        self._stop_if_dry()
        volumes = self._lab.world.backend.volumes
        wanted = self._values.get("VolumeIds")
        for name in wanted or ():
            if name not in volumes:
                raise Refused("InvalidVolume.NotFound", f"The volume '{name}' does not exist.")
        now = datetime.datetime.now(datetime.UTC)

        def young(one):
            return (now - one.create_time.replace(tzinfo=datetime.UTC)).total_seconds() < self._lab.settings.visible

        found = [volumes[name] for name in wanted] if wanted else [one for one in volumes.values() if not young(one)]
        found = lists.select(found, self._values.get("Filters"), views.VOLUME_FILTERS)
        part, token = lists.page(
            found, self._values.get("MaxResults"), self._values.get("NextToken"), lambda one: one.id
        )
        return ActionResult({"Volumes": part, "NextToken": token})

    def terminate_instances(self):
        found = self._named()
        self._stop_if_dry()
        answer = []
        for instance in found:
            if instance.disable_api_termination is True:
                raise Refused(
                    "OperationNotPermitted",
                    f"The instance '{instance.id}' may not be terminated. Modify its 'disableApiTermination' "
                    "instance attribute and try again.",
                )
        for instance in found:
            before = {"Code": instance.state_code, "Name": instance.state}
            self._lab.lives.end(instance)
            now = {"Code": instance.state_code, "Name": instance.state}
            answer.append({"InstanceId": instance.id, "CurrentState": now, "PreviousState": before})
        return ActionResult({"TerminatingInstances": answer})

    def get_console_output(self):
        instance = self._named([self._values["InstanceId"]])[0]
        self._stop_if_dry()
        record = self._lab.world.records[instance.id]
        # The text outlives the instance.
        there = record.running_at is not None and time.monotonic() - record.running_at >= self._lab.settings.console
        text = self._lab.machines.console(instance.id) if there else b""
        now = datetime.datetime.now(datetime.UTC)
        return ActionResult(
            {"InstanceId": instance.id, "Output": base64.b64encode(text[-65536:]).decode(), "Timestamp": now}
        )

    def reservation(self, identity):
        """A reservation in its current state. A repeated token returns it even if its instances are terminated."""
        account = self._lab.world
        inside = account.backend.reservations[identity].instances
        return ActionResult(views.reservations(account, inside)[0])

    def _named(self, wanted=None):
        """The instances that a request names. Raises `Refused` if one is unknown, or not visible yet."""
        account = self._lab.world
        known = {one.id: one for one in account.instances() if visible(account.records[one.id], self._lab.settings)}
        wanted = self._values.get("InstanceIds", []) if wanted is None else wanted
        missing = [name for name in wanted if name not in known]
        if missing:
            many = len(missing) > 1
            raise Refused(
                "InvalidInstanceID.NotFound",
                f"The instance ID{'s' if many else ''} '{', '.join(missing)}' do{'' if many else 'es'} not exist",
            )
        return [known[name] for name in wanted]

    def _selected(self, name, found, filters, identity):
        """The page of a list of dicts that a request asks for."""
        values = self._values
        found = lists.select(found, values.get("Filters"), filters)
        part, token = lists.page(found, values.get("MaxResults"), values.get("NextToken"), lambda one: one[identity])
        return ActionResult({name: part, "NextToken": token})

    def _stop_if_dry(self):
        if self._values.get("DryRun"):
            raise Refused("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")


class Nothing(Calls):
    """One request in another account or region: nothing is there, and nothing may be created."""

    LISTS = ("DescribeInstances", "DescribeInstanceStatus", "DescribeSpotInstanceRequests", "DescribeVolumes")
    # What is called about an instance.
    OF_INSTANCES = ("TerminateInstances", "GetConsoleOutput")

    def describe_instances(self):
        return self._empty("Reservations")

    def describe_instance_status(self):
        return self._empty("InstanceStatuses")

    def describe_spot_instance_requests(self):
        return self._empty("SpotInstanceRequests")

    def describe_volumes(self):
        return self._empty("Volumes")

    def call_action(self):
        action = self._get_action()
        if action in self.LISTS:
            return super().call_action()
        if action in self.OF_INSTANCES:
            raise Refused("InvalidInstanceID.NotFound", "The instance IDs do not exist")
        raise Refused("UnauthorizedOperation", "You are not authorized to perform this operation.")

    def _empty(self, name):
        self._stop_if_dry()
        return ActionResult({name: [], "NextToken": None})
