//! Contexts of kubeconfigs, as `kubectl` writes them (YAML of one key a line, or JSON), and the first pool that follows from
//! them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use greenroom_providers::first_pool::{FirstPool, Found, Given, few};
use toml::Value;

use crate::cloud::first_pool::boot;

/// The directory with the credentials of a pod's own account.
const OWN_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A context with its namespace, if it has one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KubeContext {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
}

/// A kubeconfig, without what is secret in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Kubeconfig {
    pub(super) path: PathBuf,
    pub(super) contexts: Vec<KubeContext>,
    pub(super) current: Option<String>,
}

/// The ways to clusters on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clusters {
    pub(super) files: Vec<Kubeconfig>,
    /// The namespace of the pod that this program runs in, if it is one.
    pub(super) own_namespace: Option<String>,
}

impl Clusters {
    /// The files of `KUBECONFIG`, otherwise `~/.kube/config`; and the account of this pod.
    pub(super) fn look(home: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let named = variable("KUBECONFIG")
            .map(|paths| std::env::split_paths(&paths).filter(|path| path.is_absolute()).collect::<Vec<_>>());
        let paths = named.unwrap_or_else(|| home.map(|home| home.join(".kube/config")).into_iter().collect());
        let own = variable("KUBERNETES_SERVICE_HOST")
            .and_then(|_| std::fs::read_to_string(Path::new(OWN_ACCOUNT).join("namespace")).ok());
        Self {
            files: paths.iter().filter_map(|path| Kubeconfig::read(path)).collect(),
            own_namespace: own.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()),
        }
    }

    /// The contexts of a file, or of all.
    fn contexts(&self) -> impl Iterator<Item = (&Kubeconfig, &KubeContext)> {
        self.files.iter().flat_map(|file| file.contexts.iter().map(move |context| (file, context)))
    }

    /// The context that `kubectl` uses, or the only one.
    pub(super) fn likely_context(&self) -> Option<String> {
        let current = self.files.iter().find_map(|file| file.current.clone());
        let mut names = self.contexts().map(|(_, context)| context.name.clone());
        current.or_else(|| names.next().filter(|_| names.next().is_none()))
    }

    /// The first file with a context, and the context's namespace.
    pub(super) fn find(&self, context: &str) -> Option<(&Path, Option<&str>)> {
        let (file, found) = self.contexts().find(|(_, known)| known.name == context)?;
        Some((&file.path, found.namespace.as_deref()))
    }

    /// The files with their contexts and the account of this pod, as the end of a line.
    pub(super) fn in_words(&self) -> String {
        let of_file = |file: &Kubeconfig| {
            let names: Vec<&str> = file.contexts.iter().map(|context| context.name.as_str()).collect();
            let path = file.path.display();
            if names.is_empty() {
                format!("{path}, contexts not read")
            } else {
                format!("{path}: {}", few(&names))
            }
        };
        let own = self.own_namespace.as_ref();
        let own = own.map(|name| format!("the account of this pod, in namespace {name}"));
        let parts: Vec<String> = self.files.iter().map(of_file).chain(own).collect();
        if parts.is_empty() { "no kubeconfig".to_owned() } else { parts.join("; ") }
    }
}

impl Kubeconfig {
    pub(super) fn read(path: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        let (contexts, current) = from_json(&text).unwrap_or_else(|| from_yaml(&text));
        Some(Self { path: path.to_owned(), contexts, current })
    }
}

type ContextsAndCurrent = (Vec<KubeContext>, Option<String>);

fn from_json(text: &str) -> Option<ContextsAndCurrent> {
    let config: serde_json::Value = serde_json::from_str(text).ok()?;
    let word = |value: &serde_json::Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let context = |one: &serde_json::Value| {
        Some(KubeContext { name: word(&one["name"])?, namespace: word(&one["context"]["namespace"]) })
    };
    let contexts = config["contexts"].as_array().into_iter().flatten().filter_map(context).collect();
    Some((contexts, word(&config["current-context"])))
}

/// Other forms of YAML give fewer contexts: the operator then names one.
fn from_yaml(text: &str) -> ContextsAndCurrent {
    let (mut contexts, mut current): ContextsAndCurrent = (Vec::new(), None);
    let mut is_within = false;
    // The column of an entry's own keys.
    let mut own = 0;
    for line in text.lines() {
        let bare = line.trim_start();
        if bare.is_empty() || bare.starts_with('#') {
            continue;
        }
        let entry = bare.strip_prefix("- ").map(str::trim_start);
        let rest = entry.unwrap_or(bare);
        let column = line.len() - rest.len();
        if column == 0 {
            is_within = bare.trim_end() == "contexts:";
            current = value(bare, "current-context").or(current);
        }
        if !is_within || column == 0 {
            continue;
        }
        if entry.is_some() && (contexts.is_empty() || column <= own) {
            own = column;
            contexts.push(KubeContext::default());
        }
        let Some(context) = contexts.last_mut() else { continue };
        if column == own {
            context.name = value(rest, "name").unwrap_or_else(|| std::mem::take(&mut context.name));
        } else {
            context.namespace = value(rest, "namespace").or_else(|| context.namespace.take());
        }
    }
    contexts.retain(|context| !context.name.is_empty());
    (contexts, current)
}

/// The value of a line with this key.
fn value(line: &str, key: &str) -> Option<String> {
    let rest = line.strip_prefix(key)?.strip_prefix(':')?;
    let word = rest.split(" #").next().unwrap_or_default().trim();
    let word = word.strip_prefix('"').and_then(|word| word.strip_suffix('"')).unwrap_or(word);
    let word = word.strip_prefix('\'').and_then(|word| word.strip_suffix('\'')).unwrap_or(word);
    (!word.is_empty()).then(|| word.to_owned())
}

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

    /// Asks for nothing in a pod of the cluster, whose own account is enough.
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

    const YAML: &str = "\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: c2VjcmV0
    server: https://192.0.2.1:6443
  name: prod
contexts:
- context:
    cluster: prod
    namespace: ci
    user: admin
  name: prod
- context:
    cluster: test
    user: admin
  name: \"test one\"
current-context: test one
kind: Config
users:
- name: admin
  user:
    token: hunter2
";

    fn context(name: &str, namespace: Option<&str>) -> KubeContext {
        KubeContext { name: name.to_owned(), namespace: namespace.map(str::to_owned) }
    }

    #[test]
    fn contexts_are_read_as_kubectl_writes_them() {
        let expected = vec![context("prod", Some("ci")), context("test one", None)];
        assert_eq!(from_yaml(YAML), (expected.clone(), Some("test one".to_owned())));
        let indented =
            YAML.replace("\n    ", "\n      ").replace("\n  name", "\n    name").replace("\n- ", "\n  - ");
        assert_eq!(from_yaml(&indented).0.len(), 2, "{indented}");
        let json = r#"{"contexts": [{"name": "prod", "context": {"namespace": "ci"}}, {"name": "test one"}], "current-context": "test one"}"#;
        assert_eq!(from_json(json), Some((expected, Some("test one".to_owned()))));
        for other in ["", "rubbish", "contexts: [{name: a}]", "contexts:\nusers:\n- name: a\n"] {
            assert_eq!(from_yaml(other), (Vec::new(), None), "{other}");
        }
    }

    #[test]
    fn the_files_of_the_variable_come_instead_of_that_at_home() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        std::fs::create_dir(path(".kube")).unwrap();
        std::fs::write(path(".kube/config"), YAML).unwrap();
        let of_home = Clusters::look(Some(home.path()), |_| None);
        assert_eq!(of_home.likely_context().as_deref(), Some("test one"));
        assert_eq!(of_home.find("prod"), Some((path(".kube/config").as_path(), Some("ci"))));
        assert!(of_home.in_words().ends_with("/.kube/config: prod, test one"), "{}", of_home.in_words());
        assert!(!of_home.in_words().contains("hunter2"));
        std::fs::write(path("other"), "contexts:\n- context:\n    cluster: a\n  name: only\n").unwrap();
        let named = |name: &str| (name == "KUBECONFIG").then(|| path("other").into_os_string());
        let other = Clusters::look(Some(home.path()), named);
        assert_eq!((other.likely_context().as_deref(), other.find("prod")), (Some("only"), None));
        assert_eq!(Clusters::default().in_words(), "no kubeconfig");
    }

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
