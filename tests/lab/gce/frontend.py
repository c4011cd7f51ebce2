"""Compute Engine over HTTP: routes a request, validates it and the answer, applies faults and request ids."""

import json
import time
from functools import partial

from shared.exchange import Answer

from . import catalog, errors, wishes
from .discovery import BASE, Discovery
from .errors import Refused
from .filters import Unplayed
from .instances import EVENT, TAKING, Project
from .lives import PREEMPTED, Lives
from .metadata_server import MetadataServer
from .methods import Methods
from .operations import Operations
from .schema import Mismatch, Schemas

JSON = "application/json; charset=UTF-8"


class Gce:
    """The front end and its project."""

    def __init__(self, settings, rules, exchanges, judge, timeline, machines, lock):
        self._exchanges, self._judge, self._machines = exchanges, judge, machines
        self.project = Project(settings)
        self._operations = Operations(settings, timeline, lock)
        self._lives = Lives(self.project, self._operations, settings, rules, timeline, machines, judge, lock)
        self._methods = Methods(self.project, self._operations, self._lives, machines)
        self._other = Methods(Project(settings), self._operations, self._lives, machines)
        self._discovery = Discovery(self._methods.played)
        self._schemas = Schemas(self._discovery)
        self.metadata_server = MetadataServer(judge)

    def reset(self):
        self._operations.clear()
        self.project.clear()

    def fits(self, request):
        return request.path.startswith(BASE)

    def handle(self, request):
        method, path = self._discovery.route(request.method, request.path)
        if method is None or isinstance(method, str):
            what = f"the cloud lab does not play {method or f'{request.method} {request.path}'}"
            self._judge.accuse("gce", method or request.path, what)
            return errors.answer(Refused("notImplemented", what))
        query = list(request.args.items(multi=True))
        wanted = {**path, **dict(query)}
        try:
            body = self._body(method, request)
            self._schemas.parameters(method, path, query)
        except Mismatch as mismatch:
            self._judge.accuse("gce", method.id, str(mismatch))
            refusal = errors.answer(Refused("invalid", str(mismatch)))
            return self._exchanges.pass_through("gce", method.id, wanted, lambda: refusal, partial(_of_fault, method))
        act = partial(self._act, method, wanted, body)
        logged = {**wanted, **({"resource": body} if body is not None else {})}
        return self._exchanges.pass_through("gce", method.id, logged, act, partial(_of_fault, method))

    def interrupt(self, name, why=None):
        """Ends an instance, by its name, with an operation of type `why`, otherwise as a preempted spot instance.

        Raises `KeyError` if no live instance has this name, `ValueError` if it cannot be preempted.
        """
        instance = self._live(name)
        if why is None and not instance.wish.spot:
            raise ValueError(f"{name} is no spot instance; say `why` it is taken away")
        self._lives.preempt(instance, why or PREEMPTED)

    def notice(self, name, why=None):
        """Announces maintenance of an instance's host, of the type `why`: by default SCHEDULED.

        Raises `KeyError` if no live instance has this name, `ValueError` for another type.
        """
        if why not in (None, "SCHEDULED", "UNSCHEDULED", EVENT):
            raise ValueError(f"`why` must be SCHEDULED, UNSCHEDULED or {EVENT}, not {why!r}")
        self._live(name).announce(why or "SCHEDULED")

    def guest_metadata(self, name, key):
        """What the metadata of a machine has for a key. Raises `KeyError` if no instance has this machine."""
        instance = next((one for one in self.project.instances.values() if one.machine == name), None)
        if instance is None:
            raise KeyError(name)
        preempted = "TRUE" if instance.reason == PREEMPTED else "FALSE"
        return {"instance/preempted": preempted, "instance/maintenance-event": instance.event}.get(key)

    def copy(self, name):
        """Creates an instance like `name`, with its labels and metadata, but a name of its own; returns that.

        Raises `KeyError` if no instance has this name.
        """
        original = next((one for one in self.project.instances.values() if one.wish.name == name), None)
        if original is None:
            raise KeyError(name)
        wish = wishes.read(original.wish.zone, {**original.wish.body, "name": f"{name}-copy"})
        _instance, finish = self._lives.begin(wish)
        finish()
        return wish.name

    def _live(self, name):
        found = (one for one in self.project.instances.values() if one.wish.name == name)
        instance = next((one for one in found if one.shown["status"] in TAKING), None)
        if instance is None:
            raise KeyError(name)
        return instance

    def truth(self):
        """All existing instances and volumes: for the test, not for the client."""
        instances = [self._shown(one) for one in self.project.instances.values()]
        volumes = [
            {
                "cloud": "gce",
                "id": disk["name"],
                "zone": zone,
                "tags": disk["labels"],
                "status": disk["status"],
                "size_gib": int(disk["sizeGb"]),
                "instance": disk["users"][0].rsplit("/", 1)[1] if disk.get("users") else None,
            }
            for (zone, _), disk in self.project.disks.items()
        ]
        return instances, volumes

    def _shown(self, one):
        status = one.shown["status"]
        return {
            # A stopped instance still has its disks, which cost money.
            "cloud": "gce",
            "id": one.wish.name,
            "state": status,
            "live": True,
            "tags": one.shown["labels"],
            "type": one.wish.kind,
            "zone": one.wish.zone,
            "spot": one.wish.spot,
            "address": one.address,
            "public_address": one.public,
            "ipv6_address": one.ipv6,
            "port": self._machines.port,
            "process": self._machines.pid(one.machine),
            "reason": one.reason,
            "age": round(time.monotonic() - one.born, 3),
            "machine": one.machine,
            "volumes": [{"id": disk["name"], "delete_on_termination": disk["auto_delete"]} for disk in one.wish.disks],
        }

    def _body(self, method, request):
        text = request.get_data()
        if not text:
            if method.request is not None:
                raise Mismatch(f"{method.id} needs a body")
            return None
        if method.request is None and text.strip() in (b"", b"{}"):
            return None
        try:
            body = json.loads(text)
        except ValueError as error:
            raise Mismatch(f"the body is no JSON: {error}") from None
        self._schemas.body(method, body)
        return body

    def _act(self, method, wanted, body):
        try:
            if "fields" in wanted or "userIp" in wanted:
                raise Unplayed("the lab plays no partial answers")
            known = wanted["project"] in (catalog.PROJECT, catalog.OTHER_PROJECT)
            if not (known or method.id.startswith("compute.images.")):
                raise Refused("notFound", f"The resource 'projects/{wanted['project']}' was not found")
            return self._answered(method, self._result(method, wanted, body))
        except Refused as refused:
            return errors.answer(refused)
        except Unplayed as unplayed:
            self._judge.accuse("gce", method.id, str(unplayed))
            return errors.answer(Refused("notImplemented", str(unplayed)))

    def _result(self, method, wanted, body):
        if wanted["project"] == catalog.OTHER_PROJECT:
            if method.id == "compute.instances.insert":
                raise Refused("forbidden", f"Required 'compute.instances.create' for 'projects/{wanted['project']}'")
            return self._other.played[method.id](wanted, body)
        if "requestId" in wanted:
            again = self._methods.repeated(method.id.rsplit(".", 1)[1], wanted, body)
            if again is not None:
                operation, same = again
                if not same:
                    self._judge.accuse(
                        "gce", method.id, f"requestId {wanted['requestId']} comes again with another request"
                    )
                return operation
        return self._methods.played[method.id](wanted, body)

    def _answered(self, method, result):
        try:
            self._schemas.answer(method, result)
        except Mismatch as mismatch:
            self._judge.accuse("lab", method.id, f"the lab's own answer is wrong: {mismatch}")
        return Answer(200, json.dumps(result).encode(), JSON)


def _of_fault(method, rule):
    return errors.answer(errors.of_fault(rule, method.id, catalog.PROJECT))
