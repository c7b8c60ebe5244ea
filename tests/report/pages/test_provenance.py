import pytest
from builders import published, record, tables, three

from mptexp.records import store
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep
from mptexp.report.measured_sweep import MeasuredSweep
from mptexp.report.pages import provenance
from mptexp.report.tables import summary_tables

CARD = {
    "device": "GPU", "capability": [8, 0], "driver": "550", "cuda": "12.4", "cudnn": None,
    "cpu": "a CPU", "cpu_version": "family 26, model 2", "cores": 1,
    "instruction_sets": ["avx2"], "memory_bytes": 2**34, "os": "Linux",
    "python": "3.12", "packages": {"mptexp": "0.1", "keras": "3"}, "variables": {}, "commit": "abc",
    "container_memory_bytes": 2**33, "hypervisor": True,
}  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    place = SweepDir(tmp_path / "mine")
    marks = [
        "measured while the device was throttled",
        "measured while other processes used the GPU",
    ]
    for block, card in enumerate((CARD, CARD | {"driver": "560"})):
        made = record(block=block) | {"environment": card, "marks": marks * block}
        store.write_record(place.record(made["run_id"]), made)
    failed = record("bfloat16") | {"status": "failed", "error": "it broke", "timing": {}}
    store.write_record(place.record(failed["run_id"]), failed)
    place.record(record()["run_id"]).with_name("notebook.ipynb").write_text("{}")
    place.params.write_text("# Question: Is it?\n# Expected: no\nmatrix: {}\n")
    (place.root / "results.csv").write_text("")
    return measured_sweep.load(place)


def test_every_run_is_listed_and_linked_to_what_exists(sweep):
    rows, note = provenance.runs(sweep)
    assert note == ""
    first, second = record()["run_id"], record(block=1)["run_id"]
    assert rows.Run.iloc[0] == f'<a href="runs/{first}/notebook.ipynb">{first}</a>'
    assert second in set(rows.Run)
    assert f'<a href="runs/{second}/record.json"' in rows.Record.iloc[1]
    assert rows.Flags.tolist() == ["–", "interference; throttled", "–"]
    assert rows["ms per step"].tolist() == ["100.00", "100.00", "–"]
    assert rows.Status.tolist() == ["ok", "ok", "failed"]


def test_runs_are_told_apart_by_what_varies(sweep):
    assert "Setting" not in provenance.runs(sweep)[0]
    found = MeasuredSweep(sweep.directory, tables([record(), record(width=0.5)]))
    assert provenance.runs(found)[0].Setting.tolist() == ["width 1", "width 0.5"]
    failed = summary_tables.failed(found.tables.results.assign(status="diverged"))
    assert failed.Setting.tolist() == ["width 1", "width 0.5"]


def test_what_is_not_known_of_a_run_that_failed_is_blank(sweep):
    rows = [record(jit=True), record(block=1), record("bfloat16", jit=None)]
    rows[2] |= {"status": "failed"}
    found = MeasuredSweep(sweep.directory, tables(rows))
    assert provenance.runs(found)[0].XLA.tolist() == ["on", "off", "–"]
    found = MeasuredSweep(sweep.directory, tables(rows[1:]))
    assert "XLA" not in provenance.runs(found)[0]


def test_the_environment_names_what_differs_between_runs(sweep):
    values = provenance.environment(sweep).set_index("What").Value
    assert sorted(values["Driver, CUDA, cuDNN"].split(" · ")) == ["550, 12.4", "560, 12.4"]
    assert values["Compute capability"] == "8.0"
    assert values["CPU"] == "a CPU (family 26, model 2), 1 core in use"
    assert values["Memory"] == "16 GiB"
    assert values["Limits and state"] == "container of 8.0 GiB, virtual machine"
    assert "Variables" not in values


def test_what_is_ones_own_is_needed_to_measure_again(sweep):
    # The lie: the commands alone, of a notebook that diagnose looks for beside params.yaml.
    made = [record(), record("bfloat16")]
    own = {"model": "my_model:build", "dataset": "folder:pics"}
    made = [one | {"notebook": "own.py", "parameters": one["parameters"] | own} for one in made]
    (sweep.directory.diagnosis.runs).mkdir(parents=True)
    text = provenance.reproduce(MeasuredSweep(sweep.directory, tables(made)))
    assert "    mptexp diagnose params.yaml --out reports/again --set dataset=folder:PATH" in text
    for needed in ("the module my\\_model", "own.py beside params.yaml"):
        assert f"- needed there: {needed}\n" in text
    assert "needed there: the data" not in text  # it has a line of its own
    assert "needed there" not in provenance.reproduce(sweep)


def test_it_can_be_measured_again(sweep):
    text = provenance.reproduce(sweep)
    for words in ("mptexp run params.yaml", r"0\.1 abc", "3 runs, 0.1 minutes", "beforehand: no"):
        assert words in text
    assert "[results.csv](results.csv) · [params.yaml](params.yaml)" in text


def test_claims_name_the_runs_that_decide_them(sweep):
    assert provenance.checked_claims(sweep).empty  # it tests none of them
    found = MeasuredSweep(sweep.directory, three("mixed_float16", [2.0, 2.1, 1.9]))
    (row,) = provenance.checked_claims(found).to_dict("records")
    assert row["Claim"] == "It is as accurate as float32"
    assert found.tables.results.run_id[0] in row["Runs"]


def test_every_command_that_made_the_page_is_there(sweep):
    assert "mptexp diagnose" not in provenance.reproduce(sweep)
    sweep.directory.diagnosis.runs.mkdir(parents=True)
    assert "    mptexp diagnose reports/again\n" in provenance.reproduce(sweep)


def test_a_diagnosis_of_another_session_is_told(sweep):
    same, other = (
        provenance.reproduce(published(f"{n}-cpu")) for n in ("why", "sign-language-100px")
    )
    assert "traced" not in same
    assert "another start of the machine than the runs'" in other
    assert "mptexp of the traced runs: 0\\.2.0 5ab90d680998, 0.2.0 97b6965f54e7" in other


def test_what_was_set_on_the_command_line_is_told():
    text = provenance.reproduce(published("imagenette-128px-accuracy-cpu"))
    told = "- set when it was run, in place of what question and cost may say: dataset, epochs"
    assert f"{told}, repeats" in text


def test_data_of_the_machine_that_measured_are_named_in_the_command(sweep):
    assert "PATH" not in provenance.reproduce(sweep)
    made = [record(block=block) for block in range(2)]
    for one in made:
        one["parameters"] |= {"dataset": "folder:imagenette2-128"}
    told = provenance.reproduce(MeasuredSweep(sweep.directory, tables(made)))
    assert "--out reports/again --set dataset=folder:PATH\n" in told
    assert "PATH: where your copy of folder:imagenette2-128 lies" in told
