"""The cloud emulator: combines all its parts, and resets them between tests."""

import dataclasses
import tempfile
import threading

from ec2.frontend import Ec2
from ec2.service_quotas import ServiceQuotas
from ec2.sts import Sts
from gce import catalog
from gce.frontend import Gce
from shared.admin import Admin
from shared.exchange import Exchanges
from shared.faults import Faults
from shared.guest_metadata import ROOT, GuestMetadata
from shared.judge import Judge
from shared.machines import Machines
from shared.server import Server
from shared.settings import Settings
from shared.timeline import Timeline


class Lab:
    """Two clouds, an account with machines and one without in each. Serves from its creation; `end` removes everything."""

    def __init__(self, seed):
        # Held by requests and timeline actions while they read or change a cloud's state.
        self.lock = threading.RLock()
        self.settings, self.judge, self.rules = Settings(), Judge(), Faults(seed)
        self.exchanges = Exchanges(self.rules, self.lock)
        self.timeline = Timeline(self.lock)
        self._home = tempfile.TemporaryDirectory(prefix="cloud-lab-")
        self.machines = Machines(self._home.name)
        shared = (self.settings, self.rules, self.exchanges, self.judge, self.timeline, self.machines, self.lock)
        self.ec2, self.gce = Ec2(*shared), Gce(*shared)
        self.front_ends = [self.ec2, self.gce]
        admin = Admin(self)
        # On the same path as EC2, distinguished by a header: so they come first.
        guests = GuestMetadata(self.front_ends, self.lock)
        quotas, sts = ServiceQuotas(self.settings, self.exchanges, self.judge), Sts(self.exchanges, self.judge)
        self.server = Server(
            [(one.fits, one.handle) for one in (admin, guests, self.gce.metadata_server, quotas, sts, *self.front_ends)],
            self.judge,
            self.settings,
        )
        self.server.start()
        self.machines.metadata = self.server.url.removeprefix("http://") + ROOT

    def described(self):
        """The emulator's addresses, and the clouds' initial content."""
        return {
            "url": self.server.url,
            "ssh_port": self.machines.port,
            "seed": self.rules.seed,
            "ec2": self.ec2.world.described(),
            "gce": catalog.described(),
        }

    def reset(self, seed=None):
        """Ends every instance and restores the initial state. The caller holds the emulator's lock."""
        self.timeline.clear()
        self.exchanges.clear()
        self.machines.clear()
        for field in dataclasses.fields(self.settings):
            setattr(self.settings, field.name, getattr(Settings(), field.name))
        self.rules.clear(seed)
        self.judge.clear()
        for front_end in self.front_ends:
            front_end.reset()

    def end(self):
        self.exchanges.clear()
        self.timeline.end()
        self.machines.end()
        self.server.end()
        self._home.cleanup()
