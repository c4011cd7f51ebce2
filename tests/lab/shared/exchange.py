"""Applies faults to one request: the common part of both front ends."""

import dataclasses
import threading
import time

from . import faults


class Dropped(Exception):
    """The answer is lost: the server resets the connection instead of sending one."""


@dataclasses.dataclass
class Entry:
    """One line of the request log."""

    front_end: str
    operation: str
    parameters: dict
    # HTTP status; 0 until an answer is sent.
    status: int = 0
    # The error's code.
    code: str | None = None
    # The mode of the fault that affected it.
    fault: str | None = None
    # Seconds since the emulator's start.
    at: float = 0.0


class Exchanges:
    """The request log, and the faults of requests."""

    def __init__(self, rules, lock):
        self._rules = rules
        self._lock = lock
        self._began = time.monotonic()
        self._released = threading.Event()
        self.log = []

    def counts(self):
        """Requests by operation."""
        found = {}
        for entry in list(self.log):
            found[entry.operation] = found.get(entry.operation, 0) + 1
        return found

    def clear(self):
        """Clears the log, and drops requests that a fault holds."""
        self.log = []
        self._released.set()
        self._released = threading.Event()

    def pass_through(self, front_end, operation, parameters, act, refuse):
        """Performs one request, subject to the rules.

        `act()` does the work under the emulator's lock, `refuse(rule)` creates the error of a fault; both return an
        answer with `status` and `code`. Raises `Dropped` if the client gets no answer.
        """
        entry = Entry(front_end, operation, parameters, at=round(time.monotonic() - self._began, 4))
        with self._lock:
            self.log.append(entry)
            rule = self._rules.take(operation, parameters, faults.OF_REQUESTS)
        released = self._released
        mode = entry.fault = rule.mode if rule else None
        if mode in ("rejected", "throttled", "denied"):
            answer = refuse(rule)
        elif mode == "hang":
            if rule.applied:
                self._act(act)
            released.wait(3600.0 if rule.seconds is None else rule.seconds)
            raise Dropped
        else:
            if mode == "slow":
                released.wait(1.0 if rule.seconds is None else rule.seconds)
            answer = self._act(act)
            if mode == "lost":
                raise Dropped
        entry.status, entry.code = answer.status, answer.code
        return answer

    def _act(self, act):
        with self._lock:
            return act()


@dataclasses.dataclass
class Answer:
    """The answer to send over HTTP."""

    status: int
    body: bytes
    content_type: str
    # The error's code, for the log.
    code: str | None = None
    headers: dict = dataclasses.field(default_factory=dict)
