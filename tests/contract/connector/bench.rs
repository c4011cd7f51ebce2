//! Throughput compared with OpenSSH.
