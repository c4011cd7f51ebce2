//! Fake credentials, in the file formats of each cloud's tools.

use std::path::Path;
use std::process::Command;

use serde_json::json;

/// The name of a file in the format of `~/.aws/credentials`.
pub const EC2: &str = "aws-credentials";
/// The name of a file of an account without anything in it.
pub const OTHER_EC2: &str = "aws-other-credentials";
/// A service account's key.
pub const GCE: &str = "service-account.json";

/// Writes all into a directory; `lab` is the emulator's host and port.
pub fn write(dir: &Path, lab: &str) {
    for (file, key) in [(EC2, "AKIAIOSFODNN7EXAMPLE"), (OTHER_EC2, "AKIAI44QH8DHBEXAMPLE")] {
        let text = format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n");
        std::fs::write(dir.join(file), text).expect("a file");
    }
    let account = json!({
        "type": "service_account",
        "project_id": "lab-project",
        "private_key_id": "1",
        "private_key": private_key(),
        "client_email": "greenroom@lab-project.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": format!("http://{lab}/token"),
        "universe_domain": "googleapis.com",
    });
    std::fs::write(dir.join(GCE), account.to_string()).expect("a file");
}

/// A key with which the client signs tokens itself, without a token server.
fn private_key() -> String {
    let arguments = ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-quiet"];
    let made = Command::new("openssl").args(arguments).output().expect("openssl runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).expect("PEM is text")
}
