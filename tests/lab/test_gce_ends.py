"""Tests Compute Engine's faults, ends of instances, logins, credentials."""

import base64
import http.client
import time
import unittest
import urllib.parse
import uuid

from trial import Keys, shared_lab
from trial_gce import ZONE, GceTrial

SPOT = {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "automaticRestart": False}


class Room(GceTrial):
    def test_a_stock_out_is_an_error_of_the_operation(self):
        self.set(capacity={f"n2d-standard-2/{ZONE}": 1})
        self.running("one")
        error, status = self.failure(self.insert("two"))
        self.assertEqual((error["code"], status), ("ZONE_RESOURCE_POOL_EXHAUSTED", 503))
        self.assertEqual(list(self.truth()), ["one"])
        self.assertEqual([one["id"] for one in self.lab("GET", "instances")["volumes"]], ["one"])
        self.assertNotIn("error", self.wait(self.insert("three", zone="us-east1-c")))

    def test_with_details(self):
        self.fault(
            "compute.instances.insert",
            "capacity",
            code="ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            match={"provisioningModel": "SPOT"},
        )
        self.running("one")
        error, _ = self.failure(self.insert("two", scheduling=SPOT))
        self.assertEqual(error["errorDetails"][0]["errorInfo"]["metadatas"]["zone"], ZONE)
        self.get("two", status=404)

    def test_quotas(self):
        self.set(quotas={"CPUS": 3, "PREEMPTIBLE_CPUS": 2})
        self.running("one")
        error, status = self.failure(self.insert("two"))
        self.assertEqual((error["code"], status), ("QUOTA_EXCEEDED", 403))
        self.running("three", scheduling=SPOT)
        self.fault("compute.instances.insert", "quota")
        self.assertEqual(
            self.failure(self.insert("four", scheduling=SPOT))[0]["errorDetails"][0]["quotaInfo"]["limit"], 2.0
        )

    def test_an_operation_that_ends_in_an_error(self):
        self.fault("compute.instances.insert", "ends-in-error", code="INTERNAL_ERROR")
        disk = {"boot": True, "autoDelete": False, "initializeParams": {"sourceImage": self.gcp["images"]["x86_64"]}}
        self.assertEqual(self.failure(self.insert("one", disks=[disk]))[1], 500)
        self.assertEqual(self.lab("GET", "instances"), {"instances": [], "volumes": []})


class Faults(GceTrial):
    def test_refusals(self):
        for mode, code, status, reason in [
            ("throttled", None, 403, "rateLimitExceeded"),
            ("denied", None, 403, "forbidden"),
            ("rejected", "backendError", 503, "backendError"),
        ]:
            self.fault("compute.instances.insert", mode, **({"code": code} if code else {}))
            answer = self.insert("one", status=status)["error"]
            self.assertEqual((answer["errors"][0]["reason"], answer["code"]), (reason, status))
            self.assertNotIn("status", answer)
        self.assertEqual(self.truth(), {})

    def test_a_lost_answer_is_found_by_its_request_id(self):
        identity = str(uuid.uuid4())
        self.fault("compute.instances.insert", "lost")
        with self.assertRaises(ConnectionResetError):
            self.insert("one", request_id=identity)
        self.assertEqual(list(self.truth()), ["one"])
        self.assertEqual(self.wait(self.insert("one", request_id=identity))["status"], "DONE")
        self.assertEqual((len(self.truth()), self.counts("compute.instances.insert")), (1, 2))

    def test_slow_and_hanging(self):
        self.fault("compute.zones.*", "slow", seconds=0.3)
        began = time.monotonic()
        self.call("GET", f"zones/{ZONE}")
        self.assertGreaterEqual(time.monotonic() - began, 0.3)
        self.fault("compute.instances.insert", "hang", seconds=0.2, match={"resource.labels.pool": "linux"})
        with self.assertRaises(ConnectionResetError):
            self.insert("one", labels={"pool": "linux"})
        self.assertEqual(self.truth(), {})


class Notices(GceTrial):
    def test_maintenance_is_announced(self):
        self.assertNotIn("resourceStatus", self.running("one"))
        self.lab("POST", "notice", {"id": "one"})
        upcoming = self.get("one")["resourceStatus"]["upcomingMaintenance"]
        self.assertEqual((upcoming["type"], upcoming["maintenanceStatus"]), ("SCHEDULED", "PENDING"))
        self.assertLess(upcoming["windowStartTime"], upcoming["windowEndTime"])
        self.lab("POST", "notice", {"id": "one", "why": "UNSCHEDULED"})
        listed = self.call("GET", f"zones/{ZONE}/instances")["items"][0]
        self.assertEqual(listed["resourceStatus"]["upcomingMaintenance"]["type"], "UNSCHEDULED")
        self.lab("POST", "notice", {"id": "one", "why": "compute.instances.hostError"}, status=400)
        self.lab("POST", "notice", {"id": "two"}, status=404)

    def test_maintenance_that_begins_is_announced_inside(self):
        self.assertNotIn("resourceStatus", self.running("one"))
        self.lab("POST", "notice", {"id": "one", "why": "TERMINATE_ON_HOST_MAINTENANCE"})
        self.assertNotIn("resourceStatus", self.get("one"))


class Ends(GceTrial):
    def setUp(self):
        super().setUp()
        self.mine, self.host = Keys(self.home, "mine"), Keys(self.home, "host")
        self.set(boot=0.05, ssh=0.0, operation_pending=0.0, operation_running=0.02)

    def metadata(self, **more):
        private = "\n".join("    " + line for line in self.host.private.splitlines())
        config = f"#cloud-config\nssh_keys:\n  ed25519_private: |\n{private}\n"
        items = {"user-data": config, "ssh-keys": f"root:{self.mine.public}", **more}
        return {"items": [{"key": key, "value": value} for key, value in items.items()]}

    def reached(self, name, **more):
        """The address of a new instance whose sshd answers."""
        more.setdefault("metadata", self.metadata())
        address = self.running(name, **more)["networkInterfaces"][0]["networkIP"]
        self.until(lambda: self.listening(address))
        return address

    def test_a_login_with_the_host_key_that_was_given(self):
        address = self.reached("one")
        self.assertTrue(address.startswith("127.78.1."))
        done = self.ssh(self.mine, address, "id -un", host_key=self.host.public)
        self.assertEqual(done.stdout.split(), ["root"], done.stderr)
        serial = self.call("GET", f"zones/{ZONE}/instances/one/serialPort")
        self.assertIn(self.host.public.split()[1], serial["contents"])
        rest = self.call("GET", f"zones/{ZONE}/instances/one/serialPort", start=serial["next"])
        self.assertEqual((rest["contents"], rest["start"]), ("", serial["next"]))

    def test_a_startup_script_and_a_public_address(self):
        keys = {"startup-script": "#!/bin/sh\necho started >/etc/started\n"}
        interface = {
            "network": "global/networks/default",
            "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
        }
        self.reached("one", metadata=self.metadata(**keys), networkInterfaces=[interface])
        public = self.get("one")["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
        self.assertEqual(self.ssh(self.mine, public, "cat /etc/started", host_key=self.host.public).stdout, "started\n")

    def test_a_preempted_instance_stops_or_is_deleted(self):
        address = self.reached("kept", scheduling=SPOT)
        self.reached("gone", scheduling={**SPOT, "instanceTerminationAction": "DELETE"})
        for name in ("kept", "gone"):
            self.lab("POST", "interrupt", {"id": name})
        self.assertFalse(self.listening(address))
        self.until_status("kept", "TERMINATED")
        self.until_gone("gone")
        wanted = 'operationType="compute.instances.preempted"'
        found = self.call("GET", f"zones/{ZONE}/operations", filter=wanted)["items"]
        self.assertEqual(
            {(one["targetLink"].rsplit("/", 1)[1], one["status"], one["user"]) for one in found},
            {("kept", "DONE", "system"), ("gone", "DONE", "system")},
        )
        self.lab("POST", "interrupt", {"id": "kept"}, status=404)

    def test_a_preempted_instance_may_run_on_for_a_while(self):
        self.set(preempted=600.0)
        address = self.reached("one", scheduling=SPOT)
        self.lab("POST", "interrupt", {"id": "one"})
        self.assertEqual(self.get("one")["status"], "STOPPING")
        self.assertTrue(self.listening(address))
        self.lab("POST", "interrupt", {"id": "one"})
        self.assertFalse(self.listening(address))
        self.until_status("one", "TERMINATED")

    def test_another_reason_to_be_taken_away(self):
        self.fault("compute.instances.insert", "spot-reclaim")
        self.running("one")
        self.lab("POST", "interrupt", {"id": "one"}, status=400)
        self.lab("POST", "interrupt", {"id": "one", "why": "compute.instances.hostError"})
        self.until_status("one", "TERMINATED")
        found = self.call("GET", f"zones/{ZONE}/operations", filter="operationType=compute.instances.hostError")
        self.assertEqual(len(found["items"]), 1)

    def test_a_reclaim_by_fault(self):
        self.fault("compute.instances.insert", "spot-reclaim", seconds=0.1)
        self.running("one", scheduling=SPOT)
        self.until_status("one", "TERMINATED")

    def test_the_longest_run(self):
        self.set(run_duration_scale=0.01)
        limit = {"maxRunDuration": {"seconds": "60"}, "instanceTerminationAction": "DELETE"}
        self.running("one", scheduling=limit)
        self.until_gone("one")

    def test_powering_itself_off_stops_it_only(self):
        self.running("one", metadata=self.metadata(**{"startup-script": "#!/bin/sh\npoweroff\n"}))
        self.until_status("one", "TERMINATED")
        self.assertEqual(self.truth()["one"]["reason"], "compute.instances.guestTerminate")

    def test_deletion_ends_the_machine_at_once_and_frees_its_name(self):
        address = self.reached("one")
        self.ssh(self.mine, address, "echo here >/etc/lab-was-here")
        deleted = self.call("DELETE", f"zones/{ZONE}/instances/one")
        self.assertFalse(self.listening(address))
        self.wait(deleted)
        address = self.reached("one")
        self.assertNotEqual(self.ssh(self.mine, address, "cat /etc/lab-was-here").returncode, 0)


class Credentials(GceTrial):
    def ask(self, path, flavour=True):
        """Status, headers and body of a request to the metadata server."""
        host = urllib.parse.urlparse(shared_lab()["url"]).netloc
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.request("GET", path, headers={"Metadata-Flavor": "Google"} if flavour else {})
        answer = connection.getresponse()
        found = answer.status, answer.headers, answer.read()
        connection.close()
        return found

    def test_a_token(self):
        status, headers, body = self.ask("/computeMetadata/v1/instance/service-accounts/default/token")
        self.assertEqual((status, headers["Metadata-Flavor"]), (200, "Google"))
        self.assertIn(b'"access_token"', body)
        self.assertEqual(self.ask("/computeMetadata/v1/universe/universe-domain")[2], b"googleapis.com")
        self.assertEqual(self.ask("/computeMetadata/v1/project/project-id")[2].decode(), self.gcp["project"])
        self.assertEqual(self.ask("/computeMetadata/v1/no/such")[0], 404)

    def test_without_the_header(self):
        self.assertEqual(self.ask("/computeMetadata/v1/project/project-id", flavour=False)[0], 403)
        self.accused("Metadata-Flavor")


class Fingerprints(unittest.TestCase):
    def test_are_base64(self):
        from gce.instances import fingerprint_of

        self.assertEqual(len(base64.b64decode(fingerprint_of({"a": "b"}), validate=True)), 8)
        self.assertNotEqual(fingerprint_of({"a": "b"}), fingerprint_of({"a": "c"}))


if __name__ == "__main__":
    unittest.main()
