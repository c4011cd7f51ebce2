//! A registry that accepts connections and never answers.

use std::net::TcpListener;
use std::thread;

use crate::site::Site;

#[derive(Debug)]
pub struct StalledRegistry {
    /// How images there are named.
    pub registry: String,
}

impl StalledRegistry {
    pub fn new(site: &'static Site) -> Self {
        let (listener, registry) = site.listen();
        thread::spawn(move || hold(&listener));
        Self { registry }
    }
}

fn hold(listener: &TcpListener) {
    let held: Vec<_> = listener.incoming().flatten().collect();
    drop(held);
}
