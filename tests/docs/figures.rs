//! A figure that a page repeats is one of the measured ones.

use super::links::prose;

/// The figures with a unit of a text: `2.59 ms`, `0.27 times`. Whole numbers are settings as a rule.
fn figures(text: &str) -> Vec<String> {
    let words: Vec<&str> = prose(text).flat_map(|(_, line)| line.split([' ', '[', ']', '(', ')'])).collect();
    let unit = |word: &str| match word.trim_end_matches(['.', ',', ';', ':']) {
        "times" | "×" => Some(" "),
        "ms" => Some(" ms"),
        "s" => Some(" s"),
        _ => None,
    };
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let is_figure = word.contains('.') && word.parse::<f64>().is_ok();
        let next = words.get(at + 1).and_then(|next| unit(next));
        found.extend(next.filter(|_| is_figure).map(|unit| format!("{word}{unit}")));
    }
    found
}

/// The figures of a page that the page of measurements does not have.
pub(crate) fn unmeasured(page: &str, measured: &str) -> Vec<String> {
    let repeated = figures(page);
    assert!(repeated.len() >= 5, "{repeated:?}");
    repeated.into_iter().filter(|figure| !measured.contains(figure.as_str())).collect()
}

mod planted {
    use super::unmeasured;

    #[test]
    fn a_figure_that_was_not_measured_is_found() {
        let page = "It takes 2.59 ms, [0.33 times](x.md) of 1.5 s; 2.60 ms and 0.3 × and 4.2 s. Version 4.3 is 5 s old.";
        let measured = "| a | 2.59 ms (p95 3.49) | 0.33 × (IQR) | 1.5 s, 4.25 s |";
        assert_eq!(unmeasured(page, measured), ["2.60 ms", "0.3 ", "4.2 s"]);
    }
}
