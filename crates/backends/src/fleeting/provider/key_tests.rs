//! A provider over a plugin that makes keys of its own.

use std::rc::Rc;

use greenroom_core::endpoint::LoginKey;
use greenroom_core::own_key::OwnKeyCause;

use super::fake::{FakeSite, id, request};
use super::*;
use crate::fleeting::group::PluginStart;

/// A new private key, as a plugin makes it.
fn made() -> String {
    Logins::new(tempfile::tempdir().unwrap().path()).pool_key().unwrap().text
}

/// The plugin has started again: it gives this key, or with static credentials none.
fn start(site: &FakeSite, name: &str, key: Option<&str>) {
    let is_static = key.is_none();
    site.cloud.start.replace(PluginStart { id: name.to_owned(), is_static });
    let mut info = ConnectInfo {
        protocol: "ssh".to_owned(),
        username: "ci".to_owned(),
        internal_address: "10.0.0.7:2222".to_owned(),
        ..ConnectInfo::default()
    };
    info.key = key.unwrap_or_default().as_bytes().to_vec();
    site.cloud.info.replace(Some(info));
}

async fn launched(site: &FakeSite, provider: &Fleeting, number: u32) {
    provider.launch(&request(number)).await.unwrap();
    site.cloud.all(InstanceState::Running);
    provider.list(&PoolName::new("linux")).await.unwrap();
}

/// The key that logs in to an instance now.
async fn key_of(provider: &Fleeting, number: u32) -> String {
    let login = provider.endpoint(&id(number)).await.unwrap().key;
    let Some(LoginKey::File(path)) = login else { panic!("{login:?}") };
    fs_err::read_to_string(path).unwrap()
}

fn cause(provider: &Fleeting) -> Option<OwnKeyCause> {
    provider.capabilities().own_key.map(|own| own.cause)
}

#[tokio::test]
async fn a_machine_keeps_the_key_of_the_start_that_made_it() {
    let site = FakeSite::new();
    let [first, second] = [made(), made()];
    let keys = "user = \"ci\"\nstatic_credentials = false";
    let provider = site.provider(keys);
    start(&site, "a1", Some(&first));
    launched(&site, &provider, 1).await;
    assert_eq!(key_of(&provider, 1).await, first);
    // The second machine's own key is never shown before the plugin is killed.
    launched(&site, &provider, 2).await;
    drop(provider);
    start(&site, "b2", Some(&second));
    let provider = site.provider(keys);
    launched(&site, &provider, 3).await;
    let mut of_each = Vec::new();
    for number in 1..=3 {
        of_each.push(key_of(&provider, number).await);
    }
    assert_eq!(of_each, [first.clone(), first.clone(), second.clone()]);
    // A plugin may bring its present key to machines: after a denial, that one is next, and then the other one again.
    for expected in [&second, &first, &second] {
        assert_eq!(provider.login_tried(&id(1), true), None);
        assert_eq!(key_of(&provider, 1).await, *expected);
    }
    let stored = || fs_err::read_dir(site.state.path().join("fleeting/linux/start_keys")).unwrap().count();
    assert_eq!(stored(), 2);
    site.cloud.machines.borrow_mut().clear();
    for _ in 0..7 {
        site.pass(3);
        provider.list(&PoolName::new("linux")).await.unwrap();
    }
    assert_eq!(stored(), 1, "the present start's");
}

#[tokio::test]
async fn a_machine_whose_key_is_lost_fails_once_it_has_denied_logins_for_a_while() {
    let site = FakeSite::new();
    let [first, second] = [made(), made()];
    let provider = site.provider("user = \"ci\"");
    let pool = PoolName::new("linux");
    start(&site, "a1", Some(&first));
    launched(&site, &provider, 1).await;
    start(&site, "b2", Some(&second));
    site.pass(3);
    launched(&site, &provider, 2).await;
    for number in [1, 2] {
        assert_eq!(key_of(&provider, number).await, second);
    }
    let why = provider.login_tried(&id(1), true).unwrap();
    assert!(why.contains("no longer has that key since it started again with the key SHA256:"), "{why}");
    assert_eq!(provider.login_tried(&id(2), true), None, "its key may still come");
    let status = async |number: usize| {
        let listing = provider.list(&pool).await.unwrap();
        (
            listing.instances[number - 1].status,
            listing.instances[number - 1].detail.clone().unwrap_or_default(),
        )
    };
    assert_eq!(status(1).await.0, Status::Running, "not yet");
    site.pass(20);
    assert_eq!(status(2).await.0, Status::Running);
    let (status, detail) = status(1).await;
    assert!(status == Status::Stopping && detail.contains(&why), "{detail}");
    provider.login_tried(&id(1), false);
    assert_eq!(provider.list(&pool).await.unwrap().instances[0].status, Status::Running);
}

#[tokio::test]
async fn a_plugin_that_makes_keys_starts_again_with_static_credentials() {
    let site = FakeSite::new();
    let provider = site.provider("user = \"ci\"");
    start(&site, "a1", Some(&made()));
    launched(&site, &provider, 1).await;
    assert_eq!(cause(&provider), None, "no call has shown its key");
    let own = key_of(&provider, 1).await;
    assert_eq!(cause(&provider), Some(OwnKeyCause::Pending));
    let made_plugins = Rc::clone(&site.plugins);
    let before = made_plugins.get();
    start(&site, "b2", None);
    launched(&site, &provider, 2).await;
    assert_eq!(made_plugins.get(), before + 1, "another process");
    assert_eq!(cause(&provider), None);
    let pool_key = provider.logins.pool_key().unwrap().text;
    // The first one's known answer holds for a while: after that, its key is still its own.
    site.pass(400);
    assert_eq!((key_of(&provider, 1).await, key_of(&provider, 2).await), (own, pool_key));
    provider.list(&PoolName::new("linux")).await.unwrap();
    assert_eq!(made_plugins.get(), before + 1, "once");
    drop(provider);
    let restarted = site.provider("user = \"ci\"");
    assert!(restarted.maker.borrow().is_some(), "the next keeper knows");
}

#[tokio::test]
async fn a_plugin_that_does_not_install_the_pools_key_starts_without_it() {
    for accepted in [true, false] {
        let site = FakeSite::new();
        let provider = site.provider("user = \"ci\"");
        start(&site, "a1", Some(&made()));
        launched(&site, &provider, 1).await;
        key_of(&provider, 1).await;
        start(&site, "b2", None);
        for number in [2, 3] {
            launched(&site, &provider, number).await;
            key_of(&provider, number).await;
        }
        provider.login_tried(&id(2), !accepted);
        provider.login_tried(&id(3), true);
        site.pass(600);
        provider.terminate(&id(3)).await.unwrap();
        let expected = if accepted { None } else { Some(OwnKeyCause::Denied) };
        assert_eq!(cause(&provider), expected);
    }
}

#[tokio::test]
async fn a_plugin_that_ignores_static_credentials_starts_again_twice_and_no_more() {
    let site = FakeSite::new();
    let provider = site.provider("user = \"ci\"");
    let pool = PoolName::new("linux");
    start(&site, "a1", Some(&made()));
    launched(&site, &provider, 1).await;
    key_of(&provider, 1).await;
    for (number, name, is_static) in [(2, "b2", true), (3, "c3", false), (4, "d4", false)] {
        start(&site, name, Some(&made()));
        site.cloud.start.borrow_mut().is_static = is_static;
        site.pass(10);
        launched(&site, &provider, number).await;
        key_of(&provider, number).await;
        assert_eq!(cause(&provider), Some(OwnKeyCause::Ignored), "{name}");
    }
    site.pass(10);
    provider.list(&pool).await.unwrap();
    assert_eq!(site.plugins.get(), 3);
}

#[tokio::test]
async fn a_newer_version_that_uses_the_pools_key_is_no_longer_reported() {
    let site = FakeSite::new();
    let provider = site.provider("");
    start(&site, "a1", Some(&made()));
    launched(&site, &provider, 1).await;
    key_of(&provider, 1).await;
    assert_eq!(cause(&provider), Some(OwnKeyCause::NoUser));
    start(&site, "b2", Some(&provider.logins.pool_key().unwrap().text));
    launched(&site, &provider, 2).await;
    key_of(&provider, 2).await;
    assert_eq!(cause(&provider), None);
    assert_eq!(provider.own_keys.maker(&provider.settings.plugin), None);
}

#[tokio::test]
async fn credentials_that_expire_are_no_key_of_a_start() {
    let site = FakeSite::new();
    let provider = site.provider("user = \"ci\"");
    start(&site, "a1", Some(&made()));
    let expires = Some(site.wall_seconds() + 3_600);
    site.cloud.info.borrow_mut().as_mut().unwrap().expires = expires;
    launched(&site, &provider, 1).await;
    key_of(&provider, 1).await;
    assert_eq!(cause(&provider), None);
}
