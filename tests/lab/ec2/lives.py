"""The states of instances: pending, running, reclaimed, shut down, gone; and the machine of each."""

import time

from moto.ec2.models.instances import InstanceState, StateReason
from shared import guest

BY_USER = ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
BY_ITSELF = ("Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown")
BY_SPOT = ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination")
BY_ERROR = ("Server.InternalError", "Server.InternalError: Internal error on launch")


class Lives:
    """Moves instances from state to state. All methods run under the emulator's lock."""

    def __init__(self, account, settings, timeline, machines, judge, lock):
        self._world, self._settings, self._timeline = account, settings, timeline
        self._machines, self._judge, self._lock = machines, judge, lock

    def begin(self, instance, key, fate):
        """Boots an instance, or makes it fail or be reclaimed if a fault requires it."""
        if fate and fate.mode == "ends-in-error":
            code = fate.code or BY_ERROR[0]
            reason = (code, fate.message or f"{code}: the launch failed")
            self._timeline.after(fate.seconds or self._settings.boot, self.end, instance, reason)
            return
        self._timeline.after(self._settings.boot, self._run, instance, key)
        if fate:
            after = self._settings.boot + (fate.seconds or 0.0)
            self._timeline.after(after, self.end, instance, BY_SPOT)

    def end(self, instance, reason=BY_USER):
        """Begins to terminate an instance; the machine is gone immediately, the record a little later."""
        if instance.state not in ("pending", "running", "stopped"):
            return
        record = self._world.records[instance.id]
        record.reason = reason
        self._machines.stop(instance.id)
        instance._state = InstanceState("shutting-down", 32)
        self._explain(instance)
        self._timeline.after(self._settings.shutdown, self._gone, instance)

    def _run(self, instance, key):
        if instance.state != "pending":
            return
        instance._state = InstanceState("running", 16)
        self._world.records[instance.id].running_at = time.monotonic()
        self._timeline.after(self._settings.ssh, self._switch_on, instance, key)

    def _switch_on(self, instance, key):
        if instance.state != "running":
            return
        record = self._world.records[instance.id]
        inside = guest.read(record.user_data, self._settings.default_user)
        if key is not None:
            inside.authorise(self._settings.default_user, [key.material_public.decode()])
        for complaint in inside.complaints:
            self._judge.accuse("ec2", "user data", f"{instance.id}: {complaint}")
        addresses = [instance.private_ip, record.public, record.ipv6]
        self._machines.start(instance.id, [one for one in addresses if one], inside, self._powered_off)

    def _powered_off(self, name):
        """Handles an instance that powered itself off: its shutdown behavior decides its state."""
        with self._lock:
            instance = next((one for one in self._world.instances() if one.id == name), None)
            if instance is None or instance.state != "running":
                return
            if instance.instance_initiated_shutdown_behavior == "terminate":
                self.end(instance, BY_ITSELF)
            else:
                self._world.records[name].reason = BY_ITSELF
                instance._state = InstanceState("stopped", 80)
                self._explain(instance)

    def _gone(self, instance):
        subnet = self._world.backend.get_subnet(instance.subnet_id)
        # Deletes the volumes that are marked for deletion, and detaches the others.
        instance.terminate()
        for interface in instance.nics.values():
            self._world.backend.enis.pop(interface.id, None)
            subnet.del_subnet_ip(interface.private_ip_address)
        instance._state = InstanceState("terminated", 48)
        self._world.records[instance.id].gone_at = time.monotonic()
        self._explain(instance)

    def _explain(self, instance):
        code, message = self._world.records[instance.id].reason
        instance.state_reason = StateReason(message, code)
        now = time.strftime("%Y-%m-%d %H:%M:%S GMT", time.gmtime())
        instance._reason = f"User initiated ({now})" if code.startswith("Client.") else f"{code} ({now})"


def visible(record, settings):
    """Whether calls other than the launch can see an instance, after `visible` and before `remembered`."""
    now = time.monotonic()
    return now - record.born >= settings.visible and not (
        record.gone_at is not None and now - record.gone_at >= settings.remembered
    )
