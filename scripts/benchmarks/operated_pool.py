"""A pool in a directory of its own, used as an operator uses it: with `greenroom try` and `greenroom pool`."""

import json
import pathlib
import shutil
import subprocess
import tempfile
import time

from benchmarks import journal
from benchmarks.measure import fail


class OperatedPool:
    def __init__(self, program, name, within=None):
        self.program, self.name, self.within = program, name, within
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="greenroom-bench-"))
        self.config = self.home / "greenroom.toml"

    def call(self, *arguments, check=True):
        """The output of a command. `within`, if there is one, is its timeout in seconds."""
        command = [self.program, "--config", self.config, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self.within)
        if check and done.returncode != 0:
            fail(f"greenroom {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def events(self):
        """Each recorded event, with its time of the boot clock in seconds."""
        return journal.events(self.home / "state" / "pools" / self.name)

    def instances(self):
        return json.loads(self.call("pool", "status", "--json"))["pools"][0]["instances"]

    def ready(self):
        """The number of ready instances without a job."""
        return sum(one["phase"] == "ready" and not one["jobs"] for one in self.instances())

    def wait_for_ready(self, count, within=600):
        until = time.monotonic() + within
        while self.ready() != count:
            if time.monotonic() > until:
                fail(f"not {count} ready machines within {within} s:\n{self.call('pool', 'status')}")
            time.sleep(0.05)

    def end(self):
        self.call("pool", "drain", "--wait", check=False)
        shutil.rmtree(self.home, ignore_errors=True)
