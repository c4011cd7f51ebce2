//! The first line that a plugin prints: where its socket is.

use std::path::{Path, PathBuf};

use greenroom_core::text::clean_line;

/// Longest line.
pub(super) const MAX_LINE: usize = 4096;
/// A certificate is longer than this.
const NO_CERTIFICATE: usize = 50;
/// How much of a wrong line a message shows, in characters.
const SHOWN: usize = 100;

/// The socket in `directory` that the line names, or what is wrong with the line.
pub(super) fn socket(line: &[u8], directory: &Path) -> Result<PathBuf, String> {
    let text = std::str::from_utf8(line).map_err(|_| unreadable(line))?.trim();
    let fields: Vec<&str> = text.split('|').collect();
    let [core, version, network, address, rest @ ..] = fields.as_slice() else {
        return Err(unreadable(line));
    };
    if *core != "1" {
        return Err(format!("it speaks version {} of the plugins' core protocol, not 1", shown(core)));
    }
    if *version != "0" {
        return Err(format!("it speaks version {} of the fleeting protocol, not 0", shown(version)));
    }
    match *rest.first().unwrap_or(&"netrpc") {
        "grpc" => {}
        other => return Err(format!("it speaks `{}`, not gRPC", shown(other))),
    }
    if rest.get(1).is_some_and(|certificate| certificate.len() > NO_CERTIFICATE) {
        return Err("it demands TLS, which Greenroom did not ask for".to_owned());
    }
    if *network != "unix" {
        return Err(format!("it listens on `{}`, not on a Unix socket", shown(network)));
    }
    let socket = Path::new(address);
    // A name below the directory, with no way out of it.
    if socket.parent() != Some(directory) || socket.file_name().is_none() {
        return Err(format!("its socket `{}` is not in `{}`", shown(address), directory.display()));
    }
    Ok(socket.to_owned())
}

fn unreadable(line: &[u8]) -> String {
    if line.iter().all(u8::is_ascii_whitespace) {
        return "it printed an empty line instead of its address".to_owned();
    }
    format!("it printed `{}` instead of its address", clean_line(line, SHOWN))
}

fn shown(field: &str) -> String {
    clean_line(field.as_bytes(), SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_socket_in_the_private_directory() {
        let dir = Path::new("/run/x");
        for line in [
            "1|0|unix|/run/x/plugin745|grpc|\n",
            "1|0|unix|/run/x/plugin745|grpc",
            "1|0|unix|/run/x/plugin745|grpc|\r\n",
        ] {
            assert_eq!(socket(line.as_bytes(), dir), Ok("/run/x/plugin745".into()), "{line:?}");
        }
    }

    #[test]
    fn every_other_line_is_refused_with_a_sentence() {
        let tls = format!("1|0|unix|/run/x/p|grpc|{}", "A".repeat(700));
        for (line, why) in [
            ("2|0|unix|/run/x/p|grpc|", "version 2 of the plugins' core protocol"),
            ("1|1|unix|/run/x/p|grpc|", "version 1 of the fleeting protocol"),
            ("1|0|tcp|127.0.0.1:1|grpc|", "listens on `tcp`"),
            ("1|0|unix|/run/x/p|netrpc|", "`netrpc`, not gRPC"),
            ("1|0|unix|/run/x/p", "not gRPC"),
            (&tls, "demands TLS"),
            ("1|0|unix|/tmp/p|grpc|", "`/tmp/p` is not in `/run/x`"),
            ("1|0|unix|/run/x/../p|grpc|", "is not in"),
            ("1|0|unix|/run/x|grpc|", "is not in"),
            ("1|0|unix|/run/x/..|grpc|", "is not in"),
            ("1|0|unix||grpc|", "is not in"),
            ("hello\u{1b}[31m", "it printed `hello` instead"),
            ("\n", "an empty line"),
        ] {
            let error = socket(line.as_bytes(), dir_x()).unwrap_err();
            assert!(error.contains(why), "{line:?}: {error}");
        }
        assert!(socket(b"\xff\xfe", dir_x()).is_err());
    }

    fn dir_x() -> &'static Path {
        Path::new("/run/x")
    }
}
