//! `prepare` of a job on the machine itself: ends the keeper's pulls there.

use std::time::Duration;

use greenroom_core::container::place::EnginePlace;
use greenroom_core::ids::AttemptName;
use greenroom_ports::connector::RemoteCommand;

use super::ContainerError;
use crate::Engine;
use crate::acquire::Acquired;
use crate::effect::CommandResult;

/// Functions of a shell that end scripts of Greenroom's own.
pub(super) const ENDING: &str = include_str!("ending.sh");

/// How long it may take. A pull ends within two seconds.
const WITHIN: Duration = Duration::from_secs(30);

impl Engine {
    /// Ends the keeper's pulls on the instance of a job that runs on the machine itself, where it could read their
    /// passwords in memory. A job in a container ends them in its own script. After an error, the attempt has no grant.
    ///
    /// The caller holds the attempt's lease.
    pub async fn end_pulls(&self, attempt: &AttemptName, acquired: &Acquired) -> Result<(), ContainerError> {
        let ended = self.try_to_end_pulls(acquired).await;
        if let Err(error) = &ended {
            self.part_with(attempt, error).await;
        }
        ended
    }

    async fn try_to_end_pulls(&self, acquired: &Acquired) -> Result<(), ContainerError> {
        let assignment = &acquired.assignment;
        let place = EnginePlace::on(assignment.is_static);
        // Without root, nobody can have pulled there.
        let reader = match place {
            EnginePlace::Root => {
                format!("[ \"$(id -u)\" = 0 ] || sudo -n true 2>&1 || exit 0; {}", place.reader())
            }
            EnginePlace::Account => place.reader(),
        };
        let command = RemoteCommand {
            text: &reader,
            input: &format!("{ENDING}end_pulls </dev/null\n"),
            within: WITHIN,
            start_within: assignment.timeouts.start_within,
            shared: true,
        };
        let lost = |why: String| {
            let instance = &assignment.instance;
            ContainerError::Lost(format!("instance {instance} did not end the pulls of images there: {why}"))
        };
        match self.command_at(&assignment.instance, &assignment.endpoint, command).await {
            Ok(CommandResult::Passed) => Ok(()),
            Ok(CommandResult::Failed(why) | CommandResult::Cut(why)) => Err(lost(why)),
            Err(problem) => Err(lost(problem.to_string())),
        }
    }
}
