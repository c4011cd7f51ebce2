"""Client tokens: the same token with the same parameters returns the same result, with other parameters an error."""

from .errors import Refused

# Operations that are idempotent by a client token.
OPERATIONS = {"CreateFleet", "CreateLaunchTemplate", "RunInstances"}


class Tokens:
    """Answers by operation and token, kept until the reset: EC2 keeps them longer than any test."""

    def __init__(self):
        self._known = {}

    def clear(self):
        self._known.clear()

    def recall(self, operation, parameters):
        """The earlier result of the token; `None` for a new one. Raises `Refused` if the parameters differ."""
        token = parameters.get("ClientToken")
        if operation not in OPERATIONS or token is None or (operation, token) not in self._known:
            return None
        before, result = self._known[operation, token]
        if before != _compared(parameters):
            raise Refused(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in previous request(s) "
                f"({token}).",
            )
        return result

    def keep(self, operation, parameters, result):
        """Stores the result of a token. For successes only, as in EC2."""
        token = parameters.get("ClientToken")
        if operation in OPERATIONS and token is not None:
            self._known[operation, token] = (_compared(parameters), result)


def _compared(parameters):
    return {key: value for key, value in parameters.items() if key != "DryRun"}
