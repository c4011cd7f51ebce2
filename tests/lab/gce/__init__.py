"""The Compute Engine front end: a fake that is routed, and judged both ways, by Google's own discovery document."""
