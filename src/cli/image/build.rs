//! The command `image build`: a line for each step, the result, and new launches of the pools that waited for the image.

use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use greenroom_core::time::Pretty;
use greenroom_manager::runner_host::Role;
use greenroom_providers::qemu;
use greenroom_providers::qemu::image::GITLAB_RUNNER;
use greenroom_providers::qemu::image::build::{self, BuildError, Helper, Progress, Request, Step};
use greenroom_providers::qemu::image::store::Images;
use rustix::fs::Mode;

use super::args::BuildOptions;
use crate::cli::args::GlobalOptions;
use crate::cli::context::{Context, read_config};
use crate::cli::error::CliError;
use crate::cli::ui;
use crate::config::{PoolConfig, ProviderTable};

pub(super) fn build(images: &Images, options: BuildOptions) -> Result<(), CliError> {
    become_root()?;
    // The guest's directories are for all its users, whatever the umask of this process.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let suite = match options.suite {
        Some(suite) => suite,
        None => build::suite_of_machine()?.ok_or_else(|| {
            CliError::say("the runner host does not run Debian")
                .help("name the release and its archive, for example with `--suite bookworm --mirror URL`")
        })?,
    };
    let helper = options.gitlab_runner.as_deref().map(Helper::at).transpose()?;
    let request = Request {
        name: options.name,
        flavour: options.flavour.into(),
        ssh: options.ssh.into(),
        suite,
        mirrors: options.mirrors,
        packages: options.packages,
        disk_bytes: options.size,
        containers: options.containers,
        helper,
    };
    let began = Instant::now();
    let is_terminal = std::io::stderr().is_terminal();
    let mut line_is_open = false;
    let built = build::build(images, &request, &mut |progress| {
        line_is_open = is_terminal && matches!(progress, Progress::Began(_));
        tell(&progress, is_terminal);
    });
    if line_is_open {
        ui::err("\n");
    }
    let image = built.map_err(with_help)?;
    let size = build::on_disk(&image.dir)?;
    let took = Pretty(began.elapsed());
    ui::err(&format!(
        "image `{}` is complete: {}, {}, built in {took}\n",
        request.name,
        image.dir.display(),
        mib(size)
    ));
    if request.helper.is_none() {
        ui::err(&without_helper(Path::new(GITLAB_RUNNER).is_file()));
    }
    Ok(())
}

/// A user other than root builds as the root of a user namespace: re-executes this program with the same arguments.
fn become_root() -> Result<(), CliError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--map-auto", "--"]);
        command
    };
    let tried = unshare().arg("true").stdin(Stdio::null()).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        return Err(with_help(BuildError::NotRoot));
    }
    Err(CliError::system(unshare().arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).exec()))
}

fn without_helper(is_here: bool) -> String {
    let at = if is_here { GITLAB_RUNNER } else { "FILE" };
    format!(
        "note: the image has no gitlab-runner: jobs have no cache and no artifacts\nhelp: include one with \
         `--gitlab-runner {at}`\n"
    )
}

fn with_help(error: BuildError) -> CliError {
    let help = match &error {
        BuildError::NotRoot => Some(
            "run it with sudo, or install uidmap and give this user a range in /etc/subuid and /etc/subgid",
        ),
        BuildError::Tool(build::ToolError::Failed { tool: build::Tool::Mmdebstrap, .. }) => Some(
            "check that the archive is reachable and has these packages, or name another one with `--mirror URL`",
        ),
        _ => None,
    };
    let error = CliError::system(error);
    match help {
        Some(help) => error.help(help),
        None => error,
    }
}

/// A terminal shows each step when it begins; other outputs get it when it is done.
fn tell(progress: &Progress, is_terminal: bool) {
    match progress {
        Progress::Began(what) if is_terminal => ui::err(&format!("{what} …")),
        Progress::Began(_) => {}
        Progress::Done(step) if is_terminal => ui::err(&format!("\r{}", line(step))),
        Progress::Done(step) => ui::err(&line(step)),
    }
}

fn line(step: &Step) -> String {
    format!("{:<22} {:>8} {:>10}\n", step.what, Pretty(step.took).to_string(), mib(step.bytes))
}

/// Whole mebibytes.
pub(super) fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// Ends the launch back-off of the pools that boot this image ([`boots`]). Without a configuration, there are no such pools.
pub(super) async fn launch_again(place: &GlobalOptions, images: &Path, image: &str) -> Result<(), CliError> {
    if !read_config(place).is_ok_and(|read| read.is_some()) {
        return Ok(());
    }
    let context = Context::open(place, Role::Operator)?;
    let config = context.config()?;
    for pool in config.pools.values().filter(|pool| boots(pool, &config.state_dir, images, image)) {
        if !context.engine(&pool.name)?.retry_launches().await?.is_empty() {
            ui::err(&format!("pool `{}` launches again: its last launch had failed\n", pool.name));
        }
    }
    Ok(())
}

/// True if the pool's machines boot this image of this directory.
fn boots(pool: &PoolConfig, state_dir: &Path, images: &Path, image: &str) -> bool {
    let ProviderTable { kind, table, .. } = &pool.provider;
    kind == qemu::REGISTRATION.kind && qemu::boots(&pool.name, table, state_dir, images, image)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_step_is_a_line_with_time_and_size() {
        let step = Step { what: "disk", took: Duration::from_millis(3100), bytes: 450_000_000 };
        assert_eq!(line(&step), "disk                      3.1 s    430 MiB\n");
    }

    #[test]
    fn an_installed_helper_is_offered() {
        assert!(without_helper(true).contains("`--gitlab-runner /usr/bin/gitlab-runner`"));
        assert!(without_helper(false).contains("`--gitlab-runner FILE`"));
    }

    #[test]
    fn a_pool_boots_an_image_by_its_name_and_its_directory() {
        let boots = |provider: &str, images: &str, image: &str| {
            let text = format!("[pool.one]\nmax_instances = 1\n[pool.one.provider]\n{provider}\n");
            let config = Config::parse(&text, "greenroom.toml").unwrap();
            let pool = config.pools.values().next().unwrap();
            super::boots(pool, Path::new("/state"), Path::new(images), image)
        };
        let usual = "kind = \"qemu\"";
        assert!(boots(usual, "/state/images", "light") && !boots(usual, "/state/images", "heavy"));
        assert!(!boots(usual, "/elsewhere", "light") && !boots("kind = \"local\"", "/state/images", "light"));
        let other = "kind = \"qemu\"\nimage = \"heavy\"\nimages = \"/elsewhere\"";
        assert!(boots(other, "/elsewhere", "heavy") && !boots(other, "/state/images", "heavy"));
        let disk = "kind = \"qemu\"\nimage = \"/state/images/light\"";
        assert!(!boots(disk, "/state/images", "light"), "a disk of the operator's");
        let wrong = "kind = \"qemu\"\nvcpu = 2";
        assert!(!boots(wrong, "/state/images", "light"), "a table that does not build");
    }
}
