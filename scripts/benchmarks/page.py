"""The tables of docs/benchmarks.md. Each subcommand owns the region between two marks of that page."""

from benchmarks.host import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"


class Table:
    """Rows in Markdown. Each is printed when it is added."""

    def __init__(self, *columns):
        self.columns, self.rows = columns, []

    def row(self, *cells):
        self.rows.append(cells + ("",) * (len(self.columns) - len(cells)))
        print(" | ".join(cell for cell in cells if cell), flush=True)

    def markdown(self):
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


class Figures(Table):
    """A table of measurements, with a goal for some of them and whether the result meets it."""

    def __init__(self, result="result"):
        super().__init__("measurement", result, "goal", "")

    def add(self, what, result, goal="", met=None, missed_by=""):
        missed = f"**missed** by {missed_by}" if missed_by else "**missed**"
        self.row(what, result, goal, {True: "met", False: missed, None: ""}[met])


def marks(name):
    """The lines before and after the region of a subcommand."""
    return f"<!-- {name}: written by scripts/bench {name} -->", f"<!-- end of {name} -->"


def replaced(page, name, table, facts=""):
    """The page with the region of a subcommand replaced by the facts of the run and a table."""
    begin, end = marks(name)
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(end) < page.index(begin):
        raise ValueError(f"no region `{begin}` … `{end}`")
    before, rest = page.split(begin)
    after = rest.split(end)[1]
    lines = [begin, *([facts, ""] if facts else []), table.markdown(), end]
    return before + "\n".join(lines) + after


def write(name, table, facts=""):
    PAGE.write_text(replaced(PAGE.read_text(), name, table, facts))
    print(f"written to {PAGE.relative_to(ROOT)}")
