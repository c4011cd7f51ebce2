"""Runs the emulator until its standard input ends or SIGTERM comes; see README.md."""

import argparse
import json
import pathlib
import random
import signal
import sys

sys.dont_write_bytecode = True  # Do not write into the checkout.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from shared.machines import Unusable, check


def main():
    parser = argparse.ArgumentParser(prog="tests/lab", description="A fake of EC2 and Compute Engine for tests.")
    parser.add_argument("--seed", type=int, default=None, help="of the faults' dice; a random one is printed")
    options = parser.parse_args()
    try:
        check()
    except Unusable as error:
        sys.exit(f"cloud lab: {error}")
    from lab import Lab  # Takes seconds, so the check comes first.

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    lab = Lab(random.randrange(1 << 32) if options.seed is None else options.seed)
    try:
        print(json.dumps(lab.described()), flush=True)
        while sys.stdin.buffer.read(4096):
            pass
    finally:
        lab.end()


if __name__ == "__main__":
    main()
