//! Tables of the book.

use greenroom_core::ids::{Generation, OwnerId, PoolName};
use greenroom_core::inventory::Status;
use greenroom_core::notation::NOW;

use super::*;
use crate::fleeting::group::Seen;

const LIMIT: Duration = Duration::from_mins(10);

pub(super) fn instance(number: u32) -> InstanceId {
    InstanceId::launched(&PoolName::new("linux"), &Generation::new("c0ffee"), number)
}

pub(super) fn tags(number: u32) -> Tags {
    let (pool, owner) = (PoolName::new("linux"), OwnerId::new("00000000000000a1"));
    Tags { pool, owner, generation: Generation::new("c0ffee"), number }
}

pub(super) fn seen(list: &[(&str, State)]) -> Vec<Seen> {
    list.iter().map(|(id, state)| Seen { id: (*id).to_owned(), state: *state }).collect()
}

/// A book with these launches, requested in one call that has no answer yet.
fn asked(numbers: &[u32]) -> Book {
    let mut book = Book::default();
    for number in numbers {
        let id = instance(*number);
        assert_eq!(book.want(&id, &id.token(1), &tags(*number), NOW), Want::New);
    }
    assert_eq!(book.begin(None, false, NOW).asked.len(), numbers.len());
    book
}

fn id_of(book: &Book, number: u32) -> Option<String> {
    book.machines().get(&instance(number)).map(|machine| machine.id.clone())
}

fn later(seconds: u64) -> Stamp {
    NOW.plus(Duration::from_secs(seconds))
}

fn show(book: &mut Book, list: &[(&str, State)]) {
    book.update(&seen(list), LIMIT, later(1));
}

#[test]
fn the_oldest_launch_gets_the_first_machine() {
    let mut book = asked(&[7, 3, 5]);
    book.accepted(&[instance(7), instance(3), instance(5)], 3, NOW);
    show(&mut book, &[("b", State::Creating)]);
    show(&mut book, &[("b", State::Running), ("c", State::Creating), ("a", State::Creating)]);
    let bound: Vec<_> = [7, 3, 5].map(|number| id_of(&book, number).unwrap()).into();
    assert_eq!(bound, ["b", "a", "c"]);
    assert_eq!(book.machines()[&instance(7)].status(), Status::Running);
    assert!(book.foreign().is_empty());
}

#[test]
fn a_repeat_of_a_launch_is_known_and_another_token_is_not() {
    let mut book = asked(&[1]);
    let id = instance(1);
    let want = |book: &mut Book, token: u32| book.want(&id, &id.token(token), &tags(1), NOW);
    assert_eq!((want(&mut book, 1), want(&mut book, 2)), (Want::Known, Want::OtherToken));
    show(&mut book, &[("a", State::Running)]);
    assert_eq!((want(&mut book, 1), want(&mut book, 2)), (Want::Known, Want::OtherToken));
    show(&mut book, &[("a", State::Deleted)]);
    assert_eq!(want(&mut book, 1), Want::Known, "it had its machine");
    assert_eq!(want(&mut book, 2), Want::New);
}

#[test]
fn a_partial_answer_serves_the_oldest_and_expects_no_more() {
    let mut book = asked(&[1, 2, 3]);
    let call = [1, 2, 3].map(instance);
    assert_eq!(book.accepted(&call, 2, NOW), [instance(3)]);
    show(&mut book, &[("a", State::Creating), ("b", State::Creating), ("c", State::Creating)]);
    assert_eq!((id_of(&book, 1).unwrap(), id_of(&book, 2).unwrap()), ("a".into(), "b".into()));
    assert!(book.foreign().contains_key("c"));
    let mut wild = asked(&[1]);
    assert!(wild.accepted(&[instance(1)], 9, NOW).is_empty(), "a count that is too high");
}

#[test]
fn what_a_failed_call_made_belongs_to_its_launches() {
    let mut book = asked(&[1, 2]);
    book.failed(&[1, 2].map(instance), NOW);
    assert_eq!(book.room(Some(2)), 2, "they do not block the group");
    // The next attempt comes first, whichever call made the machine.
    let id = instance(1);
    assert_eq!(book.want(&id, &id.token(2), &tags(1), NOW), Want::New);
    book.begin(None, false, NOW);
    show(&mut book, &[("a", State::Running)]);
    show(&mut book, &[("a", State::Running), ("b", State::Running), ("c", State::Running)]);
    assert_eq!(id_of(&book, 1).as_deref(), Some("a"));
    assert_eq!(book.machines()[&id].token, id.token(2));
    // The engine terminates late machines under names of their own.
    let late = InstanceId::new("linux-c0ffee-1-late-1");
    assert_eq!(book.machines()[&late].id, "b");
    assert_eq!(id_of(&book, 2).as_deref(), Some("c"));
}

#[test]
fn a_machine_that_does_not_appear_blocks_nothing_for_ever_and_is_known_when_it_does() {
    let mut book = asked(&[1]);
    book.accepted(&[instance(1)], 1, NOW);
    assert_eq!(book.room(Some(1)), 0);
    book.update(&[], LIMIT, later(599));
    assert_eq!(book.room(Some(1)), 0);
    book.update(&[], LIMIT, later(600));
    assert_eq!(book.room(Some(1)), 1);
    book.update(&seen(&[("a", State::Running)]), LIMIT, later(9_000));
    assert_eq!(id_of(&book, 1).as_deref(), Some("a"));
    let mut forgotten = asked(&[1]);
    forgotten.update(&[], LIMIT, later(600));
    forgotten.update(&[], LIMIT, later(86_400));
    forgotten.update(&seen(&[("a", State::Running)]), LIMIT, later(86_401));
    assert!(forgotten.foreign().contains_key("a"));
}

#[test]
fn foreign_machines_are_never_bound_even_if_an_update_lacks_them() {
    let mut book = Book::default();
    show(&mut book, &[("x", State::Running)]);
    let id = instance(1);
    book.want(&id, &id.token(1), &tags(1), NOW);
    let text = serde_json::to_string(&book).unwrap();
    let mut book: Book = serde_json::from_str(&text).unwrap();
    book.begin(None, false, NOW);
    for _ in 0..entry::MISSED {
        show(&mut book, &[]);
    }
    show(&mut book, &[("x", State::Running)]);
    assert_eq!((id_of(&book, 1), book.foreign().len()), (None, 1));
    for _ in 0..=entry::MISSED {
        show(&mut book, &[]);
    }
    assert!(book.foreign().is_empty());
}

#[test]
fn a_foreign_machine_serves_a_launch_only_with_the_operators_word() {
    for (adopt, state, adopted) in [
        (false, State::Running, 0),
        (true, State::Running, 1),
        (true, State::Deleting, 0),
        (true, State::Unknown(9), 0),
    ] {
        let mut book = Book::default();
        show(&mut book, &[("x", state)]);
        for number in [1, 2] {
            book.want(&instance(number), "t", &tags(number), NOW);
        }
        let batch = book.begin(None, adopt, NOW);
        assert_eq!((batch.adopted.len(), batch.asked.len()), (adopted, 2 - adopted), "{adopt} {state:?}");
    }
}

#[test]
fn a_group_has_room_for_its_size_without_all_that_exists_or_is_expected() {
    let mut book = asked(&[1, 2]);
    show(&mut book, &[("a", State::Deleting), ("b", State::Running)]);
    // One foreign, one bound, one expected.
    assert_eq!((book.room(Some(5)), book.room(Some(2)), book.room(None)), (2, 0, usize::MAX));
    for number in [3, 4, 5] {
        book.want(&instance(number), "t", &tags(number), NOW);
    }
    let batch = book.begin(Some(5), false, NOW);
    assert_eq!((batch.asked, batch.refused), (vec![instance(3), instance(4)], vec![instance(5)]));
    assert!(book.entry(&instance(5)).is_none());
}

#[test]
fn a_machine_ends_when_the_plugin_says_so_or_after_a_few_updates_without_it() {
    // States after Running, whether its removal was accepted, and what it ends as.
    let gone = |states: &[Option<State>], removed: bool| {
        let mut book = asked(&[1]);
        show(&mut book, &[("a", State::Running)]);
        if removed {
            assert_eq!(book.remove(&instance(1), LIMIT, NOW), Removal::Marked);
            book.removed(&["a".to_owned()], NOW);
        }
        for state in states {
            show(&mut book, &state.map(|state| ("a", state)).into_iter().collect::<Vec<_>>());
        }
        match book.entry(&instance(1)) {
            Some(Entry::Former(former)) => Some(former.how),
            _ => None,
        }
    };
    assert_eq!(gone(&[Some(State::Deleted)], false), Some(How::Deleted));
    assert_eq!(gone(&[None], true), Some(How::Removed));
    assert_eq!(gone(&[Some(State::Deleting), None], false), Some(How::Removed));
    assert_eq!(gone(&[None; 5], false), None);
    assert_eq!(gone(&[None, None, None, None, None, Some(State::Running), None], false), None);
    assert_eq!(gone(&[None; 6], false), Some(How::Vanished));
    assert_eq!(gone(&[Some(State::Timeout)], false), None, "it may still exist");
    assert_eq!(gone(&[Some(State::Timeout)], true), Some(How::Removed));
}

#[test]
fn a_machine_that_comes_back_goes_to_no_other_launch() {
    for (removed, absent, again) in [(false, 6, true), (false, 50, true), (true, 2, true), (true, 7, false)] {
        let mut book = asked(&[1]);
        show(&mut book, &[("a", State::Running)]);
        if removed {
            book.remove(&instance(1), LIMIT, NOW);
            book.removed(&["a".to_owned()], NOW);
        }
        for _ in 0..absent {
            show(&mut book, &[]);
        }
        book.want(&instance(2), "t", &tags(2), NOW);
        book.begin(None, false, NOW);
        show(&mut book, &[("a", State::Running)]);
        let owner = if again { instance(1) } else { instance(2) };
        assert_eq!(book.machines().keys().collect::<Vec<_>>(), [&owner], "{removed} {absent}");
        // Its removal is requested once more.
        let due = if again && removed { vec!["a".to_owned()] } else { vec![] };
        assert_eq!(book.due(later(2)), due);
    }
}

#[test]
fn a_removal_is_repeated_after_a_minute() {
    let mut book = asked(&[1]);
    show(&mut book, &[("a", State::Running)]);
    assert!(book.due(later(1)).is_empty());
    book.remove(&instance(1), LIMIT, later(1));
    assert_eq!(book.due(later(1)), ["a"]);
    book.removed(&["a".to_owned()], later(1));
    show(&mut book, &[("a", State::Running)]);
    assert!(book.due(later(60)).is_empty());
    assert_eq!(book.due(later(61)), ["a"]);
    show(&mut book, &[("a", State::Deleting)]);
    assert!(book.due(later(61)).is_empty());
    assert_eq!(book.due(later(601)), ["a"], "it is stuck");
}

#[test]
fn an_unknown_state_proves_nothing() {
    let mut book = asked(&[1]);
    show(&mut book, &[("a", State::Unknown(12))]);
    let status = |book: &Book| book.machines()[&instance(1)].status();
    assert_eq!(status(&book), Status::Starting);
    show(&mut book, &[("a", State::Running)]);
    show(&mut book, &[("a", State::Unknown(12))]);
    assert_eq!(status(&book), Status::Running);
}

#[test]
fn an_id_that_comes_twice_counts_once() {
    let mut book = asked(&[1, 2]);
    show(&mut book, &[("a", State::Creating), ("a", State::Running)]);
    assert_eq!((id_of(&book, 1).as_deref(), id_of(&book, 2)), (Some("a"), None));
    assert_eq!(book.machines()[&instance(1)].status(), Status::Running);
}

#[test]
fn a_launch_without_a_machine_can_be_terminated() {
    let mut book = Book::default();
    book.want(&instance(1), "t", &tags(1), NOW);
    assert_eq!(book.remove(&instance(1), LIMIT, NOW), Removal::Gone(None));
    assert!(!book.has_wanted());
    let mut book = asked(&[1]);
    assert_eq!(book.remove(&instance(1), LIMIT, later(599)), Removal::MayAppear);
    assert_eq!(book.remove(&instance(1), LIMIT, later(600)), Removal::Gone(None));
    show(&mut book, &[("a", State::Creating)]);
    assert_eq!(book.remove(&instance(1), LIMIT, later(700)), Removal::Marked);
}

#[test]
fn a_launch_that_failed_does_not_keep_an_instance_whose_machine_is_gone() {
    let mut book = asked(&[1]);
    book.failed(&[instance(1)], NOW);
    // The same instance once more, with another token: it gets a machine, which is removed.
    assert_eq!(book.want(&instance(1), "t2", &tags(1), later(1)), Want::New);
    let batch = book.begin(None, false, later(1));
    book.accepted(&batch.asked, 1, later(2));
    book.update(&[Seen { id: "a".to_owned(), state: State::Running }], LIMIT, later(3));
    assert_eq!(book.remove(&instance(1), LIMIT, later(4)), Removal::Marked);
    book.removed(&["a".to_owned()], later(4));
    book.update(&[], LIMIT, later(5));
    assert_eq!(book.remove(&instance(1), LIMIT, later(6)), Removal::Gone(Some(How::Removed)));
    // What the failed launch has made after all is the instance's again: a list shows it.
    book.update(&[Seen { id: "b".to_owned(), state: State::Running }], LIMIT, later(7));
    assert_eq!(id_of(&book, 1).as_deref(), Some("b"));
}

#[test]
fn lists_that_show_nothing_new_change_nothing_in_the_end() {
    // Each change of the book is a write to the disk.
    let mut book = asked(&[1]);
    show(&mut book, &[("a", State::Running)]);
    show(&mut book, &[("a", State::Deleted)]);
    for _ in 0..=entry::MISSED {
        show(&mut book, &[]);
    }
    let before = book.clone();
    show(&mut book, &[]);
    assert_eq!(book, before);
}
