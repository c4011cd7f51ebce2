//! A clock that is off: `doctor` compares it with the cloud's.

use serde_json::json;

use crate::cloud::Buy;
use crate::cloud::Cloud;
use crate::site::{Site, pool};

on_both_clouds![doctor_tells_a_clock_that_is_off];

fn doctor_tells_a_clock_that_is_off(cloud: Cloud) {
    let site = Site::open(cloud, pool(), Buy::OnDemand);
    let code = format!("{}-clock", cloud.kind());
    let said = || String::from_utf8_lossy(&site.greenroom(&["doctor", "--json"]).stdout).into_owned();
    assert!(!said().contains(&code));
    site.lab.set(&json!({ "clock_ahead": 400 }));
    let text = said();
    assert!(text.contains(&code) && text.contains("s behind"), "{text}");
}
