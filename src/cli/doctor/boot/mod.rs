//! `doctor --boot`: boots an instance, and reports how long each stage takes.

pub(in crate::cli::doctor) mod containers;
mod play;
pub(in crate::cli) mod scratch;

use containers::ContainerCheck;
use greenroom_core::report::FailedBoot;
use greenroom_manager::runner_host::Role;
use play::{Boot, BootResult, BootTimeline, unfinished};
use scratch::{ScratchStateDir, Unfinished};

use super::Examination;
use crate::cli::args::GlobalOptions;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::prompt::Interrupts;
use crate::cli::ui;

/// Boots an instance of a pool; false if it did not come up, or something of it remains.
pub(super) async fn boot(place: &GlobalOptions, pool: &str) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let pool = context.the_pool(Some(pool))?;
    if context.pool(&context.config()?.pools[&pool])?.setup.current().await.0.has_static_hosts() {
        return Err(CliError::say(format!("pool `{pool}` has static hosts, which cannot be booted"))
            .help("run `greenroom doctor`, which checks each of them"));
    }
    // First the boots whose process died: their instances cost money.
    for left in scratch::unfinished(&context.state_path).await? {
        finish(&context, &left, &ui::out).await?;
    }
    let check = ContainerCheck::of(&context.config()?.pools[&pool])?;
    let ground = ScratchStateDir::make(&context.state_path)?;
    let boot = Boot::open(&context, &context.config()?.pools[&pool], &ground, 1)?;
    boot.kept(tried(&boot, check.as_ref())).await
}

/// Boots an instance, and terminates it in any case.
async fn tried(boot: &Boot<'_>, check: Option<&ContainerCheck>) -> Result<bool, CliError> {
    let mut interrupts = Interrupts::new()?;
    let mut timeline = BootTimeline::default();
    let end = tokio::select! {
        end = boot.boot(check, &mut timeline, &ui::out) => Some(end),
        () = interrupts.next() => None,
    };
    if end.is_none() {
        ui::err("greenroom: interrupted, terminating the instance (press Ctrl-C again to leave it)\n");
    }
    let is_clean = tokio::select! {
        ended = boot.end(&mut timeline, &ui::out) => ended?,
        () = interrupts.next() => {
            return Err(CliError::say("interrupted: the instance is not terminated").help(unfinished()));
        }
    };
    // After the termination, because only the pass that follows it reports the console of a failed boot.
    let answer = match end {
        None => Err(CliError::say("interrupted; the instance is terminated")),
        Some(Ok(BootResult::Up(None))) => Ok(is_clean),
        Some(Ok(BootResult::Up(Some(found)))) => {
            let mut examined = Examination::default();
            examined.add("containers", found);
            ui::out(&format!("\n{}", examined.text(ui::width())));
            Ok(is_clean && !examined.is_bad())
        }
        Some(Ok(BootResult::Failed(why))) => {
            ui::out(&failed(&why, boot.failed_boot().await.as_ref()));
            Ok(false)
        }
        Some(Err(error)) => Err(error),
    };
    if is_clean {
        boot.ground.remove()?;
    }
    answer
}

/// Cleans up a boot whose process died; true if nothing of it remains.
pub(in crate::cli) async fn finish(
    context: &Context,
    left: &Unfinished,
    say: &dyn Fn(&str),
) -> Result<bool, CliError> {
    let Some(name) = &left.pool else {
        left.ground.remove()?;
        return Ok(true);
    };
    let Some(pool) = context.config()?.pools.get(name) else {
        let what = format!(
            "a `doctor --boot` of pool `{name}` was interrupted, and the pool is no longer configured"
        );
        let path = left.path().display();
        return Err(CliError::say(what).help(format!(
            "restore the pool's configuration and repeat the command, or remove `{path}` \
             if the provider has nothing left of it"
        )));
    };
    say(&format!("cleaning up {left}\n"));
    // No instance is wanted: the keeper of this boot launches nothing, and terminates what is there.
    let boot = Boot::open(context, pool, &left.ground, 0)?;
    let is_clean = boot.kept(boot.end(&mut boot.timeline_so_far().await?, say)).await?;
    if is_clean {
        left.ground.remove()?;
    }
    Ok(is_clean)
}

fn failed(why: &str, boot: Option<&FailedBoot>) -> String {
    let cause = boot.and_then(|boot| boot.cause.as_ref()).map(|cause| format!(": it {cause}"));
    let head = format!("the boot failed: {why}{}\n", cause.unwrap_or_default());
    match boot {
        Some(FailedBoot { console, .. }) if !console.is_empty() => {
            let lines = console.iter().map(|line| format!("  | {line}\n")).collect::<Vec<String>>().concat();
            format!("{head}the last lines of its console:\n{lines}")
        }
        _ => head,
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::instance::DrainReason;

    use super::*;
    use crate::cli::fixture::{at, id};

    #[test]
    fn a_failed_boot_is_told_with_the_end_of_its_console() {
        let console = vec!["Kernel panic".to_owned(), "rebooting".to_owned()];
        let why = DrainReason::Stopped;
        let boot =
            FailedBoot { instance: id(1), at: at(9.0), reason: why, cause: Some("panicked".into()), console };
        let expected = "the boot failed: the provider stopped it: it panicked\nthe last lines of its console:\n  | Kernel panic\n  \
                        | rebooting\n";
        assert_eq!(failed("the provider stopped it", Some(&boot)), expected);
        assert_eq!(
            failed("the launch was refused: denied", None),
            "the boot failed: the launch was refused: denied\n"
        );
    }
}
