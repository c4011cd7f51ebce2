"""The metadata server of the runner host: default credentials and network tags; GCE_METADATA_HOST leads clients here."""

import json
import uuid

from shared.exchange import Answer

from . import catalog

ROOT = "/computeMetadata/v1"
ACCOUNT = f"{ROOT}/instance/service-accounts/default"
# Network tags of the runner host.
TAGS = ["manager"]
FLAVOR = {"Metadata-Flavor": "Google"}


class MetadataServer:
    def __init__(self, judge):
        self._judge = judge

    def fits(self, request):
        return request.path.startswith("/computeMetadata") or (request.method == "GET" and request.path == "/")

    def handle(self, request):
        if request.path == "/":
            return Answer(200, b"computeMetadata/\n", "application/text", headers=FLAVOR)
        if request.headers.get("Metadata-Flavor") != "Google":
            self._judge.accuse("gce", "metadata", "the header `Metadata-Flavor: Google` is missing")
            return Answer(403, b"missing Metadata-Flavor header\n", "text/plain")
        token = {"access_token": f"ya29.lab-{uuid.uuid4().hex}", "expires_in": 3599, "token_type": "Bearer"}
        known = {
            f"{ACCOUNT}/token": json.dumps(token),
            f"{ACCOUNT}/email": f"lab@{catalog.PROJECT}.iam.gserviceaccount.com",
            f"{ROOT}/instance/tags": json.dumps(TAGS),
            f"{ROOT}/project/project-id": catalog.PROJECT,
            f"{ROOT}/universe/universe-domain": "googleapis.com",
        }
        if request.path not in known:
            return Answer(404, b"not found\n", "text/plain", headers=FLAVOR)
        kind = "application/json" if request.path.endswith(("/token", "/tags")) else "application/text"
        return Answer(200, known[request.path].encode(), kind, headers=FLAVOR)
