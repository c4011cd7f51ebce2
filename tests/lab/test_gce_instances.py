"""Tests Compute Engine's instances: operations, request ids, states, disks, lists, refusals."""

import unittest
import uuid

from trial import LONG, http, shared_lab
from trial_gce import ZONE, GceTrial


class Operations(GceTrial):
    def test_pending_running_done_and_only_then_staging(self):
        self.set(operation_pending=LONG)
        operation = self.insert("one")
        self.assertEqual((operation["status"], operation["operationType"]), ("PENDING", "insert"))
        self.assertEqual(self.get("one")["status"], "PROVISIONING")
        self.set(operation_pending=0.05, operation_running=LONG)
        path = f"zones/{ZONE}/operations/{self.insert('two')['name']}"
        self.until(lambda: self.call("GET", path)["status"] == "RUNNING")
        self.assertEqual(self.get("two")["status"], "PROVISIONING")
        self.set(operation_running=0.05, boot=LONG)
        done = self.wait(self.insert("three"))
        self.assertEqual(
            (done["status"], done["progress"], done["targetLink"]), ("DONE", 100, self.get("three")["selfLink"])
        )
        self.assertEqual(self.get("three")["status"], "STAGING")
        self.set(boot=0.05)
        self.insert("four")
        self.until_status("four", "RUNNING")

    def test_wait_ends_when_it_has_waited_enough(self):
        self.set(operation_pending=LONG, operation_wait=0.2)
        self.assertEqual(self.wait(self.insert("one"))["status"], "PENDING")

    def test_a_repeated_request_id_gives_the_same_operation(self):
        identity = str(uuid.uuid4())
        first = self.insert("one", request_id=identity)
        again = self.insert("one", request_id=identity)
        self.assertEqual(first["name"], again["name"])
        self.assertEqual(len(self.truth()), 1)
        self.assertEqual(self.insert("one", status=409)["error"]["errors"][0]["reason"], "alreadyExists")
        self.insert("two", request_id=identity)
        self.accused("comes again with another request")

    def test_request_ids_that_are_none(self):
        for wrong in ("00000000-0000-0000-0000-000000000000", "one"):
            self.insert("one", status=400, request_id=wrong)
            self.accused("requestId must be a UUID")

    def test_unknown(self):
        self.call("GET", f"zones/{ZONE}/operations/operation-1", status=404)
        self.call("GET", f"zones/{ZONE}/instances/nobody", status=404)
        self.call("GET", "zones/us-east9-a/instances", status=400)
        self.call("DELETE", f"zones/{ZONE}/instances/nobody", status=404)


class Disks(GceTrial):
    def test_those_marked_go_with_the_instance_and_others_stay(self):
        image = {"sourceImage": self.gcp["image_family"], "labels": {"pool": "linux"}}
        disks = [
            {"boot": True, "autoDelete": True, "initializeParams": image},
            {"autoDelete": False, "initializeParams": {"diskSizeGb": "30", "diskName": "data"}},
        ]
        self.running("one", disks=disks)
        listed = self.call("GET", f"zones/{ZONE}/disks", filter="labels.pool=linux")["items"]
        self.assertEqual([(disk["name"], disk["users"][0][-3:]) for disk in listed], [("one", "one")])
        self.call("DELETE", f"zones/{ZONE}/disks/data", status=400)
        self.wait(self.call("DELETE", f"zones/{ZONE}/instances/one", requestId=str(uuid.uuid4())))
        self.assertEqual(self.truth(), {})
        left = self.lab("GET", "instances")["volumes"]
        self.assertEqual([(one["id"], one["size_gib"], one["instance"]) for one in left], [("data", 30, None)])
        self.wait(self.call("DELETE", f"zones/{ZONE}/disks/data"))
        self.assertNotIn("items", self.call("GET", f"zones/{ZONE}/disks"))

    def test_deleting_takes_its_time(self):
        self.running("one")
        self.set(shutdown=LONG)
        self.call("DELETE", f"zones/{ZONE}/instances/one")
        self.assertEqual(self.get("one")["status"], "STOPPING")
        self.running("two")
        self.set(shutdown=0.05)
        self.wait(self.call("DELETE", f"zones/{ZONE}/instances/two"))
        self.get("two", status=404)


class Lists(GceTrial):
    def names(self, filter=None, zone=ZONE, **more):
        query = {**({"filter": filter} if filter else {}), **more}
        return [one["name"] for one in self.call("GET", f"zones/{zone}/instances", **query).get("items", [])]

    def test_filters(self):
        self.set(operation_pending=LONG)
        self.insert("one", labels={"pool": "linux", "owner": "me"})
        self.insert("two", labels={"pool": "other"})
        self.assertEqual(self.names('(labels.pool = "linux") AND (labels.owner=me)'), ["one"])
        self.assertEqual(self.names("labels.pool=linux AND name=t*"), [])
        self.assertEqual(self.names("labels.owner:*"), ["one"])
        self.assertEqual(self.names("labels.pool != linux"), ["two"])
        self.assertEqual(self.names("name eq 't.*'"), ["two"])
        self.assertEqual(self.names("name ne 't.*'"), ["one"])
        self.assertEqual(self.names("status=PROVISIONING"), ["one", "two"])
        self.call("GET", f"zones/{ZONE}/instances", filter="a=1 OR b=2", status=501)
        self.accused("does not play OR")

    def test_pages(self):
        for number in range(5):
            self.insert(f"vm-{number}")
        seen, token = [], {}
        while True:
            page = self.call("GET", f"zones/{ZONE}/instances", maxResults=2, **token)
            seen.append([one["name"] for one in page["items"]])
            if "nextPageToken" not in page:
                break
            token = {"pageToken": page["nextPageToken"]}
        self.assertEqual(seen, [["vm-0", "vm-1"], ["vm-2", "vm-3"], ["vm-4"]])
        self.call("GET", f"zones/{ZONE}/instances", pageToken="bm9uZQ==", status=400)

    def test_all_zones(self):
        self.insert("one", labels={"pool": "p"})
        self.insert("two", zone="europe-west1-c", labels={"pool": "p"})
        items = self.call("GET", "aggregated/instances", filter="labels.pool=p")["items"]
        found = {
            zone: [one["name"] for one in scope["instances"]] for zone, scope in items.items() if "instances" in scope
        }
        self.assertEqual(found, {f"zones/{ZONE}": ["one"], "zones/europe-west1-c": ["two"]})
        self.assertEqual(items["zones/us-east1-c"]["warning"]["code"], "NO_RESULTS_ON_PAGE")

    def test_young_instances_are_not_listed(self):
        self.set(visible=LONG)
        self.insert("one")
        self.assertEqual(self.names(), [])
        self.assertNotIn("instances", self.call("GET", "aggregated/instances")["items"][f"zones/{ZONE}"])
        self.assertEqual(self.get("one")["name"], "one")
        self.set(visible=0.0)
        self.assertEqual(self.names(), ["one"])

    def test_labels_need_their_fingerprint(self):
        self.wait(self.insert("one", labels={"a": "b"}))
        mark = self.get("one")["labelFingerprint"]
        path = f"zones/{ZONE}/instances/one/setLabels"
        self.wait(self.call("POST", path, {"labels": {"c": "d"}, "labelFingerprint": mark}))
        self.assertEqual(self.get("one")["labels"], {"c": "d"})
        self.call("POST", path, {"labels": {}, "labelFingerprint": mark}, status=412)

    def test_what_doctor_asks(self):
        self.assertEqual(self.call("GET", f"zones/{ZONE}")["status"], "UP")
        self.assertEqual(self.call("GET", f"zones/{ZONE}/machineTypes/n2d-standard-4")["guestCpus"], 4)
        self.call("GET", "zones/us-east1-d/machineTypes/t2a-standard-2", status=404)
        self.assertTrue(self.call("GET", f"zones/{ZONE}/machineTypes")["items"])
        self.assertEqual(self.call("GET", "global/images/family/debian-12")["name"], "debian-12-v20261001")
        self.assertEqual(self.call("GET", "global/images", filter="family=debian-12")["items"][0]["status"], "READY")
        self.assertEqual(self.call("GET", "regions/us-east1/subnetworks/default")["ipCidrRange"], "127.78.1.0/24")
        self.set(quotas={"CPUS": 8})
        self.insert("one")
        quotas = {one["metric"]: (one["limit"], one["usage"]) for one in self.call("GET", "regions/us-east1")["quotas"]}
        self.assertEqual((quotas["CPUS"], quotas["PREEMPTIBLE_CPUS"][1]), ((8.0, 2.0), 0.0))
        self.assertEqual(len(self.call("GET", "zones")["items"]), 5)
        rules = {one["name"]: one for one in self.call("GET", "global/firewalls")["items"]}
        self.assertEqual(rules["lab-allow"]["allowed"][0]["IPProtocol"], "tcp")
        self.assertEqual((rules["lab-members"]["sourceTags"], rules["lab-members"]["targetTags"]), (["members"],) * 2)
        self.assertEqual(self.call("GET", "regions/us-east1/subnetworks")["items"][0]["name"], "default")
        self.assertEqual(len(self.call("GET", "global/networks/default")["subnetworks"]), 6)
        self.assertEqual(self.call("GET", "")["commonInstanceMetadata"]["items"], [])


class Ipv6(GceTrial):
    ACCESS = {"type": "DIRECT_IPV6", "networkTier": "PREMIUM", "name": "external-ipv6"}

    def interface(self, subnetwork, access=None, stack="IPV4_IPV6"):
        interface = {"subnetwork": f"regions/us-east1/subnetworks/{subnetwork}", "stackType": stack}
        return [{**interface, **({"ipv6AccessConfigs": access} if access else {})}]

    def test_an_internal_address_stands_with_the_interface(self):
        self.need_ipv6()
        shown = self.running("one", networkInterfaces=self.interface("dual-internal"))["networkInterfaces"][0]
        self.assertEqual((shown["ipv6Address"], shown["ipv6AccessType"]), ("::1", "INTERNAL"))
        self.assertNotIn("ipv6AccessConfigs", shown)
        self.until(lambda: self.listening("::1"))
        self.assertTrue(self.listening(shown["networkIP"]))

    def test_an_external_address_stands_with_its_access(self):
        self.need_ipv6()
        shown = self.running("one", networkInterfaces=self.interface("dual-external", [self.ACCESS]))
        shown = shown["networkInterfaces"][0]
        self.assertNotIn("ipv6Address", shown)
        self.assertEqual(shown["ipv6AccessConfigs"][0]["externalIpv6"], "::1")
        self.until(lambda: self.listening("::1"))
        self.wait(self.call("DELETE", f"zones/{ZONE}/instances/one"))
        self.assertFalse(self.listening("::1"))

    def test_without_access_there_is_no_external_address(self):
        shown = self.running("one", networkInterfaces=self.interface("dual-external"))["networkInterfaces"][0]
        self.assertFalse({"ipv6Address", "ipv6AccessConfigs"} & set(shown))

    def test_only_one_instance_has_it(self):
        self.wait(self.insert("one", networkInterfaces=self.interface("dual-internal")))
        error, status = self.failure(self.insert("two", networkInterfaces=self.interface("dual-internal")))
        self.assertEqual((error["code"], status), ("IP_SPACE_EXHAUSTED", 400))
        self.assertEqual(list(self.truth()), ["one"])

    def test_a_subnetwork_must_have_what_is_asked(self):
        standard = {**self.ACCESS, "networkTier": "STANDARD"}
        for wrong in [
            self.interface("default"),
            [{"network": "global/networks/default", "stackType": "IPV4_IPV6"}],
            self.interface("dual-internal", [self.ACCESS]),
            self.interface("dual-external", [self.ACCESS], stack="IPV4_ONLY"),
            self.interface("dual-external", [standard]),
            self.interface("dual-external", [self.ACCESS, self.ACCESS]),
        ]:
            with self.subTest(wrong):
                refused = self.insert("one", status=400, networkInterfaces=wrong)
                self.assertEqual(refused["error"]["errors"][0]["reason"], "invalid")
        self.insert("one", status=501, networkInterfaces=self.interface("dual-internal", stack="IPV6_ONLY"))
        self.accused("have an IPv4 address")
        self.assertEqual(self.truth(), {})

    def test_subnetworks_tell_what_they_have(self):
        seen = {
            one["name"]: (one["stackType"], one.get("ipv6AccessType"))
            for one in self.call("GET", "regions/us-east1/subnetworks")["items"]
        }
        dual = {name: ("IPV4_IPV6", access) for access, name in self.gcp["ipv6_subnetworks"].items()}
        self.assertEqual(seen, {"default": ("IPV4_ONLY", None), **dual})


class Refusals(GceTrial):
    def test_what_users_get_wrong(self):
        boot = {"boot": True, "initializeParams": {"sourceImage": "global/images/nothing"}}
        arm = {"boot": True, "initializeParams": {"sourceImage": self.gcp["images"]["arm64"]}}
        for wrong in [
            {"kind": "n99-huge"},
            {"disks": [boot]},
            {"disks": [arm]},
            {"disks": []},
            {"networkInterfaces": [{"subnetwork": "regions/us-east1/subnetworks/no"}]},
            {"networkInterfaces": [{}]},
            {"labels": {"Pool": "x"}},
            {"scheduling": {"provisioningModel": "SPOT", "automaticRestart": True}},
            {"scheduling": {"maxRunDuration": {"seconds": "3600"}}},
            {"scheduling": {"maxRunDuration": {"seconds": "5"}, "instanceTerminationAction": "DELETE"}},
            {"scheduling": {"instanceTerminationAction": "DELETE"}},
            {"metadata": {"items": [{"key": "a", "value": ""}, {"key": "a", "value": ""}]}},
        ]:
            with self.subTest(wrong):
                self.assertEqual(self.insert("one", status=400, **wrong)["error"]["errors"][0]["reason"], "invalid")
        self.assertEqual(self.truth(), {})

    def test_what_no_correct_client_sends(self):
        for text, wrong in [
            ("no field `machineTypes`", {"machineTypes": "x"}),
            ("resource.canIpForward must be true or false", {"canIpForward": "yes"}),
            ("must be a text, not 20", {"disks": [{"boot": True, "initializeParams": {"diskSizeGb": 20}}]}),
            (
                "must be a whole number in a text",
                {"disks": [{"boot": True, "initializeParams": {"diskSizeGb": "20G"}}]},
            ),
            ("must be one of", {"scheduling": {"provisioningModel": "CHEAP"}}),
            ("does not match", {"name": "Upper"}),
            ("must be base64", {"metadata": {"fingerprint": "x"}}),
            ("must be an object", {"labels": ["a"]}),
            ("must be a list", {"disks": {}}),
        ]:
            with self.subTest(text):
                self.call("POST", f"zones/{ZONE}/instances", {**self.wanted("one"), **wrong}, 400)
                self.accused(text)
        nameless = {key: value for key, value in self.wanted("one").items() if key != "name"}
        self.call("POST", f"zones/{ZONE}/instances", nameless, 400)
        self.accused("resource.name is missing")
        self.call("GET", f"zones/{ZONE}/instances", maxresults=5, status=400)
        self.accused("unknown parameter `maxresults`")
        self.call("GET", f"zones/{ZONE}/instances", maxResults=501, status=400)
        self.accused("from 0 to 500")
        self.call("POST", f"zones/{ZONE}/instances/one/suspend", status=501)
        self.accused("does not play compute.instances.suspend")
        self.call("GET", "zones/x/y/z/nothing", status=501)
        self.accused("does not play GET")
        self.insert("one", status=501, guestAccelerators=[])
        self.accused("does not play guestAccelerators")
        self.insert("one", status=501, scheduling={"terminationTime": "2027-01-01T00:00:00Z"})
        self.accused("does not play terminationTime of scheduling")
        self.insert(
            "one", status=501, networkInterfaces=[{"network": "global/networks/default", "networkIP": "127.78.1.9"}]
        )
        self.accused("does not play networkIP of networkInterfaces")
        # Parameters that all of Google's clients send are valid.
        self.call("GET", f"zones/{ZONE}/instances", _alt="json", _apiVersion="2026-09-01")

    def test_another_project(self):
        url = shared_lab()["url"] + f"/compute/v1/projects/other/zones/{ZONE}/instances"
        self.assertEqual(http("GET", url)[0], 404)


if __name__ == "__main__":
    unittest.main()
