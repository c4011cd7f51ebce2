//! What `greenroom init` asks about a first pool of provider `aws-ec2`.

use greenroom_providers::first_pool::{FirstPool, Found, Given, RunnerHost};

use crate::cloud::first_pool::{boot, credentials, value};

pub(super) const FIRST_POOL: FirstPool = FirstPool {
    name: "ec2",
    about: "machines of Amazon EC2",
    comments: &[("market", "\"on-demand\""), ("address", "\"private\""), ("user", "\"ci\"")],
    look: |host| Box::new(Account::look(host)),
};

#[derive(Debug)]
struct Account {
    /// Where credentials were found.
    credentials: Option<String>,
    region: Option<String>,
}

impl Account {
    fn look(host: &RunnerHost<'_>) -> Self {
        let variables = ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"];
        let variable = variables.into_iter().find(|name| host.set(name).is_some()).map(str::to_owned);
        let file = || host.file_at_home(".aws/credentials").map(|path| path.display().to_string());
        let region = host.text("AWS_REGION").or_else(|| host.text("AWS_DEFAULT_REGION"));
        Self {
            credentials: variable.or_else(file),
            region: region.or_else(|| value(&host.read_at_home(".aws/config")?, "region")),
        }
    }
}

impl Found for Account {
    fn text(&self) -> Option<String> {
        Some(credentials(self.credentials.as_ref(), self.region.as_ref()))
    }

    fn asks_for(&self) -> &'static [&'static str] {
        &["region", "subnets"]
    }

    fn likely(&self, key: &str, _given: &Given<'_>) -> Option<String> {
        self.region.clone().filter(|_| key == "region")
    }

    fn replaces(&self, key: &str, given: &Given<'_>) -> bool {
        key == "subnets" && given.has("zones")
    }

    fn steps(&self, pool: &str, _given: &Given<'_>, program: &str) -> Vec<String> {
        vec![boot(pool, program)]
    }
}
