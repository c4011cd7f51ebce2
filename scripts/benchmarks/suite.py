"""Subcommands whose parts run on one test bed: `jobs` and `link`."""

import argparse
import dataclasses
import os
from collections.abc import Callable

from benchmarks import host, page
from benchmarks.testbed import Testbed


@dataclasses.dataclass(frozen=True)
class Part:
    """Measures one subject and adds its figures: `measure(bed, figures, rounds)`."""

    measure: Callable
    rounds: int
    quick_rounds: int


def add_only(parser, parts):
    """The option `--only`, with the names of parts."""

    def names(text):
        chosen = text.split(",")
        if unknown := set(chosen) - set(parts):
            raise argparse.ArgumentTypeError(f"no such part: {', '.join(sorted(unknown))}")
        return chosen

    parser.add_argument("--only", type=names, metavar="PART,…", help=f"run some of: {', '.join(parts)}; write nothing")


def add_options(parser, parts):
    add_only(parser, parts)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; write nothing")


def run(name, parts, options):
    """Runs the chosen parts, and writes the table if it is complete."""
    busy = host.busy_with_other_work()
    print(f"processors busy with other work: {busy:.1f} of {os.cpu_count()}")
    bed, figures = Testbed(), page.Figures()
    try:
        kex, cipher = bed.negotiate()
        facts = (
            f"{host.description(host.openssh_version())}; key exchange `{kex}`, cipher `{cipher}` on both sides. "
            f"Load by other work immediately before: {busy:.1f} of {os.cpu_count()} processors."
        )
        print(facts)
        for chosen in options.only or parts:
            part = parts[chosen]
            part.measure(bed, figures, part.quick_rounds if options.quick else part.rounds)
    finally:
        bed.close()
    if not options.only and not options.quick:
        page.write(name, figures, facts)
