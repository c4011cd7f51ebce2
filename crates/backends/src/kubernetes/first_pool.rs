//! What `greenroom init` asks about a first pool of provider `kubernetes`.

use greenroom_providers::first_pool::{FirstPool, Found, Given};
use toml::Value;

use super::kubeconfig::Clusters;
use crate::cloud::first_pool::boot;

pub(super) const FIRST_POOL: FirstPool = FirstPool {
    name: "pods",
    about: "pods of a cluster",
    comments: &[
        ("server_image", "\"registry.example.com/ci/greenroom-server:0.1.0\""),
        ("cpu", "\"2\""),
        ("memory", "\"4Gi\""),
        ("service_account", "\"jobs\""),
    ],
    look: |host| Box::new(Clusters::look(host.home().as_deref(), |name| host.set(name))),
};

impl Found for Clusters {
    fn text(&self) -> Option<String> {
        Some(self.in_words())
    }

    /// In a pod of the cluster, its own account will do.
    fn asks_for(&self) -> &'static [&'static str] {
        let is_inside = self.files.is_empty() && self.own_namespace.is_some();
        if is_inside { &[] } else { &["context"] }
    }

    fn likely(&self, key: &str, given: &Given<'_>) -> Option<String> {
        match key {
            "context" => self.likely_context(),
            "namespace" => {
                // That of the context, that of this pod, or the one of the example manifests.
                let named = match given.text("context") {
                    Some(context) => {
                        self.find(context).and_then(|(_, namespace)| namespace).map(str::to_owned)
                    }
                    None => self.own_namespace.clone(),
                };
                named.or_else(|| Some("ci-jobs".to_owned()))
            }
            _ => None,
        }
    }

    /// The file of the context: a service has another environment and another home.
    fn follows(&self, given: &Given<'_>) -> Vec<(&'static str, Value)> {
        let file = given.text("context").and_then(|context| self.find(context)).map(|(path, _)| path);
        let file = file.filter(|_| !given.has("kubeconfig"));
        file.map(|path| ("kubeconfig", Value::String(path.display().to_string()))).into_iter().collect()
    }

    fn steps(&self, pool: &str, _given: &Given<'_>, program: &str) -> Vec<String> {
        vec![boot(pool, program)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_pod_its_own_account_and_namespace_will_do() {
        let nothing = Given { provider: &[], hosts: &[] };
        let own = Clusters { own_namespace: Some("here".to_owned()), ..Clusters::default() };
        assert_eq!(own.likely("namespace", &nothing).as_deref(), Some("here"));
        assert!(own.asks_for().is_empty() && own.follows(&nothing).is_empty());
        let outside = Clusters::default();
        assert_eq!(outside.asks_for(), ["context"]);
        assert_eq!(outside.likely("namespace", &nothing).as_deref(), Some("ci-jobs"));
    }
}
