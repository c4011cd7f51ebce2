"""Tests vCPU limits: Service Quotas reports them, and launches obey the same ones."""

import unittest

from trial import Ec2Trial, http

STANDARD, STANDARD_SPOT, GPU = "L-1216C47A", "L-34B43A08", "L-DB2E81BA"
SPOT = {"MarketType": "spot"}


class Quotas(Ec2Trial):
    def setUp(self):
        super().setUp()
        self.quotas = self.client(service="service-quotas")

    def own(self, quota):
        return self.quotas.get_service_quota(ServiceCode="ec2", QuotaCode=quota)["Quota"]["Value"]

    def default(self, quota):
        return self.quotas.get_aws_default_service_quota(ServiceCode="ec2", QuotaCode=quota)["Quota"]["Value"]

    def test_an_account_without_a_limit_of_its_own_has_the_default(self):
        self.refused("NoSuchResourceException", self.own, 400, quota=STANDARD)
        self.assertGreater(self.default(STANDARD), 100_000)
        self.launch(MinCount=3, MaxCount=3)
        self.refused("NoSuchResourceException", self.default, 400, quota="L-00000000")

    def test_what_is_told_is_what_launches_are_held_to(self):
        self.set(quotas={"on-demand": 4, "spot": 2})
        self.assertEqual((self.own(STANDARD), self.own(STANDARD_SPOT)), (4, 2))
        self.launch(MinCount=2, MaxCount=2)
        self.refused("VcpuLimitExceeded", self.ec2.run_instances, 400, **self.wanted(kind="c5.large"))
        self.launch(InstanceMarketOptions=SPOT)
        spot = self.wanted(InstanceMarketOptions=SPOT)
        self.refused("MaxSpotInstanceCountExceeded", self.ec2.run_instances, 400, **spot)

    def test_each_class_of_families_has_a_limit_of_its_own(self):
        self.set(quotas={"on-demand": 4})
        self.assertEqual(self.own(GPU), 4)
        self.launch(MinCount=2, MaxCount=2)
        self.launch(kind="g4dn.xlarge")
        self.refused("VcpuLimitExceeded", self.ec2.run_instances, 400, **self.wanted(kind="g5.xlarge"))

    def test_faults(self):
        for mode, code in [("denied", "AccessDeniedException"), ("throttled", "TooManyRequestsException")]:
            self.fault("GetServiceQuota", mode)
            self.refused(code, self.own, 400, quota=STANDARD)
        self.fault("Get*Quota", "rejected", code="ServiceException", match={"QuotaCode": STANDARD})
        self.refused("ServiceException", self.default, 400, quota=STANDARD)
        self.assertEqual((self.counts("GetServiceQuota"), self.counts("GetAWSDefaultServiceQuota")), (2, 1))

    def test_what_no_client_sends_is_a_violation(self):
        self.refused("UnknownOperationException", self.quotas.list_services, 400)
        self.accused("does not play ListServices")
        target = {"X-Amz-Target": "ServiceQuotasV20190624.GetServiceQuota"}
        scope = f"20260101/{self.aws['region']}/servicequotas/aws4_request"
        signed = {"Authorization": f"AWS4-HMAC-SHA256 Credential=A/{scope}"}
        as_json = {"Content-Type": "application/x-amz-json-1.1"}
        for headers, body, expected in [
            ({**target, **as_json}, {}, "must be signed for servicequotas"),
            ({**target, **signed}, {}, "the content is application/json"),
            ({**target, **signed, **as_json}, {"ServiceCode": "ec2"}, "QuotaCode"),
            ({**target, **signed, **as_json}, {"ServiceCode": "ec2", "QuotaCode": STANDARD, "Code": 1}, "Code"),
        ]:
            self.assertEqual(http("POST", self.url + "/", body, headers)[0], 400)
            self.accused(expected)


if __name__ == "__main__":
    unittest.main()
