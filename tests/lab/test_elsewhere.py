"""Tests the second account, region and project: they have nothing, and another account's instances are not there."""

import unittest

from trial import Ec2Trial
from trial_gce import ZONE, GceTrial

OTHER_KEY = "AKIAI44QH8DHBEXAMPLE"


class OtherAccount(Ec2Trial):
    def setUp(self):
        super().setUp()
        self.name = self.launch()[0]["InstanceId"]

    def reservations(self, client, **wanted):
        return client.describe_instances(**wanted)["Reservations"]

    def test_sts_names_the_account_of_the_access_key(self):
        own = self.client(service="sts").get_caller_identity()["Account"]
        self.assertEqual(own, self.aws["account"])
        self.assertEqual(self.reservations(self.ec2)[0]["OwnerId"], own)
        other = self.client(service="sts", key=OTHER_KEY).get_caller_identity()["Account"]
        self.assertEqual(other, self.aws["other_account"])

    def test_another_account_has_nothing_and_may_launch_nothing(self):
        other = self.client(key=OTHER_KEY)
        self.assertEqual(self.reservations(other), [])
        self.assertEqual(other.describe_volumes()["Volumes"], [])
        self.refused("InvalidInstanceID.NotFound", other.terminate_instances, 400, InstanceIds=[self.name])
        self.refused("UnauthorizedOperation", other.run_instances, 403, **self.wanted())
        self.assertEqual(len(self.reservations(self.ec2)), 1)

    def test_another_region_has_nothing(self):
        other = self.client(region=self.aws["other_region"])
        self.assertEqual(self.reservations(other), [])
        self.refused("InvalidInstanceID.NotFound", other.terminate_instances, 400, InstanceIds=[self.name])


class OtherProject(GceTrial):
    def test_another_project_has_nothing_and_permits_no_launch(self):
        self.running("one")
        other = self.gcp["other_project"]
        for kind in ("instances", "disks"):
            listed = self.call("GET", f"aggregated/{kind}", project=other)
            self.assertFalse([scope for scope in listed["items"].values() if kind in scope])
        self.call("DELETE", f"zones/{ZONE}/instances/one", status=404, project=other)
        self.call("POST", f"zones/{ZONE}/instances", self.wanted("two"), 403, project=other)
        self.assertEqual(list(self.truth()), ["one"])


if __name__ == "__main__":
    unittest.main()
