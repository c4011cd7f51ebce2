"""The base of both front ends: settings, faults, violations, time, and machines with SSH."""
