"""HTML tables for a notebook's cell: how a Run and a Sweep show themselves in Jupyter."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

MOST_ROWS = 24  # more are left out of a table's middle


def cell(value: Any) -> str:
    """A value as a cell shows it: text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def html(names: Sequence[Any], rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> str:
    """A table for a notebook's cell; tags within it are shown, not obeyed."""
    import pandas as pd

    table = pd.DataFrame(rows, index=pd.Index(names), columns=list(columns), dtype=object)
    with pd.option_context("display.max_colwidth", None, "display.html.use_mathjax", False):
        return str(table.to_html(max_rows=MOST_ROWS, show_dimensions=False))
