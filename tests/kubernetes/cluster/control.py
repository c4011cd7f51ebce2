"""What a test may change and see, as JSON over HTTP on loopback."""

import json
from http.server import BaseHTTPRequestHandler

from world import shown


def handler(world, nodes):
    def living():
        return [name for name, pod in world.pods.items() if pod["_"].get("process") and pod["_"]["process"].poll() is None]

    def services():
        """The living sidecars of each pod."""
        return {name: [sidecar for sidecar, process in pod["_"].get("sidecars", {}).items() if process.poll() is None]
                for name, pod in world.pods.items()}

    def seen(_body):
        return {"living": living(), "services": services(), "pods": {name: shown(pod) for name, pod in world.pods.items()},
                "violations": world.violations, "requests": world.requests, "made": world.made, "faults": world.faults,
                "keys": {name: host_key(pod) for name, pod in world.pods.items()}}

    def host_key(pod):
        try:
            with open(pod["_"]["log"]) as log:
                return log.readline().strip()
        except (KeyError, FileNotFoundError):
            return ""

    def settings(body):
        unknown = [key for key in body if key not in world.settings]
        if unknown:
            raise ValueError(f"no settings {unknown}")
        world.settings.update(body)

    def fault(body):
        world.dice.seed(body.pop("seed", 1))
        world.faults.append(body)

    def disrupt(body):
        nodes.disrupt(world.pods[body["pod"]], body["how"])

    def cut(_body):
        """Ends all port-forwards, as an API server does that is killed."""
        world.cuts += 1

    def pod(body):
        """Changes a pod as another client does: its metadata, or all of it under another uid."""
        found = world.pods[body["pod"]]
        found["metadata"].update(body["metadata"])
        world.change(found)

    operations = {"/seen": seen, "/settings": settings, "/fault": fault, "/disrupt": disrupt, "/pod": pod, "/cut": cut,
                  "/clear": lambda _body: world.faults.clear(), "/forget": lambda _body: world.requests.clear()}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_arguments):
            pass

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            try:
                with world.lock:
                    status, answer = 200, operations[self.path](body) or {}
                    payload = json.dumps(answer).encode()
            except Exception as error:
                status, payload = 400, json.dumps({"error": repr(error)}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(payload)

    return Handler
