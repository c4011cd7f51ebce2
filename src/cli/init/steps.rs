//! What is left to the operator after `init`.

use std::path::Path;

use greenroom_providers::qemu::image::GITLAB_RUNNER;
use greenroom_providers::qemu::image::build::packages_of_images;

use super::draft::Draft;
use super::found::Found;
use super::units::{self, Units};
use crate::cli::args::GlobalOptions;
use crate::cli::ui;

/// The command that installs what virtual machines and their images need.
fn install() -> String {
    let of_images = packages_of_images();
    format!("apt-get install --no-install-recommends qemu-system-x86 {of_images} nftables")
}

/// The command that builds the image.
fn build(program: &str, has_runner: bool) -> String {
    let runner = if has_runner { format!(" --gitlab-runner {GITLAB_RUNNER}") } else { String::new() };
    format!("{program} image build{runner}")
}

/// How the keeper and `reap` run as services.
pub(super) fn units(units: &Units, will_enable: bool) {
    match units.problem() {
        Some((problem, help)) => {
            ui::out(&format!("The keeper does not run as a service: {problem}.\n  help: {help}\n"));
        }
        None if will_enable => ui::out(&format!("This would run: {}\n", units::command().join(" "))),
        None => ui::out(&format!("To run the keeper as a service: {}\n", units::command().join(" "))),
    }
}

/// How the operator calls Greenroom from now on: with this call's `--config`, unless the variable is set.
pub(super) fn program(place: &GlobalOptions) -> String {
    // The state directory is in the configuration.
    let is_set = |path: &Path| std::env::var_os("GREENROOM_CONFIG").is_some_and(|set| set == *path);
    match place.config.as_deref().filter(|path| !is_set(path)) {
        Some(path) => format!("greenroom --config {}", path.display()),
        None => "greenroom".to_owned(),
    }
}

/// The commands that the pool still needs. `program`: how they call Greenroom.
pub(super) fn next(draft: &Draft, found: &Found, program: &str) {
    let mut lines: Vec<String> = Vec::new();
    let is_set = |name: &str| draft.provider.iter().any(|(known, _)| known == name);
    match draft.kind {
        "qemu" => {
            if found.qemu.is_none() {
                lines.push(install());
            }
            if found.images.is_empty() && !is_set("image") {
                lines.push(build(program, Path::new(GITLAB_RUNNER).is_file()));
            }
        }
        "static" => lines.extend(static_hosts(draft, program)),
        "aws-ec2" | "gce" | "kubernetes" => lines.push(format!("{program} doctor --boot {}", draft.name)),
        _ => {}
    }
    lines.push(format!("{program} try"));
    let lines: Vec<String> = lines.iter().map(|line| format!("  {line}\n")).collect();
    ui::out(&format!("\nNext:\n{}", lines.concat()));
}

fn static_hosts(draft: &Draft, program: &str) -> Vec<String> {
    let shared = |name: &str| {
        draft
            .provider
            .iter()
            .find(|(known, _)| known == name)
            .and_then(|(_, value)| value.as_str())
            .unwrap_or_default()
    };
    let mut lines = Vec::new();
    if !shared("key").is_empty() && !Path::new(shared("key")).exists() {
        lines.push(format!("ssh-keygen -q -t ed25519 -N '' -f {}", shared("key")));
    }
    for host in &draft.hosts {
        let text = |name: &str| host.get(name).and_then(toml::Value::as_str);
        let (key, user) = (text("key").unwrap_or(shared("key")), text("user").unwrap_or(shared("user")));
        let port = host.get("port").map(|port| format!(" -p {port}")).unwrap_or_default();
        if !key.is_empty() {
            let address = text("address").unwrap_or_default();
            lines.push(format!("ssh-copy-id -i {key}.pub{port} {user}@{address}"));
        }
        lines.push(format!("{program} doctor --pin {}", text("name").unwrap_or_default()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_install_what_init_names() {
        for page in [include_str!("../../../README.md"), include_str!("../../../docs/getting-started.md")] {
            assert!(page.contains(&format!("# {}\n", install())), "{}", install());
        }
        assert!(install().contains(" zstd "));
    }

    #[test]
    fn an_image_gets_the_runners_program_where_it_is_installed() {
        assert_eq!(build("greenroom", false), "greenroom image build");
        assert_eq!(build("greenroom", true), "greenroom image build --gitlab-runner /usr/bin/gitlab-runner");
    }
}
