//! A whole Greenroom for tests: the real programs on a state directory of their own, and the contract of every provider.
//!
//! [`place`] runs jobs and commands, [`setting`] is its configuration, [`processes`] finds and kills what runs there, and
//! [`onslaught`] does so at seeded moments. [`provider`] is the contract as tests, [`kit_page`] holds conformance kits to their
//! pages, [`here`] has what fixtures of machines on this host share. A development dependency: no shipped program contains it.
#![expect(clippy::print_stderr, reason = "figures, and what a failed test leaves to read")]
#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking, in what they share too")]

pub mod here;
pub mod kit_page;
pub mod onslaught;
pub mod place;
pub mod processes;
pub mod provider;
pub mod setting;

use std::path::PathBuf;
use std::sync::LazyLock;

/// The program under test.
///
/// Cargo builds it before it runs a test program of the package `greenroom`, and names it in a variable, as `scripts/test` does. A test
/// program that is run without either finds that of the build without features, one folder above.
#[track_caller]
pub fn driver() -> &'static str {
    static DRIVER: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(named) = std::env::var_os("CARGO_BIN_EXE_greenroom") {
            return named.into();
        }
        let test = std::env::current_exe().expect("a test program has a path");
        test.ancestors().nth(2).expect("it is in `deps`").join("greenroom")
    });
    assert!(DRIVER.is_file(), "there is no {}: this is no test program of the package", DRIVER.display());
    DRIVER.to_str().expect("the folder of the build has a name in UTF-8")
}
