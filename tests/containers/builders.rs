//! The example of docs/building-images.md, as it stands there: Debian's buildah in a container without privileges.

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;

use crate::examples;
use crate::images::{Image, PLAIN, publish};
use crate::pool::containers;
use crate::site::{ACCOUNT, HOST, MIRROR, PASSWORD, has, site};
use crate::yaml;

const POLICY: &str = "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}\n";
/// The lab's registries have no TLS.
const REGISTRIES: &str = "[[registry]]\nlocation = \"registry.test:5000\"\ninsecure = true\n\
                          [[registry]]\nlocation = \"registry.test:5001\"\ninsecure = true\n";

const BUILDAH: Image = Image {
    name: "buildah/stable:latest",
    tree: &["busybox", "+/bin/bash", "+/usr/bin/buildah"],
    files: &[("etc/containers/policy.json", POLICY), ("etc/containers/registries.conf", REGISTRIES)],
    ..PLAIN
};

#[test]
fn a_job_without_privileges_builds_and_pushes_an_image_with_buildah() {
    let Some(site) = site() else { return };
    if !has("buildah") {
        return skipped("an image with buildah: buildah is missing");
    }
    let work = tempfile::tempdir().expect("a directory");
    publish(&BUILDAH, &site.dir.join("registry"), work.path());
    let setting = containers(site, |table| {
        table.insert("privileged".into(), false.into());
        let mirrors = table.get_mut("mirrors").and_then(toml::Value::as_table_mut).expect("mirrors");
        mirrors.insert("quay.io".into(), format!("http://{MIRROR}").into());
    });
    let place = setting.open();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/building-images.md"));
    let block = examples::blocks(&page.expect("the page"), "yaml").remove(0);
    let yaml = yaml::parse(&block);
    let (account, password) = ACCOUNT;
    let (image, tag) = (format!("{PASSWORD}/built"), "0a1b2c3d");
    let dockerfile = format!(
        "printf 'FROM {HOST}:5000/ash:1\\nRUN echo made inside >/made\\nCOPY hello /hello\\n' >Dockerfile; echo hello >hello"
    );
    let script = [vec![dockerfile], examples::words(&yaml["build"]["script"])].concat();
    let job = examples::job(1, &yaml["build"])
        .script(script)
        .variable("CI_REGISTRY", PASSWORD)
        .variable("CI_REGISTRY_USER", account)
        .masked("CI_REGISTRY_PASSWORD", password)
        .variable("CI_REGISTRY_IMAGE", &image)
        .variable("CI_COMMIT_SHORT_SHA", tag);
    let built = place.run(&job);
    built.expect_outcome(&Outcome::Success);
    let job = Job::new(2).image(&format!("{image}:{tag}")).credential(PASSWORD, account, password);
    let ran = place.run(&job.script(["cat /made /hello"]));
    ran.expect_outcome(&Outcome::Success);
    assert!(ran.log_text().contains("\nmade inside\nhello\n"), "{}", ran.describe());
    place.expect_sound();
}
