"""The common part of the emulator's own tests: one process for all, a client of each cloud, its control API, logins."""

import atexit
import base64
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError

# Seconds until what a test does not want to see yet. What it does want to see comes from another instance, soon.
LONG = 600.0
# Seconds until a test gives up. A machine that runs twenty other things needs more than a minute.
PATIENCE = 240.0

HERE = pathlib.Path(__file__).resolve().parent
_shared = {}


def shared_lab():
    """The emulator that all tests share, started by the first of them and stopped with the process."""
    if "lab" not in _shared:
        process, world = start_lab("--seed", "7")
        atexit.register(end_lab, process)
        _shared["lab"] = world
    return _shared["lab"]


def start_lab(*arguments, **environment):
    """A separate emulator: the process, and the line that it prints when it is ready."""
    environment = {**os.environ, **environment}
    process = subprocess.Popen(
        [sys.executable, HERE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the lab did not start: exit status {process.wait()}")
    return process, json.loads(line)


def end_lab(process):
    process.stdin.close()
    process.stdout.close()
    return process.wait(timeout=PATIENCE)


def http(method, url, body=None, headers=None, timeout=PATIENCE):
    """Status and parsed JSON of one request."""
    data = None if body is None else json.dumps(body).encode()
    headers = {**({"Content-Type": "application/json"} if data is not None else {}), **(headers or {})}
    request = urllib.request.Request(url, data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
        return error.code, json.loads(text) if text.startswith(b"{") else {"text": text.decode()}


class Keys:
    """A pair of SSH keys on disk."""

    def __init__(self, home, name):
        self.path = pathlib.Path(home) / name
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(self.path)]
        subprocess.run(command, check=True)
        self.private = self.path.read_text()
        self.public = self.path.with_suffix(".pub").read_text().strip()


class Trial(unittest.TestCase):
    """A test with the shared emulator. Violations at its end fail it, except for those removed with `accused`."""

    def setUp(self):
        shared_lab()
        self.lab("POST", "reset", {"seed": 7})
        described = self.lab("GET", "world")
        self.ssh_port = described["ssh_port"]
        self.url = described["url"]
        self.aws = described["ec2"]
        self.gcp = described.get("gce")
        folder = tempfile.TemporaryDirectory(prefix="lab-test-")
        self.addCleanup(folder.cleanup)
        self.home = folder.name
        self._accused = 0

    def tearDown(self):
        left = self.lab("GET", "violations")["violations"][self._accused :]
        self.assertEqual(left, [], "the judge found violations")

    def lab(self, method, operation, body=None, status=200):
        """One of the emulator's own operations."""
        got, answer = http(method, f"{_shared['lab']['url']}/_lab/{operation}", body)
        self.assertEqual(got, status, answer)
        return answer

    def accused(self, text, count=1):
        """Expects `count` new violations, each with `text` in it, and removes them."""
        found = self.lab("GET", "violations")["violations"][self._accused :]
        self.assertEqual(len(found), count, found)
        for one in found:
            self.assertIn(text, one["what"])
        self._accused += count

    def set(self, **settings):
        self.lab("POST", "settings", settings)

    def fault(self, operation, mode, **more):
        self.lab("POST", "faults", {"operation": operation, "mode": mode, **more})

    def truth(self, live=True):
        """All existing instances, by id."""
        found = self.lab("GET", "instances")["instances"]
        return {one["id"]: one for one in found if one["live"] or not live}

    def counts(self, operation):
        return self.lab("GET", "requests")["counts"].get(operation, 0)

    def until(self, check, within=PATIENCE):
        """Polls until `check` returns a true value, and returns it."""
        end = time.monotonic() + within
        while True:
            seen = check()
            if seen:
                return seen
            self.assertLess(time.monotonic(), end, f"not within {within} s")
            time.sleep(0.02)

    def listening(self, address):
        """Whether sshd answers there, with its version."""
        try:
            with socket.create_connection((address, self.ssh_port), 2) as connection:
                connection.settimeout(2)
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def need_ipv6(self):
        """Skips the test where this machine's loopback has no IPv6 address."""
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as error:
            self.skipTest(f"no IPv6 on this machine's loopback: {error}")

    def ssh(self, keys, address, command, user="root", host_key=None):
        """Logs in with OpenSSH. With `host_key`, no other host key is accepted."""
        known = pathlib.Path(self.home) / "known_hosts"
        known.write_text(f"[{address}]:{self.ssh_port} {host_key}\n" if host_key else "")
        strict = "yes" if host_key else "no"
        options = [
            f"UserKnownHostsFile={known}",
            f"StrictHostKeyChecking={strict}",
            "LogLevel=ERROR",
            "BatchMode=yes",
            "IdentitiesOnly=yes",
        ]
        words = [word for option in options for word in ("-o", option)]
        return subprocess.run(
            ["ssh", "-F", "none", *words, "-i", str(keys.path), "-p", str(self.ssh_port), f"{user}@{address}", command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            stdin=subprocess.DEVNULL,
        )


# Of the emulator's own account.
ACCESS_KEY = "AKIAIOSFODNN7EXAMPLE"


class Ec2Trial(Trial):
    """A test of the EC2 front end, with botocore's client."""

    def setUp(self):
        super().setUp()
        self.ec2 = self.client()

    def client(self, attempts=1, service="ec2", key=ACCESS_KEY, region=None, **settings):
        config = Config(
            retries={"total_max_attempts": attempts, "mode": "standard"},
            read_timeout=settings.pop("read_timeout", PATIENCE),
            **settings,
        )
        session = _shared.setdefault("session", botocore.session.get_session())
        return session.create_client(
            service,
            region_name=region or self.aws["region"],
            endpoint_url=_shared["lab"]["url"],
            config=config,
            aws_access_key_id=key,
            aws_secret_access_key="secret",
        )

    def wanted(self, zone="a", kind="m5.large", **more):
        """The parameters of a valid launch."""
        return {
            "ImageId": self.aws["images"]["x86_64"],
            "InstanceType": kind,
            "MinCount": 1,
            "MaxCount": 1,
            "SubnetId": self.aws["subnets"][self.aws["region"] + zone],
            **more,
        }

    def launch(self, **wanted):
        """Launches, and returns the instances of the answer."""
        return self.ec2.run_instances(**self.wanted(**wanted))["Instances"]

    def refused(self, code, call, status=None, **wanted):
        """Expects a call to be refused with a code."""
        with self.assertRaises(ClientError) as caught:
            call(**wanted)
        self.assertEqual(caught.exception.response["Error"]["Code"], code, caught.exception)
        if status is not None:
            self.assertEqual(caught.exception.response["ResponseMetadata"]["HTTPStatusCode"], status)
        return caught.exception.response["Error"]["Message"]

    def described(self, name):
        return self.ec2.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"][0]

    def until_state(self, name, state):
        return self.until(lambda: (lambda one: one if one["State"]["Name"] == state else None)(self.described(name)))

    @staticmethod
    def tags(kind="instance", **tags):
        return [{"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]


def encoded(text):
    """User data as sent without a client that encodes it."""
    return base64.b64encode(text.encode()).decode()
