"""What both front ends stand on: settings, faults, the judge, time, and machines that can be logged in to."""
