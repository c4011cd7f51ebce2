"""The common part of the stand-ins for clouds: an HTTP server on loopback, its machines, and faults to order.

Standard output gets the address first. Each line of standard input is one command in JSON, and is answered by one line:

  {"set": {"NAME": VALUE}}         changes settings of the stand-in
  {"fault": {"request": "POST /servers", "mode": "lost", "count": 1}}
                                   `lost`: carries the request out, then drops the connection without an answer
                                   `refused`: answers `status`, `body` and `headers` instead
  {"show": "machines"}             what really exists
  {"show": "requests"}             each request so far: method, path, status or fault
  {"call": "NAME", ...}            what only this stand-in can do

It ends with its standard input.
"""

import json
import re
import socket
import struct
import sys
import threading
import urllib.parse
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Refused(Exception):
    """The cloud's own error."""

    def __init__(self, status, body, headers=None):
        super().__init__(body)
        self.status, self.body, self.headers = status, body, headers or {}


def now():
    """The time of a machine's creation, with an offset."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Cloud:
    """One cloud. `routes` are triples: method, pattern of the path, function of the match and the request."""

    routes = ()
    settings = {}

    def __init__(self):
        self.lock = threading.Lock()
        self.machines = {}
        self.requests = []
        self.faults = []
        self.made = 0
        self.settings = dict(self.settings)

    def answer(self, request):
        """Status, body and headers of a request."""
        path = urllib.parse.urlsplit(request.path).path
        for method, pattern, act in self.routes:
            found = re.fullmatch(pattern, path)
            if found and method == request.command:
                return act(self, found, request)
        raise Refused(404, {"error": f"no {request.command} {path}"})

    def fault(self, request):
        """The fault that this request meets, used up by it."""
        for fault in self.faults:
            if re.match(fault["request"], f"{request.command} {request.path}"):
                fault["count"] = fault.get("count", 1) - 1
                if fault["count"] <= 0:
                    self.faults.remove(fault)
                return fault
        return None

    def number(self):
        """A number that no machine had before."""
        self.made += 1
        return self.made

    def command(self, command):
        """Carries out one line of standard input."""
        with self.lock:
            if "set" in command:
                self.settings.update(command["set"])
            elif "fault" in command:
                self.faults.append(command["fault"])
            elif "show" in command:
                return {"machines": list(self.machines.values()), "requests": self.requests}[command["show"]]
            elif "call" in command:
                return getattr(self, command["call"])(command)
            else:
                raise ValueError(f"unknown command {command}")
        return None


class Request(BaseHTTPRequestHandler):
    """One request: `json()` is its body, `query` the rest of its address."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    @property
    def query(self):
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query, keep_blank_values=True))

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def json(self):
        try:
            return json.loads(self.body or b"{}")
        except ValueError as error:
            raise Refused(400, {"error": f"no JSON: {error}"}) from None

    def serve(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        cloud = self.server.cloud
        with cloud.lock:
            fault = cloud.fault(self)
            if fault and fault["mode"] == "refused":
                answer = (fault["status"], fault["body"], fault.get("headers", {}))
            else:
                try:
                    answer = (*cloud.answer(self), {})[:3]
                except Refused as refused:
                    answer = (refused.status, refused.body, refused.headers)
            status = "lost" if fault and fault["mode"] == "lost" else answer[0]
            cloud.requests.append({"method": self.command, "path": self.path, "status": status})
        self.close_connection = True
        if status == "lost":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        status, body, headers = answer
        text = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Connection": "close", **headers}.items():
            self.send_header(name, str(value))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = do_PUT = serve


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def shutdown_request(self, request):
        """Without a shutdown of its own, so that a lost connection is reset."""
        self.close_request(request)


def play(cloud):
    """Serves the cloud until standard input ends."""
    server = Server(("127.0.0.1", 0), Request)
    server.cloud = cloud
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    for line in sys.stdin:
        print(json.dumps(cloud.command(json.loads(line))), flush=True)
