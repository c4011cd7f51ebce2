//! The steps of the test suite as data, and what runs them. `scripts/test` installs what they need, then calls this program.

pub mod build;
pub mod junit;
pub mod leftover;
pub mod output;
pub mod process;
pub mod report;
pub mod run;
pub mod setting;
pub mod step;
pub mod steps;
pub mod summary;
