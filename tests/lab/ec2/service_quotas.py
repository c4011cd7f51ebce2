"""Service Quotas over HTTP, for EC2's vCPU limits only: JSON, with the operation in the header."""

import json
from functools import partial

import botocore.session
from botocore.validate import ParamValidator
from shared.exchange import Answer

from . import quotas, world

SERVICE = "Amazon Elastic Compute Cloud (Amazon EC2)"
# The code and message of each mode of the fault engine.
OF_FAULTS = {
    "throttled": ("TooManyRequestsException", "Rate exceeded"),
    "denied": (
        "AccessDeniedException",
        "User: arn:aws:iam::123456789012:user/lab is not authorized to perform: servicequotas:{operation}",
    ),
    "rejected": (None, "The cloud lab was told to refuse this."),
}


class Refused(Exception):
    """The service refuses a request: a code and a message."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class ServiceQuotas:
    """The front end. It is stateless: limits are settings."""

    def __init__(self, settings, exchanges, judge):
        self._settings, self._exchanges, self._judge = settings, exchanges, judge
        self._model = botocore.session.get_session().get_service_model("service-quotas")
        self._prefix = self._model.metadata["targetPrefix"] + "."
        self._played = {
            "GetServiceQuota": self._get_service_quota,
            "GetAWSDefaultServiceQuota": self._get_aws_default_service_quota,
        }

    def fits(self, request):
        return request.path == "/" and request.headers.get("X-Amz-Target", "").startswith(self._prefix)

    def handle(self, request):
        operation = request.headers["X-Amz-Target"].removeprefix(self._prefix)
        body = request.get_data()
        try:
            values = self._read(operation, body, request.headers)
        except Refused as wrong:
            self._judge.accuse("service-quotas", operation, str(wrong))
            refusal, logged = _refusal(wrong), {"body": body.decode(errors="replace")}
            return self._exchanges.pass_through(
                "service-quotas", operation, logged, lambda: refusal, partial(_of_fault, operation)
            )
        act = partial(self._act, operation, values)
        return self._exchanges.pass_through("service-quotas", operation, values, act, partial(_of_fault, operation))

    def _read(self, operation, body, headers):
        """The parameters, validated by botocore's model. Raises `Refused` for values that no correct client sends."""
        if operation not in self._model.operation_names:
            raise Refused("UnknownOperationException", f"there is no operation {operation}")
        if f"/{world.REGION}/servicequotas/aws4_request" not in headers.get("Authorization", ""):
            raise Refused("InvalidSignatureException", f"must be signed for servicequotas in {world.REGION}")
        if headers.get("Content-Type") != "application/x-amz-json-1.1":
            raise Refused("SerializationException", f"the content is {headers.get('Content-Type')}")
        if operation not in self._played:
            plays = ", ".join(sorted(self._played))
            raise Refused("UnknownOperationException", f"the cloud lab does not play {operation}; it plays {plays}")
        try:
            values = json.loads(body)
        except ValueError as error:
            raise Refused("SerializationException", f"the body is no JSON: {error}") from None
        report = ParamValidator().validate(values, self._model.operation_model(operation).input_shape)
        if report.has_errors():
            raise Refused("SerializationException", report.generate_report())
        return values

    def _act(self, operation, values):
        try:
            quota = self._played[operation](values)
        except Refused as refused:
            return _refusal(refused)
        return Answer(200, json.dumps({"Quota": quota}).encode(), "application/x-amz-json-1.1")

    def _get_service_quota(self, values):
        name = _known(values)
        own = quotas.own(name, self._settings)
        if own is None:
            raise Refused("NoSuchResourceException", "There is no applied quota value for this quota code.")
        return _quota(name, own, "arn:aws:servicequotas:{region}:{account}:ec2/{name}")

    def _get_aws_default_service_quota(self, values):
        return _quota(_known(values), quotas.DEFAULT, "arn:aws:servicequotas:{region}::ec2/{name}")


def _known(values):
    if values["ServiceCode"] != "ec2":
        raise Refused("NoSuchResourceException", "The request failed because the specified service does not exist.")
    if values["QuotaCode"] not in quotas.NAMES:
        raise Refused("NoSuchResourceException", "The request failed because the specified quota does not exist.")
    return values["QuotaCode"]


def _quota(name, value, arn):
    return {
        "ServiceCode": "ec2",
        "ServiceName": SERVICE,
        "QuotaArn": arn.format(region=world.REGION, account=world.ACCOUNT, name=name),
        "QuotaCode": name,
        "QuotaName": quotas.NAMES[name],
        "Value": float(value),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def _of_fault(operation, rule):
    code, message = OF_FAULTS[rule.mode]
    return _refusal(Refused(rule.code or code, rule.message or message.format(operation=operation)))


def _refusal(refused):
    body = json.dumps({"__type": refused.code, "Message": refused.message}).encode()
    return Answer(400, body, "application/x-amz-json-1.1", refused.code)
