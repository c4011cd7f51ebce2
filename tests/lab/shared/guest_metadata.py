"""The metadata services inside instances: what the clouds announce only there.

An instance reaches its own under a path of the emulator's, which the clients' usual variables in the instance name.
"""

import secrets

from .exchange import Answer

ROOT = "/_guest/"
TOKEN = "/latest/api/token"
EC2, GCE = "/latest/meta-data/", "/computeMetadata/v1/"
TTL, TOKEN_HEADER = "X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token"


class GuestMetadata:
    """`front_ends` have `guest_metadata`, from an instance's name among the machines and a key to a text or `None`."""

    def __init__(self, front_ends, lock):
        self._front_ends, self._lock = front_ends, lock
        self._tokens = set()

    def fits(self, request):
        return request.path.startswith(ROOT)

    def handle(self, request):
        name, _, path = request.path.removeprefix(ROOT).partition("/")
        path = f"/{path}"
        if request.method == "PUT" and path == TOKEN and TTL in request.headers:
            token = secrets.token_urlsafe(32)
            self._tokens.add(token)
            return _text(200, token)
        if request.method != "GET":
            return _text(405, "")
        if path.startswith(EC2):
            if request.headers.get(TOKEN_HEADER) not in self._tokens:
                return _text(401, "")
            return self._value(name, path.removeprefix(EC2))
        if path.startswith(GCE) and request.headers.get("Metadata-Flavor") == "Google":
            return self._value(name, path.removeprefix(GCE))
        return _text(403, "")

    def _value(self, name, key):
        with self._lock:
            for front_end in self._front_ends:
                try:
                    value = front_end.guest_metadata(name, key)
                except KeyError:
                    continue
                return _text(404, "") if value is None else _text(200, value)
        return _text(404, "")


def _text(status, text):
    return Answer(status, text.encode(), "text/plain")
