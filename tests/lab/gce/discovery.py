"""Google's discovery document of Compute Engine: the method of a request, and the schemas that a driver uses."""

import dataclasses
import importlib.util
import json
import pathlib
import re

# The document's path in the package, whose code is never imported.
DOCUMENT = "discovery_cache/documents/compute.v1.json"
BASE = "/compute/v1/"


@dataclasses.dataclass
class Method:
    """One method of the API."""

    # Google's name: compute.instances.insert.
    id: str
    http: str
    # Name -> the document's description of a parameter, of path and query alike.
    parameters: dict
    # Names of schemas; `None` for no body.
    request: str | None
    response: str | None
    pattern: re.Pattern


class Discovery:
    """The implemented methods with their schemas, and the names of all others."""

    def __init__(self, played):
        package = importlib.util.find_spec("googleapiclient").submodule_search_locations[0]
        document = json.loads((pathlib.Path(package) / DOCUMENT).read_bytes())
        methods = [_method(one) for one in _methods(document["resources"])]
        self._played = [one for one in methods if one.id in played]
        self._others = [(one.http, one.id, one.pattern) for one in methods if one.id not in played]
        unknown = set(played) - {one.id for one in self._played}
        if unknown:
            raise LookupError(f"the discovery document has no {', '.join(sorted(unknown))}")
        # Parameters of every method. Clients also send the version that they were built for.
        self.common = {**document["parameters"], "$alt": {"type": "string"}, "$apiVersion": {"type": "string"}}
        self.schemas = _needed(document["schemas"], self._played)

    def route(self, http, path):
        """The implemented method of a request, with its path parameters; or the id of another method; or neither."""
        for one in self._played:
            if one.http == http and (match := one.pattern.fullmatch(path)):
                return one, match.groupdict()
        for other_http, identity, pattern in self._others:
            if other_http == http and pattern.fullmatch(path):
                return identity, {}
        return None, {}


def _methods(resources):
    for resource in resources.values():
        yield from resource.get("methods", {}).values()
        yield from _methods(resource.get("resources", {}))


def _method(one):
    parts = re.split(r"\{(\w+)\}", one["flatPath"])
    pattern = "".join(f"(?P<{part}>[^/]+)" if number % 2 else re.escape(part) for number, part in enumerate(parts))
    return Method(
        one["id"],
        one["httpMethod"],
        one.get("parameters", {}),
        one.get("request", {}).get("$ref"),
        one.get("response", {}).get("$ref"),
        re.compile(re.escape(BASE) + pattern),
    )


def _needed(schemas, methods):
    """All schemas that these methods refer to."""
    wanted = [name for one in methods for name in (one.request, one.response) if name]
    found = {}
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = schemas[name]
            wanted += _references(schemas[name])
    return found


def _references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)
