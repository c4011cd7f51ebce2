"""The HTTP server: routes to the front ends, and can drop a connection like a lost network."""

import os
import socket
import struct
import sys
import threading
import time
import traceback
from email.utils import formatdate
from http import HTTPStatus

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request

from .exchange import Answer, Dropped


class Handler(WSGIRequestHandler):
    """Logs nothing: the emulator has a log of its own. Werkzeug closes each connection after its answer."""

    protocol_version = "HTTP/1.1"

    def date_time_string(self, timestamp=None):
        """The clouds' time, for the header of each answer."""
        return formatdate(time.time() + self.server.settings.clock_ahead, usegmt=True)

    def log(self, type, message, *args):
        pass

    def connection_dropped(self, error, environ=None):
        self.close_connection = True


class Server:
    """Serves `routes` on a free port of 127.0.0.1, one thread a connection.

    `routes` are pairs of a predicate on the request and a function from the request to an `Answer`; the first that
    matches is used. `settings` determine the clock.
    """

    def __init__(self, routes, judge, settings):
        self._routes = routes
        self._judge = judge
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Handler)
        self._server.daemon_threads = True
        self._server.settings = settings
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="server", daemon=True)

    def start(self):
        self._thread.start()

    def end(self):
        self._server.shutdown()
        self._thread.join()

    def _answer(self, environ, start_response):
        request = Request(environ)
        try:
            answer = self._routed(request)
        except Dropped:
            _reset(environ["werkzeug.socket"])
            raise ConnectionResetError from None
        except Exception as error:  # The emulator's own error must fail the test, not be taken for the cloud's.
            traceback.print_exc(file=sys.stderr)
            self._judge.accuse("lab", request.path, f"the lab itself failed: {error!r}")
            answer = Answer(500, f"the cloud lab failed: {error!r}\n".encode(), "text/plain")
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", headers + list(answer.headers.items()))
        return [answer.body]

    def _routed(self, request):
        for fits, handle in self._routes:
            if fits(request):
                return handle(request)
        self._judge.accuse("lab", request.path, f"{request.method} {request.path} belongs to no front end")
        return Answer(404, b"no front end of the cloud lab serves this path\n", "text/plain")


def _reset(connection):
    """Closes a connection by RST: with a linger time of 0, and even if another object still uses the file."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(connection.detach())
