//! Torn tails, corruption in the middle, files of newer versions; and their repair.

use std::path::{Path, PathBuf};

use greenroom_manager::file_store::{FORMAT, Options};
use greenroom_ports::store::{OperatorStore as _, Store, StoreError};

use super::support::{block_on, commit, eager, file, fill, history, open, request, requests, told};

fn names(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir.join("pools/linux")).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<PathBuf> =
        all.filter(|p| p.file_name().unwrap().to_str().unwrap().starts_with(prefix)).collect();
    found.sort();
    found
}

fn append(path: &Path, bytes: &[u8]) {
    let before = std::fs::read(path).unwrap();
    std::fs::write(path, [before.as_slice(), bytes].concat()).unwrap();
}

/// Seals a body like the files' lines, independently of the code under test.
fn line(body: &str) -> String {
    format!("{{\"crc\":\"{:08x}\",{body}\n", crc32fast::hash(body.as_bytes()))
}

#[test]
fn a_torn_tail_is_invisible_and_the_next_writer_keeps_it_aside() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), Options::default());
    let before = fill(&store, "r", 3);
    let journal = file(home.path(), "journal.jsonl");
    let whole = std::fs::read(&journal).unwrap();
    append(&journal, b"{\"crc\":\"0000");
    block_on(async {
        assert_eq!(store.load().await.unwrap(), before);
        assert_eq!(open(home.path(), eager()).load().await.unwrap(), before);
        assert_eq!(store.verify().await.unwrap().torn_bytes, 12);
        assert!(names(home.path(), "journal.cut-").is_empty(), "reading changes nothing");
        commit(&store, vec![request("next", 9)]).await.unwrap();
    });
    let cuts = names(home.path(), "journal.cut-");
    assert_eq!(cuts.len(), 1);
    assert_eq!(std::fs::read(&cuts[0]).unwrap(), b"{\"crc\":\"0000");
    assert!(std::fs::read(&journal).unwrap().starts_with(&whole));
    assert_eq!(told(&store), ["r0", "r1", "r2", "next"]);
    assert_eq!(block_on(store.verify()).unwrap().side_files, cuts);
}

#[test]
fn a_complete_record_without_its_newline_was_never_committed() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), Options::default());
    fill(&store, "r", 2);
    let journal = file(home.path(), "journal.jsonl");
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes.pop();
    std::fs::write(&journal, bytes).unwrap();
    let fresh = open(home.path(), Options::default());
    assert_eq!(requests(&block_on(fresh.load()).unwrap()), ["r0"]);
    block_on(commit(&fresh, vec![request("next", 9)])).unwrap();
    assert_eq!(told(&fresh), ["r0", "next"]);
}

#[test]
fn kept_tails_do_not_pile_up() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), Options::default());
    for i in 0..20 {
        fill(&store, &format!("r{i}-"), 1);
        append(&file(home.path(), "journal.jsonl"), format!("torn {i}").as_bytes());
    }
    fill(&store, "last", 1);
    let cuts = names(home.path(), "journal.cut-");
    assert_eq!(cuts.len(), 8);
    assert_eq!(std::fs::read(cuts.last().unwrap()).unwrap(), b"torn 19", "the newest are kept");
    assert_eq!(told(&store).len(), 21);
}

#[test]
fn rot_in_the_middle_stops_writing_names_the_line_and_is_mended_into_the_valid_prefix() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), Options::default());
    fill(&store, "r", 6);
    let journal = file(home.path(), "journal.jsonl");
    let mut bytes = std::fs::read(&journal).unwrap();
    // Line 1 is the header, so line 4 is the third record.
    let start = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(2).unwrap().0 + 1;
    bytes[start + 60] ^= 4;
    std::fs::write(&journal, &bytes).unwrap();

    let store = open(home.path(), Options::default());
    block_on(async {
        for error in
            [store.load().await.unwrap_err(), commit(&store, vec![request("x", 1)]).await.unwrap_err()]
        {
            let StoreError::Damaged { file, line, .. } = &error else { panic!("{error}") };
            assert_eq!((Path::new(file), *line), (journal.as_path(), 4), "{error}");
        }
        store.compact().await.unwrap_err();
        assert_eq!(std::fs::read(&journal).unwrap(), bytes, "nothing is written");
        let verdict = store.verify().await.unwrap();
        assert!(matches!(verdict.damage, Some(StoreError::Damaged { line: 4, .. })) && verdict.last == 2);

        let repaired = store.repair().await.unwrap().unwrap();
        assert_eq!((repaired.kept, repaired.lost), (2, 3), "{repaired:?}");
        assert_eq!(std::fs::read(&repaired.side_files[0]).unwrap(), bytes, "the damaged file is kept");
        assert_eq!(requests(&store.load().await.unwrap()), ["r0", "r1"]);
        commit(&store, vec![request("next", 9)]).await.unwrap();
        assert_eq!(told(&store), ["r0", "r1", "next"]);
        let numbers: Vec<u64> = history(&store).map(|r| r.n).collect();
        assert_eq!(numbers, [1, 2, 7], "a number is never given twice");
        assert!(store.verify().await.unwrap().damage.is_none());
        store.compact().await.unwrap();
        assert_eq!(requests(&open(home.path(), eager()).load().await.unwrap()), ["next", "r0", "r1"]);
    });
}

#[test]
fn a_rotten_snapshot_is_rebuilt_from_the_one_before_and_the_kept_segments() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    for round in 0..3 {
        fill(&store, &format!("r{round}-"), 4);
        block_on(store.compact()).unwrap();
    }
    let whole = fill(&store, "tail", 2);
    for victims in [&["snapshot.json"][..], &["snapshot.json", "snapshot.previous.json"]] {
        for victim in victims {
            std::fs::write(file(home.path(), victim), "rot").unwrap();
        }
        let store = open(home.path(), eager());
        let error = block_on(store.load()).unwrap_err();
        assert!(error.to_string().contains("snapshot.json:1: "), "{error}");
        let repaired = block_on(store.repair()).unwrap().unwrap();
        assert_eq!((repaired.kept, repaired.lost), (14, 0), "{victims:?}");
        assert_eq!(block_on(store.load()).unwrap(), whole, "{victims:?}");
    }
    assert_eq!(told(&open(home.path(), eager())).len(), 14);
}

#[test]
fn a_lost_journal_is_damage_and_what_is_left_can_be_taken_up_again() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    let folded = fill(&store, "r", 3);
    block_on(store.compact()).unwrap();
    fill(&store, "lost", 1);
    std::fs::remove_file(file(home.path(), "journal.jsonl")).unwrap();
    let store = open(home.path(), eager());
    block_on(async {
        let error = store.load().await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
        assert_eq!(store.repair().await.unwrap().unwrap().kept, 3);
        assert_eq!(store.load().await.unwrap(), folded);
        commit(&store, vec![request("next", 9)]).await.unwrap();
    });
}

#[test]
fn an_old_snapshot_beside_a_new_journal_still_leads_to_the_present() {
    // A power cut that kept one rename and lost the other leaves this.
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    fill(&store, "a", 4);
    block_on(store.compact()).unwrap();
    let old = std::fs::read(file(home.path(), "snapshot.json")).unwrap();
    fill(&store, "b", 4);
    block_on(store.compact()).unwrap();
    let present = fill(&store, "c", 4);
    std::fs::write(file(home.path(), "snapshot.json"), old).unwrap();
    let fresh = open(home.path(), eager());
    assert_eq!(block_on(fresh.load()).unwrap(), present);
    std::fs::remove_file(file(home.path(), "snapshot.json")).unwrap();
    assert_eq!(block_on(open(home.path(), eager()).load()).unwrap(), present, "even without any");
    block_on(fresh.compact()).unwrap();
    assert_eq!(block_on(open(home.path(), eager()).load()).unwrap(), present);
}

#[test]
fn a_new_snapshot_beside_an_old_journal_counts_nothing_twice() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    fill(&store, "a", 4);
    let old = std::fs::read(file(home.path(), "journal.jsonl")).unwrap();
    let folded = block_on(store.load()).unwrap();
    block_on(store.compact()).unwrap();
    std::fs::write(file(home.path(), "journal.jsonl"), &old).unwrap();
    assert_eq!(block_on(open(home.path(), eager()).load()).unwrap(), folded);
    // It does not matter either if the old journal has lost its end: the snapshot contains it.
    std::fs::write(file(home.path(), "journal.jsonl"), &old[..old.len() - 5]).unwrap();
    let store = open(home.path(), eager());
    assert_eq!(block_on(store.load()).unwrap(), folded);
    let next = block_on(commit(&store, vec![request("next", 9)])).unwrap().state;
    assert_eq!(block_on(open(home.path(), eager()).load()).unwrap(), next);
}

#[test]
fn another_pools_files_are_damage() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    fill(&store, "a", 2);
    let journal = file(home.path(), "journal.jsonl");
    let copied = home.path().join("pools/other");
    let other = greenroom_core::ids::PoolName::new("other");
    let other = greenroom_manager::file_store::open_dir(home.path()).unwrap().pool(&other, eager()).unwrap();
    std::fs::copy(&journal, copied.join("journal.jsonl")).unwrap();
    let error = block_on(other.load()).unwrap_err().to_string();
    assert!(error.contains("belongs to pool `linux`"), "{error}");
}

#[test]
fn sound_records_out_of_order_are_damage() {
    for order in [[1, 3, 2], [1, 1, 2], [1, 2, 4]] {
        let home = tempfile::tempdir().unwrap();
        let store = open(home.path(), eager());
        fill(&store, "a", 4);
        let journal = file(home.path(), "journal.jsonl");
        let text = std::fs::read_to_string(&journal).unwrap();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let shuffled: String = std::iter::once(lines[0]).chain(order.map(|n: usize| lines[n])).collect();
        std::fs::write(&journal, shuffled).unwrap();
        let error = block_on(open(home.path(), eager()).load()).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{order:?}: {error}");
    }
}

#[test]
fn a_newer_journal_is_read_as_far_as_it_is_understood_and_never_written() {
    let newer = FORMAT + 1;
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    let state = fill(&store, "a", 2);
    let journal = file(home.path(), "journal.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    let records = text.split_once('\n').unwrap().1;
    let header = line(&format!("\"format\":{newer},\"pool\":\"linux\",\"first\":1,\"unheard\":[]}}"));
    let readable = header.clone() + records;
    let strange = readable.clone() + &line("\"n\":3,\"events\":[{\"at\":[1,2,3],\"event\":\"unheard-of\"}]}");
    let alien = line(&format!("\"format\":{newer},\"a\":\"whole new world\"}}"));
    for (text, loads) in [(&readable, true), (&strange, false), (&alien, false)] {
        std::fs::write(&journal, text).unwrap();
        let store = open(home.path(), eager());
        block_on(async {
            match store.load().await {
                Ok(loaded) => assert!(loads && loaded == state),
                Err(error) => assert!(!loads && is_newer(&error), "{error}"),
            }
            assert!(is_newer(&commit(&store, vec![request("x", 1)]).await.unwrap_err()));
            assert!(is_newer(&store.compact().await.unwrap_err()));
            if !loads {
                assert!(is_newer(&store.repair().await.unwrap_err()));
                assert!(is_newer(&store.verify().await.unwrap().damage.unwrap()));
            }
        });
        assert_eq!(&std::fs::read_to_string(&journal).unwrap(), text, "never written");
    }
}

#[test]
fn a_newer_snapshot_is_read_as_far_as_it_is_understood_and_never_written() {
    let newer = FORMAT + 1;
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    let state = fill(&store, "a", 2);
    block_on(store.compact()).unwrap();
    let snapshot = file(home.path(), "snapshot.json");
    let text = std::fs::read_to_string(&snapshot).unwrap();
    let body = text.trim_end().split_once(',').unwrap().1;
    let readable = line(&body.replacen(&format!("\"format\":{FORMAT}"), &format!("\"format\":{newer}"), 1));
    let alien = line(&format!("\"format\":{newer},\"state\":[]}}"));
    let unsealed = format!("{{\"format\":{newer},\"sealed\":\"in another way\"}}");
    for (text, loads) in [(&readable, true), (&alien, false), (&unsealed, false)] {
        std::fs::write(&snapshot, text).unwrap();
        let store = open(home.path(), eager());
        block_on(async {
            match store.load().await {
                Ok(loaded) => assert!(loads && loaded == state),
                Err(error) => assert!(!loads && is_newer(&error), "{error}"),
            }
            let error = commit(&store, vec![request("x", 1)]).await.unwrap_err();
            assert!(is_newer(&error));
            assert!(
                error.to_string().contains(&format!("format {newer}, this one knows {FORMAT}")),
                "{error}"
            );
        });
        assert_eq!(&std::fs::read_to_string(&snapshot).unwrap(), text);
    }
}

/// Format 1 was never released: it is neither read nor written, and does not count as damage that a repair could
/// discard.
#[test]
fn the_format_before_the_first_release_is_refused_with_what_to_do() {
    for name in ["journal.jsonl", "snapshot.json"] {
        let home = tempfile::tempdir().unwrap();
        let store = open(home.path(), eager());
        fill(&store, "a", 2);
        if name == "snapshot.json" {
            block_on(store.compact()).unwrap();
        }
        let path = file(home.path(), name);
        let text = std::fs::read_to_string(&path).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        let body = &first["{\"crc\":\"00000000\",".len()..];
        let older = line(&body.replacen(&format!("\"format\":{FORMAT}"), "\"format\":1", 1));
        std::fs::write(&path, format!("{older}{rest}")).unwrap();
        let store = open(home.path(), eager());
        let tries = [
            block_on(store.load()).unwrap_err(),
            block_on(commit(&store, vec![request("x", 1)])).unwrap_err(),
            block_on(store.compact()).unwrap_err(),
            block_on(store.repair()).unwrap_err(),
            block_on(store.verify()).unwrap_err(),
        ];
        for error in tries {
            assert!(matches!(error, StoreError::Outdated { found: 1, .. }), "{name}: {error}");
            assert!(error.to_string().contains("move the state directory away"), "{error}");
        }
        assert!(std::fs::read_to_string(&path).unwrap().starts_with(&older), "{name}: nothing is written");
    }
}

#[test]
fn a_number_that_rotted_into_a_newer_one_is_damage() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    fill(&store, "a", 2);
    block_on(store.compact()).unwrap();
    let snapshot = file(home.path(), "snapshot.json");
    let text = std::fs::read_to_string(&snapshot).unwrap();
    std::fs::write(&snapshot, text.replacen(&format!("\"format\":{FORMAT}"), "\"format\":3", 1)).unwrap();
    let error = block_on(open(home.path(), eager()).load()).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

fn is_newer(error: &StoreError) -> bool {
    matches!(error, StoreError::Newer { .. })
}

#[test]
fn what_does_not_read_back_is_not_written() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), eager());
    let before = fill(&store, "a", 1);
    // JSON has no "not a number".
    let mut policy = greenroom_core::policy::Policy::default();
    policy.idle.scale_factor = f64::NAN;
    let event = greenroom_core::event::Change::PolicySet { policy: policy.into() }.at(super::support::at(1));
    let error = block_on(commit(&store, vec![event])).unwrap_err();
    assert!(error.to_string().contains("cannot read back"), "{error}");
    assert_eq!(block_on(open(home.path(), eager()).load()).unwrap(), before);
}

#[test]
fn old_segments_go_after_their_days_and_the_ones_that_repair_needs_stay() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), Options { history_days: 0, ..eager() });
    for round in 0..4 {
        fill(&store, &format!("r{round}-"), 2);
        block_on(store.compact()).unwrap();
    }
    let mut kept: Vec<String> = std::fs::read_dir(file(home.path(), "history"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, ["jobs-7-8.json", "journal-7-8.jsonl"]);
    let before = block_on(store.load()).unwrap();
    std::fs::write(file(home.path(), "snapshot.json"), "rot").unwrap();
    let store = open(home.path(), eager());
    assert_eq!(block_on(store.repair()).unwrap().unwrap().kept, 8);
    assert_eq!(block_on(store.load()).unwrap(), before);
}
