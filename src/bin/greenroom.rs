//! Entry point; everything of interest starts in `cli::run`.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    greenroom::cli::run(std::env::args_os())
}
