"""Parses and validates requests by botocore's model of EC2."""

import base64
import binascii
import re

import botocore.session

# Mistakes in a client's configuration: EC2 refuses the request, but it is not a violation.
VALUES_OF_USERS = {"InstanceType"}
LONGEST_USER_DATA = 16 * 1024
# The range of MaxResults in the lists that a driver uses.
PAGE = {
    "DescribeInstanceStatus": (5, 1000),
    "DescribeInstanceTypes": (5, 100),
    "DescribeInstances": (5, 1000),
    "DescribeSpotInstanceRequests": (5, 1000),
    "DescribeVolumes": (5, 1000),
}
# The form of an id of each kind.
ID = re.compile(r"[a-z]+-([0-9a-f]{8}|[0-9a-f]{17})")


class Wrong(Exception):
    """A request that EC2 refuses: `code`, `message`, and whether a correct client could have sent it."""

    def __init__(self, code, message, innocent=False):
        super().__init__(message)
        self.code, self.message, self.innocent = code, message, innocent


class Model:
    """EC2's operations and their parameters."""

    def __init__(self):
        self._service = botocore.session.get_session().get_service_model("ec2")
        self.version = self._service.api_version
        self.operations = set(self._service.operation_names)

    def read(self, form):
        """The parameters of a request's form, as nested values. Raises `Wrong`."""
        operation = form["Action"]
        if form.get("Version") != self.version:
            raise Wrong("NoSuchVersion", f"Version must be {self.version}, not {form.get('Version')!r}")
        shape = self._service.operation_model(operation).input_shape
        tree = {}
        for key, value in form.items():
            if key not in ("Action", "Version"):
                _put(tree, key, value)
        values = self._structure(shape, tree, "") if shape is not None else {}
        if shape is None and tree:
            raise Wrong("UnknownParameter", f"{operation} takes no parameters")
        _rules(operation, values)
        return values

    def _value(self, shape, raw, path):
        kind = shape.type_name
        if kind == "structure":
            return self._structure(shape, _dict(raw, path), path)
        if kind == "list":
            return self._list(shape, _dict(raw, path), path)
        if isinstance(raw, dict):
            raise Wrong("UnknownParameter", f"{path} is a {kind} and has nothing below it")
        if kind == "boolean":
            return _boolean(raw, path)
        if kind in ("integer", "long"):
            return _number(int, raw, path)
        if kind in ("float", "double"):
            return _number(float, raw, path)
        if kind == "string" and shape.enum and raw not in shape.enum:
            raise Wrong("InvalidParameterValue", f"Invalid value '{raw}' for {path}.", shape.name in VALUES_OF_USERS)
        return raw

    def _structure(self, shape, tree, path):
        names = {_wire_name(name, member): (name, member) for name, member in shape.members.items()}
        values = {}
        for key, raw in tree.items():
            here = f"{path}.{key}" if path else key
            if key not in names:
                raise Wrong("UnknownParameter", f"The parameter {here} is not recognized")
            name, member = names[key]
            values[name] = self._value(member, raw, here)
        for name in shape.required_members:
            if name not in values:
                wire = _wire_name(name, shape.members[name])
                raise Wrong(
                    "MissingParameter", f"The request must contain the parameter {path + '.' if path else ''}{wire}"
                )
        return values

    def _list(self, shape, tree, path):
        if sorted(tree) != sorted(str(number) for number in range(1, len(tree) + 1)):
            raise Wrong("InvalidParameterValue", f"the members of {path} must be numbered from 1 without a gap")
        ordered = sorted(tree.items(), key=lambda item: int(item[0]))
        return [self._value(shape.member, raw, f"{path}.{key}") for key, raw in ordered]


def _wire_name(name, shape):
    """EC2's protocol: `queryName`, else the location name with a capital, else the member's own name."""
    known = shape.serialization
    if "queryName" in known:
        return known["queryName"]
    name = known.get("name", name)
    return name[0].upper() + name[1:]


def _put(tree, key, value):
    parts = key.split(".")
    for part in parts[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise Wrong("InvalidParameterCombination", f"{key} stands beside a value of its own parent")
    if parts[-1] in tree:
        raise Wrong("InvalidParameterCombination", f"{key} stands beside something below it")
    tree[parts[-1]] = value


def _dict(raw, path):
    if not isinstance(raw, dict):
        raise Wrong("InvalidParameterValue", f"{path} has members and takes no value")
    return raw


def _boolean(raw, path):
    if raw not in ("true", "false"):
        raise Wrong("InvalidParameterValue", f"Value ({raw}) for parameter {path} is invalid: true or false")
    return raw == "true"


def _number(kind, raw, path):
    try:
        return kind(raw)
    except ValueError:
        raise Wrong("InvalidParameterValue", f"Value ({raw}) for parameter {path} is invalid: a number") from None


def _rules(operation, values):
    """EC2's checks beyond its model."""
    for name in ("InstanceIds", "VolumeIds", "SubnetIds", "SecurityGroupIds", "ImageIds"):
        for value in values.get(name, ()):
            if not ID.fullmatch(value):
                code = {"InstanceIds": "InvalidInstanceID.Malformed", "ImageIds": "InvalidAMIID.Malformed"}.get(
                    name, "InvalidParameterValue"
                )
                raise Wrong(code, f'Invalid id: "{value}"', name not in ("InstanceIds", "VolumeIds"))
    if values.get("MaxResults") is not None:
        if values.get("InstanceIds") and operation == "DescribeInstances":
            raise Wrong(
                "InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults"
            )
        low, high = PAGE.get(operation, (1, 1000))
        if not low <= values["MaxResults"] <= high:
            raise Wrong(
                "InvalidParameterValue",
                f"Value ({values['MaxResults']}) for parameter maxResults is invalid: {low} to {high}",
            )
    if operation == "RunInstances" and not 1 <= values["MinCount"] <= values["MaxCount"]:
        what = f"MinCount {values['MinCount']} and MaxCount {values['MaxCount']} do not fit"
        raise Wrong("InvalidParameterValue", what)
    token = values.get("ClientToken")
    if token is not None and not (1 <= len(token) <= 64 and token.isascii()):
        raise Wrong("InvalidParameterValue", "a client token has 1 to 64 ASCII characters")
    user_data(values.get("UserData"))
    user_data(values.get("LaunchTemplateData", {}).get("UserData"))
    for specification in values.get("TagSpecifications", ()):
        tags(specification.get("Tags", ()), operation)
    tags(values.get("Tags", ()), operation)


def user_data(text):
    """The bytes of base64 user data. Raises `Wrong` if EC2 would refuse it."""
    if not text:
        return b""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Wrong("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.") from None
    if len(found) > LONGEST_USER_DATA:
        raise Wrong("InvalidParameterValue", f"User data is limited to {LONGEST_USER_DATA} bytes")
    return found


def tags(found, operation):
    keys = [tag.get("Key", "") for tag in found]
    if len(keys) != len(set(keys)):
        raise Wrong("InvalidParameterValue", "Duplicate tag key")
    if len(keys) > 50:
        raise Wrong("TagLimitExceeded", "more than 50 tags")
    for tag in found:
        key, value = tag.get("Key", ""), tag.get("Value", "")
        if not 1 <= len(key) <= 128 or len(value) > 256 or (key.startswith("aws:") and operation != "DescribeTags"):
            raise Wrong("InvalidParameterValue", f"Tag '{key}' is too long, empty, or begins with aws:")
