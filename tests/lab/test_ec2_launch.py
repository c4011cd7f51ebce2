"""Tests launches on EC2: tokens, boot, checks, capacity and quotas, dry runs."""

import unittest

from trial import LONG, Ec2Trial


class Tokens(Ec2Trial):
    def test_a_repeated_token_gives_the_same_instance(self):
        first = self.launch(ClientToken="one")[0]
        again = self.launch(ClientToken="one")[0]
        self.assertEqual(first["InstanceId"], again["InstanceId"])
        self.assertEqual(first["ClientToken"], "one")
        self.assertEqual(len(self.truth()), 1)
        self.assertNotEqual(self.launch(ClientToken="two")[0]["InstanceId"], first["InstanceId"])

    def test_a_token_with_other_parameters_is_refused(self):
        self.launch(ClientToken="one")
        self.refused(
            "IdempotentParameterMismatch", self.ec2.run_instances, **self.wanted(kind="m5.xlarge", ClientToken="one")
        )
        self.assertEqual(len(self.truth()), 1)

    def test_a_token_outlives_its_instance(self):
        name = self.launch(ClientToken="one")[0]["InstanceId"]
        self.ec2.terminate_instances(InstanceIds=[name])
        self.until_state(name, "terminated")
        again = self.launch(ClientToken="one")[0]
        self.assertEqual((again["InstanceId"], again["State"]["Name"]), (name, "terminated"))
        self.assertEqual(self.truth(), {})

    def test_a_refused_launch_leaves_its_token_free(self):
        self.fault("RunInstances", "capacity")
        self.refused("InsufficientInstanceCapacity", self.ec2.run_instances, 500, **self.wanted(ClientToken="one"))
        self.launch(ClientToken="one", kind="m5.xlarge")

    def test_a_launch_template_is_made_once(self):
        wanted = {"LaunchTemplateName": "t", "LaunchTemplateData": {"InstanceType": "m5.large"}, "ClientToken": "t1"}
        made = [self.ec2.create_launch_template(**wanted)["LaunchTemplate"]["LaunchTemplateId"] for _ in range(2)]
        self.assertEqual(made[0], made[1])


class Boot(Ec2Trial):
    def test_pending_then_running(self):
        self.set(boot=LONG)
        name = self.launch()[0]["InstanceId"]
        self.assertEqual(self.described(name)["State"], {"Code": 0, "Name": "pending"})
        self.set(boot=0.05)
        name = self.launch()[0]["InstanceId"]
        self.assertEqual(self.until_state(name, "running")["State"]["Code"], 16)

    def test_shutting_down_then_terminated(self):
        self.set(shutdown=LONG)
        name = self.launch()[0]["InstanceId"]
        self.until_state(name, "running")
        answer = self.ec2.terminate_instances(InstanceIds=[name])["TerminatingInstances"][0]
        self.assertEqual(
            (answer["PreviousState"]["Name"], answer["CurrentState"]["Name"]), ("running", "shutting-down")
        )
        self.assertEqual(self.described(name)["State"]["Name"], "shutting-down")
        self.set(shutdown=0.05)
        name = self.launch()[0]["InstanceId"]
        self.ec2.terminate_instances(InstanceIds=[name])
        gone = self.until_state(name, "terminated")
        self.assertEqual(gone["StateReason"]["Code"], "Client.UserInitiatedShutdown")
        self.assertNotIn("PrivateIpAddress", gone)
        again = self.ec2.terminate_instances(InstanceIds=[name])["TerminatingInstances"][0]
        self.assertEqual(again["CurrentState"]["Name"], "terminated")

    def test_a_terminated_instance_is_forgotten_in_time(self):
        self.set(remembered=0.2)
        name = self.launch()[0]["InstanceId"]
        self.ec2.terminate_instances(InstanceIds=[name])
        self.until(lambda: not self.ec2.describe_instances()["Reservations"])
        self.refused("InvalidInstanceID.NotFound", self.ec2.describe_instances, InstanceIds=[name])

    def test_young_ids_are_unknown(self):
        self.set(visible=LONG)
        name = self.launch(TagSpecifications=self.tags(pool="linux"))[0]["InstanceId"]
        self.refused("InvalidInstanceID.NotFound", self.ec2.describe_instances, 400, InstanceIds=[name])
        self.refused("InvalidInstanceID.NotFound", self.ec2.terminate_instances, InstanceIds=[name])
        mine = [{"Name": "tag:pool", "Values": ["linux"]}]
        self.assertEqual(self.ec2.describe_instances()["Reservations"], [])
        self.assertEqual(self.ec2.describe_instances(Filters=mine)["Reservations"], [])
        self.assertEqual(self.ec2.describe_volumes()["Volumes"], [])
        self.assertEqual(len(self.truth()), 1)
        self.set(visible=0.0)
        self.assertEqual(len(self.ec2.describe_instances(Filters=mine)["Reservations"]), 1)

    def test_a_launch_that_ends_in_an_error(self):
        self.fault("RunInstances", "ends-in-error", code="Client.VolumeLimitExceeded")
        name = self.launch()[0]["InstanceId"]
        gone = self.until_state(name, "terminated")
        self.assertEqual(gone["StateReason"]["Code"], "Client.VolumeLimitExceeded")


class Checks(Ec2Trial):
    def test_what_does_not_exist(self):
        run = self.ec2.run_instances
        self.refused("InvalidAMIID.NotFound", run, **{**self.wanted(), "ImageId": "ami-0123456789abcdef0"})
        self.refused("InvalidSubnetID.NotFound", run, **{**self.wanted(), "SubnetId": "subnet-0123456789abcdef0"})
        self.refused("InvalidGroup.NotFound", run, **self.wanted(SecurityGroupIds=["sg-0123456789abcdef0"]))
        self.refused("InvalidKeyPair.NotFound", run, **self.wanted(KeyName="nobody"))
        self.refused("InvalidParameterValue", run, **self.wanted(kind="m99.huge"))
        nowhere = {key: value for key, value in self.wanted().items() if key != "SubnetId"}
        self.refused("InvalidParameterValue", run, **nowhere, Placement={"AvailabilityZone": "eu-west-1z"})
        self.assertEqual(self.truth(), {})

    def test_an_image_of_another_architecture(self):
        self.refused("InvalidParameterValue", self.ec2.run_instances, **self.wanted(kind="m6g.large"))
        self.launch(kind="m6g.large", ImageId=self.aws["images"]["arm64"])

    def test_dry_runs(self):
        self.refused("DryRunOperation", self.ec2.run_instances, 412, **self.wanted(DryRun=True))
        self.refused(
            "InvalidAMIID.NotFound",
            self.ec2.run_instances,
            **{**self.wanted(DryRun=True), "ImageId": "ami-0123456789abcdef0"},
        )
        self.refused("DryRunOperation", self.ec2.describe_instances, 412, DryRun=True)
        self.refused(
            "DryRunOperation",
            self.ec2.create_tags,
            412,
            DryRun=True,
            Resources=["i-0123456789abcdef0"],
            Tags=[{"Key": "a", "Value": "b"}],
        )
        self.fault("RunInstances", "denied", count=None)
        message = self.refused("UnauthorizedOperation", self.ec2.run_instances, 403, **self.wanted(DryRun=True))
        self.assertIn("Encoded authorization failure message", message)
        self.assertEqual(self.truth(), {})

    def test_a_launch_template(self):
        data = {
            "ImageId": self.aws["images"]["x86_64"],
            "InstanceType": "m5.large",
            "TagSpecifications": self.tags(owner="me"),
        }
        made = self.ec2.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data)["LaunchTemplate"]
        subnet = self.aws["subnets"]["eu-west-1b"]
        launch = {
            "MinCount": 1,
            "MaxCount": 1,
            "SubnetId": subnet,
            "LaunchTemplate": {"LaunchTemplateId": made["LaunchTemplateId"], "Version": "$Latest"},
        }
        got = self.ec2.run_instances(**launch, InstanceType="m5.xlarge", TagSpecifications=self.tags(pool="p"))[
            "Instances"
        ][0]
        tags = {tag["Key"]: tag["Value"] for tag in got["Tags"]}
        self.assertEqual((got["InstanceType"], got["Placement"]["AvailabilityZone"]), ("m5.xlarge", "eu-west-1b"))
        self.assertEqual((tags["owner"], tags["pool"], tags["aws:ec2launchtemplate:version"]), ("me", "p", "1"))
        self.refused(
            "InvalidLaunchTemplateName.NotFoundException",
            self.ec2.run_instances,
            **{**launch, "LaunchTemplate": {"LaunchTemplateName": "no"}},
        )


class DefaultNetwork(Ec2Trial):
    def placed(self, zone, **more):
        """A launch that names a zone, and no subnet."""
        wanted = {**self.wanted(Placement={"AvailabilityZone": zone}), **more}
        del wanted["SubnetId"]
        return wanted

    def test_a_zone_stands_for_its_default_subnet(self):
        got = self.ec2.run_instances(**self.placed("eu-west-1b"))["Instances"][0]
        network = self.aws["default"]
        self.assertEqual((got["VpcId"], got["SubnetId"]), (network["vpc"], network["subnets"]["eu-west-1b"]))
        self.assertEqual([group["GroupId"] for group in got["SecurityGroups"]], [network["security_group"]])
        self.until(lambda: self.listening(got["PrivateIpAddress"]))
        public = self.described(got["InstanceId"])["PublicIpAddress"]
        self.assertTrue(self.listening(public), "default subnets give public addresses")

    def test_a_launch_without_any_place_lands_somewhere_in_it(self):
        wanted = self.placed("eu-west-1a")
        del wanted["Placement"]
        self.assertEqual(self.ec2.run_instances(**wanted)["Instances"][0]["VpcId"], self.aws["default"]["vpc"])

    def test_a_group_of_another_network_is_refused(self):
        message = self.refused(
            "InvalidParameter",
            self.ec2.run_instances,
            400,
            **self.placed("eu-west-1a", SecurityGroupIds=[self.aws["security_group"]]),
        )
        self.assertIn("belong to different networks", message)
        foreign = [self.aws["default"]["security_group"]]
        self.refused("InvalidParameter", self.ec2.run_instances, 400, **self.wanted(SecurityGroupIds=foreign))
        self.ec2.run_instances(**self.placed("eu-west-1a", SecurityGroupIds=foreign))

    def test_default_subnets_are_found_by_their_zones(self):
        zones = {"Name": "availability-zone", "Values": ["eu-west-1a", "eu-west-1c"]}
        found = self.ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}, zones])["Subnets"]
        wanted = [self.aws["default"]["subnets"][zone] for zone in zones["Values"]]
        self.assertEqual(sorted(one["SubnetId"] for one in found), sorted(wanted))
        self.assertEqual({one["AvailableIpAddressCount"] for one in found}, {251})


class Ipv6(Ec2Trial):
    def ipv6_launch(self, subnet=None, count=1, **more):
        """A launch whose interface requests IPv6 addresses."""
        wanted = self.wanted(**more)
        subnet = subnet or wanted["SubnetId"]
        del wanted["SubnetId"]
        interface = {"DeviceIndex": 0, "SubnetId": subnet, "Ipv6AddressCount": count}
        return {**wanted, "NetworkInterfaces": [interface]}

    def test_an_address_is_shown_and_answers(self):
        self.need_ipv6()
        got = self.ec2.run_instances(**self.ipv6_launch())["Instances"][0]
        shown = self.until_state(got["InstanceId"], "running")
        for one in (got, shown):
            inside = one["NetworkInterfaces"][0]["Ipv6Addresses"]
            self.assertEqual((one["Ipv6Address"], [address["Ipv6Address"] for address in inside]), ("::1", ["::1"]))
        self.until(lambda: self.listening("::1"))
        self.assertTrue(self.listening(shown["PrivateIpAddress"]))
        self.ec2.terminate_instances(InstanceIds=[got["InstanceId"]])
        self.assertNotIn("Ipv6Address", self.until_state(got["InstanceId"], "terminated"))
        self.assertFalse(self.listening("::1"))
        self.ec2.run_instances(**self.ipv6_launch())

    def test_nobody_gets_one_unasked(self):
        one = self.launch()[0]
        self.assertNotIn("Ipv6Address", one)
        self.assertEqual(one["NetworkInterfaces"][0].get("Ipv6Addresses", []), [])

    def test_only_one_instance_has_it(self):
        both = self.ipv6_launch(MinCount=2, MaxCount=2)
        self.refused("InsufficientFreeAddressesInSubnet", self.ec2.run_instances, **both)
        self.ec2.run_instances(**self.ipv6_launch(MaxCount=2))
        self.refused("InsufficientFreeAddressesInSubnet", self.ec2.run_instances, **self.ipv6_launch(zone="b"))
        self.launch()

    def test_a_subnet_needs_a_block(self):
        for subnet in (self.aws["small_subnet"], self.aws["default"]["subnets"]["eu-west-1a"]):
            for dry in (True, False):
                self.refused(
                    "InvalidParameterValue", self.ec2.run_instances, 400, **self.ipv6_launch(subnet=subnet, DryRun=dry)
                )
        self.refused("DryRunOperation", self.ec2.run_instances, **self.ipv6_launch(DryRun=True))
        self.refused("UnsupportedOperation", self.ec2.run_instances, **self.ipv6_launch(count=2))
        self.accused("one IPv6 address at the most")

    def test_subnets_and_groups_tell_of_it(self):
        subnet = self.ec2.describe_subnets(SubnetIds=[self.aws["subnets"]["eu-west-1a"]])["Subnets"][0]
        self.assertEqual(len(subnet["Ipv6CidrBlockAssociationSet"]), 1)
        group = self.ec2.describe_security_groups(GroupIds=[self.aws["security_group"]])["SecurityGroups"][0]
        self.assertEqual(group["IpPermissions"][0]["Ipv6Ranges"], [{"CidrIpv6": "::1/128"}])


class Room(Ec2Trial):
    def test_capacity_of_a_place(self):
        self.set(capacity={"m5.large/eu-west-1a": 2, "m5.large/eu-west-1a/spot": 0})
        self.assertEqual(len(self.launch(MaxCount=5)), 2)
        message = self.refused("InsufficientInstanceCapacity", self.ec2.run_instances, 500, **self.wanted())
        self.assertIn("eu-west-1a", message)
        self.launch(zone="b")
        spot = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
        self.refused(
            "InsufficientInstanceCapacity", self.ec2.run_instances, 500, **self.wanted(InstanceMarketOptions=spot)
        )
        self.assertEqual(self.launch(zone="b", InstanceMarketOptions=spot)[0]["InstanceLifecycle"], "spot")

    def test_quotas(self):
        self.set(quotas={"on-demand": 4, "spot": 2})
        self.launch(MaxCount=2, MinCount=2)
        self.refused("VcpuLimitExceeded", self.ec2.run_instances, 400, **self.wanted(zone="b"))
        spot = {"MarketType": "spot"}
        name = self.launch(InstanceMarketOptions=spot)[0]["InstanceId"]
        self.refused(
            "MaxSpotInstanceCountExceeded", self.ec2.run_instances, 400, **self.wanted(InstanceMarketOptions=spot)
        )
        self.ec2.terminate_instances(InstanceIds=[name])
        self.until_state(name, "terminated")
        self.launch(InstanceMarketOptions=spot)

    def test_free_addresses(self):
        def free():
            subnet = self.ec2.describe_subnets(SubnetIds=[self.aws["small_subnet"]])["Subnets"][0]
            return subnet["AvailableIpAddressCount"]

        self.set(shutdown=0.0)
        self.assertEqual(free(), 11)
        here = {**self.wanted(MinCount=11, MaxCount=11), "SubnetId": self.aws["small_subnet"]}
        names = [one["InstanceId"] for one in self.ec2.run_instances(**here)["Instances"]]
        self.assertEqual(free(), 0)
        self.refused("InsufficientFreeAddressesInSubnet", self.ec2.run_instances, 400, **{**here, "MinCount": 1})
        self.ec2.terminate_instances(InstanceIds=names)
        self.until(lambda: free() == 11)

    def test_faults_choose_their_candidates(self):
        self.fault(
            "RunInstances", "capacity", match={"InstanceType": "m5.*", "AvailabilityZone": "eu-west-1a"}, count=None
        )
        self.fault("RunInstances", "quota", match={"Lifecycle": "spot"})
        self.refused("InsufficientInstanceCapacity", self.ec2.run_instances, **self.wanted())
        self.launch(zone="b")
        self.launch(kind="c5.large")
        self.refused(
            "MaxSpotInstanceCountExceeded",
            self.ec2.run_instances,
            **self.wanted(zone="b", InstanceMarketOptions={"MarketType": "spot"}),
        )


if __name__ == "__main__":
    unittest.main()
