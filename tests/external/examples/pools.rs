//! The tables of docs/providers/external-examples.md, as pools of Greenroom's provider on the stand-ins.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, OfferingName, PoolName};
use greenroom_harness::here::{HereAndNow, make_keys, read_keys};
use greenroom_harness::provider::{Behaviour, Fixture, Part, class, leave_nothing, request, running, until};
use greenroom_ports::clock::Clock;
use greenroom_ports::finding::Severity;
use greenroom_ports::provider::{Demand, InstanceKeys, LaunchRequest, Provider, Termination};
use greenroom_providers::registration::BuildContext;
use serde_json::{Value, json};

use super::page;
use super::program::example;
use super::standin::StandIn;
use crate::fixture::{GREENROOM, registration};

/// A pool with the table of the page, and a stand-in.
struct Pool {
    cloud: RefCell<StandIn>,
    state: tempfile::TempDir,
    table: toml::Table,
}

impl Pool {
    /// `variables` go to the program by files, as tests must not change their own environment.
    fn of(name: &str, variables: &[(&str, &str)]) -> Self {
        let (cloud, state) = (StandIn::start(name), tempfile::tempdir().expect("a directory"));
        make_keys(state.path());
        let mut table = page::table(name);
        table["program"] = example(name).display().to_string().into();
        for key in ["kind", "env"] {
            table.remove(key);
        }
        let mut secrets = toml::Table::new();
        for (name, value) in variables {
            let path = state.path().join(name);
            fs::write(&path, value.replace("URL", &cloud.url)).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("permissions");
            secrets.insert((*name).to_owned(), path.display().to_string().into());
        }
        table.insert("secrets".to_owned(), secrets.into());
        table.insert("appears_within".to_owned(), "1s".into());
        Self { cloud: RefCell::new(cloud), state, table }
    }

    fn build(&self) -> Rc<dyn Provider> {
        let context = BuildContext {
            pool: self.pool(),
            state_dir: self.state.path().to_owned(),
            program: GREENROOM.into(),
            containers: false,
            pulls: None,
            clock: self.clock(),
            host_keys: Rc::new(greenroom_ports::host_keys::Unconnected),
        };
        (registration().build)(&context, &self.table).expect("the page's table is right")
    }

    fn machines(&self) -> Vec<Value> {
        self.cloud.borrow_mut().machines()
    }
}

impl Fixture for Pool {
    fn pool(&self) -> PoolName {
        PoolName::new("linux")
    }

    fn provider(&self, behaviour: &Behaviour) -> Option<Rc<dyn Provider>> {
        match behaviour {
            Behaviour::Good => {}
            Behaviour::Full => self.cloud.borrow_mut().set(&json!({ "limit": 0 })),
            Behaviour::LosesAnswer => self.cloud.borrow_mut().fault("POST ", &json!({ "mode": "lost" })),
            Behaviour::SlowBoot | Behaviour::Refuses(_) => return None,
        }
        Some(self.build())
    }

    fn lacks(&self, part: &Part) -> Option<&'static str> {
        match part {
            Part::Fault(Behaviour::SlowBoot) | Part::Break | Part::Banner => {
                Some("the stand-ins of the examples' clouds have entries instead of machines")
            }
            Part::Fault(Behaviour::Refuses(_)) => {
                Some("the examples' refusals differ by cloud, and have tests of their own")
            }
            Part::Fault(_) | Part::OwnAddress => None,
        }
    }

    fn clock(&self) -> Rc<dyn Clock> {
        Rc::new(HereAndNow { ahead: Duration::ZERO })
    }

    fn keys(&self) -> InstanceKeys {
        read_keys(self.state.path())
    }

    fn boot_deadline(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn break_instance(&self, _id: &InstanceId) -> bool {
        false
    }

    /// Names are those of the instances, and the owner.
    fn living(&self) -> BTreeSet<String> {
        let machines = self.machines();
        let living = machines.iter().filter(|machine| {
            machine["status"] != "deleting" && machine["OS-EXT-STS:task_state"] != "deleting"
        });
        let names = living.filter_map(|machine| machine["name"].as_str()?.rsplit_once('-'));
        names.map(|(instance, _owner)| instance.to_owned()).collect()
    }

    fn remains(&self) -> Vec<String> {
        self.machines().iter().map(ToString::to_string).collect()
    }
}

const HETZNER: &[(&str, &str)] = &[("HCLOUD_TOKEN", "made-up-token"), ("HCLOUD_ENDPOINT", "URL/v1")];
const OPENSTACK: &[(&str, &str)] = &[
    ("OS_AUTH_URL", "URL/identity/v3"),
    ("OS_APPLICATION_CREDENTIAL_ID", "ci"),
    ("OS_APPLICATION_CREDENTIAL_SECRET", "made-up-secret"),
    ("OS_REGION_NAME", "RegionOne"),
];
const SKERRY: &[(&str, &str)] = &[("SKERRY_KEY", "made-up-key"), ("SKERRY_URL", "URL")];

/// A launch whose answer is lost makes one machine, which is found, reached at its address, and terminated.
async fn a_lost_answer_makes_one_machine(pool: &Pool, create: &str) {
    let provider = pool.build();
    let demand = Demand { max_instances: 2, recorded: 0, max_lifetime: None, idle_stopped: 0 };
    let findings = provider.examine(&demand).await;
    assert!(findings.iter().all(|finding| finding.severity != Severity::Error), "{findings:?}");

    pool.cloud.borrow_mut().fault(create, &json!({ "mode": "lost" }));
    let wanted = request(pool, 1);
    assert_eq!(class(provider.launch(&wanted).await), ErrorClass::Unknown);
    until("an answer", Duration::from_mins(1), async || provider.launch(&wanted).await.ok()).await;
    assert_eq!(pool.machines().len(), 1, "{:?}", pool.machines());
    let endpoint = running(pool, &*provider, &wanted.instance).await;
    assert_eq!(endpoint.host_key, wanted.keys.host_key_public.trim());
    let made = pool.machines()[0].to_string();
    assert!(made.contains(&endpoint.address), "{} is not that of {made}", endpoint.address);
    assert!(made.contains(wanted.keys.host_key_public.trim()), "its user data: {made}");
    leave_nothing(pool).await;
}

#[tokio::test]
async fn a_pool_of_openstack_tries_the_next_flavor_if_nova_finds_no_host() {
    let mut pool = Pool::of("openstack", OPENSTACK);
    pool.table.insert("offerings".to_owned(), vec!["m1.large", "m1.small"].into());
    pool.cloud.borrow_mut().set(&json!({ "no_host": ["m1.large"] }));
    let provider = pool.build();
    let offered = |number, name: &str| LaunchRequest {
        offering: Some(OfferingName::new(name)),
        ..request(&pool, number)
    };
    let (large, small) = (offered(1, "m1.large"), offered(2, "m1.small"));
    let error = provider.launch(&large).await.expect_err("there is no host");
    assert_eq!(*error.class(), ErrorClass::NoCapacity { scope: "m1.large".to_owned() }, "{error}");
    assert!(error.to_string().contains("No valid host was found"), "{error}");
    // Nova keeps the server until it is deleted.
    assert_eq!(pool.living(), BTreeSet::from([large.instance.to_string()]));
    provider.launch(&small).await.expect("there is a host");
    assert_eq!(provider.terminate(&large.instance).await.expect("it is deleted"), Termination::Requested);
    assert_eq!(pool.living(), BTreeSet::from([small.instance.to_string()]));
    leave_nothing(&pool).await;
}

#[tokio::test]
async fn a_pool_of_hetzner_makes_one_server_of_a_lost_answer() {
    a_lost_answer_makes_one_machine(&Pool::of("hetzner", HETZNER), "POST /v1/servers").await;
}

#[tokio::test]
async fn a_pool_of_openstack_makes_one_server_of_a_lost_answer() {
    a_lost_answer_makes_one_machine(&Pool::of("openstack", OPENSTACK), "POST /compute/v2.1/servers").await;
}

#[tokio::test]
async fn a_pool_of_skerry_makes_one_box_of_a_lost_answer() {
    a_lost_answer_makes_one_machine(&Pool::of("skerry", SKERRY), "POST /boxes").await;
}

/// The classes decide which offering comes next, so they are those of the cloud.
#[tokio::test]
async fn a_pool_of_hetzner_tells_capacity_from_quota() {
    let pool = Pool::of("hetzner", HETZNER);
    let provider = pool.build();
    assert_eq!(provider.capabilities().offerings.len(), 3);
    let wanted = request(&pool, 1);
    pool.cloud.borrow_mut().set(&json!({ "sold_out": ["cx22 fsn1"] }));
    let refused = class(provider.launch(&wanted).await);
    assert!(matches!(refused, ErrorClass::NoCapacity { .. }), "{refused:?}");
    pool.cloud.borrow_mut().set(&json!({ "sold_out": [], "limit": 0 }));
    assert_eq!(class(provider.launch(&wanted).await), ErrorClass::Quota);
    pool.cloud.borrow_mut().set(&json!({ "token": "another" }));
    assert_eq!(class(provider.launch(&request(&pool, 2)).await), ErrorClass::Denied);
    assert_eq!(pool.machines(), Vec::<Value>::new());
}

/// The contract suite of all providers, without the login and the boot, which stand-ins do not have.
mod hetzner_under_contract {
    greenroom_harness::provider_contract! { super::Pool::of("hetzner", super::HETZNER);
        the_same_token_never_makes_a_second_instance,
        another_token_does_not_take_over_an_instance,
        a_list_shows_tags_exactly_and_every_owner,
        a_list_says_when_it_began_and_is_sorted,
        terminate_goes_on_until_nothing_is_found,
        what_does_not_exist_is_not_found,
        a_full_provider_refuses_with_a_definite_class,
        a_lost_answer_is_unknown_and_the_same_token_finds_the_instance,
        ten_launches_at_once_make_ten_instances,
    }
}

/// The contract suite for a launch that is not idempotent. A lost answer takes until the list shows its machine: see
/// above.
mod openstack_under_contract {
    greenroom_harness::provider_contract! { super::Pool::of("openstack", super::OPENSTACK);
        the_same_token_never_makes_a_second_instance,
        a_list_shows_tags_exactly_and_every_owner,
        terminate_goes_on_until_nothing_is_found,
        what_does_not_exist_is_not_found,
        a_full_provider_refuses_with_a_definite_class,
    }
}
