"""Compares the stand-in's answers with those that a real API server gave: python3 compare.py FOLDER-OF-RECORDINGS

It sends the requests of tests/cluster/api.rs, and prints what differs. Names of namespaces, users, quotas and containers are the
stand-in's own. Of a pod, it compares what Greenroom reads.
"""

import copy
import json
import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

NAMESPACE = "/api/v1/namespaces/ci-jobs"
# What a pod has in every answer.
POD = ("name", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "labels", "generation")
OTHER = "0f3a6c1e-8f6d-4a3e-9a53-1d8c6e5b7a90"


class StandIn:
    def __enter__(self):
        here = os.path.dirname(os.path.abspath(__file__))
        self.process = subprocess.Popen([sys.executable, "-B", here], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        hello = json.loads(self.process.stdout.readline())
        self.url, self.control = hello["url"], hello["control"]
        self.trust = ssl.create_default_context(cafile=os.path.join(hello["directory"], "ca.crt"))
        return self

    def __exit__(self, *_error):
        self.process.stdin.close()
        self.process.wait()

    def set(self, **settings):
        request = urllib.request.Request(f"http://{self.control}/settings", json.dumps(settings).encode(), method="POST")
        urllib.request.urlopen(request).read()

    def call(self, method, path, body=None, token="ci"):
        """Status and body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Authorization": f"Bearer {token}"}, method=method)
        try:
            with urllib.request.urlopen(request, context=self.trust) as answer:
                return answer.status, self.read(answer)
        except urllib.error.HTTPError as error:
            return error.code, self.read(error)

    @staticmethod
    def read(answer):
        text = answer.read().decode()
        try:
            return json.loads(text)
        except ValueError:
            return text


def pod(name, **changes):
    """As manifests.rs has it; the stand-in runs a container `job`."""
    container = {"name": "job", "image": "greenroom.test/busybox:1", "command": ["sleep", "1000"]}
    container.update(changes.pop("container", {}))
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"greenroom-pool": "linux"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **changes},
    }


def deletion(uid):
    return {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 1, "preconditions": {"uid": uid}}


def requests(api):
    """Names of recordings, and the stand-in's answers to the same requests."""
    pods = f"{NAMESPACE}/pods"
    one = f"{pods}/linux-1"
    nowhere = {"nodeSelector": {"pool": "none"}}
    yield "get-missing", api.call("GET", one)
    yield "log-missing", api.call("GET", f"{one}/log")
    yield "delete-gone", api.call("DELETE", one, deletion(OTHER))
    yield "get-unknown-token", api.call("GET", one, token="made up")
    yield "create-dry-run", api.call("POST", f"{pods}?dryRun=All", pod("linux-1"))
    yield "create", api.call("POST", pods, pod("linux-1", **nowhere))
    yield "create-again", api.call("POST", pods, pod("linux-1", **nowhere))
    yield "log-unscheduled", api.call("GET", f"{one}/log")
    yield "delete-another-uid", api.call("DELETE", one, deletion(OTHER))
    yield "list-empty", api.call("GET", f"{pods}?labelSelector=greenroom-pool%3Dother")
    api.call("POST", pods, pod("linux-2", **nowhere))
    label = "labelSelector=greenroom-pool%3Dlinux&limit=1"
    first = api.call("GET", f"{pods}?{label}")
    yield "list-first-page", first
    yield "list-last-page", api.call("GET", f"{pods}?{label}&continue={first[1]['metadata']['continue']}")
    deadline = time.monotonic() + 60
    two = f"{pods}/linux-2"
    while "conditions" not in api.call("GET", two)[1]["status"] and time.monotonic() < deadline:
        time.sleep(0.02)
    uid = api.call("GET", two)[1]["metadata"]["uid"]
    yield "delete-unscheduled", api.call("DELETE", two, deletion(uid))
    api.call("POST", pods, pod("linux-3", container={"image": "never/absent:1"}))
    waiting = f"{pods}/linux-3/log"
    while "ErrImageNeverPull" not in str(api.call("GET", waiting)[1]) and time.monotonic() < deadline:
        time.sleep(0.02)
    yield "log-waiting", api.call("GET", waiting)

    yield "create-invalid-name", api.call("POST", pods, pod("Linux_1"))
    yield "create-missing-account", api.call("POST", pods, pod("linux-1", serviceAccountName="missing"))
    yield "create-missing-priority", api.call("POST", pods, pod("linux-1", priorityClassName="urgent"))
    api.set(limit_ranges=[{"type": "Container", "max": {"memory": "64Mi"}}])
    big = {"resources": {"limits": {"memory": "1Gi"}}}
    yield "create-over-limit-range", api.call("POST", f"{pods}?dryRun=All", pod("linux-1", container=big))
    api.set(limit_ranges=[], restricted=True)
    yield "create-pod-security", api.call("POST", pods, pod("linux-1"))
    api.set(restricted=False, quota={"pods": "1"})
    yield "create-over-quota", api.call("POST", f"{pods}?dryRun=All", pod("linux-2", **nowhere))
    api.set(quota={}, admin=True)
    yield "create-missing-namespace", api.call("POST", "/api/v1/namespaces/nowhere/pods", pod("linux-1"))

    api.set(admin=False, role=["get pods"])
    yield "create-without-right", api.call("POST", pods, pod("linux-1"))
    yield "list-without-right", api.call("GET", pods)
    yield "log-without-right", api.call("GET", f"{one}/log")
    yield "delete-without-right", api.call("DELETE", one, deletion(OTHER))
    for verb, name in (("get", "review-allowed"), ("create", "review-denied")):
        attributes = {"namespace": "ci-jobs", "verb": verb, "resource": "pods"}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                  "spec": {"resourceAttributes": attributes}}
        yield name, api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)


def essence(status, body):
    """What an answer is compared by."""
    if not isinstance(body, dict):
        return {"status": status, "body": body}
    body = copy.deepcopy(body)
    if body["kind"] == "Pod":
        body = {"kind": "Pod", "metadata": metadata(body), "status": {"phase": body["status"]["phase"]}}
    elif "items" in body:
        body["items"] = [{"metadata": metadata(item)} for item in body["items"]]
        body["metadata"] = sorted(body["metadata"])
    elif "status" in body and isinstance(body["status"], dict):
        body = {"kind": body["kind"], "status": {"allowed": body["status"]["allowed"]}}
    return {"status": status, "body": json.loads(plain(json.dumps(body)))}


def metadata(item):
    found = item["metadata"]
    kept = {key: found[key] for key in POD if key in found}
    return {key: "…" if isinstance(value, str) and key != "name" else value for key, value in kept.items()}


def plain(text):
    """Without the names that each of the two chooses, and without explanations of what a valid name is."""
    for pattern, instead in (
        (r"system:serviceaccount:[a-z-]+:[a-z-]+", "USER"), (r'in the namespace \\"[a-z-]+', r'in the namespace \\"NAMESPACE'),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID"), (r"service account [a-z-]+/", "service account NAMESPACE/"),
        (r'container \\"(main|job)', r'container \\"NAME'),
        (r"exceeded quota: [a-z]+, requested: pods=1, used: pods=\d+, limited: pods=1", "exceeded quota"),
        (r'Invalid value: [^:"]*["\'\\]+Linux_1.*?(?=", "|"}|"\])', "Invalid value"),
    ):
        text = re.sub(pattern, instead, text)
    return text


def main():
    folder, count, differ = sys.argv[1], 0, 0
    with StandIn() as api:
        for name, answer in requests(api):
            with open(os.path.join(folder, f"{name}.json"), encoding="utf-8") as file:
                recorded = json.load(file)
            real, own = essence(recorded["status"], recorded["body"]), essence(*answer)
            count += 1
            if real != own:
                differ += 1
                print(f"{name}:\n  real:     {json.dumps(real, sort_keys=True)}\n  stand-in: {json.dumps(own, sort_keys=True)}")
    print(f"{count} answers compared, {differ} differ")
    return 1 if differ else 0


sys.exit(main())
