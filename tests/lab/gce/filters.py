"""Compute Engine's lists: filter expressions, order, pages."""

import base64
import re

from .errors import Refused

COMPARISON = re.compile(r"""\s*([\w.-]+)\s*(!=|=|:|\beq\b|\bne\b)\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^\s()]+)\s*""")


class Unplayed(Exception):
    """A filter that the emulator does not support."""


def parse(text):
    """A predicate on resources from comparisons joined by AND (or side by side in parentheses).

    Supported: `field = value`, `!=`, `field:*` (is set) and `field:text` (contains), each with `*` for any text in the
    first two; the older `field eq regex` and `field ne regex`. Raises `Unplayed` for everything else.
    """
    tests = []
    for part in _parts(text):
        match = COMPARISON.fullmatch(part)
        if match is None:
            raise Unplayed(f"the lab cannot read the filter `{text}`: it reads comparisons joined by AND")
        tests.append(_test(*match.groups()))
    return lambda resource: all(test(resource) for test in tests)


def _parts(text):
    """The comparisons of a filter, without AND and without parentheses around one of them."""
    depth, part, parts = 0, "", []
    for token in re.findall(r""""(?:[^"\\]|\\.)*"|'[^']*'|\(|\)|\s+|[^\s()"']+""", text):
        if token == "(":
            depth += 1
        elif token == ")":
            depth -= 1
            parts.append(part)
            part = ""
        elif token == "AND" and depth == 0:
            parts.append(part)
            part = ""
        elif token in ("OR", "NOT") or token.startswith("-"):
            raise Unplayed(f"the lab does not play {token} in the filter `{text}`")
        else:
            part += token
    if depth != 0:
        raise Unplayed(f"the parentheses of the filter `{text}` do not match")
    return [part for part in [*parts, part] if part.strip()]


def _test(field, operator, value):
    """A predicate on resources from one comparison."""
    value = re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value
    path, wanted = field.split("."), _wanted(operator, value)
    if operator in ("!=", "ne"):
        return lambda resource: not any(wanted(found) for found in _values(resource, path))
    return lambda resource: any(wanted(found) for found in _values(resource, path))


def _wanted(operator, value):
    """A predicate on one text, for an operator or its opposite."""
    if operator == ":":
        return lambda found: value == "*" or value.lower() in found.lower()
    pattern = value if operator in ("eq", "ne") else ".*".join(re.escape(part) for part in value.split("*"))
    return lambda found: re.fullmatch(pattern, found, re.S) is not None


def _values(value, path):
    """The texts at a path, through lists too."""
    if isinstance(value, list):
        return [found for item in value for found in _values(item, path)]
    if path:
        return _values(value[path[0]], path[1:]) if isinstance(value, dict) and path[0] in value else []
    return [str(value).lower() if isinstance(value, bool) else str(value)]


def listed(items, parameters):
    """Items filtered, in order, one page of them, and the next page's token. Raises `Refused` or `Unplayed`."""
    if parameters.get("filter"):
        fits = parse(parameters["filter"])
        items = [item for item in items if fits(item)]
    order = parameters.get("orderBy", "name")
    if order not in ("name", "creationTimestamp desc"):
        raise Refused("invalid", f"Invalid value for field 'orderBy': '{order}'.")
    items = sorted(items, key=lambda item: item["name"])
    if order != "name":
        items.sort(key=lambda item: item.get("creationTimestamp", item.get("insertTime")), reverse=True)
    start = 0
    if token := parameters.get("pageToken"):
        try:
            after = base64.urlsafe_b64decode(token.encode()).decode()
            start = next(number for number, item in enumerate(items) if item["name"] == after) + 1
        except (ValueError, StopIteration):
            raise Refused("invalid", "Invalid value for field 'pageToken'.") from None
    most = int(parameters.get("maxResults", 500)) or 500
    page = items[start : start + most]
    more = len(items) > start + most
    return page, base64.urlsafe_b64encode(page[-1]["name"].encode()).decode() if more else None
