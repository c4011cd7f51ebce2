//! Checks static hosts without connecting to them.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use greenroom_core::endpoint::LoginKey;
use greenroom_ports::finding::{Finding, Severity};

use super::StaticHosts;
use super::settings::JUMP;
use crate::mistakes;
use crate::registration::BuildContext;

pub(super) fn doctor(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let hosts = match StaticHosts::read(context, table) {
        Ok(hosts) => hosts,
        Err(problems) => return mistakes::findings("static-table", &problems),
    };
    let settings = &hosts.settings;
    let servers = settings.hosts.iter().map(|host| (host.name.as_str(), &host.server));
    let servers = settings.jump.iter().map(|jump| (JUMP, jump)).chain(servers);
    let (mut found, mut files) = (Vec::new(), Vec::new());
    for (name, server) in servers {
        if let Err(problem) = hosts.host_key(server, name) {
            let what = format!("host `{name}` of pool `{}` gets no jobs: {problem}", context.pool);
            let remedy = format!("greenroom doctor --pin {name} --pool {}", context.pool);
            found.push(finding("static-unpinned", Severity::Error, what, remedy));
        }
        match &server.key {
            LoginKey::File(path) if !files.contains(&path) => files.push(path),
            LoginKey::File(_) | LoginKey::Password(_) | LoginKey::Agent { .. } => {}
        }
    }
    found.extend(files.into_iter().filter_map(|path| key_file(path)));
    if !settings.clean {
        let what = format!(
            "hosts of pool `{}` are not cleaned between jobs (`clean = false`): a job finds what the last \
             one left, including its token",
            context.pool
        );
        let remedy = "remove `clean = false`, or clean the hosts with `clean_command`".to_owned();
        found.push(finding("static-not-cleaned", Severity::Warning, what, remedy));
    }
    found
}

fn key_file(path: &Path) -> Option<Finding> {
    let path_shown = path.display();
    match std::fs::metadata(path) {
        Err(error) => {
            let what = format!("cannot read the key `{path_shown}`: {error}");
            let remedy = format!("ssh-keygen -t ed25519 -N '' -f {path_shown}");
            Some(finding("static-key-unreadable", Severity::Error, what, remedy))
        }
        Ok(meta) if meta.mode() & 0o077 != 0 => {
            let what =
                format!("other users can read the key `{path_shown}` (mode {:04o})", meta.mode() & 0o7777);
            Some(finding("static-key-mode", Severity::Warning, what, format!("chmod 600 {path_shown}")))
        }
        Ok(_) => None,
    }
}

fn finding(code: &'static str, severity: Severity, what: String, remedy: String) -> Finding {
    Finding { code, severity, message: what, remedy: Some(remedy) }
}
