//! Operations strictly one after the other, each for all who wait for it.
//!
//! An operation belongs to no caller: if the one that began it gives up, the next caller continues it. So a call of the
//! plugin is not cancelled, which would leave its outcome unknown.

use std::cell::RefCell;

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, Shared};

type Operation = Shared<LocalBoxFuture<'static, ()>>;

/// At most one operation.
#[derive(Default)]
pub struct Serial {
    present: RefCell<Option<Operation>>,
}

impl std::fmt::Debug for Serial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serial").finish_non_exhaustive()
    }
}

impl Serial {
    /// Runs an operation after those that came before.
    pub async fn run(&self, operation: impl Future<Output = ()> + 'static) {
        let operation = operation.boxed_local().shared();
        loop {
            let present = self.present.borrow().clone();
            let Some(present) = present else { break };
            self.finish(present).await;
        }
        self.present.replace(Some(operation.clone()));
        self.finish(operation).await;
    }

    async fn finish(&self, operation: Operation) {
        operation.clone().await;
        let mut present = self.present.borrow_mut();
        if present.as_ref().is_some_and(|present| present.ptr_eq(&operation)) {
            *present = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn an_operation_that_its_caller_gave_up_is_continued_by_the_next_one() {
        let (serial, go, log) = (Serial::default(), Rc::new(Notify::new()), Rc::new(RefCell::new(vec![])));
        let (wait, noted) = (Rc::clone(&go), Rc::clone(&log));
        let slow = async move {
            noted.borrow_mut().push("begun");
            wait.notified().await;
            noted.borrow_mut().push("ended");
        };
        assert!(tokio::time::timeout(Duration::from_millis(5), serial.run(slow)).await.is_err());
        let noted = Rc::clone(&log);
        let next = async move { noted.borrow_mut().push("next") };
        assert!(tokio::time::timeout(Duration::from_millis(5), serial.run(next)).await.is_err());
        go.notify_one();
        serial.run(async {}).await;
        assert_eq!(*log.borrow(), ["begun", "ended"], "what had not begun goes with its caller");
    }

    #[tokio::test]
    async fn operations_never_overlap() {
        let (serial, busy) = (Rc::new(Serial::default()), Rc::new(Cell::new(false)));
        let operation = || {
            let busy = Rc::clone(&busy);
            async move {
                assert!(!busy.replace(true), "two at a time");
                tokio::task::yield_now().await;
                busy.set(false);
            }
        };
        futures_util::future::join_all((0..20).map(|_| serial.run(operation()))).await;
        assert!(!busy.get());
    }
}
