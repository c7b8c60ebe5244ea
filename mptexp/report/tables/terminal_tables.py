"""Prints any table in a terminal's width; the tables of a plan and of what a machine has."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from mptexp.host.terminal import plain
from mptexp.records.schema import FINAL

if TYPE_CHECKING:
    import pandas as pd

WIDEST = 16  # characters of a table's cell that are not wrapped
MANY = 500  # runs of a plan that are more than a terminal's table
COLOURS = {"ok": "green", "pending": "cyan", "elsewhere": "dim"}  # of states; others are red


def plan(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the runs of a plan, at least one: rows as `api.planned` gives them."""
    *names, _ = rows[0]
    heads = ["run", *names[1:], "cost"]
    cells = [[*(str(row[name]) for name in names), _cost(row)] for row in rows]
    if len(rows) > MANY:
        _aligned(console, [heads, *cells])
        return
    widths = _widths(cells)
    shown = [
        name if len(name) <= width else name.replace("_", "_\n")
        for name, width in zip(heads, widths, strict=True)
    ]
    widths = [
        max(width, *map(len, head.split("\n"))) for width, head in zip(widths, shown, strict=True)
    ]
    # Where there is no room for all, the ids go: `--format json` has them.
    first = 0 if _fits(widths, console.width) else 1
    least = [min(width, WIDEST) for width in widths]
    if not _fits(least[first:], console.width):  # rich would leave out what has no room
        _aligned(console, [heads, *cells])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, head, width in list(zip(heads, shown, least, strict=True))[first:]:
        side: Literal["left", "right"] = "right" if name in ("block", "cost") else "left"
        table.add_column(head, justify=side, overflow="fold", min_width=width)
    for *values, state, cost in cells:
        coloured = f"[{COLOURS.get(state, 'red')}]{state}[/]"
        table.add_row(*map(plain, values[first:]), coloured, cost)
    console.print(table)


def _cost(row: Mapping[str, Any]) -> str:
    if row["cost_s"] is None:
        return "?"
    ended = row["state"] in (*FINAL, "elsewhere")
    return f"{'' if ended else 'about '}{row['cost_s']:.0f} s"


def _aligned(console: Console, lines: Sequence[Sequence[str]]) -> None:
    """Prints rows as aligned text: rich takes a millisecond a row to fit a table's columns."""
    widths = _widths(lines)
    for line in lines if not console.quiet else ():
        padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
        print("  ".join(padded).rstrip(), file=console.file)


def rows(console: Console, title: str, table: "pd.DataFrame") -> None:
    """Prints a table of text; where it is too wide, a cell's parts stand below one another."""
    cells = [[plain(str(value)) for value in values] for values in table.to_numpy().tolist()]
    if not _fits(_widths(table.astype(str).to_numpy().tolist()), console.width):
        cells = [[_stacked(cell) for cell in line] for line in cells]
    columns = list(zip(*cells, strict=True))
    heads = [
        # Rather than a value, a heading is wrapped: rich takes room from any column that has words.
        textwrap.fill(plain(str(name)), min(_widest(column), WIDEST), break_long_words=False)
        for name, column in zip(table, columns, strict=True)
    ]
    pairs = zip(heads, columns, strict=True)
    least = [min(_widest([head, *column]), WIDEST) for head, column in pairs]
    if not _fits(least, console.width):  # rich would leave out what has no room
        _listed(console, title, table)
        return
    printed = Table(
        title=plain(title), title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for head, width in zip(heads, least, strict=True):
        printed.add_column(head, overflow="fold", min_width=width)
    for line in cells:
        printed.add_row(*line)
    console.print(printed)


def _listed(console: Console, title: str, table: "pd.DataFrame") -> None:
    """Prints each row as lines `name: value`, in a terminal too narrow for columns."""
    console.print(f"[italic]{plain(title)}[/]")
    for values in table.astype(str).to_numpy().tolist():
        for name, value in zip(table, values, strict=True):
            console.print(f"[bold]{plain(str(name))}[/]: {plain(value)}")
        console.print()


def _widest(cells: Sequence[str]) -> int:
    """The letters of the longest line of some cells."""
    return max(len(line) for cell in cells for line in cell.split("\n"))


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    """The letters of the longest cell of each column."""
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _fits(widths: Sequence[int], width: int) -> bool:
    """Whether every row has room in a line of the terminal, two spaces between columns."""
    return sum(widths) + 2 * len(widths) <= width


def _stacked(cell: str) -> str:
    """A's value above B's; ratio, interval and n below one another."""
    return re.sub(r" (\\?[\[(])(?=\d|n = )", r"\n\1", cell.replace(" | ", "\n"))


def card(console: Console, card: Mapping[str, Any]) -> None:
    """Prints what `api.doctor` returns, and the advice that follows from it."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in card_lines(card):
        table.add_row(name, plain(value))
    console.print(table)
    for advice in card["advice"]:
        console.print(f"[yellow]note[/] {plain(advice)}", soft_wrap=True)


def card_lines(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what a machine has as names and values."""
    capability = ".".join(map(str, card["capability"] or [])) or "none"
    words = {True: "native", False: "emulated or absent"}
    return [
        ("device", card["device"]),
        ("compute capability", capability),
        ("Tensor Cores", card["tensor_cores"]),
        ("driver", card["driver"] or "not found"),
        ("CUDA, cuDNN", f"{card['cuda'] or 'not found'}, {card['cudnn'] or 'not found'}"),
        ("CPU", f"{card['cpu']}, {card['cores']} cores in use"),
        ("instruction sets", " ".join(card["instruction_sets"]) or "unknown"),
        *[(name, words[native]) for name, native in card["native"].items()],
        ("TF32", card["tf32"]),
        ("default policy", card["default_policy"]),
        ("determinism", card["determinism"]),
        ("memory", f"{card['memory_bytes'] / 2**30:.0f} GiB"),
        ("limits of the container", _limits(card)),
        ("frequency governor", card["governor"] or "unavailable"),
        ("load", f"{card['load']:.1f}"),
        ("system", f"{card['os']}, Python {card['python']}"),
        ("packages", ", ".join(f"{n} {v}" for n, v in card["packages"].items())),
        ("variables", ", ".join(f"{n}={v}" for n, v in card["variables"].items()) or "none set"),
    ]


def _limits(card: Mapping[str, Any]) -> str:
    cpus, memory = card["container_cpus"], card["container_memory_bytes"]
    limits = [f"{cpus:g} processors"] if cpus else []
    limits += [f"{memory / 2**30:.1f} GiB"] if memory else []
    return ", ".join(limits) or "none"
