//! Names of Compute Engine's resources, in full or shortened.

/// Prefixes of a path that the console and other tools show.
const ADDRESSES: [&str; 2] =
    ["https://www.googleapis.com/compute/v1/", "https://compute.googleapis.com/compute/v1/"];

/// An image, or the newest one of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    /// `None`: the pool's own project.
    pub(super) project: Option<String>,
    pub(super) name: String,
    pub(super) is_family: bool,
}

/// A network, or a subnetwork of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Net {
    /// `None`: the pool's own project.
    pub(super) project: Option<String>,
    /// `None` for a network, and for a subnetwork that exists under its name in each region.
    pub(super) region: Option<String>,
    pub(super) name: String,
}

impl Image {
    /// `projects/P/global/images/NAME`, `…/family/FAMILY`; optionally without the project and `global/images/`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (project, rest) = project(text)?;
        let rest = match (rest.strip_prefix("global/images/"), project) {
            (Some(rest), _) => rest,
            (None, None) => rest,
            (None, Some(_)) => return None,
        };
        let family = rest.strip_prefix("family/");
        let name = family.unwrap_or(rest);
        let image = Self { project: owned(project), name: name.to_owned(), is_family: family.is_some() };
        is_name(name).then_some(image)
    }
}

impl Net {
    /// `projects/P/global/networks/NAME`, without the project, or the name alone.
    pub(super) fn network(text: &str) -> Option<Self> {
        let (project, rest) = project(text)?;
        let name = match rest.strip_prefix("global/networks/") {
            Some(name) => name,
            None if project.is_none() => rest,
            None => return None,
        };
        is_name(name).then(|| Self { project: owned(project), region: None, name: name.to_owned() })
    }

    /// `projects/P/regions/REGION/subnetworks/NAME`, without the project, or the name alone.
    pub(super) fn subnetwork(text: &str) -> Option<Self> {
        let (project, rest) = project(text)?;
        let (region, name) = match rest.strip_prefix("regions/") {
            Some(rest) => rest.split_once("/subnetworks/").map(|(region, name)| (Some(region), name))?,
            None if project.is_none() => (None, rest),
            None => return None,
        };
        let fits = is_name(name) && region.is_none_or(is_name);
        fits.then(|| Self { project: owned(project), region: owned(region), name: name.to_owned() })
    }
}

#[cfg(feature = "gce")]
impl Image {
    /// The path of the image in a request.
    pub(super) fn path(&self) -> String {
        let family = if self.is_family { "family/" } else { "" };
        format!("{}global/images/{family}{}", of(self.project.as_ref()), self.name)
    }
}

#[cfg(feature = "gce")]
impl Net {
    /// The path of the network in a request.
    pub(super) fn network_path(&self) -> String {
        format!("{}global/networks/{}", of(self.project.as_ref()), self.name)
    }

    /// The path of the subnetwork in a request for a machine of `region`.
    pub(super) fn subnetwork_path(&self, region: &str) -> String {
        let region = self.region.as_deref().unwrap_or(region);
        format!("{}regions/{region}/subnetworks/{}", of(self.project.as_ref()), self.name)
    }
}

/// The region of a zone; `None` if the text is not a zone: `us-east1-b` is one, `us-east1` is not.
pub(super) fn region(zone: &str) -> Option<&str> {
    let (region, last) = zone.rsplit_once('-')?;
    let fits = region.contains('-') && is_name(region) && is_name(last);
    (fits && region.ends_with(|c: char| c.is_ascii_digit())).then_some(region)
}

/// True for a name in Compute Engine's form (RFC 1035).
pub(super) fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = text.starts_with(|c: char| c.is_ascii_lowercase()) && !text.ends_with('-');
    fits && text.len() <= 63 && text.chars().all(plain)
}

/// True for the id of a project. An old id begins with its company's domain.
pub(super) fn is_project(text: &str) -> bool {
    let id = text.rsplit_once(':').map_or(text, |(_, id)| id);
    is_name(id) && id.len() >= 6 && id.len() <= 30
}

/// The project of a path, and the rest; `None` if the project is not valid.
fn project(text: &str) -> Option<(Option<&str>, &str)> {
    let path = ADDRESSES.iter().find_map(|address| text.strip_prefix(address)).unwrap_or(text);
    let Some(rest) = path.strip_prefix("projects/") else { return Some((None, path)) };
    let (project, rest) = rest.split_once('/')?;
    is_project(project).then_some((Some(project), rest))
}

#[cfg(feature = "gce")]
fn of(project: Option<&String>) -> String {
    project.map(|project| format!("projects/{project}/")).unwrap_or_default()
}

fn owned(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "gce")]
    #[test]
    fn an_image_is_named_in_full_or_short() {
        let whole = "projects/debian-cloud/global/images/family/debian-12";
        for (text, path) in [
            (whole, whole),
            (&format!("https://www.googleapis.com/compute/v1/{whole}"), whole),
            ("projects/p-12345/global/images/ci-7", "projects/p-12345/global/images/ci-7"),
            ("global/images/ci-7", "global/images/ci-7"),
            ("family/ci", "global/images/family/ci"),
            ("ci-7", "global/images/ci-7"),
        ] {
            assert_eq!(Image::parse(text).map(|image| image.path()).as_deref(), Some(path), "{text}");
        }
        for text in ["", "debian-cloud/debian-12", "projects/debian-cloud/debian-12", "ami-0A", "family/"] {
            assert_eq!(Image::parse(text), None, "{text}");
        }
    }

    #[cfg(feature = "gce")]
    #[test]
    fn a_network_may_be_of_another_project_and_a_subnetwork_of_each_region() {
        let network = |text: &str| Net::network(text).map(|net| net.network_path());
        assert_eq!(network("default").as_deref(), Some("global/networks/default"));
        let shared = "projects/host-1/global/networks/ci";
        assert_eq!(network(shared).as_deref(), Some(shared));
        assert_eq!(network("projects/host-1/ci"), None);
        let subnetwork = |text: &str| Net::subnetwork(text).map(|net| net.subnetwork_path("us-east1"));
        assert_eq!(subnetwork("ci").as_deref(), Some("regions/us-east1/subnetworks/ci"));
        let fixed = "projects/host-1/regions/europe-west1/subnetworks/ci";
        assert_eq!(subnetwork(fixed).as_deref(), Some(fixed));
        assert_eq!(subnetwork("regions/europe-west1/ci"), None);
    }

    #[test]
    fn a_zone_has_a_region_and_a_region_is_no_zone() {
        assert_eq!(region("us-east1-b"), Some("us-east1"));
        assert_eq!(region("northamerica-northeast1-a"), Some("northamerica-northeast1"));
        assert_eq!(region("us-central1-ai1a"), Some("us-central1"));
        for text in ["us-east1", "us", "eu-west-1a", "us-east1-B", "zones/us-east1-b", ""] {
            assert_eq!(region(text), None, "{text}");
        }
        assert!(is_project("my-project-1") && is_project("example.com:my-project"));
        assert!(!is_project("My Project") && !is_project("123456789012"));
    }
}
