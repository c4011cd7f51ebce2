//! Findings about a pool of Kubernetes pods that need no calls.

use greenroom_ports::finding::{Finding, Severity};
use greenroom_providers::mistakes;
use greenroom_providers::registration::BuildContext;

use super::settings::Settings;
use crate::cloud::doctor;

pub(super) fn of_table(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let settings = match Settings::read(&context.pool, table) {
        Ok(settings) => settings,
        Err(problems) => return mistakes::findings("kubernetes-table", &problems),
    };
    let unreadable = |what: &str, path: &std::path::Path| {
        let error = fs_err::File::open(path).err()?;
        Some(Finding {
            code: "kubernetes-file",
            severity: Severity::Error,
            message: format!("the {what} of pool `{}` cannot be read: {error}", context.pool),
            remedy: Some("correct the path, or let the keeper's account read the file".to_owned()),
        })
    };
    let kubeconfig = settings.kubeconfig.as_deref().and_then(|path| unreadable("kubeconfig", path));
    let template = settings.template.as_deref().and_then(|path| unreadable("pod", path));
    kubeconfig.into_iter().chain(template).collect()
}

/// For a program without the calls.
pub(super) fn without_calls(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    doctor::without_calls("kubernetes-program", context, of_table(context, table))
}
