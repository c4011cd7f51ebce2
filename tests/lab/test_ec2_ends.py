"""Tests how EC2's instances end, and logins while they run."""

import os
import textwrap
import unittest

from trial import Ec2Trial, Keys


class Login(Ec2Trial):
    def setUp(self):
        super().setUp()
        self.mine, self.host = Keys(self.home, "mine"), Keys(self.home, "host")
        self.set(boot=0.05, ssh=0.0)

    def cloud_config(self, more=""):
        private = textwrap.indent(self.host.private, "    ")
        users = f'users:\n  - name: ci\n    ssh_authorized_keys: ["{self.mine.public}"]\n'
        keys = f"ssh_keys:\n  ed25519_private: |\n{private}\n  ed25519_public: {self.host.public}\n"
        return f'#cloud-config\nssh_authorized_keys: ["{self.mine.public}"]\n{users}{keys}{more}'

    def reached(self, **wanted):
        """A launched instance whose sshd answers: its id and address."""
        one = self.launch(**wanted)[0]
        self.until(lambda: self.listening(one["PrivateIpAddress"]))
        return one["InstanceId"], one["PrivateIpAddress"]

    def test_cloud_config(self):
        files = "write_files:\n  - path: /opt/lab/hello\n    content: hi\n    permissions: '0755'\n"
        files += "runcmd:\n  - [sh, -c, 'echo ran >/opt/lab/ran']\n"
        _, address = self.reached(UserData=self.cloud_config(files))
        done = self.ssh(
            self.mine,
            address,
            "cat /opt/lab/hello /opt/lab/ran; stat -c %a /opt/lab/hello; id -un",
            host_key=self.host.public,
        )
        self.assertEqual(done.stdout.split(), ["hiran", "755", "root"], done.stderr)
        done = self.ssh(self.mine, address, "id -un", user="ci", host_key=self.host.public)
        self.assertEqual(done.stdout.split(), ["ci"], done.stderr)

    def test_a_plain_script_runs_inside(self):
        script = f"""#!/bin/sh
            set -eu
            cat >/etc/ssh/ssh_host_ed25519_key <<'KEY'
            {self.host.private.strip()}
            KEY
            echo '{self.mine.public}' >>~root/.ssh/authorized_keys
            systemctl restart ssh
            echo the script ran
        """
        script = "\n".join(line.strip() for line in script.splitlines()) + "\n"
        name, address = self.reached(UserData=script)
        done = self.ssh(self.mine, address, "true", host_key=self.host.public)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the script ran", self.lab("GET", f"console?id={name}")["console"])

    def test_a_key_pair_and_no_other(self):
        self.ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=self.mine.public.encode())
        _, address = self.reached(KeyName="mine")
        self.assertEqual(self.ssh(self.mine, address, "true").returncode, 0)
        self.assertEqual(self.ssh(self.host, address, "true").returncode, 255)
        self.assertEqual(self.ssh(self.mine, address, "true", host_key=self.host.public).returncode, 255)

    def test_instances_are_apart_and_leave_nothing(self):
        config = self.cloud_config()
        (_, one), (_, two) = self.reached(UserData=config), self.reached(UserData=config)
        self.assertNotEqual(one, two)
        places = ["/etc/lab-was-here", "/tmp/lab-was-here", "/lab-was-here", "/var/tmp/lab-was-here"]
        done = self.ssh(self.mine, one, f"echo here | tee {' '.join(places)}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.ssh(self.mine, two, f"cat {' '.join(places)}").stdout, "")
        self.assertEqual([place for place in places if os.path.exists(place)], [])
        self.assertEqual(self.ssh(self.mine, one, "ps -e -o comm=").stdout.split().count("sshd"), 2)

    def test_a_public_address(self):
        interface = {"DeviceIndex": 0, "AssociatePublicIpAddress": True, "SubnetId": self.aws["subnets"]["eu-west-1a"]}
        wanted = {key: value for key, value in super().wanted().items() if key != "SubnetId"}
        one = self.ec2.run_instances(**wanted, NetworkInterfaces=[interface])["Instances"][0]
        self.assertNotIn("PublicIpAddress", self.described(self.launch()[0]["InstanceId"]))
        public = self.described(one["InstanceId"])["PublicIpAddress"]
        self.assertNotEqual(public, one["PrivateIpAddress"])
        self.until(lambda: self.listening(public) and self.listening(one["PrivateIpAddress"]))

    def test_termination_ends_what_runs(self):
        name, address = self.reached(UserData=self.cloud_config())
        self.ssh(self.mine, address, "setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
        self.ec2.terminate_instances(InstanceIds=[name])
        self.assertFalse(self.listening(address))
        self.assertIsNone(self.truth()[name]["process"])

    def test_spot_interruption(self):
        name, address = self.reached(UserData=self.cloud_config(), InstanceMarketOptions={"MarketType": "spot"})
        self.lab("POST", "interrupt", {"id": name})
        self.assertFalse(self.listening(address))
        gone = self.until_state(name, "terminated")
        self.assertEqual(gone["StateReason"]["Code"], "Server.SpotInstanceTermination")
        self.lab("POST", "interrupt", {"id": name}, status=404)

    def requests(self, **filters):
        """The status codes of the spot requests that match, by instance."""
        wanted = [{"Name": name.replace("_", "-"), "Values": [value]} for name, value in filters.items()]
        found = self.ec2.describe_spot_instance_requests(Filters=wanted)["SpotInstanceRequests"]
        return {one["InstanceId"]: (one["State"], one["Status"]["Code"]) for one in found}

    def test_a_reclaim_is_announced_before_it_happens(self):
        spot = {"MarketType": "spot"}
        tags = self.tags("spot-instances-request", pool="linux")
        name = self.launch(InstanceMarketOptions=spot, TagSpecifications=tags)[0]["InstanceId"]
        other = self.launch(InstanceMarketOptions=spot)[0]["InstanceId"]
        self.launch()
        running, reclaimed = ("active", "fulfilled"), ("closed", "instance-terminated-no-capacity")
        self.until_state(name, "running")
        self.assertEqual(self.requests(), {name: running, other: running})
        identity = self.described(name)["SpotInstanceRequestId"]
        found = self.ec2.describe_spot_instance_requests(SpotInstanceRequestIds=[identity])["SpotInstanceRequests"]
        self.assertEqual([one["InstanceId"] for one in found], [name])
        mine = [{"Name": "tag:pool", "Values": ["linux"]}]
        found = self.ec2.describe_spot_instance_requests(Filters=mine)["SpotInstanceRequests"]
        self.assertEqual([one["InstanceId"] for one in found], [name])
        self.lab("POST", "notice", {"id": name})
        self.assertEqual(self.requests(status_code="instance-terminated-no-capacity"), {name: reclaimed})
        self.assertEqual(self.described(name)["State"]["Name"], "running")
        self.lab("POST", "interrupt", {"id": name})
        self.ec2.terminate_instances(InstanceIds=[other])
        self.assertEqual(self.requests(), {name: reclaimed, other: ("closed", "instance-terminated-by-user")})

    def test_another_reason_to_be_taken_away(self):
        name = self.launch()[0]["InstanceId"]
        self.lab("POST", "interrupt", {"id": name}, status=400)
        self.lab("POST", "interrupt", {"id": name, "why": "Server.InternalError"})
        self.assertEqual(self.until_state(name, "terminated")["StateReason"]["Code"], "Server.InternalError")

    def test_a_reclaim_by_fault(self):
        self.fault("RunInstances", "spot-reclaim", match={"Lifecycle": "spot"}, seconds=0.1)
        name = self.launch(InstanceMarketOptions={"MarketType": "spot"})[0]["InstanceId"]
        self.assertEqual(self.until_state(name, "terminated")["StateReason"]["Code"], "Server.SpotInstanceTermination")

    def test_powering_itself_off(self):
        config = self.cloud_config("runcmd:\n  - systemd-run --on-active=1s systemctl poweroff\n")
        gone = self.launch(UserData=config, InstanceInitiatedShutdownBehavior="terminate")[0]["InstanceId"]
        kept = self.launch(UserData=config)[0]["InstanceId"]
        reason = self.until_state(gone, "terminated")["StateReason"]["Code"]
        self.assertEqual(reason, "Client.InstanceInitiatedShutdown")
        self.until_state(kept, "stopped")

    def test_powering_off_in_the_script(self):
        name = self.launch(
            UserData="#!/bin/sh\nshutdown -P now\necho never\n", InstanceInitiatedShutdownBehavior="terminate"
        )[0]["InstanceId"]
        self.until_state(name, "terminated")
        self.assertNotIn("never", self.lab("GET", f"console?id={name}")["console"])

    def test_user_data_that_is_not_understood(self):
        self.reached(UserData="#cloud-config\npackages: [git]\n")
        self.accused("key `packages` of #cloud-config")


if __name__ == "__main__":
    unittest.main()
