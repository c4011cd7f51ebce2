//! The contract of every provider, on the plugin of the tests and on GitLab's dummy plugin.

#![cfg(test)]

mod own {
    use crate::pools::Own;

    greenroom_harness::provider_contract!(match Own::open() {
        Some(pool) => pool,
        None => return,
    });
}

mod gitlabs_dummy {
    use crate::pools::Dummy;

    greenroom_harness::provider_contract!(match Dummy::open() {
        Some(pool) => pool,
        None => return,
    });
}
