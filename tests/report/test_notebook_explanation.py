"""What the notebook of a diagnosis shows, and that it says in a sentence what is missing."""

import shutil

import jupytext
import pytest
from builders import device, published, record, recording
from support import PROJECT

from mptexp.diagnosis import breakdown
from mptexp.execution import jupyter_kernel
from mptexp.records import schema, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep, notebook_explanation
from mptexp.spec.run import Run

WHY = PROJECT / "reports/published/why-cpu"
PARTS = ("causes", "ablations", "time_by_cause", "time_by_layer", "operations", "roofline",
         "layers", "peaks", "kernels")  # fmt: skip


def executed(tmp_path, **parameters):
    """The outputs of the executed notebook, those of each cell that has some."""
    path = tmp_path / "executed.ipynb"
    jupyter_kernel.execute(PROJECT / "notebooks/diagnose.py", path, parameters, tmp_path)
    cells = [cell.outputs for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    return [outputs for outputs in cells if outputs]


def test_the_notebook_shows_every_part_once(tmp_path):
    shown = executed(tmp_path, sweep_dir=str(WHY), pair=2)
    text = str(shown)
    assert "the extra cost of emulating its arithmetic" in text
    assert all(len(outputs) == 1 for outputs in shown)
    assert text.count("Achieved GFLOP/s by FLOP per byte") == 1
    assert "image/png" not in text


def test_a_directory_that_does_not_exist_is_a_sentence(tmp_path):
    ((output,),) = executed(tmp_path, sweep_dir=str(tmp_path / "nothing"))
    assert "there is no such directory" in output.data["text/markdown"]


def test_a_sweep_that_was_not_diagnosed_is_a_sentence(tmp_path):
    place = tmp_path / "plain"
    shutil.copytree(PROJECT / "reports/published/sign-digits-cpu", place)
    explained = notebook_explanation.explanation(SweepDir(place), 0)
    assert "is not diagnosed: run `mptexp diagnose`" in explained._repr_markdown_()
    assert [getattr(explained, part)() for part in PARTS] == [None] * len(PARTS)


def test_what_a_timer_recorded_is_not_sent_to_a_diagnosis(tmp_path):
    # The lie: "run `mptexp diagnose` on it", which says that there is no params file.
    made = record() | {"notebook": schema.FOREIGN}
    made["run_id"] = Run(**made["parameters"]).run_id(schema.FOREIGN)
    store.write_record(tmp_path / "runs" / made["run_id"] / "record.json", made)
    said = notebook_explanation.explanation(SweepDir(tmp_path), 0)._repr_markdown_()
    assert "let mptexp run the training" in said
    assert "mptexp diagnose" not in said


@pytest.fixture(scope="module")
def why():
    """The sweep of WHY, read once."""
    with measured_sweep.handed(published(WHY.name)):
        yield SweepDir(WHY)


@pytest.mark.parametrize("pair", [-1, 4])
def test_a_pair_that_the_sweep_has_not_is_a_sentence(why, pair):
    explained = notebook_explanation.explanation(why, pair)
    assert f"pair is {pair}; allowed: 0 to 3" in explained._repr_markdown_()
    assert explained.causes() is None


# --- whole tables, and what of them is not valid --------------------------------------------------


@pytest.fixture(scope="module")
def on_gpu():
    """A pair that was traced on a GPU: hundreds of kernels a step."""
    return notebook_explanation.Explanation(published("tf32-h200"), 1)


def test_each_table_is_whole(on_gpu):
    # The lie: 40 of 208 operations, 29.1 of 34.9 ms, under "every operation"; of kernels those of
    # the baseline alone.
    records = on_gpu.verdict.records
    steps = [record["timing"]["step_s"] for record in records.values()]
    layers, operations = on_gpu.time_by_layer(), on_gpu.operations()
    assert [layers.baseline_s.sum(), layers.candidate_s.sum()] == pytest.approx(steps)
    assert operations.seconds.sum() == pytest.approx(steps[1])
    assert operations.seconds.is_monotonic_decreasing
    kernels = on_gpu.kernels()
    took = kernels.groupby("policy").seconds.sum()
    for policy, traced in records.items():
        rows = breakdown.rows(traced)
        assert took[policy] == pytest.approx(rows.seconds[rows.kernel != ""].sum())
    assert set(kernels.policy[:5]) == set(records)
    shown = operations._repr_html_()
    assert f"{len(operations)} rows" in shown
    assert shown.count("<tr") > notebook_explanation.SHOWN


def test_the_operations_of_a_recording_are_whole():
    names = [f"kernel_{n}" for n in range(60)]
    more = [device(name, 820 + 2 * n, 1) for n, name in enumerate(names)]
    explained = notebook_explanation.RecordedExplanation([recording(more=more)])
    assert set(names) <= set(explained.operations().kernel)
    (trace,) = explained.recordings
    assert explained.operations().seconds.sum() == pytest.approx(trace.trace.step_s)
    assert "bounds this training" in repr(explained)
    assert len(repr(explained)) < 500


DOUBT = "Time breakdown not valid: trace not of these steps."


def test_each_part_says_what_of_it_is_not_valid():
    # The lie: no word above any of them, where the page says it above causes, times and layers.
    explained = notebook_explanation.Explanation(published("sign-language-100px-cpu"), 1)
    for part in ("causes", "time_by_cause", "roofline", "layers", "peaks"):
        assert DOUBT in getattr(explained, part)()._repr_html_(), part
    for table in (explained.time_by_layer(), explained.operations()):
        chosen = table[table.cause == "memory"].head()
        for shown in (table._repr_html_(), repr(table), chosen._repr_html_(), repr(chosen)):
            assert DOUBT in shown
    assert "n</em> = 1: it took longer in the first block" in explained.ablations()._repr_html_()


def test_a_part_that_is_valid_has_no_warning(on_gpu):
    for part in PARTS:
        shown = getattr(on_gpu, part)()
        assert shown is None or "not valid:" not in shown._repr_html_(), part


def test_a_terminal_shows_the_sentence():
    # Hundreds of kilobytes of records, as a dataclass shows its fields.
    explained = notebook_explanation.Explanation(published("sign-language-100px-cpu"), 1)
    sentence, *pairs = repr(explained).split("\n")
    assert sentence.startswith("Why: mixed_bfloat16 (model banerjee_resnet50) at batch size 32 is ")
    assert sentence.endswith("time breakdown not valid: trace not of these steps.")
    assert pairs[0] == "pair 0: mixed_bfloat16 against float32 (model banerjee_cnn)"
    missing = notebook_explanation.Explanation(None, 0, "a\\_b: there is no such directory.")
    assert repr(missing) == "a_b: there is no such directory."
