//! `greenroom` with the vendors' libraries built in; `greenroom` re-executes as this program where a pool needs them.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    greenroom::cli::run_with_backends(std::env::args_os())
}
