//! Throughput beside OpenSSH.
