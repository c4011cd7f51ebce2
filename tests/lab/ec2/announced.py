"""What EC2 announces about instances: scheduled events in their statuses, and spot requests."""

import datetime
import json
import secrets

# The codes of scheduled events, with EC2's descriptions.
EVENTS = {
    "instance-reboot": "The instance will be rebooted",
    "instance-retirement": "The instance is running on degraded hardware",
    "instance-stop": "The instance is running on degraded hardware",
    "system-maintenance": "The instance is scheduled for maintenance",
    "system-reboot": "The system will be rebooted",
}
REBALANCE = "rebalance"
# From the announcement to the end of a reclaimed instance, as its metadata says.
RECLAIM_AFTER = datetime.timedelta(minutes=2)
# From the announcement to an event.
EVENT_AFTER = datetime.timedelta(days=14)
# The status of a spot request by the state reason of its instance, once that has ended.
ENDED = {"Server.SpotInstanceTermination": "instance-terminated-no-capacity"}

STATUS_FILTERS = {
    "availability-zone": lambda one: one["AvailabilityZone"],
    "event.code": lambda one: [event["Code"] for event in one["Events"]],
    "event.description": lambda one: [event["Description"] for event in one["Events"]],
    "instance-state-code": lambda one: one["InstanceState"]["Code"],
    "instance-state-name": lambda one: one["InstanceState"]["Name"],
}
REQUEST_FILTERS = {
    "tags": lambda one: {tag["Key"]: tag["Value"] for tag in one["Tags"]},
    "instance-id": lambda one: one["InstanceId"],
    "spot-instance-request-id": lambda one: one["SpotInstanceRequestId"],
    "state": lambda one: one["State"],
    "status-code": lambda one: one["Status"]["Code"],
}


def request_id():
    return f"sir-{secrets.token_hex(4)}"


def announce(record, why):
    """Announces a scheduled event with the code `why`; without one, that EC2 takes the spot instance back.

    With `rebalance`, recommends to replace a spot instance, which only its own metadata says.

    Raises `ValueError` if that cannot happen to the instance.
    """
    now = datetime.datetime.now(datetime.UTC)
    if why in (None, REBALANCE):
        if record.request is None:
            raise ValueError("the instance is no spot instance; say `why`, the code of a scheduled event")
        if why is None:
            record.reclaimed_at = now
        else:
            record.rebalance_at = now
    elif why in EVENTS:
        record.events.append(
            {
                "InstanceEventId": f"instance-event-{secrets.token_hex(8)}",
                "Code": why,
                "Description": EVENTS[why],
                "NotBefore": now + EVENT_AFTER,
            }
        )
    else:
        raise ValueError(f"`why` must be one of {REBALANCE}, {', '.join(EVENTS)}, not {why!r}")


def metadata(record, key):
    """The value of a key of the instance's own metadata; `None`: EC2 answers that there is none."""
    if key == "spot/instance-action" and record.reclaimed_at is not None:
        return json.dumps({"action": "terminate", "time": _time(record.reclaimed_at + RECLAIM_AFTER)})
    if key == "events/recommendations/rebalance" and record.rebalance_at is not None:
        return json.dumps({"noticeTime": _time(record.rebalance_at)})
    return None


def _time(at):
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def status(account, instance):
    """An instance in the answer of DescribeInstanceStatus."""
    good = {"Status": "ok", "Details": [{"Name": "reachability", "Status": "passed"}]}
    unknown = {"Status": "not-applicable"}
    summary = good if instance.state == "running" else unknown
    return {
        "InstanceId": instance.id,
        "AvailabilityZone": instance.availability_zone,
        "InstanceState": {"Code": instance.state_code, "Name": instance.state},
        "InstanceStatus": summary,
        "SystemStatus": summary,
        "Events": account.records[instance.id].events,
    }


def requests(account):
    """The spot requests of all instances, for DescribeSpotInstanceRequests."""
    return [_request(one, account.records[one.id]) for one in account.instances() if account.records[one.id].spot]


def _request(instance, record):
    state, code = _standing(instance, record)
    return {
        "SpotInstanceRequestId": record.request,
        "InstanceId": instance.id,
        "Type": "one-time",
        "State": state,
        "Status": {"Code": code, "UpdateTime": record.reclaimed_at or instance.launch_time},
        "LaunchedAvailabilityZone": instance.availability_zone,
        "InstanceInterruptionBehavior": "terminate",
        "CreateTime": instance.launch_time,
        "ProductDescription": "Linux/UNIX",
        "Tags": [{"Key": tag["Key"], "Value": tag.get("Value", "")} for tag in record.request_tags],
    }


def _standing(instance, record):
    """State and status code of an instance's spot request."""
    if record.reason is not None:
        return "closed", ENDED.get(record.reason[0], "instance-terminated-by-user")
    if record.reclaimed_at is not None:
        # The instance still runs: EC2 closes the request two minutes before it takes the instance.
        return "closed", "instance-terminated-no-capacity"
    return "active", "fulfilled"
