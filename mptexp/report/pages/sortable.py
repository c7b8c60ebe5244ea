"""The script that lets a reader sort and filter a report's long tables.

DataTables, as itables brings it for offline use; without a script the tables are as they are. The
page's policy admits this script alone, by its hash.
"""

import base64
import hashlib
import re
from functools import cache
from importlib import resources

ID = "sortable"  # of the element around such a table
# A number may have thousands marked, a unit and an interval behind it; a dash comes first.
SETTINGS = r"""
const number = /^([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*(?:%|×|ms|s|h|MiB|W|mJ)?(?:\s*[\[(].*)?$/;
const value = (cell) => {
  const text = cell.replace(/<[^>]*>/g, "").replace(/&nbsp;|\u00a0/g, " ").trim();
  const parts = text.match(number);
  return parts ? Number(parts[1].replaceAll(",", "")) : text === "–" ? -Infinity : text;
};
const words = { search: "Filter", info: "_TOTAL_ rows", infoEmpty: "no row",
                infoFiltered: "of _MAX_", zeroRecords: "No row matches." };
for (const table of document.querySelectorAll("#sortable table")) {
  new ITable(table, {
    paging: false, order: [], autoWidth: false, language: words,
    layout: { topStart: "search", topEnd: "info", bottomStart: null, bottomEnd: null },
    columnDefs: [{ targets: "_all", type: "any",
      render: (cell, kind) => (kind === "sort" ? value(cell) : cell) }],
  });
}
"""


@cache
def script() -> str:
    """The module that a page runs."""
    bundle = resources.files("itables").joinpath("html/dt_bundle.js").read_text(encoding="utf-8")
    exports = re.search(r"export\{[^}]*?([\w$]+) as ITable[^}]*\};?", bundle)
    assert exports, "itables' bundle has another form than expected"
    made = bundle.replace(exports.group(), f"const ITable = {exports[1]};\n{SETTINGS}")
    return made.replace("</script", "<\\/script")


def hash_source() -> str:
    """The script's hash as a Content-Security-Policy names it."""
    digest = hashlib.sha256(script().encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
