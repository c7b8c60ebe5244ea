"""What a notebook's cell shows and runs."""

import errno
import html
import importlib.util
import math
import re
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import three, written_sweep
from jupyter_client import KernelManager
from support import PATIENCE_S, PROJECT, mptexp, processes_of, until

from mptexp import Run, Sweep, api, load, plan, record
from mptexp import __all__ as mptexp_names
from mptexp.api import cells, commands
from mptexp.errors import ParamsError, Stopped
from mptexp.execution.scratch import scratch_folder
from mptexp.records import interference, store
from mptexp.records.csv_columns import COLUMNS
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params

OF_IMAGES = [name for name, column in COLUMNS.items() if column.task != "tokens"]
PUBLISHED = PROJECT / "reports/published/quickstart-cpu"
NASTY = "<script>alert(1)</script>$x$\u202e"


def test_what_is_imported_by_name_is_imported_when_it_is_asked_for():
    program = (
        "import mptexp, sys; light = sorted({'pandas', 'pydantic'} & set(sys.modules)); "
        "print(light, [hasattr(mptexp, n) and n in dir(mptexp) for n in mptexp.__all__], "
        "hasattr(mptexp, 'absent'))"
    )
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert said.split() == ["[]", *f"{[True] * len(mptexp_names)} False".split()]


@pytest.mark.parametrize("name", ["load", "plan", "record", "run"])
def test_every_function_says_what_it_does(name):
    text = getattr(api, name).__doc__
    assert "Raises:" in text or "Returns:" in text


def test_a_finished_sweep_loads_as_tidy_tables():
    runs = load(PUBLISHED)
    assert list(runs) == OF_IMAGES
    assert runs.run_id.is_unique
    assert len(runs) == 15
    assert {runs[name].dtype.kind for name in ("step_s", "power_w", "latency_p50_s")} == {"f"}
    assert (runs.speedups.low < runs.speedups.speedup).all()
    assert len(runs.history) == 15 * 16
    assert load(PUBLISHED, "speedups").equals(runs.speedups)
    assert load(PUBLISHED, "history").equals(runs.history)
    # The lie: "as history.csv has them", of seven columns, and no word of pandas' own `flags`.
    assert {"epoch", "val_accuracy", "policy", "step_s"} <= set(runs.history)
    assert "history.csv beside the run's own" in type(runs).__doc__
    assert 'column `results["flags"]`' in type(runs).__doc__


def test_int8_alone_multiplies_integers():
    # The lie: "layers compute in float32" of int8, where the guide says int8.
    table = api.policies()
    assert table["layers compute in"].eq("int8").sum() == 1
    assert table.loc["int8", "weights in"] == "int8"
    assert math.isnan(table.loc["int8", "largest number"])


def test_a_speedup_carries_the_finding_of_the_page():
    # The lie: faster, by `low` and `high`, of what the page calls inconclusive: 1.36 [0.97, 1.77].
    table = load(PROJECT / "reports/published/imagenette-64px-cpu", "speedups")
    doubtful = table[(table.low > 1) & (table.claim_low < 1)]
    assert set(doubtful.finding) == {"inconclusive"}
    assert {"faster", "slower"} <= set(table.finding)
    assert "from `claim_low` to `claim_high`" in load.__doc__


def test_a_cell_shows_what_varies_and_was_measured_and_the_rest_on_request():
    runs = load(PUBLISHED)
    assert {"policy", "block", "step_s", "val_accuracy"} <= set(runs.short())
    assert {"run_id", "backend", "cpu_s"} & set(runs.short()) == set()
    for shown in (repr(runs), runs._repr_html_()):
        assert "step_s" in shown
        assert "cpu_s" not in shown
        assert f"of {len(OF_IMAGES)} in .whole" in shown
    assert list(runs.whole) == OF_IMAGES
    assert type(runs[runs.policy == "float32"]) is type(runs.whole)


def test_a_path_may_begin_in_the_folder_above_the_notebook(monkeypatch):
    monkeypatch.chdir(PROJECT / "notebooks")
    assert len(load("reports/published/quickstart-cpu")) == 15
    assert len(plan("params/quickstart.yaml", only={"policy": ["float32", "mixed_float16"]})) == 9


NO_PATHS = (None, 5, ["a"], {"a": 1}, b"abc", "a\0b", "x" * 300, "x/" * 3000, pd.DataFrame())
CALLS = {
    "load": load,
    "answer": cells.answer,
    "explain": cells.explain,
    "a second trace": lambda given: cells.explain(".", [given]),
    "compare": lambda given: cells.compare([given], "."),
    "a side": lambda given: cells.compare(".", given),
    "plan": plan,
    "out": lambda given: plan("quickstart", [given]),
    "run": cells.run,
    "diagnose": cells.diagnose,
    "record": lambda given: record(given, "2f82d9d75f24"),
    "run_id": lambda given: record(".", given),
    "table": lambda given: load(".", given),
    "pair": lambda given: cells.explain(".", pair=[given]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_no_path_is_refused_in_a_sentence(call, tmp_path, monkeypatch):
    # The fault: "expected str, bytes or os.PathLike object, not NoneType", from within.
    monkeypatch.chdir(tmp_path)
    for given in NO_PATHS:
        with pytest.raises(ParamsError) as refused:
            call(given)
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 400
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load("absent"), "absent: holds no record of a run"),
        (lambda: load(PUBLISHED, "steps"), "allowed: results, history, speedups"),
        (lambda: record(PUBLISHED, "absent"), "No such file"),
        (lambda: plan(Sweep(matrix={"policy": ["float32"]})), "needs the directory"),
        (lambda: plan(Sweep(matrix={"polcy": ["x"]}), "x"), "did you mean policy?"),
        (lambda: plan(PROJECT / "params/quickstart.yaml", epochs=0), "of at least 1"),
        (lambda: api.run(PROJECT / "params/quickstart.yaml", only={"epochs": 3}), "no run has"),
        (lambda: plan("quickstart", only={"policy": []}), "policy has no value, so no run has it"),
        (lambda: plan("quickstart", only={"batch_size": [32, None]}), "batch_size=None: no run"),
        (lambda: cells.explain("float32.json.gz"), "there is no such file or directory"),
        (lambda: cells.explain("absent", "b.json"), "there is no such file or directory"),
        (lambda: cells.explain("."), "holds no trace; allowed:"),
        (lambda: plan("quickstart", only="policy=float32"), "only is a str; allowed: parameters"),
        (lambda: plan("quickstart", dataset=Path("/tmp/x")), "dataset is '/tmp/x'; allowed"),
        (lambda: plan("quickstart", epochs=object()), "epochs is a object; allowed: a text"),
    ],
)
def test_a_mistake_is_a_sentence(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParamsError, match=re.escape(message)):
        call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("parameters", "alike"),
    [
        ({"epochs": np.int64(2)}, {"epochs": 2}),
        ({"learning_rate": np.float64(1e-5)}, {"learning_rate": 1e-5}),
        ({"profile": np.bool_(True)}, {"profile": True}),
        ({"max_steps": None}, {}),
        ({"batch_size": range(8, 10)}, {"batch_size": [8, 9]}),
        ({"batch_size": np.array([8, 9])}, {"batch_size": [8, 9]}),
        ({"policy": {"float32", "bfloat16"}}, {"policy": ["bfloat16", "float32"]}),
    ],
)
def test_a_cell_gives_what_numpy_and_python_have_as_numbers(parameters, alike, tmp_path):
    # They ended in "TypeError: Object of type int64 is not JSON serializable".
    given, plain = (plan("quickstart", tmp_path / "x", **p) for p in (parameters, alike))
    assert sorted(given.run_id) == sorted(plain.run_id)


@pytest.mark.parametrize("name", ["a 📷", 'é "quoted" \\ \t', "a\x85b\x7f\u2028"])
def test_a_path_of_any_signs_reaches_the_runs(name):
    # The lie: of a camera as JSON writes it, "the value is not valid YAML".
    (override,) = cells._overrides({"dataset": f"folder:/x/{name}"})
    sweep, _ = params.parse("matrix: {policy: [float32]}", "x.yaml", [override])
    assert sweep.points()[0]["dataset"] == f"folder:/x/{name}"


@pytest.mark.parametrize(
    "wanted", [["float32"], ("float32",), {"float32"}, np.array(["float32"]), np.str_("float32")]
)
def test_a_cell_chooses_by_any_collection(wanted, tmp_path):
    # The lie: "no run has it" of a tuple or a set, and all runs of an empty list.
    assert set(plan("quickstart", tmp_path / "x", only={"policy": wanted}).policy) == {"float32"}


def test_a_sweep_takes_what_numpy_and_python_have_as_numbers(tmp_path):
    sweep = Sweep(matrix={"batch_size": (np.int64(8), 16)}, repeats=np.int32(2))
    assert sweep == Sweep(matrix={"batch_size": [8, 16]}, repeats=2)
    assert set(plan(sweep, tmp_path / "x").batch_size) == {8, 16}


def test_a_damaged_record_is_named_and_left_out(tmp_path):
    for path in sorted(PUBLISHED.glob("runs/*/record.json"))[:2]:
        target = tmp_path / "runs" / path.parent.name / "record.json"
        store.write_text(target, path.read_text())
    store.write_text(target, "{}")
    with pytest.warns(UserWarning, match="left out: .*not a record"):
        assert len(load(tmp_path)) == 1


def test_a_run_shows_what_is_not_usual_of_it():
    run = Run(policy="mixed_float16", width=0.5, dataset=f"folder:{NASTY}")
    assert repr(run) == f"Run(dataset={f'folder:{NASTY}'!r}, width=0.5, policy='mixed_float16')"
    page = run._repr_html_()
    assert re.search(r"<th>width</th>\s*<td>0.5</td>\s*<td>1.0</td>\s*<td>multiplies", page)
    assert "learning_rate" not in page
    assert "<script" not in page
    assert "mathjax_ignore" in page


def test_a_sweep_shows_its_points():
    defaults = {"epochs": 2, "float32_layers": NASTY}
    axes = {"policy": ["float32", "bfloat16"], "batch_size": [8, 16]}
    page = Sweep(defaults=defaults, matrix=axes, repeats=3)._repr_html_()
    assert "4 points × 3 blocks = 12 runs of train; all with epochs 2" in page
    assert page.count("<tr") == 5
    assert "<script" not in page
    many = Sweep(matrix={"seed": list(range(1000))})._repr_html_()
    assert many.count("<tr") < 30


def test_a_record_shows_its_figures_with_their_meaning(tmp_path):
    run_id = load(PUBLISHED).run_id[0]
    shown = record(PUBLISHED, run_id)
    assert shown["environment"]["device"]
    page = shown._repr_html_()
    assert f"{shown['timing']['step_s']:.4g}" in page
    assert html.escape(COLUMNS["step_s"].meaning) in page
    assert "latency_p50_s" not in page
    place = SweepDir(tmp_path)
    known = store.read_record(SweepDir(PUBLISHED).record(run_id))
    store.write_record(place.record(run_id), known | {"status": "failed", "error": NASTY})
    page = record(tmp_path, run_id)._repr_html_()
    assert "alert(1)" in page
    assert "<script" not in page
    assert "\u202e" not in page


def test_a_record_shows_what_of_it_is_not_valid(tmp_path):
    # The lie: neither flags nor marks of a run that `load` flags; no word of one that was edited.
    place = written_sweep(tmp_path / "a", "A100", 1.0)
    (first, second, *_) = sorted(place.runs.glob("*/record.json"))
    assert "<th>flags" not in record(place.root, first.parent.name)._repr_html_()
    mark = f"{interference.PROCESSOR_USED} 40 %"
    store.write_record(second, store.read_record(second) | {"marks": [mark]})
    first.write_text(first.read_text().replace('"wall_s": 2.0', '"wall_s": 1.0'))
    with pytest.warns(UserWarning, match="record.json: changed since it was written"):
        edited = record(place.root, first.parent.name)
    with pytest.warns(UserWarning, match="changed"):
        whole = load(place.root).whole.set_index("run_id")
    marked = record(place.root, second.parent.name)
    for made in (edited, marked):
        row = whole.loc[made["run_id"]]
        assert made.row["flags"] == row["flags"] != ""
        assert row["flags"] in made._repr_html_()
    assert mark in marked._repr_html_()


def test_flags_that_follow_from_the_runs_beside_it_are_a_record_s_too():
    made = record(PROJECT / "reports/published/why-cpu", "60f1b9142665")
    assert made.row["flags"] == "repeats apart"
    assert "repeats apart" in made._repr_html_()


def test_a_comparison_in_a_cell_has_what_the_command_says(tmp_path):
    # The lie: bare ratios; what they cannot exclude and what else differs was the terminal's alone.
    for name, packages in (("a", "3.15"), ("<b>", "3.16")):
        written_sweep(tmp_path / name, "A100", 1.0, packages={"keras": packages})
    made = api.compare(tmp_path / "a", [tmp_path / "<b>"])
    assert made.ratio.tolist() == pytest.approx([1, 1])
    assert made.differences["what"].tolist() == ["keras"]
    assert made.not_compared.empty
    told = mptexp("compare", "a", "<b>", cwd=tmp_path).stdout
    for shown in (repr(made), html.unescape(made._repr_html_())):
        for words in ("no interval: one session each", "3.16", "What else differs", *made.advice):
            assert words in shown
            assert " ".join(words.split()[:3]) in " ".join(told.split())
        assert "Not compared" not in shown
    assert "<b>" not in made._repr_html_()
    assert type(made[made.ratio > 0]) is pd.DataFrame


def test_a_folder_of_others_is_read_as_a_trace_whatever_it_is_called(tmp_path):
    # DVC has a params.yaml too, TensorBoard a folder `runs`.
    (tmp_path / "params.yaml").write_text("lr: 0.1\n")
    (tmp_path / "runs/Jun01").mkdir(parents=True)
    with pytest.raises(ParamsError, match="holds no trace"):
        cells.explain(tmp_path)
    never_run = repr(cells.explain(tmp_path / "reports/never_run"))
    assert never_run.endswith("never_run: there is no such directory.")


# --- in a kernel -------------------------------------------------------------------------------


@contextmanager
def started(folder):
    """A kernel as JupyterLab starts it; yields a function that executes a cell, and the manager."""
    with scratch_folder() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(scratch / "k"))
        manager.start_kernel(cwd=str(folder))
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=PATIENCE_S)
        try:
            yield manager, client
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def executed(client, code, meanwhile=lambda: None):
    """Executes a cell; its reply, what it wrote, and all states of what it displayed."""
    sent, said, shown = client.execute(code), "", []
    meanwhile()
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE_S)
        kind, content = message["msg_type"], message["content"]
        if message["parent_header"].get("msg_id") != sent:
            continue
        said += content.get("text", "")
        shown += [content["data"]["text/plain"]] if kind.endswith("display_data") else []
        if kind == "status" and content["execution_state"] == "idle":
            break
    while (reply := client.get_shell_msg(timeout=PATIENCE_S))["parent_header"]["msg_id"] != sent:
        pass
    return reply["content"], said, shown


def test_interrupting_a_cell_ends_the_run_and_keeps_the_finished_ones(light, gate, tmp_path):
    light("{seed: [150, 13]}")
    with started(tmp_path) as (manager, client):
        first = "kept = 1\nfrom mptexp import *\nrun('light.yaml', only={'seed': [150]})"
        reply, said, shown = executed(client, first)
        assert reply["status"] == "ok", reply
        assert said.startswith("[1/1] ")
        assert shown[0] == "0/1 " + "░" * 20
        assert shown[1].endswith(" unknown time left · block 0")
        assert shown[-1] == "1/1 " + "█" * 20

        def interrupt():
            until(gate.waiting)
            manager.interrupt_kernel()

        reply, _, shown = executed(client, "run('light.yaml')", interrupt)
        assert reply["ename"] == "Interrupted"
        assert len(reply["traceback"]) == 1
        assert "run this cell again" in reply["traceback"][0]
        assert not processes_of(tmp_path)
        states = "print(kept, sorted(plan('light.yaml').state))"
        assert executed(client, states)[1].split() == ["1", "['ok',", "'pending']"]
        # The directory is free again, for the command line too.
        done = mptexp("run", "light.yaml", "--only", "seed=150", "--no-report", cwd=tmp_path)
        assert "1 of 1 runs are done already" in done.stdout, done.stderr


def test_a_mistake_in_a_cell_is_one_line(tmp_path):
    with started(tmp_path) as (_, client):
        reply, _, _ = executed(client, "import mptexp\nmptexp.load('nowhere')")
    assert reply["traceback"] == [f"ParamsError: {reply['evalue']}"]


def test_a_backend_that_is_not_installed_is_said_before_its_runs_end_for_good(monkeypatch):
    runs = [Run(backend="jax"), Run(backend="tensorflow"), Run(backend="jax", seed=3)]
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jax" else found(name)
    )
    (sentence,) = api.absent(runs)
    assert sentence.startswith("jax is not installed here")
    assert "mptexp doctor --backend jax" in sentence
    assert api.absent(runs[1:2]) == []


def test_of_a_copy_that_no_disk_takes_the_one_that_is_written_is_named(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device", "read", None, "written")
    told = pytest.raises(Stopped, match=r"No space left on device \(written\)$")
    with told, commands.writing(tmp_path):
        raise full


def test_a_full_disk_is_no_wrong_usage(tmp_path):
    with pytest.raises(Stopped, match="No space left"), commands.writing(tmp_path):
        Path("/dev/full").write_text("of no room")
    with pytest.raises(ParamsError, match="Is a directory"), commands.writing(tmp_path):
        tmp_path.write_text("of no file")


def test_a_loaded_sweep_shows_what_of_it_is_not_valid(tmp_path):
    place = written_sweep(tmp_path / "a", "A100", 1.0)
    assert "flags" not in load(place.root).short()
    (first, *_) = sorted(place.runs.glob("*/record.json"))
    first.write_text(first.read_text().replace('"wall_s": 2.0', '"wall_s": 1.0'))
    with pytest.warns(UserWarning, match="changed since it was written"):
        loaded = load(place.root)
    assert "changed since it was written" in repr(loaded)
    assert loaded.short()["flags"].ne("").sum() == 1


def test_the_answer_names_what_is_not_valid(tmp_path):
    place = SweepDir(tmp_path)
    place.params.write_text("matrix: {policy: [float32, mixed_float16]}\nrepeats: 3\n")
    for made in three("mixed_float16", [2.0, 2.1, 1.9]).records:
        del made["identity"]
        store.write_record(place.record(made["run_id"]), made)
    said = api.answer(tmp_path).data
    title, banner, *_ = said.split("\n\n")
    assert title.startswith("**Provisional (not valid): mixed\\_float16 ")
    assert banner.startswith("**Not valid: all figures** of all runs: ")
    assert "Measured, but not valid: 2.00× (**mixed_float16**) as fast as float32" in said


def test_a_backend_that_gives_no_answer_is_one_sentence():
    with pytest.raises(ParamsError, match="doctor: jax could not be asked: it gave no answer"):
        commands.asked("mptexp.errors", "jax", "doctor")  # which prints nothing
