//! Turns plans into effects; the only caller of ports.
