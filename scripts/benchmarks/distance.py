"""Longer round trips, without `netem`, which not every kernel has."""

import collections
import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import time

NEAR, FAR = "198.18.0.1", "198.18.0.2"


@contextlib.contextmanager
def distance(round_trip):
    """Sends packets for FAR back to this machine, which is NEAR, half a round trip later, and the answers likewise.

    The packets wait in a process behind a TUN device. Their two addresses are swapped, which leaves their checksums right.
    """
    tun = os.open("/dev/net/tun", os.O_RDWR)
    # TUNSETIFF with IFF_TUN | IFF_NO_PI.
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"far", 0x1001))
    for command in (f"addr add {NEAR}/30 dev far", "link set far up"):
        subprocess.run(["ip", *command.split()], check=True)
    carrier = os.fork()
    if carrier == 0:
        carry(tun, round_trip / 2)
    os.close(tun)
    try:
        yield
    finally:
        os.kill(carrier, signal.SIGKILL)
        os.waitpid(carrier, 0)


def swapped(packet):
    """An IPv4 packet with its source and destination exchanged."""
    return packet[:12] + packet[16:20] + packet[12:16] + packet[20:]


def carry(tun, delay):
    """Takes packets from a device and gives them back later, until it is killed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    waiting = collections.deque()
    while True:
        left = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        if select.select([tun], [], [], left)[0]:
            packet = os.read(tun, 65536)
            if packet[0] >> 4 == 4:
                waiting.append((time.monotonic() + delay, swapped(packet)))
        while waiting and waiting[0][0] <= time.monotonic():
            os.write(tun, waiting.popleft()[1])
