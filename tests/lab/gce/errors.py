"""Compute Engine's errors: of requests, with status and reason, and of operations, with a code."""

import json

from shared.exchange import Answer

# The HTTP status that comes with a reason; others are 400.
STATUS = {
    "alreadyExists": 409,
    "authError": 401,
    "backendError": 503,
    "conditionNotMet": 412,
    "forbidden": 403,
    "internalError": 500,
    "notFound": 404,
    "notImplemented": 501,
    "quotaExceeded": 403,
    "rateLimitExceeded": 403,
}
OF_FAULTS = {
    "throttled": ("rateLimitExceeded", "Rate Limit Exceeded"),
    "denied": ("forbidden", "Required '{permission}' permission for 'projects/{project}'"),
    "rejected": (None, "The cloud lab was told to refuse this."),
}
STOCKOUT = "ZONE_RESOURCE_POOL_EXHAUSTED"
# HTTP status and message that an operation shows with its error's code.
OF_OPERATIONS = {
    STOCKOUT: (503, "SERVICE UNAVAILABLE"),
    STOCKOUT + "_WITH_DETAILS": (503, "SERVICE UNAVAILABLE"),
    "QUOTA_EXCEEDED": (403, "FORBIDDEN"),
    "INTERNAL_ERROR": (500, "INTERNAL SERVER ERROR"),
}


class Refused(Exception):
    """A request that Compute Engine refuses."""

    def __init__(self, reason, message):
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message


def answer(refused):
    """A refusal as sent over HTTP. It has no `status`, like Compute Engine's."""
    status = STATUS.get(refused.reason, 400)
    one = {"message": refused.message, "domain": "global", "reason": refused.reason}
    error = {"code": status, "message": refused.message, "errors": [one]}
    return Answer(status, json.dumps({"error": error}).encode(), "application/json; charset=UTF-8", refused.reason)


def of_fault(rule, method, project):
    """The refusal for a fault of a request."""
    reason, message = OF_FAULTS[rule.mode]
    _, resource, verb = method.split(".")
    permission = f"compute.{resource}.{'create' if verb == 'insert' else verb}"
    return Refused(rule.code or reason, rule.message or message.format(permission=permission, project=project))


def stockout(project, zone, kind, code=STOCKOUT, message=None):
    """The error of an operation that found no capacity."""
    full = f"projects/{project}/zones/{zone}"
    if code == STOCKOUT:
        text = (
            f"The zone '{full}' does not have enough resources available to fulfill the request.  "
            "Try a different zone, or try again later."
        )
        return {"code": code, "message": message or text}
    text = (
        f"The zone '{full}' does not have enough resources available to fulfill the request.  "
        "'(resource type:compute)'."
    )
    info = {
        "reason": "resource_availability",
        "domain": "compute.googleapis.com",
        "metadatas": {"zone": zone, "vmType": kind},
    }
    return {"code": code, "message": message or text, "errorDetails": [{"errorInfo": info}]}


def exhausted(project, region, subnetwork):
    """The error of an operation that found no address."""
    full = f"projects/{project}/regions/{region}/subnetworks/{subnetwork}"
    return {"code": "IP_SPACE_EXHAUSTED", "message": f"IP space of '{full}' is exhausted."}


def quota(metric, limit, region, message=None):
    """The error of an operation that exceeded a quota."""
    info = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": f"{metric}-per-project-region",
        "dimensions": {"region": region},
        "limit": float(limit),
    }
    text = f"Quota '{metric}' exceeded.  Limit: {limit:.1f} in region {region}."
    return {"code": "QUOTA_EXCEEDED", "message": message or text, "errorDetails": [{"quotaInfo": info}]}
