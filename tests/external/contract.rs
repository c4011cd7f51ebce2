//! The contract of every provider, on three programs: one knows machines by their names, one by
//! their tags, and one makes a machine with each call and shows it late.

#![cfg(test)]

mod shell {
    use crate::fixture::Pool;

    crate::provider::provider_contract!(Pool::of("machines.sh"));
}

mod careless {
    use crate::fixture::Pool;

    // Each call makes a machine, which lists lack for a while.
    crate::provider::provider_contract!(Pool::with(
        "machines.py",
        ", careless = \"yes\", appears_within_s = \"1\", hidden_s = \"0.5\""
    ));
}

mod python {
    use crate::fixture::Pool;

    crate::provider::provider_contract!(Pool::of("machines.py"));
}
