//! Promises of launches: one instance for each token, which lists show, and none of a refusal.

use std::time::Duration;

use futures_util::future::join_all;
use greenroom_core::inventory::Listed;
use greenroom_core::time::Pretty;
use greenroom_ports::provider::{LaunchRequest, ProviderError};

use super::subject::{LAUNCH_REFUSAL, Subject, is_alive};
use super::verdict::{Judged, failed, skipped};

/// How often a launch is made whose refusal may pass, and the time between two of them.
const TRIES: (u32, Duration) = (4, Duration::from_secs(2));

impl Subject<'_> {
    /// Launches an instance. A refusal that may pass is repeated, if the subject may refuse so.
    pub async fn launch(&self, request: &LaunchRequest) -> Judged {
        let mut tries = 1;
        loop {
            match self.provider.launch(request).await {
                Ok(()) => {
                    self.watch.launched(request);
                    return Ok(());
                }
                Err(error) if self.may_pass(&error) && tries < TRIES.0 => tokio::time::sleep(TRIES.1).await,
                Err(error) => return self.refused_launch(request, &error).await,
            }
            tries += 1;
        }
    }

    /// A refused launch ends the check that needed it. A refusal for capacity or a quota proves that nothing was created, also
    /// as the answer to a repeat.
    async fn refused_launch(&self, request: &LaunchRequest, error: &ProviderError) -> Judged {
        if !error.class().created_nothing(true) {
            return self.refused(error);
        }
        let Some(listed) = self.appears(request).await? else { return self.refused(error) };
        let message = &error.failure.message;
        self.violated(LAUNCH_REFUSAL, format!("{message}, but the list has its instance `{}`", listed.id))?;
        skipped(format!("a launch was refused although it had created an instance, see `{LAUNCH_REFUSAL}`"))
    }

    /// The living instances of a launch.
    pub async fn living(&self, request: &LaunchRequest) -> Judged<Vec<Listed>> {
        let list = self.list(&request.tags.pool).await?;
        let of_launch = |listed: &Listed| is_alive(listed) && listed.tags.as_ref() == Some(&request.tags);
        Ok(list.instances.into_iter().filter(of_launch).collect())
    }

    /// Waits until an instance of a launch is listed; `None`: not in time.
    pub async fn appears(&self, request: &LaunchRequest) -> Judged<Option<Listed>> {
        let look = async || Ok(self.living(request).await?.into_iter().next());
        self.poll(self.limits.appears, look).await
    }

    /// A launch that was accepted is listed with its tags.
    pub async fn is_listed(&self, request: &LaunchRequest) -> Judged<Listed> {
        if let Some(listed) = self.appears(request).await? {
            return Ok(listed);
        }
        let within = Pretty(self.limits.appears);
        failed(format!("no list within {within} has the launched instance `{}`", request.instance))
    }

    /// Waits as long as a further instance of a launch may be hidden; fails if one appears.
    pub async fn stays_single(&self, request: &LaunchRequest) -> Judged {
        let second = self.poll(self.limits.appears, async || {
            let living = self.living(request).await?;
            let ids: Vec<String> = living.into_iter().map(|listed| format!("`{}`", listed.id)).collect();
            Ok((ids.len() > 1).then(|| ids.join(" and ")))
        });
        match second.await? {
            Some(ids) => failed(format!("one launch created {ids}")),
            None => Ok(()),
        }
    }

    /// A repeated launch creates no second instance.
    pub async fn is_repeatable(&self, request: &LaunchRequest) -> Judged {
        self.launch(request).await?;
        self.stays_single(request).await
    }

    /// Concurrent launches create at most one instance for each token, however often it comes. All of them have to be accepted.
    pub async fn launch_all(&self, requests: &[&LaunchRequest]) -> Judged {
        let answers = join_all(requests.iter().map(|request| self.launch(request))).await;
        answers.into_iter().collect::<Judged>()?;
        let first_of =
            |at: &usize| !requests[..*at].iter().any(|earlier| earlier.token == requests[*at].token);
        let different = (0..requests.len()).filter(first_of).map(|at| self.stays_single(requests[at]));
        join_all(different).await.into_iter().collect()
    }

    /// Recovers a launch that got no answer, as Greenroom does: by a repeat if that is safe, and otherwise only if lists lack
    /// it. In the end there is exactly one instance.
    pub async fn recovers(&self, request: &LaunchRequest) -> Judged<Listed> {
        if self.provider.capabilities().idempotent_launch || self.appears(request).await?.is_none() {
            self.launch(request).await?;
        } else {
            self.watch.launched(request);
        }
        let listed = self.is_listed(request).await?;
        self.stays_single(request).await?;
        Ok(listed)
    }

    /// A refused launch has created nothing.
    pub async fn created_nothing(&self, request: &LaunchRequest) -> Judged {
        match self.appears(request).await? {
            Some(listed) => {
                failed(format!("`launch` was refused, but the list has its instance `{}`", listed.id))
            }
            None => Ok(()),
        }
    }
}
