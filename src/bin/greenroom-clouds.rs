//! The same program with the calls to clouds; `greenroom` goes on as this one where a pool needs it.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    greenroom::cli::run_with_clouds(std::env::args_os())
}
