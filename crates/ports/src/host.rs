//! The runner host: everything that is recorded and awaited beside the store.

use std::rc::Rc;

use super::attempts::Attempts;
use super::leadership::Leadership;
use super::reports::Reports;
use super::wakeups::WakeUps;

/// The ports of a runner host. Each can be replaced without the others.
#[derive(Debug, Clone)]
pub struct Host {
    pub attempts: Rc<dyn Attempts>,
    pub leadership: Rc<dyn Leadership>,
    pub wakeups: Rc<dyn WakeUps>,
    pub reports: Rc<dyn Reports>,
}

impl Host {
    /// The ports of one object that is all of them.
    pub fn of<T>(all: &Rc<T>) -> Self
    where
        T: Attempts + Leadership + WakeUps + Reports + 'static,
    {
        Self {
            attempts: Rc::clone(all) as _,
            leadership: Rc::clone(all) as _,
            wakeups: Rc::clone(all) as _,
            reports: Rc::clone(all) as _,
        }
    }
}
