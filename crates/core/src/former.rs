//! What the record of a static host leaves when it is forgotten: the host still has what its jobs left.

use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;
use super::ids::{InstanceId, TrustDomain};
use super::instance::{Instance, Phase};
use super::pool::PoolState;
use super::time::Stamp;

/// A static host that is no longer in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerHost {
    pub id: InstanceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<TrustDomain>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Stamp>,
    /// Why it was out of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_service: Option<String>,
}

impl FormerHost {
    fn of(host: &Instance) -> Self {
        let out_of_service = match &host.phase {
            Phase::OutOfService { reason } => Some(reason.clone()),
            Phase::Launching
            | Phase::Checking
            | Phase::Ready
            | Phase::Suspended { .. }
            | Phase::Cleaning
            | Phase::Draining { .. } => None,
        };
        let (id, endpoint, domain) = (host.id.clone(), host.endpoint.clone(), host.domain.clone());
        Self { id, endpoint, domain, released: host.released, out_of_service }
    }

    /// Gives the record of a host that returns what it had. No job comes before a cleaning, whatever it was.
    pub(super) fn restore(self, host: &mut Instance) {
        host.phase = match self.out_of_service {
            Some(reason) => Phase::OutOfService { reason },
            None => Phase::Cleaning,
        };
        (host.domain, host.released) = (self.domain, self.released);
    }
}

/// True for the same account on the same machine. A machine may have got another name or another address.
fn is_same_account(a: &Endpoint, b: &Endpoint) -> bool {
    a.user == b.user && ((a.address == b.address && a.port == b.port) || a.host_key == b.host_key)
}

impl PoolState {
    /// Remembers a static host whose record is dropped, in place of an earlier one with its name.
    pub(super) fn remember(&mut self, host: &Instance) {
        let is_new = host.phase == Phase::Checking && host.ready.is_none();
        if host.is_static() && !is_new {
            self.former_hosts.retain(|former| former.id != host.id);
            self.former_hosts.push(FormerHost::of(host));
        }
    }

    /// The host that returns under this name or at this endpoint. A machine counts more than a name.
    pub fn former_host(&self, id: &InstanceId, endpoint: &Endpoint) -> Option<&FormerHost> {
        let same =
            |former: &&FormerHost| former.endpoint.as_ref().is_some_and(|at| is_same_account(at, endpoint));
        let mut hosts = self.former_hosts.iter();
        hosts.clone().find(same).or_else(|| hosts.find(|former| former.id == *id))
    }

    pub(super) fn take_former(&mut self, id: &InstanceId, endpoint: &Endpoint) -> Option<FormerHost> {
        let id = self.former_host(id, endpoint)?.id.clone();
        let place = self.former_hosts.iter().position(|former| former.id == id)?;
        Some(self.former_hosts.remove(place))
    }

    /// The recorded host that has this account and is no longer listed: it got another name, and may have jobs.
    pub fn renamed_host(&self, endpoint: &Endpoint) -> Option<&Instance> {
        let same = |host: &&Instance| host.endpoint.as_ref().is_some_and(|at| is_same_account(at, endpoint));
        let hosts = self.instances.values().map(AsRef::as_ref);
        let mut unlisted = hosts.filter(|host| host.is_static() && host.missing.is_some());
        unlisted.find(same)
    }
}
