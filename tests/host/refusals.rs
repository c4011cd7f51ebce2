//! Jobs that were refused lately.

use greenroom_core::ids::{JobKey, PoolName};

use crate::{home, operator};

#[test]
fn a_refused_job_is_known_to_its_next_call_and_to_no_other_job() {
    let home = home();
    let root = home.path().join("state");
    let pool = PoolName::new("linux");
    let key = |id| JobKey::new("https://gitlab.example", id);
    let host = operator(&root);
    assert_eq!(host.refusal(&pool, &key(7)).unwrap(), None);
    host.note_refusal(&pool, &key(7), "the registry does not answer").unwrap();
    host.note_refusal(&pool, &key(7), "the registry is overloaded").unwrap();
    let later = operator(&root);
    assert_eq!(later.refusal(&pool, &key(7)).unwrap().as_deref(), Some("the registry is overloaded"));
    assert_eq!(later.refusal(&pool, &key(8)).unwrap(), None);
    assert_eq!(later.refusal(&pool, &JobKey::new("https://other.example", 7)).unwrap(), None);
    assert_eq!(later.refusal(&PoolName::new("other"), &key(7)).unwrap(), None);
    for id in 100..200 {
        later.note_refusal(&pool, &key(id), "busy").unwrap();
    }
    assert_eq!(later.refusal(&pool, &key(7)).unwrap(), None, "the file does not grow without end");
    assert!(later.refusal(&pool, &key(199)).unwrap().is_some());
}

#[test]
fn notes_that_cannot_be_read_count_as_missing() {
    let home = home();
    let root = home.path().join("state");
    let (pool, key) = (PoolName::new("linux"), JobKey::new("https://gitlab.example", 7));
    let host = operator(&root);
    host.note_refusal(&pool, &key, "busy").unwrap();
    let file = root.join("pools/linux/refusals.json");
    let whole = std::fs::read(&file).unwrap();
    for end in 0..whole.len() {
        std::fs::write(&file, &whole[..end]).unwrap();
        assert_eq!(host.refusal(&pool, &key).unwrap(), None, "{end}");
    }
    host.note_refusal(&pool, &key, "busy again").unwrap();
    assert_eq!(host.refusal(&pool, &key).unwrap().as_deref(), Some("busy again"));
}
