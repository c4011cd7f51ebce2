//! Unit tests of what containers are prepared with.

use std::time::Duration;

use super::script::script;
use crate::core::container::name::ContainerName;
use crate::core::container::settings::{EngineOptions, PullPolicy, Umask};
use crate::core::container::spec::{ContainerJob, ContainerSpec, Login, ServiceSpec};
use crate::core::secret::Secret;

#[test]
fn dump() {
    if let Ok(dir) = std::env::var("DUMP") {
        std::fs::write(dir, script(&ContainerName::parse("greenroom-a1").unwrap(), &job(), &["/b'x"]))
            .unwrap();
    }
}

fn spec(image: &str) -> ContainerSpec {
    ContainerSpec {
        called: image.to_owned(),
        image: image.to_owned(),
        policies: vec![PullPolicy::Always, PullPolicy::IfNotPresent],
        login: Some(Login {
            scope: "127.0.0.1:5002".to_owned(),
            username: "joe".to_owned(),
            password: Secret::new("pw".to_owned()),
            source: "DOCKER_AUTH_CONFIG",
        }),
        platform: None,
        user: None,
        entrypoint: None,
        command: None,
        environment: vec![
            ("A".to_owned(), Secret::new("it's\n\"two\"".to_owned())),
            ("PATH".to_owned(), Secret::new("/a b:/bin:$x".to_owned())),
        ],
        privileged: false,
    }
}

fn job() -> ContainerJob {
    ContainerJob {
        job: spec("127.0.0.1:5002/bb:1"),
        services: vec![
            ServiceSpec {
                container: ContainerSpec {
                    command: Some(
                        ["sh", "-c", "sleep 2; cat /etc/hosts; busybox nc -l -p 5432"]
                            .map(str::to_owned)
                            .to_vec(),
                    ),
                    ..spec("127.0.0.1:5001/bb:1")
                },
                names: vec!["db".to_owned(), "g__db".to_owned()],
                probe: Some(5432),
            },
            ServiceSpec {
                container: ContainerSpec {
                    command: Some(["sh", "-c", "echo no; sleep 1; exit 3"].map(str::to_owned).to_vec()),
                    ..spec("127.0.0.1:5001/bb:1")
                },
                names: vec!["dies".to_owned()],
                probe: Some(80),
            },
        ],
        remarks: Vec::new(),
        umask: Umask::Auto,
        options: EngineOptions::default(),
        volumes: vec!["/certs/client".to_owned()],
        mirrors: vec![("reg.example".to_owned(), "http://127.0.0.1:5001".to_owned())],
        ca: Some("cert".to_owned()),
        wait_for_services: Some(Duration::from_secs(10)),
        pull_timeout: Duration::from_mins(1),
        init: false,
        debug_services: false,
    }
}
