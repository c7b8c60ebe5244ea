"""The commands that a page gives work where it says, with what it says."""

import re
import shutil
from types import SimpleNamespace

import pytest
from builders import record, tables, three
from support import mptexp

from mptexp.records import interference, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report.answers import caveats, next_commands

OWN = {"model": "my_model:build", "dataset": "folder:pics"}


def runs(notebook="train", **parameters):
    for block in range(2):
        for policy in ("float32", "mixed_float16"):
            made = record(policy, block) | {"notebook": notebook}
            yield made | {"parameters": made["parameters"] | parameters}


def test_what_is_mptexps_own_is_measured_in_the_reports_folder():
    made = tables(list(runs()))
    repair = next_commands.command(made, "run", options="--repair")
    assert repair == "`mptexp run params.yaml --out . --repair` in this report's folder"
    assert next_commands.command(made, "diagnose", next_commands.AGAIN) == (
        "`mptexp diagnose params.yaml --out ../again` in this report's folder"
    )


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"model": "my_model:build"}, "the module my\\_model"),
        ({"notebook": "own.py"}, "own.py beside params.yaml"),
        ({"dataset": "folder:pics"}, "the data pics"),
        (OWN, "the module my\\_model, the data pics"),
    ],
)
def test_what_is_ones_own_is_measured_where_it_lies_and_named(changes, needed):
    # The lie: "in this report's folder", where my_model:build cannot be imported.
    made = tables(list(runs(**changes)))
    place = f"in the folder where it was run (DIR: this report's folder; needed: {needed})"
    repair = next_commands.command(made, "run", options="--repair")
    assert repair == f"`mptexp run DIR/params.yaml --out DIR --repair` {place}"
    again = f"`mptexp run DIR/params.yaml --out DIR-again --set repeats=3` {place}"
    assert f"for a claim, run {again}, which measures" in caveats.remedies(made, "time")


def test_to_measure_again_names_the_params_file():
    # The lie: `mptexp run --repair`, of which it says "Missing argument 'FILE'".
    made = three("mixed_float16", [2.0, 2.1, 1.9]).records
    marked = [one | {"marks": [interference.PROCESSOR_USED]} for one in made]
    (sentence,) = caveats.sentences(tables(marked))
    assert next_commands.command(tables(marked), "run", options="--repair") in sentence


def test_the_command_works_where_it_says(light, tmp_path):
    light({"seed": [0]})
    assert mptexp("run", "light.yaml", "--no-report", cwd=tmp_path).returncode == 0
    place = SweepDir(tmp_path / "reports/light")
    found = SimpleNamespace(records=store.read_records(place)[0])
    said = next_commands.command(found, "run", options="--no-report")
    assert "light.py beside params.yaml" in said
    words = re.findall("`(.*?)`", said)[0].replace("DIR", str(place.root)).split()[1:]
    assert mptexp(*words, cwd=tmp_path).returncode == 2
    shutil.copy(tmp_path / "light.py", place.root)
    done = mptexp(*words, cwd=tmp_path)
    assert "1 of 1 runs are done already" in done.stdout
