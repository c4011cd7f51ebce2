//! The Greenroom processes that run virtual machines.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use crate::supervisor::note;

mod agent;
mod boot;
mod command;
mod console;
mod descriptor;
pub(super) mod exec;
#[cfg(test)]
mod failing_writes;
mod fat;
mod lines;
mod machine;
mod proxy;
pub(super) mod qcow2;
mod qmp;
mod rig;
mod supervise;
mod template;

pub(super) use template::disk_of_all as disk_of_templates;

/// The hidden subcommands of `instance qemu`; `arguments` follow it.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let texts: Vec<&str> = arguments.iter().map_while(|argument| argument.to_str()).collect();
    match (texts.as_slice(), arguments) {
        (["supervise", "--dir", ..], [_, _, dir]) => supervise::supervise(Path::new(dir)),
        (["template", "--dir", ..], [_, _, dir]) => template::holder::hold(Path::new(dir)),
        (["exec", ..], [_, supervisor, program, rest @ ..]) => exec::exec(supervisor, program, rest),
        (["proxy", target], _) => proxy::proxy(target),
        _ => {
            note("usage: greenroom instance qemu supervise --dir DIR");
            ExitCode::from(2)
        }
    }
}
