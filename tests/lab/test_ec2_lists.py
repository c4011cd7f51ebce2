"""Tests EC2's lists and an instance's resources: filters, pages, tags, volumes, the console."""

import base64
import datetime
import unittest

from trial import LONG, Ec2Trial


class Lists(Ec2Trial):
    def names(self, **filters):
        wanted = [
            {"Name": name.replace("__", ":").replace("_", "-"), "Values": [values]} for name, values in filters.items()
        ]
        found = self.ec2.describe_instances(Filters=wanted)["Reservations"]
        return [one["InstanceId"] for reservation in found for one in reservation["Instances"]]

    def test_filters(self):
        one = self.launch(ClientToken="token-1", TagSpecifications=self.tags(pool="linux", owner="me"))[0]
        two = self.launch(
            zone="b",
            kind="c5.large",
            TagSpecifications=self.tags(pool="other"),
            InstanceMarketOptions={"MarketType": "spot"},
        )[0]
        first, second = one["InstanceId"], two["InstanceId"]
        self.assertEqual(self.names(client_token="token-1"), [first])
        self.assertEqual(self.names(tag__pool="l*x"), [first])
        self.assertEqual(self.names(tag_key="owner"), [first])
        self.assertEqual(self.names(instance_lifecycle="spot"), [second])
        self.assertEqual(self.names(instance_type="c5.*"), [second])
        self.assertEqual(self.names(availability_zone="eu-west-1?"), [first, second])
        self.assertEqual(self.names(private_ip_address=one["PrivateIpAddress"]), [first])
        self.assertEqual(self.names(tag__pool="linux", instance_type="c5.large"), [])
        self.until_state(first, "running")
        self.assertEqual(self.names(instance_state_code="16", tag__pool="linux"), [first])
        self.refused(
            "InvalidParameterValue",
            self.ec2.describe_instances,
            400,
            Filters=[{"Name": "clent-token", "Values": ["x"]}],
        )

    def test_pages(self):
        names = [self.launch()[0]["InstanceId"] for _ in range(12)]
        pages = list(self.ec2.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5}))
        self.assertEqual([len(page["Reservations"]) for page in pages], [5, 5, 2])
        self.assertEqual([one["Instances"][0]["InstanceId"] for page in pages for one in page["Reservations"]], names)
        volumes = self.ec2.get_paginator("describe_volumes").paginate(PaginationConfig={"PageSize": 5})
        self.assertEqual(len([one for page in volumes for one in page["Volumes"]]), 12)
        self.refused("InvalidParameterValue", self.ec2.describe_instances, NextToken="bm9uc2Vuc2U=")

    def test_status(self):
        self.set(boot=LONG)
        name = self.launch()[0]["InstanceId"]
        self.assertEqual(self.ec2.describe_instance_status(InstanceIds=[name])["InstanceStatuses"], [])
        shown = self.ec2.describe_instance_status(InstanceIds=[name], IncludeAllInstances=True)["InstanceStatuses"]
        self.assertEqual(shown[0]["InstanceState"]["Name"], "pending")
        self.set(boot=0.05)
        self.launch()
        self.until(lambda: self.ec2.describe_instance_status()["InstanceStatuses"])

    def test_events(self):
        names = [self.launch()[0]["InstanceId"] for _ in range(7)]
        for name in names:
            self.until_state(name, "running")
            self.lab("POST", "notice", {"id": name, "why": "instance-retirement"})
        other = self.launch()[0]["InstanceId"]
        self.until_state(other, "running")
        retired = [{"Name": "event.code", "Values": ["instance-retirement", "instance-stop"]}]
        pages = self.ec2.get_paginator("describe_instance_status").paginate(
            Filters=retired, PaginationConfig={"PageSize": 5}
        )
        pages = [page["InstanceStatuses"] for page in pages]
        self.assertEqual([len(page) for page in pages], [5, 2])
        self.assertEqual([one["InstanceId"] for page in pages for one in page], names)
        event = pages[0][0]["Events"][0]
        self.assertEqual(
            (event["Code"], event["Description"]),
            ("instance-retirement", "The instance is running on degraded hardware"),
        )
        self.assertGreater(event["NotBefore"], datetime.datetime.now(datetime.UTC))
        self.assertEqual(self.ec2.describe_instance_status(InstanceIds=[other])["InstanceStatuses"][0]["Events"], [])
        self.refused(
            "InvalidParameterValue",
            self.ec2.describe_instance_status,
            400,
            Filters=[{"Name": "tag:pool", "Values": ["linux"]}],
        )
        self.lab("POST", "notice", {"id": other, "why": "instance-explosion"}, status=400)
        self.lab("POST", "notice", {"id": other}, status=400)
        self.lab("POST", "notice", {"id": "i-0bad"}, status=404)

    def test_groups(self):
        given, default = self.launch(SecurityGroupIds=[self.aws["security_group"]])[0], self.launch()[0]
        self.assertEqual(given["SecurityGroups"], given["NetworkInterfaces"][0]["Groups"])
        self.assertEqual(given["SecurityGroups"][0]["GroupId"], self.aws["security_group"])
        self.assertEqual(default["SecurityGroups"][0]["GroupName"], "default")

    def test_tags_later(self):
        name = self.launch()[0]["InstanceId"]
        self.ec2.create_tags(Resources=[name], Tags=[{"Key": "late", "Value": "1"}])
        self.assertEqual(self.names(tag__late="1"), [name])
        self.assertEqual(self.truth()[name]["tags"], {"late": "1"})

    def test_what_doctor_asks(self):
        images = self.ec2.describe_images(ImageIds=[self.aws["images"]["x86_64"]])["Images"]
        self.assertEqual((images[0]["State"], images[0]["RootDeviceName"]), ("available", "/dev/xvda"))
        self.assertEqual(
            len(self.ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [self.aws["vpc"]]}])["Subnets"]), 4
        )
        self.assertEqual(
            self.ec2.describe_instance_types(InstanceTypes=["m5.large"])["InstanceTypes"][0]["VCpuInfo"][
                "DefaultVCpus"
            ],
            2,
        )
        zones = self.ec2.describe_instance_type_offerings(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["m5.large"]}]
        )
        self.assertIn("eu-west-1a", [one["Location"] for one in zones["InstanceTypeOfferings"]])
        self.assertEqual(
            self.ec2.describe_security_groups(GroupIds=[self.aws["security_group"]])["SecurityGroups"][0]["GroupName"],
            "lab",
        )
        members = self.aws["open_groups"]["members"]
        rule = self.ec2.describe_security_groups(GroupIds=[members])["SecurityGroups"][0]["IpPermissions"][0]
        self.assertEqual((rule["IpProtocol"], rule["UserIdGroupPairs"][0]["GroupId"]), ("-1", members))
        world = self.aws["open_groups"]["world"]
        rule = self.ec2.describe_security_groups(GroupIds=[world])["SecurityGroups"][0]["IpPermissions"][0]
        self.assertEqual(rule["IpRanges"], [{"CidrIp": "0.0.0.0/0"}])
        self.assertEqual(self.ec2.describe_availability_zones()["AvailabilityZones"][0]["State"], "available")
        self.ec2.describe_spot_price_history(
            InstanceTypes=["m5.large"], ProductDescriptions=["Linux/UNIX"], MaxResults=5
        )


class Volumes(Ec2Trial):
    def test_tagged_at_creation_and_removed_with_the_instance(self):
        tags = self.tags("volume", pool="linux") + self.tags(pool="linux")
        name = self.launch(TagSpecifications=tags)[0]["InstanceId"]
        mine = [{"Name": "tag:pool", "Values": ["linux"]}]
        volume = self.ec2.describe_volumes(Filters=mine)["Volumes"][0]
        self.assertEqual(volume["Attachments"][0]["InstanceId"], name)
        self.assertTrue(volume["Attachments"][0]["DeleteOnTermination"])
        self.ec2.terminate_instances(InstanceIds=[name])
        self.until_state(name, "terminated")
        self.assertEqual(self.ec2.describe_volumes()["Volumes"], [])

    def test_left_behind_unless_marked(self):
        disks = [
            {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3"}},
            {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 30}},
        ]
        name = self.launch(BlockDeviceMappings=disks, TagSpecifications=self.tags("volume", pool="linux"))[0][
            "InstanceId"
        ]
        self.assertEqual(len(self.ec2.describe_volumes()["Volumes"]), 2)
        self.ec2.terminate_instances(InstanceIds=[name])
        self.until_state(name, "terminated")
        left = self.ec2.describe_volumes(Filters=[{"Name": "tag:pool", "Values": ["linux"]}])["Volumes"]
        self.assertEqual([(one["State"], one["Size"]) for one in left], [("available", 30)])
        self.assertEqual(self.lab("GET", "instances")["volumes"][0]["instance"], None)
        self.ec2.delete_volume(VolumeId=left[0]["VolumeId"])
        self.assertEqual(self.lab("GET", "instances")["volumes"], [])


class Console(Ec2Trial):
    def test_shows_the_host_key_as_cloud_init_prints_it(self):
        # botocore decodes the text; on the wire it is base64.
        name = self.launch()[0]["InstanceId"]
        self.assertFalse(self.ec2.get_console_output(InstanceId=name).get("Output"))
        text = self.until(
            lambda: (lambda found: found if "END SSH HOST KEY KEYS" in found else None)(
                self.ec2.get_console_output(InstanceId=name).get("Output", "")
            )
        )
        key = text.partition("-----BEGIN SSH HOST KEY KEYS-----\n")[2].split("\n")[0]
        self.assertTrue(key.startswith("ssh-ed25519 "), text)
        base64.b64decode(key.split()[1], validate=True)

    def test_comes_late(self):
        self.set(console=LONG)
        name = self.launch()[0]["InstanceId"]
        self.until(lambda: self.listening(self.truth()[name]["address"]))
        self.assertFalse(self.ec2.get_console_output(InstanceId=name).get("Output"))


if __name__ == "__main__":
    unittest.main()
