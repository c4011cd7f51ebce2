"""The regions of docs/benchmarks.md."""

import contextlib
import io
import unittest

from benchmarks import page
from benchmarks.command_line import SUBCOMMANDS

PAGE = """before
<!-- jobs: written by scripts/bench jobs -->

old

<!-- end of jobs -->
between
<!-- link: written by scripts/bench link -->
<!-- end of link -->
after
"""


def figures():
    table = page.Figures()
    with contextlib.redirect_stdout(io.StringIO()):
        table.add("`run`", "2 ms", "≤ 3 ms", True)
        table.add("memory", "72 MB", "≤ 70 MB", False, "2 MB")
        table.add("`cleanup`", "5 ms", "≤ 3 ms", False)
        table.add("… CPU", "1 ms")
    return table


class Writer(unittest.TestCase):
    def test_only_the_region_of_the_subcommand_changes(self):
        expected = PAGE.replace(
            "\n\nold\n\n",
            """
2 processors.

| measurement | result | goal |  |
| --- | --- | --- | --- |
| `run` | 2 ms | ≤ 3 ms | met |
| memory | 72 MB | ≤ 70 MB | **missed** by 2 MB |
| `cleanup` | 5 ms | ≤ 3 ms | **missed** |
| … CPU | 1 ms |  |  |
""",
        )
        self.assertEqual(page.replaced(PAGE, "jobs", figures(), "2 processors."), expected)

    def test_a_second_run_replaces_the_first(self):
        once = page.replaced(PAGE, "link", figures(), "2 processors.")
        self.assertEqual(page.replaced(once, "link", figures(), "2 processors."), once)

    def test_facts_are_optional(self):
        written = page.replaced(PAGE, "link", figures())
        self.assertIn("<!-- link: written by scripts/bench link -->\n| measurement |", written)

    def test_a_page_without_the_region_stays(self):
        for broken in ("", PAGE.replace("end of jobs", ""), PAGE + PAGE):
            with self.assertRaisesRegex(ValueError, "no region"):
                page.replaced(broken, "jobs", figures())

    def test_short_rows_are_filled(self):
        table = page.Table("", "`sshd`", "`greenroom-server`")
        with contextlib.redirect_stdout(io.StringIO()):
            table.row("stage", "1 ms")
        self.assertEqual(table.markdown().splitlines()[-1], "| stage | 1 ms |  |")

    def test_the_page_has_a_region_for_each_subcommand(self):
        text = page.PAGE.read_text()
        for name in SUBCOMMANDS:
            page.replaced(text, name, figures())


if __name__ == "__main__":
    unittest.main()
