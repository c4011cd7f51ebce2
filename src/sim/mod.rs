//! The world in a box.
