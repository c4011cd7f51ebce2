//! Laws of the book, whatever plugin and keeper do.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_core::notation::NOW;
use proptest::prelude::*;

use super::tests::{instance, tags};
use super::*;
use crate::fleeting::group::Seen;

const LIMIT: Duration = Duration::from_mins(10);

#[derive(Debug, Clone)]
enum Step {
    Want(u32, u32),
    /// A call. The plugin makes this many of what it is asked for; then how it answers.
    Increase(u32, Ending),
    /// Machines appear, up to this many.
    Appear(usize),
    /// A machine changes its state, or an update lacks it.
    Change(usize, State),
    Lose(usize),
    Update,
    Remove(u32),
    Decrease,
    Pass(u64),
    /// The keeper is killed, and reads what is stored.
    Restart,
}

#[derive(Debug, Clone, Copy)]
enum Ending {
    Answer,
    Error,
    Silence,
    /// The keeper is killed during the call.
    Killed,
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![
        3 => Just(Ending::Answer),
        1 => Just(Ending::Error),
        1 => Just(Ending::Silence),
        1 => Just(Ending::Killed)
    ];
    let state = prop_oneof![
        Just(State::Running),
        Just(State::Deleting),
        Just(State::Deleted),
        Just(State::Timeout),
        Just(State::Unknown(12))
    ];
    prop_oneof![
        4 => (1_u32..8, 1_u32..3).prop_map(|(number, token)| Step::Want(number, token)),
        4 => (0_u32..4, ending).prop_map(|(made, ending)| Step::Increase(made, ending)),
        3 => (1_usize..4).prop_map(Step::Appear),
        2 => (any::<usize>(), state).prop_map(|(at, state)| Step::Change(at, state)),
        1 => any::<usize>().prop_map(Step::Lose),
        6 => Just(Step::Update),
        2 => (1_u32..8).prop_map(Step::Remove),
        2 => Just(Step::Decrease),
        1 => (1_u64..900).prop_map(Step::Pass),
        2 => Just(Step::Restart),
    ]
}

/// The group as it really is, and a book with what is stored of it.
#[derive(Default)]
struct World {
    book: Book,
    stored: Book,
    time: u64,
    made: u32,
    /// Made, and not in a list yet.
    hidden: Vec<String>,
    listed: BTreeMap<String, State>,
    wanted: BTreeSet<(u32, u32)>,
    requested: u32,
}

impl World {
    fn now(&self) -> Stamp {
        NOW.plus(Duration::from_secs(self.time))
    }

    fn store(&mut self) {
        self.stored = serde_json::from_str(&serde_json::to_string(&self.book).unwrap()).unwrap();
    }

    fn nth(&self, at: usize) -> Option<String> {
        (!self.listed.is_empty()).then(|| self.listed.keys().nth(at % self.listed.len()).unwrap().clone())
    }

    fn increase(&mut self, made: u32, ending: Ending) {
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
            Ending::Answer => drop(self.book.accepted(&batch.asked, made, now)),
            Ending::Error => self.book.failed(&batch.asked, now),
            Ending::Silence => self.book.unanswered(&batch.asked, now),
            Ending::Killed => {
                self.book = self.stored.clone();
                return;
            }
        }
        self.store();
    }

    fn take(&mut self, step: &Step) {
        let now = self.now();
        match *step {
            Step::Want(number, token) => {
                let id = instance(number);
                if self.book.want(&id, &id.token(token), &tags(number), now) == Want::New {
                    self.wanted.insert((number, token));
                }
            }
            Step::Increase(made, ending) => self.increase(made, ending),
            Step::Appear(count) => {
                let count = count.min(self.hidden.len());
                self.listed.extend(self.hidden.drain(..count).map(|id| (id, State::Creating)));
            }
            Step::Change(at, state) => {
                // What is deleted stays so.
                if let Some(id) = self.nth(at).filter(|id| self.listed[id] != State::Deleted) {
                    self.listed.insert(id, state);
                }
            }
            Step::Lose(at) => {
                // What is being deleted, as far as the plugin has shown it, ends in this way, too.
                if let Some(id) = self.nth(at) {
                    let shown = self.book.machines().values().find(|machine| machine.id == id);
                    let states = [self.listed.remove(&id), shown.map(|machine| machine.state)];
                    if !states.iter().flatten().any(|state| matches!(state, State::Deleted | State::Deleting))
                    {
                        self.hidden.push(id);
                    }
                }
            }
            Step::Update => {
                let seen: Vec<Seen> =
                    self.listed.iter().map(|(id, state)| Seen { id: id.clone(), state: *state }).collect();
                self.book.update(&seen, LIMIT, now);
                self.store();
            }
            Step::Remove(number) => drop(self.book.remove(&instance(number), LIMIT, now)),
            Step::Decrease => {
                let due = self.book.due(now);
                for id in &due {
                    self.listed.remove(id);
                }
                self.hidden.retain(|id| !due.contains(id));
                self.book.removed(&due, now);
                self.store();
            }
            Step::Pass(seconds) => self.time += seconds,
            Step::Restart => self.book = self.stored.clone(),
        }
    }

    /// An id belongs to at most one instance, and nothing of the book's is foreign as well.
    fn check_ids(&self) {
        let ids: BTreeSet<&String> = self.book.machines().values().map(|machine| &machine.id).collect();
        assert_eq!(ids.len(), self.book.machines().len(), "an id belongs to two instances");
        assert!(ids.iter().all(|id| !self.book.foreign().contains_key(*id)), "an id is foreign and bound");
        let open = self.book.intents().iter().filter(|intent| intent.progress != Progress::GivenUp);
        for intent in open {
            assert!(!self.book.machines().contains_key(&intent.instance), "an instance gets two machines");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn an_id_has_one_instance_and_all_that_was_made_is_known(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::default();
        for step in steps {
            world.take(&step);
            world.check_ids();
            // A repeat of a launch requests nothing: each is part of one call at most, unless its keeper forgot it first.
            prop_assert!(world.requested as usize <= world.wanted.len() * 3);
        }
        // Everything that was made within a day and lives is bound: no part of it leaks.
        world.take(&Step::Appear(usize::MAX));
        world.take(&Step::Update);
        for (id, state) in &world.listed {
            let lives = matches!(state, State::Creating | State::Running | State::Unknown(_));
            let bound = world.book.machines().values().any(|machine| machine.id == *id);
            prop_assert!(!lives || bound, "{id} lives, and no launch has it: {:?}", world.book);
        }
    }

    #[test]
    fn what_was_there_before_is_never_bound(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::default();
        world.listed.insert("foreign".to_owned(), State::Running);
        world.take(&Step::Update);
        for step in steps {
            // Updates may lack it, but not for long.
            if !matches!(step, Step::Lose(_) | Step::Change(..)) {
                world.take(&step);
            }
            prop_assert!(world.book.machines().values().all(|machine| machine.id != "foreign"));
        }
    }
}
