//! Kind: the job log has what a script wrote, in its order, and Greenroom's own lines are lines of their own.

use greenroom_harness::setting::Setting;

/// GitLab Runner reads the two streams concurrently: lines of both came in any order.
#[test]
fn both_streams_of_a_script_come_as_one_unless_the_pool_keeps_them_apart() {
    let script = "for i in $(seq 300); do echo out $i; echo err $i >&2; done\n";
    let lines = |words: &[&str]| -> String {
        (1..=300).flat_map(|i| words.iter().map(move |word| format!("{word} {i}\n"))).collect()
    };
    for separate in [false, true] {
        let place = Setting::new().pool("separate_stderr", separate).open();
        let attempt = place.prepared(1);
        let run = attempt.run("build_script", script);
        assert_eq!(run.exit_code(), Some(0), "{}", run.stderr_text());
        let (out, err) = if separate {
            (lines(&["out"]), lines(&["err"]))
        } else {
            (lines(&["out", "err"]), String::new())
        };
        assert_eq!((run.stdout_text(), run.stderr_text()), (out, err));
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
    }
}

/// `printf` without a line break, and then the script is killed: Greenroom's line was glued to it.
#[test]
fn a_line_of_greenroom_never_continues_a_line_of_the_script() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    // The runner reads two pipes: the end of the script's line comes with Greenroom's own, in one piece.
    for (text, expected, begin) in
        [("printf 'Compiling...'", "Compiling...", "\ngreenroom: "), ("echo done", "done\n", "greenroom: ")]
    {
        let run = attempt.run("build_script", &format!("{text}; kill -9 $$\n"));
        assert_eq!(run.exit_code(), Some(1), "{}", run.stderr_text());
        assert_eq!(run.stdout_text(), expected);
        assert!(run.stderr_text().starts_with(begin), "{}", run.stderr_text());
        assert_eq!(run.stderr_text().trim_start().lines().count(), 1, "{}", run.stderr_text());
    }
    assert_eq!(attempt.run("build_script", "printf 'no line break'\n").stdout_text(), "no line break");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}
