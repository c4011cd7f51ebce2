//! Where the keeper serves metrics.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use greenroom_keys::value_error::ValueError;

/// The longest path that a socket's address holds, less what the socket's name has while it is made.
const LONGEST_PATH: usize = 100;

/// An address to serve metrics at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// `unix:PATH`
    Unix(PathBuf),
    /// `ADDR:PORT`; port 0: the system chooses one.
    Tcp(SocketAddr),
}

impl FromStr for MetricsAddress {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            if !path.is_absolute() || path.file_name().is_none() || path.ends_with("..") {
                return Err(ValueError::rule("be an absolute path after `unix:`"));
            }
            if path.as_os_str().len() > LONGEST_PATH {
                return Err(ValueError::rule(format!(
                    "have a path of at most {LONGEST_PATH} bytes after `unix:`"
                )));
            }
            return Ok(Self::Unix(path));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            ValueError::rule(
                "be \"unix:PATH\" or \"ADDRESS:PORT\", such as \"127.0.0.1:9252\"; a host name is not accepted",
            )
        })
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_path_or_an_address_with_a_port() {
        for text in ["unix:/run/greenroom/metrics.sock", "127.0.0.1:9252", "[::1]:0", "0.0.0.0:9252"] {
            assert_eq!(text.parse::<MetricsAddress>().unwrap().to_string(), text);
        }
        let long = format!("unix:/{}", "a".repeat(LONGEST_PATH));
        for text in ["", "unix:", "unix:metrics.sock", "unix:/", "9252", ":9252", "localhost:9252", &long] {
            text.parse::<MetricsAddress>().expect_err(text);
        }
    }
}
