"""EC2's errors: code, HTTP status and XML."""

import uuid
import xml.sax.saxutils

from shared.exchange import Answer

# Everything else is 400. EC2 itself reports a lack of capacity as a server error.
STATUS = {
    "AuthFailure": 401,
    "DryRunOperation": 412,
    "InsufficientCapacity": 500,
    "InsufficientHostCapacity": 500,
    "InsufficientInstanceCapacity": 500,
    "InternalError": 500,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
    "UnauthorizedOperation": 403,
}
# The code and message of each mode of the fault engine.
OF_FAULTS = {
    "throttled": ("RequestLimitExceeded", "Request limit exceeded."),
    "denied": (
        "UnauthorizedOperation",
        "You are not authorized to perform this operation. "
        "Encoded authorization failure message: 4GIOHlTkIaWHQD0Q0m6XSnuUMCm-abcdefghijklmnopqrstuvwxyz",
    ),
    "rejected": (None, "The cloud lab was told to refuse this."),
    "capacity": (
        "InsufficientInstanceCapacity",
        "We currently do not have sufficient {type} capacity in the Availability Zone you requested ({zone}). "
        "Our system will be working on provisioning additional capacity.",
    ),
    "quota": (
        "VcpuLimitExceeded",
        "You have requested more vCPU capacity than your current vCPU limit allows for the instance bucket that the "
        "specified instance type belongs to.",
    ),
}
SPOT_QUOTA = ("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")


class Refused(Exception):
    """EC2 refuses a request: a code and a message."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


def of_fault(rule, **words):
    """The refusal for a fault; `words` fill its message."""
    code, message = OF_FAULTS[rule.mode]
    if rule.mode == "quota" and words.get("spot"):
        code, message = SPOT_QUOTA
    return Refused(rule.code or code, rule.message or message.format(**words))


def answer(refused):
    """A refusal in EC2's XML."""
    code, message = (xml.sax.saxutils.escape(text) for text in (refused.code, refused.message))
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
        f"<RequestID>{uuid.uuid4()}</RequestID></Response>"
    )
    return Answer(STATUS.get(refused.code, 400), body.encode(), "text/xml;charset=UTF-8", refused.code)
