"""What a test may set: delays, quotas, capacity. Times are in seconds."""

import dataclasses


@dataclasses.dataclass
class Settings:
    """The defaults are quick; a test that is about time sets its own."""

    # From the answer to a launch until the instance is running.
    boot: float = 0.3
    # From running until sshd listens.
    ssh: float = 0.1
    # From the answer to a termination until the instance is gone.
    shutdown: float = 0.3
    # How long lists do not tell of a new instance; on EC2 its id is unknown to every other call, too.
    visible: float = 0.0
    # EC2: how long a terminated instance is still listed.
    remembered: float = 3600.0
    # Until the console's text can be read, from running on.
    console: float = 0.0
    # Compute Engine: how long an operation is PENDING, and then RUNNING.
    operation_pending: float = 0.05
    operation_running: float = 0.1
    # Compute Engine: how long a request waits for an operation at the most.
    operation_wait: float = 120.0
    # Compute Engine: seconds that pass for each second of an instance's longest run.
    run_duration_scale: float = 1.0
    # Virtual processors that may be in use; what is not named has no end. By EC2's purchasing option, for each class of
    # instance families, or by Compute Engine's metric.
    quotas: dict = dataclasses.field(default_factory=dict)
    # Instances that a place still has, by "type/zone" or "type/zone/spot"; what is not named has no end.
    capacity: dict = dataclasses.field(default_factory=dict)
    # By how much the clouds' clock is ahead of this machine's, as answers tell it.
    clock_ahead: float = 0.0
    # Who logs in with the key that was named at launch, where user data names nobody.
    default_user: str = "root"

    def change(self, wanted):
        """Takes over a JSON object. Raises `ValueError` naming the first key that is unknown or of the wrong kind."""
        kinds = {field.name: type(getattr(Settings(), field.name)) for field in dataclasses.fields(self)}
        for key, value in wanted.items():
            if key not in kinds:
                raise ValueError(f"unknown setting `{key}`; there are {', '.join(kinds)}")
            fits = isinstance(value, (int, float)) if kinds[key] is float else isinstance(value, kinds[key])
            if not fits or isinstance(value, bool):
                raise ValueError(f"setting `{key}` must be a {kinds[key].__name__}, not {value!r}")
        for key, value in wanted.items():
            setattr(self, key, float(value) if kinds[key] is float else value)
