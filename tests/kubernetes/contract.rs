//! The contract of every provider, on pods.

#![cfg(test)]

use crate::fixture::Pool;

crate::provider::provider_contract!(match Pool::open("") {
    Some(pool) => pool,
    None => return,
});
