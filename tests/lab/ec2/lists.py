"""Filters and pages of EC2's lists."""

import base64
import re

from .errors import Refused


def select(items, filters, values):
    """The items that match all filters.

    `values` maps a filter's name to a function from an item to one value or several; `tag:KEY` and `tag-key` use
    the function named `tags`, which returns a dict. Raises `Refused` for a filter that EC2 does not have.
    """
    for one in filters or ():
        name, wanted = one.get("Name", ""), one.get("Values", [])
        if not wanted:
            raise Refused("InvalidParameterValue", f"The filter '{name}' needs values")
        items = [item for item in items if _fits(item, name, wanted, values)]
    return items


def _fits(item, name, wanted, values):
    if name.startswith("tag:") and "tags" in values:
        have = values["tags"](item).get(name[4:])
        have = [] if have is None else [have]
    elif name == "tag-key" and "tags" in values:
        have = list(values["tags"](item))
    elif name in values and name != "tags":
        have = values[name](item)
        have = list(have) if isinstance(have, (list, set, tuple)) else [have]
    else:
        raise Refused("InvalidParameterValue", f"The filter '{name}' is invalid")
    return any(_like(_text(value), pattern) for value in have if value is not None for pattern in wanted)


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def _like(text, pattern):
    """`*` and `?` are wildcards, a backslash escapes them; no other character is special."""
    parts = re.split(r"(\\.|\*|\?)", pattern)
    meaning = {"*": ".*", "?": "."}
    return (
        re.fullmatch("".join(meaning.get(part) or re.escape(part.lstrip("\\")) for part in parts), text, re.S)
        is not None
    )


def page(items, most, token, identify):
    """At most `most` items from `token` on, and the next page's token. Raises `Refused` for an unknown token."""
    start = 0
    if token:
        try:
            after = base64.b64decode(token, validate=True).decode()
            start = next(number for number, item in enumerate(items) if identify(item) == after) + 1
        except (ValueError, StopIteration):
            raise Refused("InvalidParameterValue", "Unable to parse pagination token") from None
    if not most or len(items) <= start + most:
        return items[start:], None
    part = items[start : start + most]
    return part, base64.b64encode(identify(part[-1]).encode()).decode()
