//! The pull policies of one image.

use super::refusal::PullPolicyRefusal;
use super::settings::PullPolicy;

/// The policies to try, in their order, and those of the job that the pool does not allow.
///
/// A job's list replaces the pool's. What the pool does not allow is left out; the error has both lists if nothing
/// remains. The pool's own list needs no permission.
pub fn effective(
    requested: &[String],
    pool: &[PullPolicy],
    allowed: &[PullPolicy],
) -> Result<(Vec<PullPolicy>, Vec<String>), PullPolicyRefusal> {
    if requested.is_empty() {
        return Ok((if pool.is_empty() { vec![PullPolicy::Always] } else { pool.to_vec() }, Vec::new()));
    }
    let (mut policies, mut refused) = (Vec::new(), Vec::new());
    for word in requested {
        match allowed.iter().copied().find(|policy| policy.as_str() == word) {
            Some(policy) if policies.contains(&policy) => {}
            Some(policy) => policies.push(policy),
            None => refused.push(word.clone()),
        }
    }
    if policies.is_empty() {
        return Err(PullPolicyRefusal { requested: requested.to_vec(), allowed: allowed.to_vec() });
    }
    Ok((policies, refused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use PullPolicy::{Always, IfNotPresent, Never};

    #[test]
    fn a_job_gets_its_own_policies_as_far_as_the_pool_allows_them() {
        for (requested, pool, allowed, expected, refused) in [
            (vec![], vec![Always, IfNotPresent], vec![], vec![Always, IfNotPresent], vec![]),
            (vec![], vec![Never], vec![Always], vec![Never], vec![]),
            (vec![], vec![], vec![], vec![Always], vec![]),
            (vec!["if-not-present"], vec![Always], vec![Always, IfNotPresent], vec![IfNotPresent], vec![]),
            (vec!["never", "always"], vec![Always], vec![Always], vec![Always], vec!["never"]),
            (
                vec!["if-not-present", "always"],
                vec![Never],
                PullPolicy::ALL.to_vec(),
                vec![IfNotPresent, Always],
                vec![],
            ),
            (vec!["always", "always"], vec![Never], vec![Always], vec![Always], vec![]),
        ] {
            let words: Vec<String> = requested.iter().map(|word| (*word).to_owned()).collect();
            let refused: Vec<String> = refused.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(effective(&words, &pool, &allowed), Ok((expected, refused)), "{requested:?}");
        }
    }

    #[test]
    fn only_an_empty_rest_is_an_error() {
        for (words, allowed, message) in [
            (
                vec!["if-not-present"],
                vec![Always],
                "pull_policy ([if-not-present]) is not one of the allowed_pull_policies ([always])",
            ),
            (
                vec!["never", "Always"],
                vec![Always, IfNotPresent],
                "pull_policy ([never Always]) is not one of the allowed_pull_policies ([always if-not-present])",
            ),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let refused = effective(&words, &[Always], &allowed).unwrap_err();
            assert_eq!(refused.to_string(), message);
        }
    }
}
