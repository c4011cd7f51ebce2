"""A port-forward to a pod, over a WebSocket: `v4.channel.k8s.io`, as kubelets have it."""

import base64
import hashlib
import select
import socket
import ssl
import struct

PROTOCOL = "v4.channel.k8s.io"
# A side that does not read stalls the other one.
MOST = 256 * 1024
BINARY, CLOSE, PING, PONG = 2, 8, 9, 10


def accept(key):
    """What a client expects in the answer."""
    digest = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
    return base64.b64encode(digest).decode()


def frame(payload, kind=BINARY):
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", 128 | kind, size)
    elif size < 65536:
        head = struct.pack(">BBH", 128 | kind, 126, size)
    else:
        head = struct.pack(">BBQ", 128 | kind, 127, size)
    return head + payload


def frames(buffer):
    """Takes whole frames of a client off the buffer."""
    while len(buffer) >= 2:
        size, start = buffer[1] & 127, 2
        if size == 126:
            size, start = (struct.unpack_from(">H", buffer, 2)[0], 4) if len(buffer) >= 4 else (1 << 60, 4)
        elif size == 127:
            size, start = (struct.unpack_from(">Q", buffer, 2)[0], 10) if len(buffer) >= 10 else (1 << 60, 10)
        if len(buffer) < start + 4 + size:
            return
        mask, data = bytes(buffer[start:start + 4]), bytes(buffer[start + 4:start + 4 + size])
        whole = (mask * (size // 4 + 1))[:size]
        plain = (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(size, "big")
        kind = buffer[0] & 15
        del buffer[:start + 4 + size]
        yield kind, plain


class Side:
    """A socket, and what it has not taken yet."""

    def __init__(self, stream):
        self.stream, self.out = stream, bytearray()
        stream.setblocking(False)

    def write(self):
        try:
            while self.out:
                del self.out[:self.stream.send(self.out[:65536])]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass

    def read(self):
        """`None`: nothing yet."""
        try:
            return self.stream.recv(65536)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None


def carry(client, address, port, is_cut):
    """Until either side ends, or `is_cut`: then nothing more is said."""
    number = struct.pack("<H", port)
    client = Side(client)
    client.out += frame(b"\0" + number) + frame(b"\1" + number)
    try:
        pod = Side(socket.create_connection((address, port), 5))
    except OSError as error:
        client.out += frame(b"\1" + f"error forwarding port {port} to pod: {error}".encode()) + frame(b"", CLOSE)
        client.stream.setblocking(True)
        client.stream.sendall(client.out)
        return
    received = bytearray()
    while not is_cut():
        readers = [one.stream for one, other in ((client, pod), (pod, client)) if len(other.out) < MOST]
        waits = 0 if client.stream.pending() and client.stream in readers else 0.1
        readable, writable, _ = select.select(readers, [one.stream for one in (client, pod) if one.out], [], waits)
        for one in (client, pod):
            if one.stream in writable:
                one.write()
        if client.stream in readable or waits == 0:
            data = client.read()
            if data == b"":
                break
            received += data or b""
            for kind, payload in frames(received):
                if kind == BINARY and payload[:1] == b"\0":
                    pod.out += payload[1:]
                elif kind == PING:
                    client.out += frame(payload, PONG)
                elif kind == CLOSE:
                    return pod.stream.close()
            pod.write()
        if pod.stream in readable:
            data = pod.read()
            if data == b"":
                client.out += frame(b"", CLOSE)
                client.stream.settimeout(5)
                client.stream.sendall(client.out)
                break
            if data:
                client.out += frame(b"\0" + data)
                client.write()
    return pod.stream.close()
