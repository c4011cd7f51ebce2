//! The engine of the lab's machines.

use std::cell::Cell;

use greenroom_core::container::engine::ContainerEngine;

thread_local! {
    static ENGINE: Cell<ContainerEngine> = const { Cell::new(ContainerEngine::Podman) };
}

/// The engine of the test that runs on this thread.
pub fn engine() -> ContainerEngine {
    ENGINE.get()
}

/// Runs a test with Docker instead of Podman.
pub fn on_docker(test: impl FnOnce()) {
    struct Podman;
    impl Drop for Podman {
        fn drop(&mut self) {
            ENGINE.set(ContainerEngine::Podman);
        }
    }
    ENGINE.set(ContainerEngine::Docker);
    let _afterwards = Podman;
    test();
}
