"""The implemented methods: each maps parameters and body to an answer."""

from . import catalog, wishes
from .errors import Refused
from .filters import Unplayed, listed


class Methods:
    """`gce` has project, operations and lives. Each method maps parameters and body to the answer's JSON."""

    def __init__(self, project, operations, lives, machines):
        self._project, self._operations, self._lives, self._machines = project, operations, lives, machines
        self.played = {
            "compute.disks.aggregatedList": self._all_disks,
            "compute.disks.delete": self._delete_disk,
            "compute.disks.get": lambda wanted, _: project.disk(wanted["zone"], wanted["disk"]),
            "compute.disks.list": lambda wanted, _: self._list("diskList", self._disks(wanted["zone"]), wanted),
            "compute.firewalls.list": lambda wanted, _: self._list("firewallList", catalog.firewalls(), wanted),
            "compute.images.get": lambda wanted, _: catalog.image(wanted["project"], wanted["image"]),
            "compute.images.getFromFamily": lambda wanted, _: catalog.newest(wanted["project"], wanted["family"]),
            "compute.images.list": lambda wanted, _: self._list("imageList", catalog.images(wanted["project"]), wanted),
            "compute.instances.aggregatedList": self._all_instances,
            "compute.instances.delete": self._delete,
            "compute.instances.get": lambda wanted, _: project.get(wanted["zone"], wanted["instance"]).shown,
            "compute.instances.getSerialPortOutput": self._serial,
            "compute.instances.insert": self._insert,
            "compute.instances.list": lambda wanted, _: self._list(
                "instanceList", self._instances(wanted["zone"]), wanted
            ),
            "compute.instances.setLabels": self._label,
            "compute.machineTypes.get": lambda wanted, _: catalog.machine_type(wanted["zone"], wanted["machineType"]),
            "compute.machineTypes.list": lambda wanted, _: self._list(
                "machineTypeList", catalog.machine_types(wanted["zone"]), wanted
            ),
            "compute.networks.get": lambda wanted, _: catalog.network(wanted["network"]),
            "compute.projects.get": lambda _wanted, _: catalog.project(),
            "compute.regions.get": lambda wanted, _: self._region(wanted["region"]),
            "compute.regions.list": lambda wanted, _: self._list(
                "regionList", [self._region(one) for one in catalog.REGIONS], wanted
            ),
            "compute.subnetworks.get": lambda wanted, _: catalog.subnetwork(wanted["region"], wanted["subnetwork"]),
            "compute.subnetworks.list": lambda wanted, _: self._list(
                "subnetworkList", catalog.subnetworks(wanted["region"]), wanted
            ),
            "compute.zoneOperations.get": lambda wanted, _: operations.get(wanted["zone"], wanted["operation"]),
            "compute.zoneOperations.list": lambda wanted, _: self._list(
                "operationList", operations.of_zone(wanted["zone"]), wanted
            ),
            "compute.zoneOperations.wait": lambda wanted, _: operations.wait(wanted["zone"], wanted["operation"]),
            "compute.zones.get": lambda wanted, _: catalog.zone(wanted["zone"]),
            "compute.zones.list": lambda wanted, _: self._list(
                "zoneList", [catalog.zone(one) for one in catalog.ZONES], wanted
            ),
        }

    def _insert(self, wanted, body):
        if {"sourceInstanceTemplate", "sourceMachineImage"} & set(wanted):
            raise Unplayed("the lab makes instances from the request only")
        wish = wishes.read(wanted["zone"], body)
        instance, finish = self._lives.begin(wish)
        return self._begin("insert", wanted, instance.target, finish, body)

    def _delete(self, wanted, body):
        instance = self._project.get(wanted["zone"], wanted["instance"])
        return self._begin("delete", wanted, instance.target, self._lives.delete(instance), body)

    def _delete_disk(self, wanted, body):
        disk = self._project.disk(wanted["zone"], wanted["disk"])
        if disk.get("users"):
            raise Refused(
                "resourceInUseByAnotherResource",
                f"The disk resource '{disk['name']}' is already being used by '{disk['users'][0]}'",
            )
        return self._begin("delete", wanted, (disk["id"], disk["selfLink"]), lambda: self._forget_disk(wanted), body)

    def _forget_disk(self, wanted):
        self._project.disks.pop((wanted["zone"], wanted["disk"]), None)

    def _label(self, wanted, body):
        instance = self._project.get(wanted["zone"], wanted["instance"])
        wishes.check_labels(body.get("labels", {}), "labels")
        self._project.label(instance, body.get("labels", {}), body.get("labelFingerprint"))
        return self._begin("setLabels", wanted, instance.target, None, body)

    def _begin(self, kind, wanted, target, finish, body):
        request = {
            "parameters": {key: value for key, value in wanted.items() if key[0] != "$"},
            "body": body,
            "kind": kind,
        }
        return self._operations.begin(
            kind, wanted["zone"], target, finish=finish, request_id=wanted.get("requestId"), request=request
        )

    def repeated(self, verb, wanted, body):
        """The operation of an earlier request with this id, and whether the requests are equal."""
        request = {
            "parameters": {key: value for key, value in wanted.items() if key[0] != "$"},
            "body": body,
            "kind": verb,
        }
        return self._operations.repeated(wanted["requestId"], request)

    def _serial(self, wanted, _body):
        instance = self._project.get(wanted["zone"], wanted["instance"])
        if wanted.get("port", "1") != "1":
            raise Unplayed("the lab's instances write to port 1 only")
        text, start = self._machines.console(instance.machine), int(wanted.get("start", "0"))
        link = instance.shown["selfLink"] + "/serialPort"
        contents = text[start:].decode(errors="replace")
        return {
            "kind": "compute#serialPortOutput",
            "selfLink": link,
            "contents": contents,
            "start": str(start),
            "next": str(len(text)),
        }

    def _region(self, name):
        return catalog.region(name, self._project.quotas(name) if name in catalog.REGIONS else {})

    def _instances(self, zone):
        catalog.check_zone(zone)
        return [one.shown for one in self._project.listed() if one.wish.zone == zone]

    def _disks(self, zone):
        catalog.check_zone(zone)
        return [one for (its, _), one in self._project.disks.items() if its == zone]

    def _all_instances(self, wanted, _body):
        return self._aggregated(
            "instanceAggregatedList", "instances", [one.shown for one in self._project.listed()], wanted
        )

    def _all_disks(self, wanted, _body):
        return self._aggregated("diskAggregatedList", "disks", list(self._project.disks.values()), wanted)

    def _list(self, kind, items, wanted):
        page, token = listed(items, wanted)
        answer = {"kind": f"compute#{kind}", "id": kind, "selfLink": catalog.url(kind)}
        # An empty list has no field for its items.
        return {**answer, **({"items": page} if page else {}), **({"nextPageToken": token} if token else {})}

    def _aggregated(self, kind, name, items, wanted):
        page, token = listed(items, wanted)
        scopes = {}
        for zone in catalog.ZONES:
            inside = [one for one in page if one["zone"].endswith(f"/{zone}")]
            nothing = {
                "code": "NO_RESULTS_ON_PAGE",
                "message": f"There are no results for scope 'zones/{zone}' on this page.",
                "data": [{"key": "scope", "value": f"zones/{zone}"}],
            }
            scopes[f"zones/{zone}"] = {name: inside} if inside else {"warning": nothing}
        answer = {"kind": f"compute#{kind}", "id": kind, "selfLink": catalog.url(kind), "items": scopes}
        return {**answer, **({"nextPageToken": token} if token else {})}
