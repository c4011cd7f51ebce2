//! Mirrors of registries, and the engine's file of them.

/// A mirror's scheme, and its host with port and path.
pub fn place(mirror: &str) -> (&str, &str) {
    let (scheme, place) = mirror.split_once("://").unwrap_or(("https", mirror));
    (scheme, place.trim_end_matches('/'))
}

/// A mirror is asked first, then the registry itself.
pub fn mirrors<'a>(mirrors: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let of = |(registry, mirror): (&String, &String)| {
        let (scheme, place) = place(mirror);
        let (insecure, registry, place) = (scheme == "http", text(registry), text(place));
        format!(
            "\n[[registry]]\nprefix = {registry}\nlocation = {registry}\n[[registry.mirror]]\nlocation = {place}\n\
             insecure = {insecure}\n"
        )
    };
    mirrors.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_without_tls_is_marked() {
        let one = ("docker.io".to_owned(), "http://mirror.corp:5000/".to_owned());
        let text = mirrors([(&one.0, &one.1)]);
        assert!(text.contains("location = \"mirror.corp:5000\"\ninsecure = true\n"), "{text}");
    }
}
