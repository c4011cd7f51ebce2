"""The account's vCPU limits, for launches and for Service Quotas.

Classes of families and codes as in Amazon's EC2 user guide, "On-Demand Instance quotas" and "Spot Instance quotas".
"""

import re

from . import world

# The default limit without a setting, which no test reaches.
DEFAULT = 1_000_000.0
# Families -> the limit's code and name, on demand and for spot instances; `None` if the family has none of the kind.
CLASSES = {
    ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"): (
        ("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
        ("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
    ),
    ("dl",): (("L-6E869C2A", "Running On-Demand DL instances"), ("L-85EED4F7", "All DL Spot Instance Requests")),
    ("f",): (("L-74FC7D96", "Running On-Demand F instances"), ("L-88CF9481", "All F Spot Instance Requests")),
    ("g", "gr", "vt"): (
        ("L-DB2E81BA", "Running On-Demand G and VT instances"),
        ("L-3819A6DF", "All G and VT Spot Instance Requests"),
    ),
    ("hpc",): (("L-F7808C92", "Running On-Demand HPC instances"), None),
    ("inf",): (("L-1945791B", "Running On-Demand Inf instances"), ("L-B5D1601B", "All Inf Spot Instance Requests")),
    ("p",): (("L-417A185B", "Running On-Demand P instances"), ("L-7212CCBC", "All P Spot Instance Requests")),
    ("trn",): (("L-2C3B7624", "Running On-Demand Trn instances"), ("L-6B0D517C", "All Trn Spot Instance Requests")),
    ("u",): (("L-43DA4232", "Running On-Demand High Memory instances"), None),
    ("x",): (("L-7295265B", "Running On-Demand X instances"), ("L-E3A00192", "All X Spot Instance Requests")),
}
OF_FAMILY = {family: limits for families, limits in CLASSES.items() for family in families}
ON_DEMAND = {limits[0][0]: limits[0][1] for limits in CLASSES.values()}
SPOT = {limits[1][0]: limits[1][1] for limits in CLASSES.values() if limits[1]}
NAMES = ON_DEMAND | SPOT


def code(kind, spot):
    """The limit that an instance counts against; `None` for none of these."""
    limits = OF_FAMILY.get(re.match("[a-z]*", kind)[0])
    limit = limits and limits[1 if spot else 0]
    return limit and limit[0]


def own(name, settings):
    """The account's own limit in vCPUs; `None` for the default."""
    return settings.quotas.get("spot" if name in SPOT else "on-demand")


def room(account, settings, kind, spot):
    """How many more instances of a type the account may have."""
    name = code(kind, spot)
    limit = own(name, settings) if name else None
    if limit is None:
        limit = DEFAULT
    live = [one for one in account.live() if code(one.instance_type, account.records[one.id].spot) == name]
    used = sum(world.vcpus(one.instance_type) for one in live)
    return int((limit - used) // world.vcpus(kind))
