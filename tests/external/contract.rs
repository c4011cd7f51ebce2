//! The contract of every provider, on two programs: one knows machines by their names, one by their tags.

#![cfg(test)]

mod shell {
    use crate::fixture::Pool;

    greenroom_harness::provider_contract!(Pool::of("machines.sh"));
}

mod python {
    use crate::fixture::Pool;

    greenroom_harness::provider_contract!(Pool::of("machines.py"));
}
