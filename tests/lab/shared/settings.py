"""The settings of a test: delays, quotas, capacity. Times are in seconds."""

import dataclasses


@dataclasses.dataclass
class Settings:
    """The defaults are short; a test about time sets its own."""

    # From the answer to a launch until the instance is running.
    boot: float = 0.3
    # From running until sshd listens.
    ssh: float = 0.1
    # From the answer to a termination until the instance is gone.
    shutdown: float = 0.3
    # Compute Engine: how long a preempted instance still runs while it is listed as stopping.
    preempted: float = 0.0
    # How long lists lack a new instance; on EC2, its id is unknown to every other call, too.
    visible: float = 0.0
    # EC2: how long a terminated instance is still listed.
    remembered: float = 3600.0
    # From running until the console can be read.
    console: float = 0.0
    # Compute Engine: how long an operation is PENDING, and then RUNNING.
    operation_pending: float = 0.05
    operation_running: float = 0.1
    # Compute Engine: maximum time that a request waits for an operation.
    operation_wait: float = 120.0
    # Compute Engine: real seconds for each second of an instance's maximum run duration.
    run_duration_scale: float = 1.0
    # Virtual processors that may be in use; others are unlimited. By EC2's purchasing option, for each class of
    # instance families, or by Compute Engine's metric.
    quotas: dict = dataclasses.field(default_factory=dict)
    # Instances that a place still has, by "type/zone" or "type/zone/spot"; others are unlimited.
    capacity: dict = dataclasses.field(default_factory=dict)
    # How far the clouds' clock is ahead of this machine's, in the header of answers.
    clock_ahead: float = 0.0
    # The user for the key of the launch, if user data names no user.
    default_user: str = "root"

    def change(self, wanted):
        """Applies a JSON object. Raises `ValueError` naming the first key that is unknown or of the wrong kind."""
        kinds = {field.name: type(getattr(Settings(), field.name)) for field in dataclasses.fields(self)}
        for key, value in wanted.items():
            if key not in kinds:
                raise ValueError(f"unknown setting `{key}`; there are {', '.join(kinds)}")
            fits = isinstance(value, (int, float)) if kinds[key] is float else isinstance(value, kinds[key])
            if not fits or isinstance(value, bool):
                raise ValueError(f"setting `{key}` must be a {kinds[key].__name__}, not {value!r}")
        for key, value in wanted.items():
            setattr(self, key, float(value) if kinds[key] is float else value)
