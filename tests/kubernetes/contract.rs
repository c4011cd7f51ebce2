//! The contract of every provider, on pods.

#![cfg(test)]

use crate::fixture::Pool;

greenroom_harness::provider_contract!(match Pool::open("") {
    Some(pool) => pool,
    None => return,
});

mod by_address {
    use super::Pool;

    greenroom_harness::provider_contract! { match Pool::open("via = 'address'") {
            Some(pool) => pool,
            None => return,
        };
        a_launched_instance_is_listed_and_answers,
    }
}
