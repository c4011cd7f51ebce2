"""The journals of a pool, which have the time of each event."""

import json


def journals(pool):
    """The kept journals of a pool's directory, then the current one."""
    return [*sorted((pool / "history").glob("journal-*.jsonl")), pool / "journal.jsonl"]


def events(pool):
    """Each recorded event, with its seconds of the boot clock. A journal that has two names meanwhile counts once."""
    records = {}
    for line in (line for file in journals(pool) for line in file.read_text().splitlines()):
        record = json.loads(line)
        records[record.get("n", 0)] = record.get("events", [])
    # The time of an event ends with the milliseconds since boot (state/README.md).
    return [(event["at"][-1] / 1e3, event) for n in sorted(records) for event in records[n]]


def count(pool, kind):
    """The number of recorded events of one kind, without parsing them."""
    texts = {file.read_bytes() for file in journals(pool)}
    return sum(text.count(f'"event":"{kind}"'.encode()) for text in texts)
