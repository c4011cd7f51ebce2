//! Laws: files and memory agree; damage never passes for state.
