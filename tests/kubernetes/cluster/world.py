"""What the cluster stores: objects, their versions, and the changes that a watch shows."""

import copy
import datetime
import random
import threading
import time
import uuid

# What the role of docs/providers/kubernetes.md allows.
ROLE = [
    "create pods", "delete pods", "get pods", "list pods", "watch pods", "get pods/log", "list events", "get configmaps",
    "list resourcequotas", "list limitranges", "create pods/portforward", "get pods/portforward",
]


def now(micro=False):
    moment = datetime.datetime.now(datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def shown(pod):
    """A copy without what only the stand-in knows."""
    return copy.deepcopy({key: value for key, value in pod.items() if key != "_"})


class World:
    """Everything below `lock`."""

    def __init__(self, directory):
        self.directory = directory
        self.lock = threading.Condition(threading.RLock())
        self.version = 1000
        self.pods = {}
        self.events = []
        self.changes = []
        self.violations = []
        self.requests = []
        self.faults = []
        self.made = {}
        self.cuts = 0
        self.dice = random.Random(1)
        self.settings = {
            "namespace": "ci-jobs", "role": list(ROLE), "version": ["1", "34"],
            "nodes": [{"name": "node-1", "labels": {}, "taints": [], "pods": 1000}],
            "schedule_ms": 0, "boot_ms": 0, "visible_ms": 0, "page": 500,
            "quota": {}, "service_accounts": ["default"], "priority_classes": [], "restricted": False,
            "limit_ranges": [], "admin": False,
            "config_maps": {"greenroom-owner": str(uuid.uuid4())}, "unschedulable": 0, "autoscaler": "",
            "server_program": "", "sidecars": True, "webhook": None,
        }

    def spawn(self, run):
        threading.Thread(target=run, daemon=True).start()

    def stamp(self, pod, kind):
        """A change of a pod, with a new version."""
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.changes.append((self.version, kind, shown(pod)))
        self.lock.notify_all()

    def add(self, pod):
        self.pods[pod["metadata"]["name"]] = pod
        name = pod["metadata"]["name"]
        self.made[name] = self.made.get(name, 0) + 1
        self.stamp(pod, "ADDED")

    def change(self, pod):
        self.stamp(pod, "MODIFIED")

    def remove(self, pod):
        self.pods.pop(pod["metadata"]["name"], None)
        self.stamp(pod, "DELETED")

    def event(self, pod, reason, message):
        self.events.append({
            "metadata": {"name": f"{pod['metadata']['name']}.{len(self.events)}"}, "reason": reason, "message": message,
            "involvedObject": {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]},
            "firstTimestamp": now(), "lastTimestamp": now(), "type": "Normal",
        })

    def condition(self, pod, kind, status, reason="", message=""):
        conditions = pod["status"].setdefault("conditions", [])
        conditions[:] = [one for one in conditions if one["type"] != kind]
        conditions.append({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()})

    def fault(self, method, what, when):
        """The fault of this request, if there is one: `before` it is carried out, or `after`."""
        for fault in self.faults:
            if fault.get("when", "before") != when or fault["request"] not in (f"{method} {what}", "any"):
                continue
            if self.dice.random() >= fault.get("rate", 1):
                continue
            if fault.get("count") == 0:
                continue
            if fault.get("skip", 0) > 0:
                fault["skip"] -= 1
                continue
            if "count" in fault:
                fault["count"] -= 1
            return fault
        return None

    @staticmethod
    def age_ms(pod):
        return (time.monotonic() - pod["_"]["made"]) * 1000
