//! Plans, events and reports as one line of text.

use crate::event::{Change, Event};
use crate::ids::AttemptName;
use crate::instance::DrainReason;
use crate::plan::{Effect, Plan};
use crate::report::{Note, Report};
use crate::unbegun::CheckKind;

use super::{World, world};

/// The effects of the plan for this world, in one line.
pub fn does(text: &str) -> String {
    render(&world(text).plan())
}

/// The reason why each waiting job waits.
pub fn waits(text: &str) -> String {
    waits_in(&world(text).plan().report)
}

fn short(text: &str) -> String {
    text.replace("p-g-", "i")
}

/// Events first, then effects, in one line.
pub fn render(plan: &Plan) -> String {
    let events = plan.events.iter().map(|e| describe(&e.change));
    let effects = plan.effects.iter().map(Effect::to_string);
    short(&events.chain(effects).collect::<Vec<_>>().join("; "))
}

/// A transaction's events in one line.
pub fn render_events(events: &[Event]) -> String {
    short(&events.iter().map(|e| describe(&e.change)).collect::<Vec<_>>().join("; "))
}

pub fn waits_in(report: &Report) -> String {
    let line = |(attempt, on): &(AttemptName, _)| format!("{attempt}: {on}");
    short(&report.waiting.iter().map(line).collect::<Vec<_>>().join("; "))
}

/// Notes for operators, one word each.
pub fn notes(text: &str) -> String {
    notes_of(&world(text))
}

pub fn notes_of(world: &World) -> String {
    let word = |note: &Note| match note {
        Note::ListFailed { .. } => "list failed".to_owned(),
        Note::Elsewhere { instances, .. } => format!("{instances} elsewhere"),
        Note::LocationUnknown { instances } => format!("{instances} of unknown location"),
        Note::ListIncomplete => "list incomplete".to_owned(),
        Note::OwnerConflict { instances } => format!("another manager: {}", instances.len()),
        Note::Copies { names } => format!("copies {}", names.join(" ")),
        Note::OverLimit { alive, max_instances } => format!("{alive} over {max_instances}"),
        Note::CallsFailing { instance, .. } => format!("failing {instance}"),
        Note::AttemptUnreadable { attempt, .. } => format!("unreadable {attempt}"),
        Note::Unavailable { instance, .. } => format!("unavailable {instance}"),
        Note::ListImplausible { missing, answering } => format!("implausible {answering} of {missing}"),
        Note::HostSuspected { unreachable, responding, .. } => {
            format!("suspect the runner host: {unreachable} to {responding}")
        }
        Note::ImageNotPulled { image, instances, .. } => format!("no {image} on {instances}"),
        Note::Announced { instance, .. } => format!("announced {instance}"),
        Note::Suspect { instance, .. } => format!("suspect {instance}"),
        Note::BootFailed(boot) => format!("failed {}", boot.instance),
        Note::Unfit { instance, .. } => format!("unfit {instance}"),
        Note::CannotSuspend => "cannot suspend".to_owned(),
        Note::OwnKey(own) => format!("own key {}", own.plugin_key),
        Note::SuspensionsFail { failures, .. } => format!("{failures} suspensions failed"),
        Note::ConfigInvalid { .. } => "config".to_owned(),
        Note::Moved { problem } => problem.clone(),
    };
    short(&world.plan().report.notes.iter().map(word).collect::<Vec<_>>().join("; "))
}

fn describe(change: &Change) -> String {
    match change {
        Change::PolicySet { .. } => "policy".to_owned(),
        Change::GenerationBegun { generation } => format!("generation {generation}"),
        Change::OfferingsChanged { offerings } => format!("{} offerings", offerings.len()),
        Change::LaunchIntended { instance, attempt, offering, ordered, .. } => {
            let whose =
                ordered.as_ref().map(|ordered| format!(" for {}", ordered.attempt)).unwrap_or_default();
            let again = if *attempt == 1 { String::new() } else { format!(" ({attempt})") };
            let chosen = offering.as_ref().map(|c| format!(" as {c}")).unwrap_or_default();
            format!("{instance} intended{again}{chosen}{whose}")
        }
        Change::LaunchAnswered { instance, .. } => format!("{instance} answered"),
        Change::Reached { instance, .. } => format!("{instance} reached"),
        Change::BecameReady { instance } => format!("{instance} ready"),
        Change::SuspendIntended { instance } => format!("{instance} to suspend"),
        Change::Suspended { instance } => format!("{instance} stopped"),
        Change::ResumeIntended { instance } => format!("{instance} to resume"),
        Change::Adopted { instance, .. } => format!("{instance} adopted"),
        Change::Resized { instance, capacity } => format!("{instance} holds {capacity}"),
        Change::Readdressed { instance, .. } => format!("{instance} moved"),
        Change::BecameUnreachable { instance, .. } => format!("{instance} doubted"),
        Change::Requested { attempt, .. } => format!("{attempt} asks"),
        Change::Granted { attempt, instance } => format!("{attempt} gets {instance}"),
        Change::OrderRefused { attempt, .. } => format!("{attempt} order-refused"),
        Change::Withdrawn { attempt, .. } => format!("{attempt} withdrawn"),
        Change::Rejected { attempt, .. } => format!("{attempt} rejects"),
        Change::StageNotBegun { attempt, kind: CheckKind::Stages, .. } => {
            format!("{attempt} begins no stage")
        }
        Change::StageNotBegun { attempt, kind, .. } => format!("{attempt} wants a check {kind}"),
        Change::StageBegun { instance, kind: CheckKind::Stages } => format!("{instance} begins a stage"),
        Change::StageBegun { instance, kind } => format!("{instance} passes the check {kind}"),
        Change::FailedEarly { attempt, .. } => format!("{attempt} fails early"),
        Change::Rechecked { instance } => format!("{instance} is fit"),
        Change::Released { attempt, release: leaving } if leaving.closing => format!("{attempt} lingers"),
        Change::Released { attempt, release: leaving } if leaving.used => format!("{attempt} leaves"),
        Change::Released { attempt, .. } => format!("{attempt} leaves unused"),
        Change::JobEnded { attempt, end } => format!("{attempt} {}", end.result),
        Change::SlotFreed { attempt } => format!("{attempt} departs"),
        Change::ImagesFound { instance, images, attempt } => {
            let names: Vec<&str> = images.iter().map(|found| &*found.name).collect();
            let by = attempt.as_ref().map(|attempt| format!(", by {attempt}")).unwrap_or_default();
            format!("{instance} has {}{by}", names.join(" "))
        }
        Change::ImagesRemoved { instance, images } => format!("{instance} lost {}", images.join(" ")),
        Change::CleaningBegun { instance } => format!("{instance} to clean"),
        Change::Cleaned { instance, images } if images.is_empty() => format!("{instance} cleaned"),
        Change::Cleaned { instance, images } => format!("{instance} cleaned, with {}", images.join(" ")),
        Change::OutOfService { instance, .. } => format!("{instance} out-of-service"),
        Change::ReturnedToService { instance } => format!("{instance} restored"),
        Change::Unbound { instance } => format!("{instance} unbound"),
        Change::DrainingBegun { instance, reason: why } => format!("{instance} drains: {}", word(why)),
        Change::MissingFromList { instance, .. } => format!("{instance} missed"),
        Change::Located { instance, location } => format!("{instance} located in {location}"),
        Change::ListedAgain { instance } => format!("{instance} seen"),
        Change::Forgotten { instance } => format!("{instance} forgotten"),
        Change::RecordDropped { instance, .. } => format!("{instance} dropped"),
        Change::PoolDrained => "pool drained".to_owned(),
        Change::PoolResumed => "pool resumed".to_owned(),
    }
}

fn word(why: &DrainReason) -> String {
    let debug = format!("{why:?}");
    debug.split(' ').next().unwrap_or_default().to_lowercase()
}
