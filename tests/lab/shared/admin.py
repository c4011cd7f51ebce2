"""The control API under /_lab/, for tests."""

import dataclasses
import json

from .exchange import Answer


class Admin:
    """`lab` has the rest: settings, faults, judge, exchanges, front ends, and `reset`."""

    def __init__(self, lab):
        self._lab = lab
        self._operations = {
            ("GET", "/_lab/world"): self._world,
            ("GET", "/_lab/settings"): lambda _body: dataclasses.asdict(lab.settings),
            ("POST", "/_lab/settings"): self._set,
            ("GET", "/_lab/faults"): lambda _body: {"seed": lab.rules.seed, "faults": lab.rules.left()},
            ("POST", "/_lab/faults"): self._fault,
            ("POST", "/_lab/reset"): self._reset,
            ("GET", "/_lab/requests"): self._requests,
            ("GET", "/_lab/instances"): self._instances,
            ("GET", "/_lab/console"): self._console,
            ("GET", "/_lab/violations"): lambda _body: {"violations": lab.judge.found()},
            ("POST", "/_lab/interrupt"): self._interrupt,
            ("POST", "/_lab/notice"): self._notice,
            ("POST", "/_lab/copy"): self._copy,
        }

    def fits(self, request):
        return request.path.startswith("/_lab/")

    def handle(self, request):
        operation = self._operations.get((request.method, request.path))
        if operation is None:
            known = ", ".join(" ".join(pair) for pair in self._operations)
            return _json(404, {"error": f"no {request.method} {request.path}; there are {known}"})
        try:
            body = json.loads(request.get_data() or b"{}") if request.method == "POST" else dict(request.args)
        except ValueError as error:
            return _json(400, {"error": f"the body is no JSON: {error}"})
        try:
            with self._lab.lock:
                return _json(200, operation(body) or {})
        except (ValueError, TypeError) as error:
            return _json(400, {"error": str(error)})
        except KeyError as error:
            return _json(404, {"error": f"there is no {error}"})

    def _world(self, _body):
        return self._lab.described()

    def _set(self, body):
        self._lab.settings.change(body)

    def _fault(self, body):
        """One fault, or a list of them under `faults`."""
        for one in body["faults"] if "faults" in body else [body]:
            self._lab.rules.add(one)

    def _reset(self, body):
        """Restores the initial state; an optional `seed` determines later random faults."""
        self._lab.reset(body.get("seed"))

    def _requests(self, _body):
        exchanges = self._lab.exchanges
        log = [dataclasses.asdict(entry) for entry in exchanges.log]
        return {"seed": self._lab.rules.seed, "counts": exchanges.counts(), "log": log}

    def _instances(self, _body):
        instances, volumes = [], []
        for front_end in self._lab.front_ends:
            some_instances, some_volumes = front_end.truth()
            instances += some_instances
            volumes += some_volumes
        return {"instances": instances, "volumes": volumes}

    def _console(self, body):
        return {"console": self._lab.machines.console(body["id"]).decode(errors="replace")}

    def _interrupt(self, body):
        """Ends the instance `id`, as a reclaimed spot instance, or for the reason `why`."""
        return self._first(lambda front_end: front_end.interrupt(body["id"], body.get("why")), body["id"])

    def _notice(self, body):
        """Announces the end of the instance `id`, of the kind `why`; does not end it."""
        return self._first(lambda front_end: front_end.notice(body["id"], body.get("why")), body["id"])

    def _copy(self, body):
        """Launches an instance like the instance `id`, as a person does in a cloud's console."""
        return {"id": self._first(lambda front_end: front_end.copy(body["id"]), body["id"])}

    def _first(self, act, name):
        """The result of the first front end that has the instance `name`."""
        for front_end in self._lab.front_ends:
            try:
                return act(front_end)
            except KeyError:
                continue
        raise KeyError(name)


def _json(status, value):
    return Answer(status, json.dumps(value, default=str).encode() + b"\n", "application/json")
