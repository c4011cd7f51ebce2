"""A stand-in for a Kubernetes API server with nodes, for tests: its pods are processes of this machine, each with an sshd.

It prints one line of JSON: the address of its control API, the kubeconfig, and the port for the pods' servers. It ends with its
standard input, and all pods end with it. README.md says what it has and what it lacks.
"""

import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
from http.server import ThreadingHTTPServer

import api
import control
from nodes import Nodes
from world import World


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, client_address):
        """Clients break connections, and faults do."""


def certificate(directory):
    """An authority of its own, and a certificate for loopback by it."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=ca",
            "-addext", "keyUsage=critical,keyCertSign")
    openssl("req", "-x509", *key, "-keyout", "tls.key", "-out", "tls.crt", "-days", "2", "-subj", "/CN=api",
            "-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1",
            "-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=serverAuth")


def free_port():
    """A port that no process has on any address of loopback: each pod has an address of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def kubeconfig(directory, url, token):
    path = os.path.join(directory, f"kubeconfig-{token}")
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "other",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": os.path.join(directory, "ca.crt")}}],
        "users": [{"name": token, "user": {"tokenFile": os.path.join(directory, f"token-{token}")}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": token}},
                     {"name": "other", "context": {"cluster": "nowhere", "user": token}}],
    }
    with open(os.path.join(directory, f"token-{token}"), "w") as file:
        file.write(token)
    with open(path, "w") as file:
        json.dump(config, file)
    return path


def main():
    directory = tempfile.mkdtemp(prefix="greenroom-cluster-")
    certificate(directory)
    world = World(directory)
    nodes = Nodes(world)
    server = Server(("127.0.0.1", 0), api.handler(world))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(directory, "tls.crt"), os.path.join(directory, "tls.key"))
    # The handshake is done by the connection's own thread.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    steering = Server(("127.0.0.1", 0), control.handler(world, nodes))
    for one in (server, steering):
        world.spawn(one.serve_forever)
    world.spawn(nodes.run)
    url = f"https://127.0.0.1:{server.server_address[1]}"
    print(json.dumps({
        "control": f"127.0.0.1:{steering.server_address[1]}", "url": url, "kubeconfig": kubeconfig(directory, url, "ci"),
        "directory": directory, "ssh_port": free_port(),
    }), flush=True)
    try:
        sys.stdin.read()
    finally:
        nodes.end()
        subprocess.run(["rm", "-rf", directory], check=False)
        os._exit(0)


main()
