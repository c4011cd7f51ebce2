"""The command line of `scripts/bench`."""

import argparse
import pathlib
import signal
import subprocess
import sys
import unittest

from benchmarks import clouds, host, jobs, link, machines, server

ABOUT = """Measure Greenroom, and write the tables of docs/benchmarks.md, which describes the method.

The compared ways alternate in one run, A B A B. A subcommand writes its table only after a complete run.
"""
ALL_ABOUT = """Run `jobs`, `link` and `machines`, and with their options `clouds` and `server`; write their tables."""
SUBCOMMANDS = {"jobs": jobs, "link": link, "machines": machines, "clouds": clouds, "server": server}


class SelfTest(argparse.Action):
    """Runs the unit tests of the benchmarks, and exits."""

    def __call__(self, parser, namespace, values, option_string=None):
        tests = unittest.defaultTestLoader.discover(str(pathlib.Path(__file__).parent / "tests"))
        is_passed = unittest.TextTestRunner(buffer=True).run(tests).wasSuccessful()
        parser.exit(0 if is_passed else 1)


def run_all(options):
    """Runs each subcommand as a process of its own: `link` moves its process into a namespace."""
    foreign = ["--foreign", options.foreign] if options.foreign else []
    commands = [["jobs"], ["link"], ["machines", *foreign]]
    commands += [["clouds", options.package]] if options.package else []
    commands += [["server", options.server]] if options.server else []
    for command in commands:
        subprocess.run([sys.executable, host.ROOT / "scripts" / "bench", *command], check=True)


def parser():
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--self-test", action=SelfTest, nargs=0, help="run the unit tests of the benchmarks, and exit")
    names = parser.add_subparsers(metavar="SUBCOMMAND", required=True)
    subcommands = {name: (module.ABOUT, module.add_options, module.run) for name, module in SUBCOMMANDS.items()}
    for name, (about, add_options, run) in {**subcommands, "all": (ALL_ABOUT, add_options_of_all, run_all)}.items():
        help_line = about.split("\n")[0].rstrip(".")
        sub = names.add_parser(
            name, help=help_line, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        add_options(sub)
        sub.set_defaults(run=run)
    return parser


def add_options_of_all(parser):
    parser.add_argument("--package", type=pathlib.Path, metavar="PACKAGE", help="run `clouds` with this folder")
    parser.add_argument("--server", type=pathlib.Path, metavar="PROGRAM", help="run `server` with this program")
    parser.add_argument("--foreign", type=pathlib.Path, metavar="FILE", help="for `machines`: a qcow2 with cloud-init")


def main():
    options = parser().parse_args()
    # An ordered end on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.run(options)
