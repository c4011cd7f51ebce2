"""The common part of the Compute Engine tests: a plain HTTP client."""

import urllib.parse
import uuid

from trial import Trial, http, shared_lab

ZONE = "us-east1-b"


class GceTrial(Trial):
    """A test of the Compute Engine front end."""

    def call(self, method, path, body=None, status=200, project=None, **query):
        """One request below the project's path. Query names have `_` instead of `$`."""
        query = {name.replace("_", "$", 1) if name.startswith("_") else name: value for name, value in query.items()}
        url = f"{shared_lab()['url']}/compute/v1/projects/{project or self.gcp['project']}"
        url += f"/{path}" if path else ""
        url += "?" + urllib.parse.urlencode(query) if query else ""
        got, answer = http(method, url, body)
        self.assertEqual(got, status, answer)
        return answer

    def wanted(self, name, kind="n2d-standard-2", zone=ZONE, **more):
        """A valid instance."""
        disk = {"sourceImage": self.gcp["images"]["x86_64"], "diskSizeGb": "20"}
        return {
            "name": name,
            "machineType": f"zones/{zone}/machineTypes/{kind}",
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
            "networkInterfaces": [{"network": "global/networks/default"}],
            **more,
        }

    def insert(self, name, zone=ZONE, status=200, request_id=None, **more):
        """Inserts an instance and returns the operation."""
        query = {"requestId": request_id or str(uuid.uuid4())}
        return self.call("POST", f"zones/{zone}/instances", self.wanted(name, zone=zone, **more), status, **query)

    def wait(self, operation):
        zone = operation["zone"].rsplit("/", 1)[1]
        return self.call("POST", f"zones/{zone}/operations/{operation['name']}/wait")

    def get(self, name, status=200, zone=ZONE):
        return self.call("GET", f"zones/{zone}/instances/{name}", status=status)

    def until_status(self, name, status, zone=ZONE):
        return self.until(lambda: (lambda one: one if one["status"] == status else None)(self.get(name, zone=zone)))

    def running(self, name, **more):
        self.wait(self.insert(name, **more))
        return self.until_status(name, "RUNNING")

    def until_gone(self, name):
        self.until(lambda: name not in self.truth())

    def failure(self, operation):
        """Waits for an operation and returns its first error."""
        done = self.wait(operation)
        self.assertEqual(done["status"], "DONE")
        return done["error"]["errors"][0], done["httpErrorStatusCode"]
