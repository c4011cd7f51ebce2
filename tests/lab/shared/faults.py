"""The fault engine of both front ends: rules for which calls fail, and how."""

import dataclasses
import fnmatch
import itertools
import random

# Faults of the request itself, before or after it takes effect.
OF_REQUESTS = ("rejected", "lost", "hang", "slow", "throttled", "denied")
# Faults of one offering of a launch: a type in a zone, spot or on demand.
OF_CANDIDATES = ("capacity", "quota")
# Faults of a launched instance.
OF_INSTANCES = ("spot-reclaim", "ends-in-error")
# Those that also affect on-demand instances.
OF_LASTING_INSTANCES = ("ends-in-error",)
MODES = OF_REQUESTS + OF_CANDIDATES + OF_INSTANCES


@dataclasses.dataclass
class Rule:
    """One rule; each matching call reduces its count by one."""

    # The cloud's name of the operation; may contain `*` and `?`.
    operation: str
    # One of MODES.
    mode: str
    # Parameter path -> pattern, both with `*` and `?`: {"InstanceType": "m7i.*", "Tag*.Key": "pool"}.
    match: dict = dataclasses.field(default_factory=dict)
    # How many calls fail; `None` for all.
    count: int | None = 1
    # The probability that a matching call fails.
    probability: float = 1.0
    # The error's code, instead of the mode's own.
    code: str | None = None
    # The error's message.
    message: str | None = None
    # `hang`, `slow`: for how long; `spot-reclaim`, `ends-in-error`: how long after the launch.
    seconds: float | None = None
    # `hang`: whether the request takes effect first.
    applied: bool = False

    def check(self):
        """Raises `ValueError` with the reason."""
        if self.mode not in MODES:
            raise ValueError(f"unknown mode `{self.mode}`; there are {', '.join(MODES)}")
        if self.mode == "rejected" and not self.code:
            raise ValueError("mode `rejected` needs a `code`")
        if not isinstance(self.match, dict):
            raise ValueError("`match` must be an object of path and pattern")


class Faults:
    """The active rules. The same seed and the same calls in the same order give the same faults."""

    def __init__(self, seed):
        self.seed = seed
        self._rules = []
        self._numbers = itertools.count()

    def clear(self, seed=None):
        self.seed = self.seed if seed is None else seed
        self._rules.clear()
        self._numbers = itertools.count()

    def add(self, wanted):
        """Adds one rule, a JSON object. Raises `ValueError` if it is not valid."""
        known = {field.name for field in dataclasses.fields(Rule)}
        for key in wanted:
            if key not in known:
                raise ValueError(f"unknown key `{key}` of a fault; there are {', '.join(sorted(known))}")
        for key in ("operation", "mode"):
            if key not in wanted:
                raise ValueError(f"a fault needs `{key}`")
        rule = Rule(**wanted)
        rule.check()
        self._rules.append((rule, random.Random(f"{self.seed}/{next(self._numbers)}")))

    def take(self, operation, parameters, modes):
        """The fault of this call, or `None`: the first rule of these modes that matches and passes its probability."""
        flat = None
        for rule, dice in self._rules:
            if rule.mode not in modes or rule.count == 0 or not fnmatch.fnmatchcase(operation, rule.operation):
                continue
            flat = flatten(parameters) if flat is None else flat
            if not all(_matches(flat, path, pattern) for path, pattern in rule.match.items()):
                continue
            if rule.probability < 1.0 and dice.random() >= rule.probability:
                continue
            if rule.count is not None:
                rule.count -= 1
            return rule
        return None

    def left(self):
        """The remaining rules, in the form of additions: a count above 0 shows that a fault did not happen."""
        return [dataclasses.asdict(rule) for rule, _ in self._rules]


def flatten(value, path=""):
    """Every leaf of nested objects and lists, by its path: `Tags.0.Key`."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {path: value}
    found = {}
    for key, inner in items:
        found.update(flatten(inner, f"{path}.{key}" if path else str(key)))
    return found


def _matches(flat, path, pattern):
    named = (value for key, value in flat.items() if fnmatch.fnmatchcase(key, path))
    return any(fnmatch.fnmatchcase(str(value), str(pattern)) for value in named)
