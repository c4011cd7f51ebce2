"""The states of instances: provisioned, staged, running, preempted, stopped, deleted; and the machine of each."""

from shared import faults, guest

from . import catalog, errors

# Types of the operations that end an instance.
PREEMPTED = "compute.instances.preempted"
RUN_OVER = "compute.instances.terminateOnMaxRunDuration"
BY_ITSELF = "compute.instances.guestTerminate"


class Lives:
    """Moves instances from state to state. All methods run under the emulator's lock."""

    def __init__(self, project, operations, settings, rules, timeline, machines, judge, lock):
        self._project, self._operations, self._settings, self._rules = project, operations, settings, rules
        self._timeline, self._machines, self._judge, self._lock = timeline, machines, judge, lock

    def begin(self, wish):
        """Creates an instance; returns it with the function that finishes its operation."""
        self._project.check_names(wish)
        error = self._lack(wish)
        fates = faults.OF_INSTANCES if wish.spot else faults.OF_LASTING_INSTANCES
        fate = self._rules.take("compute.instances.insert", wish.candidate(), fates)
        if fate and fate.mode == "ends-in-error" and error is None:
            error = {
                "code": fate.code or "INTERNAL_ERROR",
                "message": fate.message or "Internal error. Please try again or contact Google Support.",
            }
        instance = self._project.make(wish)

        def finish():
            if error is not None:
                self._project.remove(instance, every_disk=True)
            elif instance.shown["status"] == "PROVISIONING":
                instance.status("STAGING")
                self._timeline.after(self._settings.boot, self._run, instance)
                if fate and fate.mode == "spot-reclaim":
                    self._timeline.after(self._settings.boot + (fate.seconds or 0.0), self.preempt, instance)
            return error

        return instance, finish

    def delete(self, instance):
        """Begins to delete an instance; returns the function that finishes its operation."""
        self._machines.stop(instance.machine)
        instance.status("STOPPING")
        return lambda: self._project.remove(instance)

    def preempt(self, instance, why=PREEMPTED):
        """Ends an instance by the cloud. A preempted one may still run for a while; a second call ends it."""
        status, action = instance.shown["status"], instance.wish.action
        if why == PREEMPTED and status == "RUNNING" and self._settings.preempted > 0:
            self._stopping(instance, why)
            self._timeline.after(self._settings.preempted, self._power_off, instance, action)
        elif why == PREEMPTED and status == "STOPPING" and instance.reason == why:
            self._power_off(instance, action)
        else:
            self._end(instance, why, action)

    def _lack(self, wish):
        """The error of an operation without capacity or quota; `None` if there is enough."""
        project = self._project
        rule = self._rules.take("compute.instances.insert", wish.candidate(), faults.OF_CANDIDATES)
        capacity = self._settings.capacity.get(wish.place)
        if (rule and rule.mode == "capacity") or (capacity is not None and project.taken(wish.place) >= capacity):
            code, message = (rule.code, rule.message) if rule else (None, None)
            return errors.stockout(catalog.PROJECT, wish.zone, wish.kind, code or errors.STOCKOUT, message)
        region = catalog.ZONES[wish.zone]
        quotas = project.quotas(region)
        metric = "PREEMPTIBLE_CPUS" if wish.spot else "CPUS"
        if rule:
            return errors.quota(rule.code or metric, quotas[metric][0], region, rule.message)
        if wish.ipv6 and not project.has_ipv6_left():
            return errors.exhausted(catalog.PROJECT, region, wish.subnetwork)
        wanted = {
            metric: catalog.MACHINE_TYPES[wish.kind][0],
            "INSTANCES": 1,
            "DISKS_TOTAL_GB": sum(disk["size"] for disk in wish.disks),
        }
        for name, more in wanted.items():
            limit, usage = quotas[name]
            if usage + more > limit:
                return errors.quota(name, limit, region)
        return None

    def _run(self, instance):
        if instance.shown["status"] == "STAGING":
            instance.status("RUNNING")
            self._timeline.after(self._settings.ssh, self._switch_on, instance)
            if instance.wish.longest_run is not None:
                after = instance.wish.longest_run * self._settings.run_duration_scale
                self._timeline.after(after, self._end, instance, RUN_OVER, instance.wish.action)

    def _switch_on(self, instance):
        if instance.shown["status"] != "RUNNING":
            return
        user_data = instance.wish.metadata("user-data") or instance.wish.metadata("startup-script") or ""
        inside = guest.read(user_data.encode(), self._settings.default_user)
        if instance.wish.metadata("user-data") and (script := instance.wish.metadata("startup-script")):
            inside.scripts.append(script.encode())
        for line in (instance.wish.metadata("ssh-keys") or "").splitlines():
            user, separator, key = line.partition(":")
            if separator:
                inside.authorise(user.strip(), [key])
            elif line.strip():
                inside.complaints.append(f"the metadata `ssh-keys` has a line without a user: {line}")
        for complaint in inside.complaints:
            self._judge.accuse("gce", "user data", f"{instance.wish.name}: {complaint}")
        addresses = [one for one in (instance.address, instance.public, instance.ipv6) if one]
        self._machines.start(instance.machine, addresses, inside, lambda _name: self._powered_off(instance))

    def _powered_off(self, instance):
        """An instance that powers itself off is stopped, never deleted: Compute Engine has no other behavior."""
        with self._lock:
            self._end(instance, BY_ITSELF, "STOP")

    def _end(self, instance, why, action):
        """Stops or deletes an instance that the cloud, or the instance itself, has ended."""
        if instance.shown["status"] not in ("PROVISIONING", "STAGING", "RUNNING"):
            return
        self._stopping(instance, why)
        self._power_off(instance, action)

    def _stopping(self, instance, why):
        instance.reason = why
        instance.status("STOPPING")
        self._operations.note(why, instance.wish.zone, instance.target)

    def _power_off(self, instance, action):
        self._machines.stop(instance.machine)
        self._timeline.after(self._settings.shutdown, self._ended, instance, action)

    def _ended(self, instance, action):
        if instance.shown["status"] == "STOPPING":
            if action == "DELETE":
                self._project.remove(instance)
            else:
                instance.status("TERMINATED")
