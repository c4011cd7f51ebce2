//! Torn tails, rot in the middle, files from the future; and what mends them.
