//! The table of what an instance can make Greenroom keep is that of the source.

use std::collections::BTreeSet;
use std::path::Path;

use super::{read, source_folders};

/// Files that read an instance's output and keep none of it themselves.
const PASS_ON: [&str; 3] =
    ["crates/ssh/src/output.rs", "crates/ssh/src/script_ack.rs", "crates/sim/src/product.rs"];

/// A row: how much is kept, the constant, its file.
struct Row {
    kept: String,
    constant: String,
    file: String,
}

fn rows(page: &str) -> Vec<Row> {
    let table = page.lines().skip_while(|line| !line.starts_with("| what | kept at most |")).skip(2);
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let quoted: Vec<&str> = cells[3].split('`').collect();
        Row { kept: cells[1].to_owned(), constant: quoted[1].to_owned(), file: quoted[3].to_owned() }
    };
    table.take_while(|line| line.starts_with('|')).map(row).collect()
}

/// The value of a constant: a number, with `<<` or `*`.
fn value(source: &str, constant: &str) -> Option<u64> {
    let declared = source.lines().find(|line| line.contains(&format!("const {constant}: ")))?;
    let text = declared.split(" = ").nth(1)?.trim_end_matches(';').replace('_', "");
    let number = |text: &str| text.trim().parse::<u64>().ok();
    if let Some((number_of, shift)) = text.split_once("<<") {
        return Some(number(number_of)? << number(shift)?);
    }
    text.split('*').map(number).product()
}

/// True if a cell names the number, as it is, with a comma, or in binary units.
fn names(cell: &str, value: u64) -> bool {
    let with_comma = format!("{},{:03}", value / 1000, value % 1000);
    let forms = [
        format!("{value} "),
        format!("{with_comma} "),
        format!("{} KiB ", value >> 10),
        format!("{} MiB ", value >> 20),
    ];
    let cell = format!(" {} ", cell.replace(", ", " , ").replace(';', " ;"));
    cell.contains(" nothing ") || forms.iter().any(|form| cell.contains(&format!(" {form}")))
}

/// The fault of a row; `None`: the row is right.
fn wrong(row: &Row, source: &str) -> Option<String> {
    match value(source, &row.constant) {
        None => Some(format!("{} has no constant {}", row.file, row.constant)),
        Some(value) if !names(&row.kept, value) => Some(format!("{} is {value}: {}", row.constant, row.kept)),
        Some(_) => None,
    }
}

fn readers(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in
        std::fs::read_dir(dir).expect("a folder of the source").map(|entry| entry.expect("a file").path())
    {
        if entry.is_dir() {
            readers(&entry, found);
        } else if entry.extension().is_some_and(|ext| ext == "rs")
            && std::fs::read_to_string(&entry).expect("a text").contains("\nimpl Output for ")
        {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            found.insert(entry.strip_prefix(root).expect("below the root").to_string_lossy().into_owned());
        }
    }
}

#[test]
fn each_bound_on_what_an_instance_says_is_that_of_the_source() {
    let rows = rows(&read("docs/security.md"));
    assert!(rows.len() > 20, "{} rows", rows.len());
    let problems: Vec<String> = rows.iter().filter_map(|row| wrong(row, &read(&row.file))).collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn each_reader_of_an_instances_output_is_in_the_table() {
    let named: BTreeSet<String> = rows(&read("docs/security.md")).into_iter().map(|row| row.file).collect();
    let mut found = BTreeSet::new();
    for folder in source_folders() {
        readers(&folder, &mut found);
    }
    assert!(found.contains("crates/ports/src/tail.rs"), "{found:?}");
    let missing: Vec<_> =
        found.iter().filter(|file| !named.contains(*file) && !PASS_ON.contains(&file.as_str())).collect();
    assert!(missing.is_empty(), "add a row to the table in docs/security.md: {missing:?}");
}

mod planted {
    use super::{Row, names, wrong};

    #[test]
    fn a_row_with_another_number_or_constant_is_found() {
        let row = |kept: &str, constant: &str| Row {
            kept: kept.to_owned(),
            constant: constant.to_owned(),
            file: "a.rs".to_owned(),
        };
        let source = "const KEPT: usize = 8 << 10;\npub const MOST: u64 = 2 * 1024 * 1024;\nconst FEW: u32 = 20_000;\n";
        for (kept, constant) in
            [("8 KiB", "KEPT"), ("2 MiB, at most", "MOST"), ("20,000", "FEW"), ("nothing", "FEW")]
        {
            assert_eq!(wrong(&row(kept, constant), source), None, "{kept}");
        }
        for (kept, constant) in [("16 KiB", "KEPT"), ("8 KiB", "LESS"), ("18 KiB", "KEPT"), ("2,000", "FEW")]
        {
            assert!(wrong(&row(kept, constant), source).is_some(), "{kept}");
        }
        assert!(names("2,048 bytes", 2048) && names("64 KiB, in 100 lines", 64 << 10));
    }
}
