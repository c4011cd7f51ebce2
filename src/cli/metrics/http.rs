//! The part of HTTP/1.1 that a scrape needs: one request for `/metrics`, one response, and the connection is closed.

use greenroom_core::metrics::Format;

/// The longest head of a request. Prometheus sends some hundred bytes.
pub(super) const LONGEST_HEAD: usize = 8 << 10;

/// The request of a client, as [`parse`] reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Metrics {
        format: Format,
        /// False for `HEAD`.
        body: bool,
    },
    Refused(&'static str, &'static str),
}

/// The length of a complete head in what was received.
pub(super) fn head_length(received: &[u8]) -> Option<usize> {
    let end =
        |mark: &[u8]| received.windows(mark.len()).position(|part| part == mark).map(|at| at + mark.len());
    [end(b"\r\n\r\n"), end(b"\n\n")].into_iter().flatten().min()
}

/// Reads a complete head.
pub(super) fn parse(head: &[u8]) -> Request {
    const BAD: Request = Request::Refused("400 Bad Request", "this is not an HTTP request");
    let Ok(head) = std::str::from_utf8(head) else { return BAD };
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return BAD;
    };
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
        return BAD;
    }
    let body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => return Request::Refused("405 Method Not Allowed", "only GET and HEAD are allowed"),
    };
    // A proxy sends the whole address.
    let path =
        target.strip_prefix("http://").map_or(target, |rest| rest.find('/').map_or("/", |at| &rest[at..]));
    if path.split(['?', '#']).next() != Some("/metrics") {
        return Request::Refused("404 Not Found", "the metrics are at /metrics");
    }
    let accept: Vec<&str> = lines
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.eq_ignore_ascii_case("accept"))
        .map(|(_, value)| value.trim())
        .collect();
    Request::Metrics { format: Format::accepted(&accept.join(",")), body }
}

/// A response without its body.
pub(super) fn head(status: &str, content_type: &str, length: usize) -> String {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{allow}\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
}

/// A whole response with a sentence.
pub(super) fn refusal(status: &str, why: &str) -> String {
    let body = format!("{why}\n");
    head(status, "text/plain; charset=utf-8", body.len()) + &body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &[u8]) -> &'static str {
        match parse(request) {
            Request::Metrics { format: Format::Text, body: true } => "text",
            Request::Metrics { format: Format::OpenMetrics, body: true } => "openmetrics",
            Request::Metrics { body: false, .. } => "head",
            Request::Refused(status, _) => &status[..3],
        }
    }

    #[test]
    fn requests_are_read_and_rubbish_is_refused() {
        for (request, expected) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"[..], "text"),
            (b"GET /metrics?x=1 HTTP/1.0\n\n", "text"),
            (b"GET http://a:1/metrics HTTP/1.1\r\n\r\n", "text"),
            (
                b"GET /metrics HTTP/1.1\r\nACCEPT: application/openmetrics-text;version=1.0.0\r\n\r\n",
                "openmetrics",
            ),
            (b"HEAD /metrics HTTP/1.1\r\n\r\n", "head"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET / HTTP/1.1\r\n\r\n", "404"),
            (b"GET /metricsx HTTP/1.1\r\n\r\n", "404"),
            (b"GET http:// HTTP/1.1\r\n\r\n", "404"),
            (b"GET /metrics HTTP/2.0\r\n\r\n", "400"),
            (b"GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"\xff\xfe\r\n\r\n", "400"),
            (b"\r\n\r\n", "400"),
            (b"", "400"),
        ] {
            assert_eq!(status(request), expected, "{}", String::from_utf8_lossy(request));
        }
    }

    #[test]
    fn a_head_ends_at_the_first_empty_line() {
        assert_eq!(head_length(b"GET / HTTP/1.1\r\n"), None);
        assert_eq!(head_length(b"a\r\n\r\nbody\n\n"), Some(5));
        assert_eq!(head_length(b"a\n\nbody\r\n\r\n"), Some(3));
    }
}
