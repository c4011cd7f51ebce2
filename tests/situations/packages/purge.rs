//! Kind: nothing deletes the configuration of machines that may still run.

use greenroom_testkit::program;

/// A pool's record, as a plugin's keeper writes it: one launch without an answer, two machines, and one that is gone.
const RECORD: &str = r#"{"format":2,"groups":{"group/a":{"intents":[{"instance":"linux-7f-3","token":"t","tags":{"a":"b"},
"progress":"asked","at":[1,1,1,1]}],"machines":{"linux-7f-1":{"id":"i-1","token":"t","tags":{},"state":"running",
"appeared":[1,1,1,1],"history":[]}},"former":[{"instance":"linux-7f-0","machine":{"id":"i-0","token":"t"}}],"foreign":{}},
"group/b":{"intents":[],"machines":{"linux-7f-2":{"id":"i-2","token":"t"}},"former":[],"foreign":{"i-9":{"state":"running"}}}}}"#;

/// An operator purges the package while machines of a fleeting plugin run, and of a cloud: each is listed, so the purge is
/// refused.
#[test]
fn a_purge_knows_the_machines_of_clouds_and_plugins() {
    let home = tempfile::tempdir().expect("a directory");
    let state = home.path().join("state");
    let listed = || {
        let script = format!(
            ". ./packaging/instances.sh; state_dir() {{ echo '{}'; }}; cloud_instances",
            state.display()
        );
        let mut shell = program::command("sh", home.path());
        let output = shell.args(["-ec", &script]).current_dir(crate::ROOT).output().expect("a shell");
        crate::text(&output)
    };
    assert_eq!(listed(), "");
    let write = |path: &str, text: &str| {
        let path = state.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    write("fleeting/pool/record.json", r#"{"format":2,"groups":{}}"#);
    write("launches/ec2/linux-9a-1.gone", "{}");
    assert_eq!(listed(), "", "nothing runs");
    write("fleeting/pool/record.json", &RECORD.replace('\n', ""));
    write("launches/ec2/linux-9a-2.json", "{}");
    assert_eq!(listed(), "linux-7f-1\nlinux-7f-2\nlinux-7f-3\nlinux-9a-2\n");
    let postrm =
        std::fs::read_to_string(format!("{}/packaging/debian/postrm", crate::ROOT)).expect("the script");
    let refuses = postrm.find("[ -n \"$(cloud_instances)\" ]").expect("it looks for machines");
    assert!(refuses < postrm.find("rm -rf /etc/greenroom").expect("it deletes"), "first it looks");
}
