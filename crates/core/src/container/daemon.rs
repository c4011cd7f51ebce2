//! Images that run Docker's daemon.

/// To follow the name of an image: what the daemon needs, also one without root.
pub const NEEDS: &str = "needs a privileged container";

/// True for `docker:dind`, `docker:27-dind-rootless` and the like: nothing but its name tells. `image` is as a job names it.
pub fn runs_docker(image: &str) -> bool {
    last(image).contains("dind")
}

/// The same, if the daemon runs as root. One without root reads other files.
pub fn runs_docker_as_root(image: &str) -> bool {
    runs_docker(image) && !last(image).contains("rootless")
}

/// The last part of the path, and the tag.
fn last(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    name.rsplit('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_known_by_its_image() {
        for (image, any, as_root) in [
            ("docker:dind", true, true),
            ("docker:27.1-dind", true, true),
            ("registry.example.com:5000/mirror/docker:dind@sha256:0", true, true),
            ("example/ubuntu-dind:1", true, true),
            ("docker:27", false, false),
            ("docker:27-dind-rootless", true, false),
            ("dind.example.com/docker:cli", false, false),
            ("postgres:16", false, false),
        ] {
            assert_eq!((runs_docker(image), runs_docker_as_root(image)), (any, as_root), "{image}");
        }
    }
}
