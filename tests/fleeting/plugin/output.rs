//! The three ways of a plugin's log: JSON and plain lines on its standard error, and the stream of what it prints.

use serde_json::{Map, Value};

/// Writes a line as the plugins' library does.
pub fn log(level: &str, message: &str, fields: &[(&str, &str)]) {
    let mut line = Map::new();
    for (name, value) in
        [("@level", level), ("@message", message), ("@timestamp", "2026-01-01T00:00:00.000000Z")]
    {
        line.insert(name.to_owned(), value.into());
    }
    for (name, value) in fields {
        line.insert((*name).to_owned(), (*value).into());
    }
    eprintln!("{}", Value::Object(line));
}

/// Ends as a Go program that panics.
pub fn crash() -> ! {
    eprintln!("panic: assignment to entry in nil map\n\ngoroutine 1 [running]:\nmain.main()");
    std::process::exit(2)
}
