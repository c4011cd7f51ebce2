//! The plugin's log on its three ways: drained, cleaned, limited.

#![cfg(test)]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greenroom_backends::fleeting::group::InstanceGroup as _;
use tracing::subscriber::DefaultGuard;

use crate::fixture::{Place, grown, until};

/// The text that is traced on this thread.
#[derive(Clone, Default)]
struct Traced(Arc<Mutex<Vec<u8>>>);

impl io::Write for Traced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Traced {
    fn begin() -> (Self, DefaultGuard) {
        let traced = Self::default();
        let writer = traced.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (traced, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

#[tokio::test]
async fn floods_on_all_ways_are_drained_and_limited() {
    let (traced, _guard) = Traced::begin();
    let place = Place::new();
    let plugin = place.plugin();
    grown(&plugin, 1).await;
    place.fault("flood.once", "5");
    plugin.update().await.unwrap();
    let ways = ["plugin: flood line=4", "plugin: plain flood 4", "plugin: printed flood 4"];
    until(|| ways.iter().all(|way| traced.text().contains(way)), || traced.text()).await;
    place.fault("flood.once", "20000");
    // The plugin prints into streams that hold a few lines: a reader is missing, or this is answered.
    assert_eq!(plugin.update().await.unwrap().len(), 1);
    // The next line that is passed on tells how many were not.
    let begun = Instant::now();
    while !traced.text().contains(" lines are left out") {
        assert!(begun.elapsed() < Duration::from_secs(30), "the lines that are left out are not counted");
        place.fault("flood.once", "1");
        plugin.update().await.unwrap();
    }
    let text = traced.text();
    let lines = text.lines().filter(|line| line.contains("plugin: ")).count();
    assert!((15..2_000).contains(&lines), "{lines} of 60,000 lines");
    plugin.close().await;
    assert!(
        text.lines().all(|line| line.contains("pool=linux") || !line.contains("plugin:")),
        "the pool is named"
    );
}

#[tokio::test]
async fn secrets_do_not_reach_the_log() {
    let (traced, _guard) = Traced::begin();
    let place = Place::new();
    place.fault("tell", "");
    let plugin = place.plugin();
    let ids = grown(&plugin, 1).await;
    let key = String::from_utf8(plugin.connect_info(&ids[0]).await.unwrap().key).unwrap();
    // The second time, the log is that of a known key.
    plugin.connect_info(&ids[0]).await.unwrap();
    let secret = key.lines().nth(2).unwrap();
    plugin.close().await;
    let text = traced.text();
    assert!(text.contains("plugin: initialized") && text.contains("[hidden]"), "{text}");
    assert!(!text.contains(secret) && !text.contains("pw-hunter2"), "{text}");
}
