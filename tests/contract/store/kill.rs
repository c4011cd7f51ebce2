//! Kill -9 at every system call, every crash point and every byte.
