"""AWS STS over HTTP, for the one question whose account credentials are."""

import uuid

from shared.exchange import Answer

from . import errors, world
from .errors import Refused

BODY = (
    '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
    "<Arn>arn:aws:iam::{account}:user/lab</Arn><UserId>{key}</UserId><Account>{account}</Account>"
    "</GetCallerIdentityResult><ResponseMetadata><RequestId>{request}</RequestId></ResponseMetadata>"
    "</GetCallerIdentityResponse>"
)
REFUSAL = (
    '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>{code}</Code>'
    "<Message>{message}</Message></Error><RequestId>{request}</RequestId></ErrorResponse>"
)


class Sts:
    """The front end. It is stateless: the access key names the account."""

    def __init__(self, exchanges, judge):
        self._exchanges, self._judge = exchanges, judge

    def fits(self, request):
        return request.path == "/" and "/sts/aws4_request" in request.headers.get("Authorization", "")

    def handle(self, request):
        action = request.form.get("Action", "")
        act = _identity if action == "GetCallerIdentity" else _unplayed
        if act is _unplayed:
            self._judge.accuse("sts", action, f"the cloud lab does not play {action}; it plays GetCallerIdentity")
        authorization = request.headers["Authorization"]
        return self._exchanges.pass_through("sts", action, {}, lambda: act(authorization), _of_fault)


def _identity(authorization):
    key, account = world.caller(authorization)
    return _answer(200, BODY.format(account=account, key=key, request=uuid.uuid4()))


def _unplayed(_authorization):
    return _refusal(Refused("InvalidAction", "The action is not valid for this web service."))


def _of_fault(rule):
    return _refusal(errors.of_fault(rule))


def _refusal(refused):
    text = REFUSAL.format(code=refused.code, message=refused.message, request=uuid.uuid4())
    return _answer(errors.STATUS.get(refused.code, 400), text, refused.code)


def _answer(status, text, code=None):
    return Answer(status, text.encode(), "text/xml", code)
