"""The benchmarks of Greenroom, started by `scripts/bench`. docs/benchmarks.md describes the method and has the figures."""
