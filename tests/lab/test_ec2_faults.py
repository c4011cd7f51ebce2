"""Tests faults and violations on EC2: the client's view, the effect, and the violations."""

import time
import unittest
import urllib.parse
import urllib.request

from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from trial import Ec2Trial, http, shared_lab


class Faults(Ec2Trial):
    def test_rejected(self):
        self.fault("RunInstances", "rejected", code="InternalError", message="not today")
        self.assertEqual(self.refused("InternalError", self.ec2.run_instances, 500, **self.wanted()), "not today")
        self.assertEqual(self.truth(), {})
        self.launch()

    def test_throttled_is_retried_by_a_client_that_may(self):
        self.fault("RunInstances", "throttled", count=2)
        self.client(attempts=3).run_instances(**self.wanted())
        self.assertEqual((self.counts("RunInstances"), len(self.truth())), (3, 1))

    def test_applied_but_the_answer_is_lost(self):
        self.fault("RunInstances", "lost")
        with self.assertRaises(ConnectionClosedError):
            self.ec2.run_instances(**self.wanted(ClientToken="one"))
        name = list(self.truth())[0]
        self.assertEqual(self.launch(ClientToken="one")[0]["InstanceId"], name)
        found = self.ec2.describe_instances(Filters=[{"Name": "client-token", "Values": ["one"]}])["Reservations"]
        self.assertEqual(found[0]["Instances"][0]["InstanceId"], name)

    def test_hangs(self):
        for applied in (False, True):
            self.fault("RunInstances", "hang", applied=applied, seconds=5)
            with self.assertRaises(ReadTimeoutError):
                self.client(read_timeout=0.3).run_instances(**self.wanted())
            if applied:
                self.until(self.truth)
            self.assertEqual(len(self.truth()), int(applied))

    def test_slow(self):
        self.fault("DescribeInstances", "slow", seconds=0.4)
        began = time.monotonic()
        self.ec2.describe_instances()
        self.assertGreaterEqual(time.monotonic() - began, 0.4)

    def test_matching_parameters(self):
        self.fault(
            "RunInstances",
            "rejected",
            code="InternalError",
            match={"TagSpecifications.*.Tags.*.Value": "lin?x"},
            count=None,
        )
        self.refused("InternalError", self.ec2.run_instances, **self.wanted(TagSpecifications=self.tags(pool="linux")))
        self.launch(TagSpecifications=self.tags(pool="other"))

    def test_dice_fall_the_same_way_again(self):
        def fallen(seed):
            self.lab("POST", "reset", {"seed": seed})
            self.fault("DescribeRegions", "throttled", probability=0.3, count=None)
            self.assertEqual(self.lab("GET", "requests")["seed"], seed)
            return [self.refusal(self.ec2.describe_regions) for _ in range(20)]

        first, again, other = fallen(1), fallen(1), fallen(2)
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertTrue(0 < sum(first) < 20)

    def refusal(self, call):
        try:
            call()
            return False
        except self.ec2.exceptions.ClientError:
            return True

    def test_the_log(self):
        self.fault("DescribeRegions", "throttled")
        self.refusal(self.ec2.describe_regions)
        self.ec2.describe_regions()
        log = self.lab("GET", "requests")["log"]
        self.assertEqual(
            [(one["status"], one["code"], one["fault"]) for one in log],
            [(503, "RequestLimitExceeded", "throttled"), (200, None, None)],
        )

    def test_a_fault_that_makes_no_sense(self):
        for wrong in (
            {"operation": "x"},
            {"operation": "x", "mode": "boom"},
            {"operation": "x", "mode": "lost", "cuont": 1},
            {"operation": "x", "mode": "rejected"},
        ):
            self.lab("POST", "faults", wrong, status=400)
        self.lab("POST", "settings", {"bot": 1}, status=400)
        self.lab("POST", "settings", {"boot": "1"}, status=400)


class Judge(Ec2Trial):
    """Requests that no correct client sends: each must be a violation."""

    def send(self, status=400, version="2016-11-15", authorization=None, **form):
        """A request of a client without the model."""
        scope = "Credential=AKIAIOSFODNN7EXAMPLE/20260101/eu-west-1/ec2/aws4_request"
        authorization = authorization or f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=00"
        body = urllib.parse.urlencode(
            {"Version": version, **{key.replace("__", "."): value for key, value in form.items()}}
        ).encode()
        request = urllib.request.Request(shared_lab()["url"] + "/", body, {"Authorization": authorization})
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=20)
        with caught.exception as answer:
            self.assertEqual(answer.code, status)
            return answer.read().decode()

    def raw(self, **more):
        return {
            "Action": "RunInstances",
            "ImageId": self.aws["images"]["x86_64"],
            "InstanceType": "m5.large",
            "MinCount": "1",
            "MaxCount": "1",
            "SubnetId": self.aws["subnets"]["eu-west-1a"],
            **more,
        }

    def test_wrong_requests(self):
        tag = {"TagSpecification__1__ResourceType": "instance", "TagSpecification__1__Tag__1__Key": "a"}
        for text, form in [
            ("ClientTokens is not recognized", self.raw(ClientTokens="x")),
            ("InstanceInitiatedShutdownBehavior", self.raw(InstanceInitiatedShutdownBehavior="delete")),
            ("MinCount", self.raw(MinCount="one")),
            (
                "must contain the parameter MaxCount",
                {key: value for key, value in self.raw().items() if key != "MaxCount"},
            ),
            ("MinCount 2 and MaxCount 1", self.raw(MinCount="2")),
            ("true or false", self.raw(DryRun="yes")),
            ("User data is limited", self.raw(UserData="QUFB" * 6000)),
            ("Invalid BASE64", self.raw(UserData="not base64!")),
            ("Duplicate tag key", self.raw(**tag, TagSpecification__1__Tag__2__Key="a")),
            ("begins with aws:", self.raw(**{**tag, "TagSpecification__1__Tag__1__Key": "aws:x"})),
            ("numbered from 1", self.raw(SecurityGroupId__2="sg-0123456789abcdef0")),
            ("Invalid id", {"Action": "TerminateInstances", "InstanceId__1": "web-1"}),
            ("5 to 1000", {"Action": "DescribeInstances", "MaxResults": "1"}),
            (
                "cannot be used with",
                {"Action": "DescribeInstances", "MaxResults": "10", "InstanceId__1": "i-0123456789abcdef0"},
            ),
            ("not valid for this web service", {"Action": "RunInstance"}),
            ("does not play DescribeHosts", {"Action": "DescribeHosts"}),
        ]:
            with self.subTest(text):
                self.send(**form)
                self.accused(text)
        self.assertEqual(self.truth(), {})

    def test_another_version_region_or_no_signature(self):
        self.send(version="2010-01-01", **self.raw())
        self.accused("Version must be")
        self.send(
            status=401, authorization="AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/ec2/aws4_request", **self.raw()
        )
        self.accused("signed for ec2 in eu-west-1")

    def test_what_a_user_may_get_wrong_accuses_nobody(self):
        self.send(**self.raw(InstanceType="m99.huge"))
        self.send(**self.raw(ImageId="ami-0123456789abcdef0"))

    def test_filters_that_moto_would_not_heed(self):
        self.send(Action="DescribeKeyPairs", Filter__1__Name="no-such-filter", Filter__1__Value__1="x")
        self.accused("does not play the filter `no-such-filter`")

    def test_paths_of_no_front_end(self):
        self.assertEqual(http("GET", shared_lab()["url"] + "/latest/meta-data/")[0], 404)
        self.accused("belongs to no front end")

    def test_ids_that_moto_takes_for_missing(self):
        answer = self.send(Action="DescribeInstances", InstanceId__1="i-xyz")
        self.assertIn("InvalidInstanceID.Malformed", answer)
        self.accused("Invalid id")


if __name__ == "__main__":
    unittest.main()
