//! The network of QEMU's user mode, which is the same in every machine.

use std::io;
use std::net::Ipv4Addr;

use crate::naming;
use crate::sys;

const INTERFACE: &str = "eth0";
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// Brings loopback and the one interface up. Again does no harm. A machine may have no interface.
pub(crate) fn bring_up() -> io::Result<()> {
    sys::bring_up("lo").map_err(naming("lo"))?;
    if !std::path::Path::new("/sys/class/net").join(INTERFACE).exists() {
        return Ok(());
    }
    sys::set_address(INTERFACE, ADDRESS, MASK)
        .and_then(|()| sys::bring_up(INTERFACE))
        .and_then(|()| sys::set_gateway(GATEWAY))
        .map_err(naming(INTERFACE))
}
