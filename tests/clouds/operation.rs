//! The operation of a request, as the emulator names it.

/// The body so far, and its expected length; `None` while the header is incomplete.
pub fn body(request: &[u8]) -> Option<(&[u8], usize)> {
    let end = request.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&request[..end]).ok()?;
    let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0);
    Some((&request[end + 4..], length))
}

/// The operation: from the body for EC2, from method and path for Compute Engine.
pub fn of(request: &[u8]) -> String {
    let text = String::from_utf8_lossy(request);
    let mut parts = text.split(' ');
    let (method, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let Some((_, below)) = path.split_once("/compute/v1/projects/") else {
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let action = body.split('&').find_map(|field| field.strip_prefix("Action="));
        return action.unwrap_or_default().to_owned();
    };
    let segments: Vec<&str> = below.split('/').skip(1).collect();
    let verb = match (method, segments.as_slice()) {
        (_, ["aggregated", kind]) => return format!("compute.{kind}.aggregatedList"),
        ("GET", [kind]) => return format!("compute.{kind}.list"),
        (_, ["zones", _, "operations", _, "wait"]) => return "compute.zoneOperations.wait".to_owned(),
        (_, ["zones", _, "operations"]) => return "compute.zoneOperations.list".to_owned(),
        (_, ["zones", _, "operations", _]) => return "compute.zoneOperations.get".to_owned(),
        ("GET", ["zones", _, "instances", _, "serialPort"]) => "getSerialPortOutput",
        ("POST", ["zones", _, "instances"]) => "insert",
        ("DELETE", ["zones", _, "instances", _]) => "delete",
        ("GET", ["zones", _, "instances", _]) => "get",
        ("GET", ["zones", _, "instances"]) => "list",
        _ => "other",
    };
    format!("compute.instances.{verb}")
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn each_cloud_names_its_operations_in_its_own_place() {
        let post = "POST / HTTP/1.1\r\nContent-Length: 40\r\n\r\nAction=RunInstances&Version=2016-11-15";
        assert_eq!(of(post.as_bytes()), "RunInstances");
        for (line, operation) in [
            ("POST {}/zones/us-east1-b/instances?requestId=1", "compute.instances.insert"),
            ("DELETE {}/zones/us-east1-b/instances/a", "compute.instances.delete"),
            ("GET {}/zones/us-east1-b/instances/a", "compute.instances.get"),
            (
                "GET {}/zones/us-east1-b/instances/a/serialPort?port=1",
                "compute.instances.getSerialPortOutput",
            ),
            ("GET {}/aggregated/instances?filter=a", "compute.instances.aggregatedList"),
            ("POST {}/zones/us-east1-b/operations/o/wait", "compute.zoneOperations.wait"),
            ("GET {}/zones/us-east1-b/operations/o", "compute.zoneOperations.get"),
            ("GET {}/zones/us-east1-b/operations?maxResults=5", "compute.zoneOperations.list"),
        ] {
            let line = line.replace("{}", "/compute/v1/projects/lab-project");
            assert_eq!(of(format!("{line} HTTP/1.1\r\n\r\n").as_bytes()), operation);
        }
    }
}
