"""The API server's part of the protocol: paths, verbs, answers."""

import base64
import copy
import json
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler

import admission
import forward
from world import now, shown

LISTS = {"pods": "PodList", "events": "EventList", "resourcequotas": "ResourceQuotaList", "limitranges": "LimitRangeList"}
USER = "system:serviceaccount:ci-jobs:greenroom"
REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 409: "Conflict",
    410: "Expired", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable",
}


class Refused(Exception):
    def __init__(self, code, message, reason=None, details=None):
        super().__init__(message)
        self.code, self.message = code, message
        self.reason, self.details = reason or REASONS[code], details or {}


def matches(pod, selector):
    labels = pod["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        name, equal, value = part.partition("=")
        if name not in labels or (equal and labels[name] != value):
            return False
    return True


def handler(world):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, *_arguments):
            pass

        def do_GET(self):
            self.answer()

        do_POST = do_DELETE = do_GET

        def answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query))
            try:
                self.serve(url.path, query, json.loads(body) if body else None)
            except Refused as refused:
                status = {
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": refused.code,
                    "reason": refused.reason, "message": refused.message,
                }
                if refused.details:
                    status["details"] = refused.details
                self.send(refused.code, status)

        def serve(self, path, query, body):
            what, verb, name, run = self.route(path, query, body)
            with world.lock:
                world.requests.append(f"{verb} {what}")
                fault = world.fault(self.command, what, "before")
            if fault and self.suffers(fault):
                return
            if self.headers.get("Authorization") != "Bearer ci":
                raise Refused(401, "Unauthorized")
            with world.lock:
                namespace = path.split("/")[4] if path.startswith("/api/v1/namespaces/") else None
                is_other = namespace not in (None, world.settings["namespace"])
                has_role = world.settings["admin"] or not is_other and f"{verb} {what}" in world.settings["role"]
            kind = what.split("/")[0]
            named = {"name": name} if name else {}
            if not has_role and not what.startswith("/"):
                object_ = f'{kind} "{name}"' if name else kind
                raise Refused(403, f'{object_} is forbidden: User "{USER}" cannot {verb} resource "{what}" in API group "" in the '
                                   f'namespace "{namespace}"', details={**named, "kind": kind})
            if is_other:
                # Nothing is in a namespace that does not exist, and only a creation is refused for that.
                if verb == "create":
                    raise Refused(404, f'namespaces "{namespace}" not found', details={"kind": "namespaces", "name": namespace})
                if verb != "list":
                    raise Refused(404, f'{kind} "{name}" not found', details={"kind": kind, "name": name})
                return self.send(200, {"kind": LISTS[kind], "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})
            result = run()
            with world.lock:
                fault = world.fault(self.command, what, "after")
            if fault and self.suffers(fault):
                return
            if result is not None:
                self.send(*result)

        def suffers(self, fault):
            """True if the client gets no proper answer any more."""
            how = fault["how"]
            if how == "slow":
                time.sleep(fault.get("seconds", 0.2))
                return False
            if how == "hang":
                time.sleep(fault.get("seconds", 60))
            if how in ("hang", "reset"):
                self.close_connection = True
                self.connection.close()
                return True
            if how == 429:
                self.send(429, "Too many requests, please try again later.\n", {"Retry-After": str(fault.get("after", 1))})
                return True
            raise Refused(int(how), fault.get("message", "as the test says"), fault.get("reason"), fault.get("details"))

        def route(self, path, query, body):
            """The resource, the verb of the role, and what the request does."""
            if path == "/version":
                major, minor = world.settings["version"]
                return "/version", "get", None, lambda: (200, {"major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.0"})
            if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" and self.command == "POST":
                return "/reviews", "create", None, lambda: self.review(body)
            parts = path.strip("/").split("/")
            if len(parts) < 5 or parts[:3] != ["api", "v1", "namespaces"]:
                raise Refused(404, "the server could not find the requested resource")
            kind, name, sub = parts[4], *(parts[5:] + [None, None])[:2]
            watch = query.get("watch") in ("1", "true")
            table = {
                ("GET", "pods", False, None): ("watch" if watch else "list",
                                               lambda: self.watch(query) if watch else self.list(query)),
                ("POST", "pods", False, None): ("create", lambda: self.create(query, body)),
                ("GET", "pods", True, None): ("get", lambda: (200, shown(self.pod(name)))),
                ("DELETE", "pods", True, None): ("delete", lambda: self.delete(name, body or {})),
                ("GET", "pods", True, "log"): ("get", lambda: self.log(name, query)),
                ("GET", "pods", True, "portforward"): ("get", lambda: self.forward(name, query)),
                ("GET", "events", False, None): ("list", lambda: self.list_events(query)),
                ("GET", "configmaps", True, None): ("get", lambda: self.config_map(name)),
                ("GET", "resourcequotas", False, None): ("list", self.list_quotas),
                ("GET", "limitranges", False, None): ("list", self.list_limit_ranges),
            }
            found = table.get((self.command, kind, name is not None, sub))
            if not found:
                raise Refused(405, f"the server does not allow this method on {path}")
            verb, run = found
            return kind if sub is None else f"{kind}/{sub}", verb, name, run

        def pod(self, name):
            with world.lock:
                pod = world.pods.get(name)
                if pod is None:
                    raise Refused(404, f'pods "{name}" not found', details={"kind": "pods", "name": name})
                return {**shown(pod), "_": dict(pod["_"])}

        def list(self, query):
            with world.lock:
                start, version = "", world.version
                if "continue" in query:
                    start, version = json.loads(base64.b64decode(query["continue"]))
                hidden = world.settings["visible_ms"]
                seen = [pod for name, pod in sorted(world.pods.items()) if name > start and world.age_ms(pod) >= hidden
                        and matches(pod, query.get("labelSelector", ""))]
                limit = min(int(query.get("limit", 0)) or 10 ** 9, world.settings["page"])
                page, rest = seen[:limit], seen[limit:]
                meta = {"resourceVersion": str(version)}
                if rest:
                    token = json.dumps([page[-1]["metadata"]["name"], version]).encode()
                    meta["continue"] = base64.b64encode(token).decode()
                return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": [shown(pod) for pod in page]}

        def create(self, query, body):
            with world.lock:
                pod = admission.admitted(world, body, query, Refused)
                name = pod["metadata"]["name"]
                if name in world.pods:
                    raise Refused(409, f'pods "{name}" already exists', "AlreadyExists", {"kind": "pods", "name": name})
                pod["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=now(), namespace=world.settings["namespace"])
                pod["metadata"]["generation"] = 1
                pod["status"] = {"phase": "Pending", "qosClass": "Burstable"}
                if query.get("dryRun") == "All":
                    return 201, pod
                unschedulable = world.settings["unschedulable"] != 0
                if world.settings["unschedulable"] > 0:
                    world.settings["unschedulable"] -= 1
                pod["_"] = {"made": time.monotonic(), "unschedulable": unschedulable}
                world.add(pod)
                return 201, shown(pod)

        def delete(self, name, options):
            with world.lock:
                pod = self.pod(name)
                pod = world.pods[name]
                wanted = options.get("preconditions", {})
                if "uid" not in wanted:
                    world.violations.append(f"{name} was deleted without its uid")
                if options.get("gracePeriodSeconds", 30) == 0:
                    world.violations.append(f"{name} was deleted without a grace period")
                for key, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                    found = pod["metadata"][key]
                    if wanted.get(key, found) != found:
                        raise Refused(409, f'Operation cannot be fulfilled on Pod "{name}": the {word} in the precondition '
                                           f'({wanted[key]}) does not match the {word} in record ({found}). The object might have '
                                           'been deleted and then recreated', "Conflict", {"kind": "Pod", "name": name})
                if "deletionTimestamp" not in pod["metadata"]:
                    ended = not pod["spec"].get("nodeName") or pod["status"]["phase"] in ("Failed", "Succeeded")
                    grace = 0 if ended else options.get("gracePeriodSeconds", 30)
                    pod["metadata"].update(deletionTimestamp=now(), deletionGracePeriodSeconds=grace, generation=2)
                    pod["_"]["kill_at"] = time.monotonic() + 0.1
                    if ended and not pod["metadata"].get("finalizers"):
                        world.remove(pod)
                    else:
                        world.change(pod)
                return 200, shown(pod)

        def watch(self, query):
            try:
                since = int(query.get("resourceVersion", "0"))
            except ValueError:
                raise Refused(400, "Invalid value: resourceVersion") from None
            end = time.monotonic() + int(query.get("timeoutSeconds", "60"))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                with world.lock:
                    fresh = [one for one in world.changes if one[0] > since and matches(one[2], query.get("labelSelector", ""))]
                    since = world.version
                    if not fresh and time.monotonic() < end:
                        world.lock.wait(0.02)
                for _version, kind, pod in fresh:
                    line = json.dumps({"type": kind, "object": shown(pod)}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
                if time.monotonic() >= end:
                    self.wfile.write(b"0\r\n\r\n")
                    self.wfile.flush()
                    return None

        def log(self, name, query):
            pod = self.pod(name)
            names = [container["name"] for container in pod["spec"]["containers"]]
            container = query.get("container", names[0])
            if container not in names:
                raise Refused(400, f"container {container} is not valid for pod {name}")
            if not pod["spec"].get("nodeName"):
                return 204, ""
            path = pod["_"].get("log")
            if path is None or container != "job":
                waiting = pod["status"]["containerStatuses"][0]["state"].get("waiting", {})
                raise Refused(400, f'container "{container}" in pod "{name}" is waiting to start: '
                                   f'{waiting.get("reason", "ContainerCreating")}')
            with open(path, "rb") as file:
                text = file.read()
            if "tailLines" in query:
                text = b"".join(text.splitlines(keepends=True)[-int(query["tailLines"]):])
            if "limitBytes" in query:
                text = text[:int(query["limitBytes"])]
            return 200, text.decode(errors="replace")

        def forward(self, name, query):
            """Both verbs, as newer servers have it for WebSockets."""
            if "create pods/portforward" not in world.settings["role"]:
                raise Refused(403, f'pods "{name}" is forbidden: User "ci" cannot create resource "pods/portforward" in API '
                                   f'group "" in the namespace "{world.settings["namespace"]}"')
            pod = self.pod(name)
            if "process" not in pod["_"]:
                raise Refused(500, f"unable to forward port because pod is not running. Current status={pod['status']['phase']}")
            offered = [one.strip() for one in self.headers.get("Sec-WebSocket-Protocol", "").split(",")]
            if self.headers.get("Upgrade", "").lower() != "websocket" or forward.PROTOCOL not in offered:
                raise Refused(400, "unable to upgrade: unrecognized protocol")
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", forward.accept(self.headers["Sec-WebSocket-Key"]))
            self.send_header("Sec-WebSocket-Protocol", forward.PROTOCOL)
            self.end_headers()
            self.wfile.flush()
            self.close_connection = True
            cuts = world.cuts
            try:
                forward.carry(self.connection, pod["_"]["inside"], int(query["ports"]), lambda: world.cuts != cuts)
            except OSError:
                pass
            self.connection.close()

        def list_events(self, query):
            field, _, value = query.get("fieldSelector", "").partition("=")
            with world.lock:
                found = [event for event in world.events
                         if field != "involvedObject.uid" or event["involvedObject"]["uid"] == value]
                return 200, {"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": copy.deepcopy(found)}

        def config_map(self, name):
            uid = world.settings["config_maps"].get(name)
            if uid is None:
                raise Refused(404, f'configmaps "{name}" not found', details={"kind": "configmaps", "name": name})
            return 200, {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "uid": uid}, "data": {}}

        def list_quotas(self):
            with world.lock:
                hard = world.settings["quota"]
                used = {"pods": str(len(world.pods))}
                items = [{"metadata": {"name": "few"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}}]
                return 200, {"kind": "ResourceQuotaList", "apiVersion": "v1", "metadata": {}, "items": items if hard else []}

        def list_limit_ranges(self):
            with world.lock:
                items = [{"metadata": {"name": "small"}, "spec": {"limits": world.settings["limit_ranges"]}}]
                return 200, {"kind": "LimitRangeList", "apiVersion": "v1", "metadata": {},
                             "items": items if world.settings["limit_ranges"] else []}

        def review(self, body):
            asked = body["spec"]["resourceAttributes"]
            what = asked["resource"] + ("/" + asked["subresource"] if asked.get("subresource") else "")
            is_here = asked["namespace"] == world.settings["namespace"]
            allowed = world.settings["admin"] or is_here and f"{asked['verb']} {what}" in world.settings["role"]
            return 201, {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
                         "spec": body["spec"], "status": {"allowed": allowed}}

        def send(self, status, answer, headers=None):
            kind = "text/plain" if isinstance(answer, str) else "application/json"
            payload = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if status != 204:
                self.send_header("Content-Length", str(len(payload)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(payload)
            self.wfile.flush()

    return Handler
