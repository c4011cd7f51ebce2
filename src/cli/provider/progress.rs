//! What the kit says before it creates machines.

use greenroom_backends::external::kit::live::{CONCURRENT, MACHINES, POOLS};
use greenroom_backends::external::protocol::answers::CapabilitiesAnswer;

/// What the machines cost, as far as the program says.
pub(super) fn cost(known: &CapabilitiesAnswer) -> String {
    let or_not =
        |stated: &Option<String>| stated.clone().unwrap_or_else(|| "not stated by the program".to_owned());
    let (machines, concurrent) =
        (MACHINES + u32::from(known.lifetime), CONCURRENT + u32::from(known.lifetime));
    format!(
        "The kit creates about {machines} machines, at most {concurrent} of them concurrently, in the pools `{}` and `{}`, and \
         terminates them.\n  account: {}\n  price of a machine: {}\n",
        POOLS[0],
        POOLS[1],
        or_not(&known.account),
        or_not(&known.price),
    )
}
