"""The Compute Engine front end: a fake whose requests and answers are validated by Google's discovery document."""
