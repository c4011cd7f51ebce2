"""Validates parameters, bodies and answers by the schemas of the discovery document."""

import base64
import binascii
import re

INTEGERS = {"int32": (-(1 << 31), (1 << 31) - 1), "uint32": (0, (1 << 32) - 1)}
LONG_INTEGERS = {"int64": (-(1 << 63), (1 << 63) - 1), "uint64": (0, (1 << 64) - 1)}
LARGEST_PAGE = 500
ZERO_UUID = "00000000-0000-0000-0000-000000000000"
UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Mismatch(Exception):
    """A mismatch, with its location."""


class Schemas:
    """Checks values against named schemas; every check raises `Mismatch`."""

    def __init__(self, discovery):
        self._schemas, self._common = discovery.schemas, discovery.common

    def parameters(self, method, path, query):
        """Path and query of a request; `query` is a list of pairs, since some names may occur twice."""
        known = {**self._common, **method.parameters}
        seen = set()
        for name, text in [*path.items(), *query]:
            if name not in known:
                raise Mismatch(f"unknown parameter `{name}` of {method.id}")
            if name in seen and not known[name].get("repeated"):
                raise Mismatch(f"parameter `{name}` comes twice")
            seen.add(name)
            _parameter(name, text, known[name])
        for name, wanted in method.parameters.items():
            if wanted.get("required") and name not in seen:
                raise Mismatch(f"parameter `{name}` of {method.id} is missing")
        for name, text in query:
            if name == "maxResults":
                # Stated in the description only.
                _range(int(text), (0, LARGEST_PAGE), "parameter `maxResults`")
            if name == "requestId" and (not UUID.fullmatch(text) or text == ZERO_UUID):
                raise Mismatch(f"requestId must be a UUID that is not all zeros, not `{text}`")

    def body(self, method, value):
        """The body of a request."""
        if method.request is None:
            raise Mismatch(f"{method.id} takes no body")
        self._value({"$ref": method.request}, value, "resource", method.id)

    def answer(self, method, value):
        """The emulator's own answer: clients decode strictly, so it must match the schema."""
        self._value({"$ref": method.response}, value, "answer", None)

    def _value(self, schema, value, where, method):
        if "$ref" in schema:
            schema = self._schemas[schema["$ref"]]
        kind = schema.get("type", "any")
        if kind == "object":
            self._object(schema, value, where, method)
        elif kind == "array":
            if not isinstance(value, list):
                raise Mismatch(f"{where} must be a list")
            for number, item in enumerate(value):
                self._value(schema["items"], item, f"{where}[{number}]", method)
        elif kind == "string":
            _string(schema, value, where)
        elif kind == "boolean":
            if not isinstance(value, bool):
                raise Mismatch(f"{where} must be true or false, not {value!r}")
        elif kind in ("integer", "number"):
            if isinstance(value, bool) or not isinstance(value, int if kind == "integer" else (int, float)):
                raise Mismatch(f"{where} must be a number, not {value!r}")
            _range(value, INTEGERS.get(schema.get("format")), where)

    def _object(self, schema, value, where, method):
        if not isinstance(value, dict):
            raise Mismatch(f"{where} must be an object")
        named, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, inner in value.items():
            if name in named:
                self._value(named[name], inner, f"{where}.{name}", method)
            elif others is not None:
                self._value(others, inner, f"{where}.{name}", method)
            else:
                raise Mismatch(f"{where} has no field `{name}`")
        for name, wanted in named.items():
            if method in wanted.get("annotations", {}).get("required", ()) and name not in value:
                raise Mismatch(f"{where}.{name} is missing")


def _string(schema, value, where):
    if not isinstance(value, str):
        raise Mismatch(f"{where} must be a text, not {value!r}")
    form = schema.get("format")
    if form in LONG_INTEGERS:
        if not re.fullmatch(r"-?\d+", value):
            raise Mismatch(f"{where} must be a whole number in a text, not {value!r}")
        _range(int(value), LONG_INTEGERS[form], where)
    elif form == "byte":
        try:
            base64.b64decode(value, altchars=b"-_" if set("-_") & set(value) else None, validate=True)
        except (binascii.Error, ValueError):
            raise Mismatch(f"{where} must be base64, not {value!r}") from None
    if "enum" in schema and value not in schema["enum"]:
        raise Mismatch(f"{where} must be one of {', '.join(schema['enum'])}, not {value!r}")
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        raise Mismatch(f"{where} is {value!r}, which does not match {schema['pattern']}")


def _parameter(name, text, wanted):
    kind = wanted.get("type", "string")
    if kind == "boolean":
        if text not in ("true", "false"):
            raise Mismatch(f"parameter `{name}` must be true or false, not `{text}`")
    elif kind == "integer":
        if not re.fullmatch(r"-?\d+", text):
            raise Mismatch(f"parameter `{name}` must be a number, not `{text}`")
        low, high = INTEGERS[wanted.get("format", "int32")]
        low, high = int(wanted.get("minimum", low)), int(wanted.get("maximum", high))
        _range(int(text), (low, high), f"parameter `{name}`")
    else:
        _string(wanted, text, f"parameter `{name}`")


def _range(value, limits, where):
    if limits and not limits[0] <= value <= limits[1]:
        raise Mismatch(f"{where} must be from {limits[0]} to {limits[1]}, not {value}")
