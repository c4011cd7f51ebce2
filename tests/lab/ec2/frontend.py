"""EC2 over HTTP: parses a request, validates it, applies faults and tokens, and answers."""

import sys
import traceback
import urllib.parse
import uuid
from functools import partial

from moto.core.request import Request
from shared.exchange import Answer

from . import announced, errors, tokens, views, world
from .calls import Calls, Nothing
from .errors import Refused
from .launch import Launcher, Unsupported
from .lives import BY_SPOT, Lives
from .model import Model, Wrong
from .played import BY_MOTO, SUPPORTED, check_filters


class Ec2:
    """The front end, its account, and the parts of the emulator that requests use."""

    def __init__(self, settings, rules, exchanges, judge, timeline, machines, lock):
        self.settings, self.machines = settings, machines
        self._exchanges, self._judge = exchanges, judge
        self._model = Model()
        self._tokens = tokens.Tokens()
        self.world = world.World()
        self.lives = Lives(self.world, settings, timeline, machines, judge, lock)
        self.launcher = Launcher(self.world, settings, rules, self.lives)

    def reset(self):
        self._tokens.clear()
        self.world.reset()

    def fits(self, request):
        return request.path == "/" and request.method == "POST"

    def handle(self, request):
        body = request.get_data(cache=True)
        form = dict(urllib.parse.parse_qsl(body.decode(), keep_blank_values=True))
        action = form.get("Action", "")
        try:
            values = self._read(action, form, request.headers.get("Authorization", ""))
        except Wrong as wrong:
            if not wrong.innocent:
                self._judge.accuse("ec2", action, f"{wrong.code}: {wrong.message}")
            refusal = errors.answer(Refused(wrong.code, wrong.message))
            return self._exchanges.pass_through("ec2", action, form, lambda: refusal, _of_fault)
        act = partial(self._act, action, values, request, body)
        return self._exchanges.pass_through("ec2", action, values, act, _of_fault)

    def interrupt(self, name, why=None):
        """Ends an instance, with `why` as its state reason's code, otherwise as a reclaimed spot instance.

        Raises `KeyError` if no live instance has this name, `ValueError` if it cannot be reclaimed.
        """
        instance = next((one for one in self.world.live() if one.id == name), None)
        if instance is None:
            raise KeyError(name)
        if why is None and not self.world.records[name].spot:
            raise ValueError(f"{name} is no spot instance; say `why` it is taken away")
        self.lives.end(instance, BY_SPOT if why is None else (why, f"{why}: taken away"))

    def notice(self, name, why=None):
        """Announces that EC2 takes a spot instance back, or, with `why`, a scheduled event with this code,
        or `rebalance`.

        Raises `KeyError` if no live instance has this name, `ValueError` if that cannot be announced.
        """
        instance = next((one for one in self.world.live() if one.id == name), None)
        if instance is None:
            raise KeyError(name)
        announced.announce(self.world.records[name], why)

    def guest_metadata(self, name, key):
        """What the metadata of the instance `name` has for a key. Raises `KeyError` if there is none of this name."""
        return announced.metadata(self.world.records[name], key)

    def copy(self, name):
        """Launches an instance like `name`, with its tags and without its token; returns its id.

        Raises `KeyError` if no instance has this name.
        """
        copied = self.launcher.launch("RunInstances", self.world.records[name].spec, 1, None)
        return copied.instances[0].id

    def truth(self):
        return views.truth(self.world, self.machines)

    def _read(self, action, form, authorization):
        if action not in self._model.operations:
            raise Wrong("InvalidAction", f"The action {action} is not valid for this web service.")
        if not any(f"/{one}/ec2/aws4_request" in authorization for one in (world.REGION, world.OTHER_REGION)):
            raise Wrong("AuthFailure", f"the request must be signed for ec2 in {world.REGION}, the lab's region")
        if action not in SUPPORTED:
            raise Wrong(
                "UnsupportedOperation", f"the cloud lab does not play {action}; it plays {', '.join(sorted(SUPPORTED))}"
            )
        return self._model.read(form)

    def _act(self, action, values, request, body):
        try:
            if action in BY_MOTO:
                check_filters(action, values)
                if values.get("DryRun"):
                    raise Refused("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
            calls = (Calls if _is_here(request) else Nothing)(self, values)
            calls.setup_class(Request.from_primitives("POST", request.url, dict(request.headers), body))
            if action in tokens.OPERATIONS and _is_here(request):
                return self._idempotent(calls, action, values)
            return self._answered(calls)
        except Refused as refused:
            return errors.answer(refused)
        except Unsupported as unsupported:
            self._judge.accuse("ec2", action, str(unsupported))
            return errors.answer(Refused("UnsupportedOperation", str(unsupported)))
        except Exception as error:  # A crash of moto must fail the test: EC2 would have answered.
            traceback.print_exc(file=sys.stderr)
            self._judge.accuse("ec2", action, f"moto failed: {error!r}")
            return errors.answer(Refused("InternalError", f"moto failed: {error!r}"))

    def _idempotent(self, calls, action, values):
        """A call with a token: a repeat creates nothing and returns the current state of the first call's result."""
        before = self._tokens.recall(action, values)
        if before is None:
            answer = self._answered(calls)
            if answer.status == 200:
                self._tokens.keep(action, values, (answer, calls.reserved))
            return answer
        answer, reserved = before
        return answer if reserved is None else _answer(*calls.serialized(calls.reservation(reserved)))

    def _answered(self, calls):
        return _answer(*calls.call_action())


def _is_here(request):
    """True if a request is of the account and the region that have something."""
    authorization = request.headers["Authorization"]
    return world.caller(authorization)[1] == world.ACCOUNT and f"/{world.OTHER_REGION}/" not in authorization


def _of_fault(rule):
    return errors.answer(errors.of_fault(rule))


def _answer(status, headers, body):
    text = body.decode() if isinstance(body, bytes) else body
    # moto's serializer uses the same id in every answer.
    text = text.replace("<requestId>request-id</requestId>", f"<requestId>{uuid.uuid4()}</requestId>")
    code = text.partition("<Code>")[2].partition("</Code>")[0] if status != 200 else None
    return Answer(status, text.encode(), headers.get("Content-Type", "text/xml"), code)
