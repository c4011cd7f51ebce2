//! Tables of the book, and laws that hold whatever plugin and keeper do.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_core::ids::{Generation, OwnerId, PoolName};
use greenroom_core::inventory::Status;
use greenroom_core::notation::NOW;
use proptest::prelude::*;

use super::*;
use crate::fleeting::group::SeenInstance;

const LIMIT: Duration = Duration::from_mins(10);

pub(super) fn instance(number: u32) -> InstanceId {
    InstanceId::launched(&PoolName::new("linux"), &Generation::new("c0ffee"), number)
}

pub(super) fn tags(number: u32) -> Tags {
    let pool = PoolName::new("linux");
    let owner = OwnerId::new("00000000000000a1");
    Tags { pool, owner, generation: Generation::new("c0ffee"), number }
}

pub(super) fn seen(list: &[(&str, InstanceState)]) -> Vec<SeenInstance> {
    list.iter().map(|(id, state)| SeenInstance { id: (*id).to_owned(), state: *state }).collect()
}

/// A book with these launches, requested in one call that has no answer yet.
fn asked(numbers: &[u32]) -> Book {
    let mut book = Book::default();
    for number in numbers {
        let id = instance(*number);
        assert_eq!(book.want(&id, &id.token(1), &tags(*number), NOW), WantAnswer::New);
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

fn show(book: &mut Book, list: &[(&str, InstanceState)]) {
    book.update(&seen(list), LIMIT, later(1));
}

#[test]
fn the_oldest_launch_gets_the_first_machine() {
    let mut book = asked(&[7, 3, 5]);
    book.accepted(&[instance(7), instance(3), instance(5)], 3, NOW);
    show(&mut book, &[("b", InstanceState::Creating)]);
    show(
        &mut book,
        &[("b", InstanceState::Running), ("c", InstanceState::Creating), ("a", InstanceState::Creating)],
    );
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
    assert_eq!((want(&mut book, 1), want(&mut book, 2)), (WantAnswer::Known, WantAnswer::OtherToken));
    show(&mut book, &[("a", InstanceState::Running)]);
    assert_eq!((want(&mut book, 1), want(&mut book, 2)), (WantAnswer::Known, WantAnswer::OtherToken));
    show(&mut book, &[("a", InstanceState::Deleted)]);
    assert_eq!(want(&mut book, 1), WantAnswer::Known, "it had its machine");
    assert_eq!(want(&mut book, 2), WantAnswer::New);
}

#[test]
fn a_partial_answer_serves_the_oldest_and_expects_no_more() {
    let mut book = asked(&[1, 2, 3]);
    let call = [1, 2, 3].map(instance);
    assert_eq!(book.accepted(&call, 2, NOW), [instance(3)]);
    show(
        &mut book,
        &[("a", InstanceState::Creating), ("b", InstanceState::Creating), ("c", InstanceState::Creating)],
    );
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
    assert_eq!(book.want(&id, &id.token(2), &tags(1), NOW), WantAnswer::New);
    book.begin(None, false, NOW);
    show(&mut book, &[("a", InstanceState::Running)]);
    show(
        &mut book,
        &[("a", InstanceState::Running), ("b", InstanceState::Running), ("c", InstanceState::Running)],
    );
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
    book.update(&seen(&[("a", InstanceState::Running)]), LIMIT, later(9_000));
    assert_eq!(id_of(&book, 1).as_deref(), Some("a"));
    let mut forgotten = asked(&[1]);
    forgotten.update(&[], LIMIT, later(600));
    forgotten.update(&[], LIMIT, later(86_400));
    forgotten.update(&seen(&[("a", InstanceState::Running)]), LIMIT, later(86_401));
    assert!(forgotten.foreign().contains_key("a"));
}

#[test]
fn foreign_machines_are_never_bound_even_if_an_update_lacks_them() {
    let mut book = Book::default();
    show(&mut book, &[("x", InstanceState::Running)]);
    let id = instance(1);
    book.want(&id, &id.token(1), &tags(1), NOW);
    let text = serde_json::to_string(&book).unwrap();
    let mut book: Book = serde_json::from_str(&text).unwrap();
    book.begin(None, false, NOW);
    for _ in 0..entry::MISSED {
        show(&mut book, &[]);
    }
    show(&mut book, &[("x", InstanceState::Running)]);
    assert_eq!((id_of(&book, 1), book.foreign().len()), (None, 1));
    for _ in 0..=entry::MISSED {
        show(&mut book, &[]);
    }
    assert!(book.foreign().is_empty());
}

#[test]
fn a_foreign_machine_serves_a_launch_only_with_the_operators_word() {
    for (adopt, state, adopted) in [
        (false, InstanceState::Running, 0),
        (true, InstanceState::Running, 1),
        (true, InstanceState::Deleting, 0),
        (true, InstanceState::Unknown(9), 0),
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
    show(&mut book, &[("a", InstanceState::Deleting), ("b", InstanceState::Running)]);
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
    let gone = |states: &[Option<InstanceState>], removed: bool| {
        let mut book = asked(&[1]);
        show(&mut book, &[("a", InstanceState::Running)]);
        if removed {
            assert_eq!(book.remove(&instance(1), LIMIT, NOW), Removal::Marked);
            book.removed(&["a".to_owned()], NOW);
        }
        for state in states {
            show(&mut book, &state.map(|state| ("a", state)).into_iter().collect::<Vec<_>>());
        }
        match book.entry(&instance(1)) {
            Some(BookEntry::Former(former)) => Some(former.how),
            _ => None,
        }
    };
    assert_eq!(gone(&[Some(InstanceState::Deleted)], false), Some(Departure::Deleted));
    assert_eq!(gone(&[None], true), Some(Departure::Removed));
    assert_eq!(gone(&[Some(InstanceState::Deleting), None], false), Some(Departure::Removed));
    assert_eq!(gone(&[None; 5], false), None);
    assert_eq!(gone(&[None, None, None, None, None, Some(InstanceState::Running), None], false), None);
    assert_eq!(gone(&[None; 6], false), Some(Departure::Vanished));
    assert_eq!(gone(&[Some(InstanceState::Timeout)], false), None, "it may still exist");
    assert_eq!(gone(&[Some(InstanceState::Timeout)], true), Some(Departure::Removed));
}

#[test]
fn a_machine_that_comes_back_goes_to_no_other_launch() {
    for (removed, absent, again) in [(false, 6, true), (false, 50, true), (true, 2, true), (true, 7, false)] {
        let mut book = asked(&[1]);
        show(&mut book, &[("a", InstanceState::Running)]);
        if removed {
            book.remove(&instance(1), LIMIT, NOW);
            book.removed(&["a".to_owned()], NOW);
        }
        for _ in 0..absent {
            show(&mut book, &[]);
        }
        book.want(&instance(2), "t", &tags(2), NOW);
        book.begin(None, false, NOW);
        show(&mut book, &[("a", InstanceState::Running)]);
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
    show(&mut book, &[("a", InstanceState::Running)]);
    assert!(book.due(later(1)).is_empty());
    book.remove(&instance(1), LIMIT, later(1));
    assert_eq!(book.due(later(1)), ["a"]);
    book.removed(&["a".to_owned()], later(1));
    show(&mut book, &[("a", InstanceState::Running)]);
    assert!(book.due(later(60)).is_empty());
    assert_eq!(book.due(later(61)), ["a"]);
    show(&mut book, &[("a", InstanceState::Deleting)]);
    assert!(book.due(later(61)).is_empty());
    assert_eq!(book.due(later(601)), ["a"], "it is stuck");
}

#[test]
fn an_unknown_state_proves_nothing() {
    let mut book = asked(&[1]);
    show(&mut book, &[("a", InstanceState::Unknown(12))]);
    let status = |book: &Book| book.machines()[&instance(1)].status();
    assert_eq!(status(&book), Status::Starting);
    show(&mut book, &[("a", InstanceState::Running)]);
    show(&mut book, &[("a", InstanceState::Unknown(12))]);
    assert_eq!(status(&book), Status::Running);
}

#[test]
fn an_id_that_comes_twice_counts_once() {
    let mut book = asked(&[1, 2]);
    show(&mut book, &[("a", InstanceState::Creating), ("a", InstanceState::Running)]);
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
    show(&mut book, &[("a", InstanceState::Creating)]);
    assert_eq!(book.remove(&instance(1), LIMIT, later(700)), Removal::Marked);
}

#[test]
fn a_launch_that_failed_does_not_keep_an_instance_whose_machine_is_gone() {
    let mut book = asked(&[1]);
    book.failed(&[instance(1)], NOW);
    // The same instance once more, with another token: it gets a machine, which is removed.
    assert_eq!(book.want(&instance(1), "t2", &tags(1), later(1)), WantAnswer::New);
    let batch = book.begin(None, false, later(1));
    book.accepted(&batch.asked, 1, later(2));
    book.update(&[SeenInstance { id: "a".to_owned(), state: InstanceState::Running }], LIMIT, later(3));
    assert_eq!(book.remove(&instance(1), LIMIT, later(4)), Removal::Marked);
    book.removed(&["a".to_owned()], later(4));
    book.update(&[], LIMIT, later(5));
    assert_eq!(book.remove(&instance(1), LIMIT, later(6)), Removal::Gone(Some(Departure::Removed)));
    // What the failed launch has made after all is the instance's again: a list shows it.
    book.update(&[SeenInstance { id: "b".to_owned(), state: InstanceState::Running }], LIMIT, later(7));
    assert_eq!(id_of(&book, 1).as_deref(), Some("b"));
}

#[test]
fn lists_that_show_nothing_new_change_nothing_in_the_end() {
    // Each change of the book is a write to the disk.
    let mut book = asked(&[1]);
    show(&mut book, &[("a", InstanceState::Running)]);
    show(&mut book, &[("a", InstanceState::Deleted)]);
    for _ in 0..=entry::MISSED {
        show(&mut book, &[]);
    }
    let before = book.clone();
    show(&mut book, &[]);
    assert_eq!(book, before);
}

#[derive(Debug, Clone)]
enum BookStep {
    Want(u32, u32),
    /// A call. The plugin makes this many of what it is asked for; then how it answers.
    Increase(u32, CallEnding),
    /// Machines appear, up to this many.
    Appear(usize),
    /// A machine changes its state, or an update lacks it.
    Change(usize, InstanceState),
    Lose(usize),
    Update,
    Remove(u32),
    Decrease,
    Pass(u64),
    /// The keeper is killed, and reads what is stored.
    Restart,
}

#[derive(Debug, Clone, Copy)]
enum CallEnding {
    Answer,
    Error,
    Silence,
    /// The keeper is killed during the call.
    Killed,
}

fn step() -> impl Strategy<Value = BookStep> {
    let ending = prop_oneof![
        3 => Just(CallEnding::Answer),
        1 => Just(CallEnding::Error),
        1 => Just(CallEnding::Silence),
        1 => Just(CallEnding::Killed)
    ];
    let state = prop_oneof![
        Just(InstanceState::Running),
        Just(InstanceState::Deleting),
        Just(InstanceState::Deleted),
        Just(InstanceState::Timeout),
        Just(InstanceState::Unknown(12))
    ];
    prop_oneof![
        4 => (1_u32..8, 1_u32..3).prop_map(|(number, token)| BookStep::Want(number, token)),
        4 => (0_u32..4, ending).prop_map(|(made, ending)| BookStep::Increase(made, ending)),
        3 => (1_usize..4).prop_map(BookStep::Appear),
        2 => (any::<usize>(), state).prop_map(|(at, state)| BookStep::Change(at, state)),
        1 => any::<usize>().prop_map(BookStep::Lose),
        6 => Just(BookStep::Update),
        2 => (1_u32..8).prop_map(BookStep::Remove),
        2 => Just(BookStep::Decrease),
        1 => (1_u64..900).prop_map(BookStep::Pass),
        2 => Just(BookStep::Restart),
    ]
}

/// The group as it really is, and a book with what is stored of it.
#[derive(Default)]
struct BookWorld {
    book: Book,
    stored: Book,
    time: u64,
    made: u32,
    /// Made, and not in a list yet.
    hidden: Vec<String>,
    listed: BTreeMap<String, InstanceState>,
    wanted: BTreeSet<(u32, u32)>,
    requested: u32,
}

impl BookWorld {
    fn now(&self) -> Stamp {
        NOW.plus(Duration::from_secs(self.time))
    }

    fn store(&mut self) {
        self.stored = serde_json::from_str(&serde_json::to_string(&self.book).unwrap()).unwrap();
    }

    fn nth(&self, at: usize) -> Option<String> {
        (!self.listed.is_empty()).then(|| self.listed.keys().nth(at % self.listed.len()).unwrap().clone())
    }

    fn increase(&mut self, made: u32, ending: CallEnding) {
        let now = self.now();
        let batch = self.book.begin(Some(12), false, now);
        self.store();
        let count = u32::try_from(batch.asked.len()).unwrap();
        self.requested += count;
        let made = made.min(count);
        for _ in 0..made {
            self.made += 1;
            self.hidden.push(format!("m{}", self.made));
        }
        match ending {
            CallEnding::Answer => drop(self.book.accepted(&batch.asked, made, now)),
            CallEnding::Error => self.book.failed(&batch.asked, now),
            CallEnding::Silence => self.book.unanswered(&batch.asked, now),
            CallEnding::Killed => {
                self.book = self.stored.clone();
                return;
            }
        }
        self.store();
    }

    fn take(&mut self, step: &BookStep) {
        let now = self.now();
        match *step {
            BookStep::Want(number, token) => {
                let id = instance(number);
                if self.book.want(&id, &id.token(token), &tags(number), now) == WantAnswer::New {
                    self.wanted.insert((number, token));
                }
            }
            BookStep::Increase(made, ending) => self.increase(made, ending),
            BookStep::Appear(count) => {
                let count = count.min(self.hidden.len());
                self.listed.extend(self.hidden.drain(..count).map(|id| (id, InstanceState::Creating)));
            }
            BookStep::Change(at, state) => {
                // What is deleted stays so.
                if let Some(id) = self.nth(at).filter(|id| self.listed[id] != InstanceState::Deleted) {
                    self.listed.insert(id, state);
                }
            }
            BookStep::Lose(at) => {
                // What is being deleted, as far as the plugin has shown it, ends in this way, too.
                if let Some(id) = self.nth(at) {
                    let shown = self.book.machines().values().find(|machine| machine.id == id);
                    let states = [self.listed.remove(&id), shown.map(|machine| machine.state)];
                    if !states
                        .iter()
                        .flatten()
                        .any(|state| matches!(state, InstanceState::Deleted | InstanceState::Deleting))
                    {
                        self.hidden.push(id);
                    }
                }
            }
            BookStep::Update => {
                let seen: Vec<SeenInstance> = self
                    .listed
                    .iter()
                    .map(|(id, state)| SeenInstance { id: id.clone(), state: *state })
                    .collect();
                self.book.update(&seen, LIMIT, now);
                self.store();
            }
            BookStep::Remove(number) => drop(self.book.remove(&instance(number), LIMIT, now)),
            BookStep::Decrease => {
                let due = self.book.due(now);
                for id in &due {
                    self.listed.remove(id);
                }
                self.hidden.retain(|id| !due.contains(id));
                self.book.removed(&due, now);
                self.store();
            }
            BookStep::Pass(seconds) => self.time += seconds,
            BookStep::Restart => self.book = self.stored.clone(),
        }
    }

    /// An id belongs to at most one instance, and nothing of the book's is foreign as well.
    fn check_ids(&self) {
        let ids: BTreeSet<&String> = self.book.machines().values().map(|machine| &machine.id).collect();
        assert_eq!(ids.len(), self.book.machines().len(), "an id belongs to two instances");
        assert!(ids.iter().all(|id| !self.book.foreign().contains_key(*id)), "an id is foreign and bound");
        let open = self.book.intents().iter().filter(|intent| intent.progress != LaunchProgress::GivenUp);
        for intent in open {
            assert!(!self.book.machines().contains_key(&intent.instance), "an instance gets two machines");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn an_id_has_one_instance_and_all_that_was_made_is_known(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = BookWorld::default();
        for step in steps {
            world.take(&step);
            world.check_ids();
            // A repeat of a launch requests nothing: each is part of one call at most, unless its keeper forgot it first.
            prop_assert!(world.requested as usize <= world.wanted.len() * 3);
        }
        // Everything that was made within a day and lives is bound: no part of it leaks.
        world.take(&BookStep::Appear(usize::MAX));
        world.take(&BookStep::Update);
        for (id, state) in &world.listed {
            let lives = matches!(state, InstanceState::Creating | InstanceState::Running | InstanceState::Unknown(_));
            let bound = world.book.machines().values().any(|machine| machine.id == *id);
            prop_assert!(!lives || bound, "{id} lives, and no launch has it: {:?}", world.book);
        }
    }

    #[test]
    fn what_was_there_before_is_never_bound(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = BookWorld::default();
        world.listed.insert("foreign".to_owned(), InstanceState::Running);
        world.take(&BookStep::Update);
        for step in steps {
            // Updates may lack it, but not for long.
            if !matches!(step, BookStep::Lose(_) | BookStep::Change(..)) {
                world.take(&step);
            }
            prop_assert!(world.book.machines().values().all(|machine| machine.id != "foreign"));
        }
    }
}
