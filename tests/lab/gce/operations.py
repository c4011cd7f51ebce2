"""Zone operations: PENDING, RUNNING, DONE, with or without an error; and waits for them."""

import datetime
import itertools
import threading
import time
import uuid

from . import catalog
from .errors import OF_OPERATIONS, Refused

# The user that an operation shows.
USER = "lab@lab-project.iam.gserviceaccount.com"
SYSTEM = "system"


def now():
    """The time in Compute Engine's format."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Operations:
    """All operations of the project, by zone and name. All methods run under the emulator's lock."""

    def __init__(self, settings, timeline, lock):
        self._settings, self._timeline = settings, timeline
        self._done = threading.Condition(lock)
        self._numbers = itertools.count(1)
        self._all = {}
        self._by_request = {}

    def clear(self):
        self._all.clear()
        self._by_request.clear()
        self._done.notify_all()

    def begin(self, kind, zone, target, user=USER, finish=None, request_id=None, request=None):
        """Starts an operation on `target` (id and link).

        `finish` is called at its end, and returns its error, or nothing. A repeat of `request_id` must have an equal
        `request`.
        """
        name = f"operation-{int(time.time() * 1000)}-{uuid.uuid4().hex[:13]}-{next(self._numbers):08x}"
        operation = {
            "kind": "compute#operation",
            "id": str((1 << 41) + next(self._numbers)),
            "name": name,
            "operationType": kind,
            "status": "PENDING",
            "progress": 0,
            "insertTime": now(),
            "targetId": target[0],
            "targetLink": target[1],
            "user": user,
            "zone": catalog.url(f"zones/{zone}"),
            "selfLink": catalog.url(f"zones/{zone}/operations/{name}"),
        }
        self._all[zone, name] = operation
        if request_id is not None:
            operation["clientOperationId"] = request_id
            self._by_request[request_id] = (operation, request)
        self._timeline.after(self._settings.operation_pending, self._run, operation, finish)
        return operation

    def note(self, kind, zone, target):
        """An operation of the cloud's own that is done already."""
        operation = self.begin(kind, zone, target, SYSTEM)
        operation["startTime"] = operation["insertTime"]
        self._end(operation, None)
        return operation

    def repeated(self, request_id, request):
        """The operation of this request id, and whether the requests are equal; `None` for a new id."""
        if request_id not in self._by_request:
            return None
        operation, before = self._by_request[request_id]
        return operation, before == request

    def get(self, zone, name):
        if (zone, name) not in self._all:
            path = catalog.project_path(f"zones/{zone}/operations/{name}")
            raise Refused("notFound", f"The resource '{path}' was not found")
        return self._all[zone, name]

    def of_zone(self, zone):
        return [operation for (its, _), operation in self._all.items() if its == zone]

    def wait(self, zone, name):
        """Waits for the operation, or for the maximum time; releases the emulator's lock meanwhile."""
        operation = self.get(zone, name)
        there = (zone, name)
        self._done.wait_for(
            lambda: operation["status"] == "DONE" or there not in self._all, self._settings.operation_wait
        )
        return operation

    def _run(self, operation, finish):
        if operation["status"] == "PENDING":
            operation.update(status="RUNNING", startTime=now())
            self._timeline.after(self._settings.operation_running, self._finish, operation, finish)

    def _finish(self, operation, finish):
        if operation["status"] == "RUNNING":
            self._end(operation, finish() if finish else None)

    def _end(self, operation, error):
        operation.update(status="DONE", progress=100, endTime=now())
        if error:
            status, message = OF_OPERATIONS.get(error["code"], (400, "BAD REQUEST"))
            operation.update(error={"errors": [error]}, httpErrorStatusCode=status, httpErrorMessage=message)
        self._done.notify_all()
