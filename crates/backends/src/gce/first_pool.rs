//! What `greenroom init` asks about a first pool of provider `gce`.

use std::path::PathBuf;

use greenroom_providers::first_pool::{FirstPool, Found, Given, RunnerHost};

use crate::cloud::first_pool::{boot, credentials, value};

pub(super) const FIRST_POOL: FirstPool = FirstPool {
    name: "gce",
    about: "machines of Google Compute Engine",
    comments: &[("market", "\"on-demand\""), ("address", "\"private\""), ("network", "\"default\"")],
    look: |host| Box::new(Account::look(host)),
};

#[derive(Debug)]
struct Account {
    /// Where credentials were found.
    credentials: Option<String>,
    project: Option<String>,
}

impl Account {
    fn look(host: &RunnerHost<'_>) -> Self {
        let named = host.set("GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from);
        let file = named
            .filter(|path| path.is_file())
            .or_else(|| host.file_at_home(".config/gcloud/application_default_credentials.json"));
        let settings = || host.read_at_home(".config/gcloud/configurations/config_default");
        Self {
            credentials: file.map(|path| path.display().to_string()),
            project: host.text("GOOGLE_CLOUD_PROJECT").or_else(|| value(&settings()?, "project")),
        }
    }
}

impl Found for Account {
    fn text(&self) -> Option<String> {
        Some(credentials(self.credentials.as_ref(), self.project.as_ref()))
    }

    fn asks_for(&self) -> &'static [&'static str] {
        &["project"]
    }

    fn likely(&self, key: &str, _given: &Given<'_>) -> Option<String> {
        self.project.clone().filter(|_| key == "project")
    }

    fn steps(&self, pool: &str, _given: &Given<'_>, program: &str) -> Vec<String> {
        vec![boot(pool, program)]
    }
}
