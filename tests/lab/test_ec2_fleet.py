"""Tests CreateFleet: spread over overrides, partial success with errors, minimum, tags, tokens."""

import unittest

from trial import Ec2Trial, encoded


class Fleet(Ec2Trial):
    def setUp(self):
        super().setUp()
        data = {
            "ImageId": self.aws["images"]["x86_64"],
            "TagSpecifications": self.tags(owner="me"),
            "InstanceType": "m5.large",
        }
        self.template = self.ec2.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data)[
            "LaunchTemplate"
        ]["LaunchTemplateId"]

    def overrides(self, *kinds, zones="ab"):
        return [
            {"InstanceType": kind, "SubnetId": self.aws["subnets"][f"eu-west-1{zone}"]}
            for kind in kinds
            for zone in zones
        ]

    def wanted(self, target, overrides, strategy=None, kind="on-demand", least=None, **more):
        options = {
            **({"AllocationStrategy": strategy} if strategy else {}),
            **({"MinTargetCapacity": least} if least else {}),
        }
        if least:
            options["SingleAvailabilityZone"] = False
        return {
            "Type": "instant",
            "LaunchTemplateConfigs": [
                {
                    "LaunchTemplateSpecification": {"LaunchTemplateId": self.template, "Version": "$Latest"},
                    "Overrides": overrides,
                }
            ],
            "TargetCapacitySpecification": {"TotalTargetCapacity": target, "DefaultTargetCapacityType": kind},
            **({"SpotOptions" if kind == "spot" else "OnDemandOptions": options} if options else {}),
            **more,
        }

    @staticmethod
    def got(answer):
        return {
            one["LaunchTemplateAndOverrides"]["Overrides"]["SubnetId"] + one["InstanceType"]: len(one["InstanceIds"])
            for one in answer["Instances"]
        }

    def test_the_first_override_with_room(self):
        answer = self.ec2.create_fleet(**self.wanted(3, self.overrides("m5.large", "c5.large")))
        self.assertEqual(self.got(answer), {self.aws["subnets"]["eu-west-1a"] + "m5.large": 3})
        self.assertEqual(answer["Errors"], [])

    def test_spread_over_all(self):
        answer = self.ec2.create_fleet(**self.wanted(4, self.overrides("m5.large", "c5.large"), "diversified", "spot"))
        self.assertEqual(set(self.got(answer).values()), {1})
        self.assertEqual({one["spot"] for one in self.truth().values()}, {True})

    def test_by_priority(self):
        overrides = self.overrides("m5.large", "c5.large", zones="a")
        overrides[0]["Priority"], overrides[1]["Priority"] = 2.0, 1.0
        answer = self.ec2.create_fleet(**self.wanted(1, overrides, "prioritized"))
        self.assertEqual(answer["Instances"][0]["InstanceType"], "c5.large")

    def test_partial_success_tells_what_failed(self):
        self.set(capacity={"m5.large/eu-west-1a": 1, "m5.large/eu-west-1b": 0})
        self.fault("CreateFleet", "quota", match={"InstanceType": "c5.large"}, count=None)
        answer = self.ec2.create_fleet(**self.wanted(5, self.overrides("m5.large", "c5.large")))
        self.assertEqual(answer["ResponseMetadata"]["HTTPStatusCode"], 200)
        self.assertEqual(self.got(answer), {self.aws["subnets"]["eu-west-1a"] + "m5.large": 1})
        codes = [
            (one["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"], one["ErrorCode"])
            for one in answer["Errors"]
        ]
        self.assertEqual(
            codes, [("m5.large", "InsufficientInstanceCapacity")] * 2 + [("c5.large", "VcpuLimitExceeded")] * 2
        )
        self.assertEqual(len(self.truth()), 1)

    def test_less_than_the_minimum_is_nothing(self):
        self.set(capacity={"m5.large/eu-west-1a": 2})
        answer = self.ec2.create_fleet(**self.wanted(5, self.overrides("m5.large", zones="a"), least=3))
        self.assertEqual((answer["Instances"], len(answer["Errors"])), ([], 1))
        self.until(lambda: not self.truth())

    def test_tags_of_template_fleet_and_cloud(self):
        answer = self.ec2.create_fleet(
            **self.wanted(
                1, self.overrides("m5.large"), TagSpecifications=self.tags(pool="p") + self.tags("volume", pool="p")
            )
        )
        name = answer["Instances"][0]["InstanceIds"][0]
        tags = self.truth()[name]["tags"]
        self.assertEqual((tags["owner"], tags["pool"], tags["aws:ec2:fleet-id"]), ("me", "p", answer["FleetId"]))
        self.assertEqual(self.lab("GET", "instances")["volumes"][0]["tags"], {"pool": "p"})

    def test_a_repeated_token(self):
        wanted = self.wanted(2, self.overrides("m5.large"), ClientToken="f1")
        first, again = self.ec2.create_fleet(**wanted), self.ec2.create_fleet(**wanted)
        self.assertEqual((first["FleetId"], first["Instances"]), (again["FleetId"], again["Instances"]))
        self.assertEqual(len(self.truth()), 2)
        wanted["TargetCapacitySpecification"]["TotalTargetCapacity"] = 3
        self.refused("IdempotentParameterMismatch", self.ec2.create_fleet, **wanted)

    def test_a_template_that_says_everything(self):
        interface = {"DeviceIndex": 0, "AssociatePublicIpAddress": True, "Groups": [self.aws["security_group"]]}
        disk = {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 9, "DeleteOnTermination": False, "VolumeType": "gp3"}}
        data = {
            "ImageId": self.aws["images"]["x86_64"],
            "UserData": encoded("#!/bin/sh\necho the template\n"),
            "NetworkInterfaces": [interface],
            "BlockDeviceMappings": [disk],
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required"},
        }
        made = self.ec2.create_launch_template(LaunchTemplateName="all", LaunchTemplateData=data)
        self.template = made["LaunchTemplate"]["LaunchTemplateId"]
        answer = self.ec2.create_fleet(**self.wanted(1, self.overrides("m5.large")))
        self.assertEqual(answer["Errors"], [])
        one = self.truth()[answer["Instances"][0]["InstanceIds"][0]]
        self.assertEqual([disk["delete_on_termination"] for disk in one["volumes"]], [True, False])
        self.until(lambda: self.listening(one["public_address"]))
        self.assertIn("the template", self.lab("GET", f"console?id={one['machine']}")["console"])
        shown = self.described(one["id"])
        self.assertEqual(shown["MetadataOptions"]["HttpTokens"], "required")
        self.assertEqual(shown["SecurityGroups"][0]["GroupId"], self.aws["security_group"])

    def test_what_is_not_played_is_said_and_kept(self):
        self.refused(
            "UnsupportedOperation",
            self.ec2.create_fleet,
            **{**self.wanted(1, self.overrides("m5.large")), "Type": "maintain"},
        )
        self.accused("type `instant` only")
        weighted = [{**self.overrides("m5.large")[0], "WeightedCapacity": 2.0}]
        self.refused("UnsupportedOperation", self.ec2.create_fleet, **self.wanted(1, weighted))
        self.accused("does not play WeightedCapacity of a fleet's override")
        self.refused(
            "UnsupportedOperation", self.ec2.run_instances, **Ec2Trial.wanted(self, Placement={"Tenancy": "dedicated"})
        )
        self.accused("does not play Tenancy of a launch's Placement")
        persistent = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "persistent"}}
        self.refused(
            "UnsupportedOperation", self.ec2.run_instances, **Ec2Trial.wanted(self, InstanceMarketOptions=persistent)
        )
        self.accused("asked for once")
        self.assertEqual(self.truth(), {})


if __name__ == "__main__":
    unittest.main()
