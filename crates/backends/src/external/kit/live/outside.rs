//! What other users of this machine see of a launch: the arguments of its processes.

use std::time::Duration;

use greenroom_ports::provider::InstanceKeys;

use crate::external::kit::session::Session;

/// Between two looks at the process table.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a launch, and looks for its private key in the arguments of processes meanwhile.
pub(super) async fn watched<T>(
    session: &Session<'_>,
    keys: &InstanceKeys,
    launch: impl Future<Output = T>,
) -> T {
    let secret = keys.host_key.lines().find(|line| !line.starts_with("-----")).unwrap_or_default().to_owned();
    let look = async {
        loop {
            if is_in_arguments(&secret) {
                session.violate(
                    "call-keeps-secrets",
                    "launch",
                    "the host key is in the arguments of a process",
                );
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        answer = launch => answer,
        () = look => unreachable!("it looks for ever"),
    }
}

fn is_in_arguments(secret: &str) -> bool {
    if secret.is_empty() {
        return false;
    }
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|arguments| arguments.windows(secret.len()).any(|window| window == secret.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_seen_as_long_as_its_process_runs() {
        let secret = format!("greenroom-kit-secret-{}", std::process::id());
        assert!(!is_in_arguments(&secret));
        let mut process = std::process::Command::new("sh")
            .args(["-c", "echo; read line", &secret])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Until it runs, the process table may show no arguments.
        std::io::Read::read_exact(process.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert!(is_in_arguments(&secret));
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
