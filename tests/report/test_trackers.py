"""What was exported is read back with MLflow's own client and TensorBoard's own reader."""

import getpass
import json
import socket
import sqlite3
import sys
from pathlib import Path
from types import ModuleType

import pytest
from builders import written_sweep
from support import mptexp

from mptexp.analysis import sweep_tables
from mptexp.api.commands import TRACKERS
from mptexp.errors import ParamsError
from mptexp.records import interference, store
from mptexp.records.csv_columns import COLUMNS
from mptexp.records.sweep_dir import SweepDir
from mptexp.report import measured_sweep, trackers
from mptexp.report.pages import data_files, first_screen_html


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A sweep of which one run failed and another is not valid."""
    made = written_sweep(tmp_path_factory.mktemp("user") / "mine", "GPU", 1.0, runs=2)
    made.mark()
    first, second, *_ = sorted(made.runs.glob("*/record.json"))
    record = json.loads(first.read_text())
    record |= {"status": "killed", "error": "took too much " * 1000, "timing": {}, "history": []}
    store.write_record(first, record)
    record = json.loads(second.read_text()) | {"ended_at": "2026-11-22T12:43:49+00:00"}
    record |= {"fit_s": 4.0, "wall_s": 6.0}
    record["history"] = [{"epoch": e, "val_accuracy": e / 10, "elapsed_s": e} for e in (1, 2, 3)]
    store.write_record(second, record | {"marks": [interference.THROTTLED]})
    (second.parent / "notebook.ipynb").write_text("{}")
    (second.parent / "private.txt").write_text("mine")
    made.params.write_text(made.params.read_text() + f"# at {Path.home()}/clients\n")
    return made


def reported(made):
    """A sweep with the files of its report; of the page the first screen."""
    sweep = measured_sweep.load(made)
    data_files.write(sweep)
    made.index.write_text(first_screen_html.html(sweep))
    return made


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MLflow keeps artifacts of a local store in the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def runs(sweep):
    made = trackers.exported(sweep, sweep_tables.load(sweep))
    return {run.run_id: run for run in made}


def told(sweep, *words):
    done = mptexp("export", sweep.root, *words, "--format", "json", cwd=sweep.root.parent)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def measured_again(sweep, run_id, wall_s):
    record = store.read_record(sweep.record(run_id))
    store.write_record(sweep.record(run_id), record | {"wall_s": wall_s})


# --- MLflow ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mlflow_store(sweep):
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    uri = "sqlite:///store.db"
    first = told(reported(sweep), "--to", "mlflow", "--store", uri)
    assert (len(first["written"]), first["present"]) == (4, 0)
    return uri


@pytest.fixture
def client(sweep, mlflow_store, monkeypatch, recwarn):
    monkeypatch.chdir(sweep.root.parent)
    from mlflow import MlflowClient

    return MlflowClient(mlflow_store)


def stored(client):
    experiment = client.get_experiment_by_name("mine")
    found = client.search_runs([experiment.experiment_id])
    assert len({run.data.tags["mptexp.run_id"] for run in found}) == len(found)
    return {run.data.tags["mptexp.run_id"]: run for run in found}


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def test_mlflow_has_each_run_with_parameters_metrics_and_artifacts(client, runs, sweep, tmp_path):
    there = stored(client)
    assert there.keys() == {*runs, "sweep"}
    for run_id, run in runs.items():
        one = there[run_id]
        assert one.data.params == {n: str(v) for n, v in run.parameters.items()}
        assert {n: v for n, v in one.data.metrics.items() if n in run.metrics} == pytest.approx(
            dict(run.metrics)
        )
        assert one.data.tags["mlflow.parentRunId"] == there["sweep"].info.run_id
        assert one.info.run_name == run.name
    (full,) = [run for run in runs.values() if len(run.epochs) == 3]
    history = client.get_metric_history(there[full.run_id].info.run_id, "val_accuracy")
    began = round(full.began_s * 1e3)
    assert [(m.step, m.value, m.timestamp - began) for m in history] == [
        (1, 0.1, 1000), (2, 0.2, 2000), (3, 0.3, 3000),
    ]  # fmt: skip
    assert there[full.run_id].info.end_time == 1795351429000
    files = client.list_artifacts(there[full.run_id].info.run_id)
    assert {file.path for file in files} == {"record.json", "notebook.ipynb"}
    got = client.download_artifacts(there[full.run_id].info.run_id, "record.json", str(tmp_path))
    assert Path(got).read_bytes() == sweep.record(full.run_id).read_bytes()
    files = client.list_artifacts(there["sweep"].info.run_id)
    assert {file.path for file in files} == {
        "params.yaml", "index.html", "results.csv", "history.csv", "speedups.csv", "table.md",
    }  # fmt: skip
    # The leak: the params file with home and user name, which a site has without.
    got = client.download_artifacts(there["sweep"].info.run_id, "params.yaml", str(tmp_path))
    assert Path(got).read_text().endswith("# at clients\n")


def test_mlflow_says_how_a_run_ended_and_what_is_not_valid(client, runs):
    there = stored(client)
    (killed,) = [run for run in there.values() if run.info.status == "KILLED"]
    assert killed.data.tags["mptexp.error"].startswith("took too much")
    assert "step_s" not in killed.data.metrics
    for run_id, run in runs.items():
        note = there[run_id].data.tags.get("mlflow.note.content", "")
        assert (run.tags.get("flags", "") in note) == bool(note) or not run.tags.get("flags")
    assert any("mlflow.note.content" in run.data.tags for run in there.values())


def test_mlflow_gets_a_run_again_only_where_it_was_measured_again(client, sweep, mlflow_store):
    before = stored(client)
    assert trackers.export(sweep, "mlflow", mlflow_store).written == []
    assert stored(client).keys() == before.keys()
    run_id = next(iter(sorted(set(before) - {"sweep"}, reverse=True)))
    measured_again(sweep, run_id, 77.0)
    other = next(iter(set(before) - {"sweep", run_id}))
    client.set_terminated(before[other].info.run_id, "RUNNING")  # as an interruption leaves it
    again = trackers.export(reported(sweep), "mlflow", mlflow_store)
    assert ({*again.written}, again.present) == ({run_id, other}, 2)
    after = stored(client)
    assert after.keys() == before.keys()
    assert after[run_id].data.metrics["wall_s"] == 77
    assert after[other].info.status != "RUNNING"


def test_mlflow_learns_neither_host_nor_user(client, sweep):
    lines = "\n".join(sqlite3.connect(sweep.root.parent / "store.db").iterdump())
    rows = [line for line in lines.splitlines() if line.startswith("INSERT")]
    assert rows
    names = {socket.gethostname()} | {getpass.getuser()} - {"root"}
    assert not [name for name in names for row in rows if name in row]


@pytest.mark.parametrize("name", ["index.html", "speedups.csv", "table.md"])
def test_mlflow_gets_no_report_that_the_records_do_not_give(tmp_path, name):
    # The lie: a speedup of 9.99 and "9.99× faster" lay in MLflow, of runs that were 2.00× faster.
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    made = reported(written_sweep(tmp_path / "mine", "GPU", 1.0))
    file = made.root / name
    text = file.read_text()
    assert "2.00× faster" in text or name == "speedups.csv"
    file.write_text(text.replace("2.00×", "9.99×").replace(",2.0", ",9.99"))
    with pytest.raises(ParamsError, match=rf"{name}: is not what .*`mptexp report` makes it again"):
        trackers.export(made, "mlflow", f"sqlite:///{tmp_path}/m.db")
    assert not (tmp_path / "m.db").exists()


def test_mlflow_gets_the_tables_of_the_records_where_none_lie_there(tmp_path):
    # A merged directory, or one of `run --no-report`: the run `sweep` held params.yaml alone.
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    from mlflow import MlflowClient

    made, store = written_sweep(tmp_path / "mine", "GPU", 1.0), f"sqlite:///{tmp_path}/m.db"
    said = "index.html: there is no report, which MLflow gets too: `mptexp report` makes it"
    with pytest.raises(ParamsError, match=said):
        trackers.export(made, "mlflow", store)
    for file in reported(made).root.glob("*.csv"):
        file.unlink()
    trackers.export(made, "mlflow", store)
    client = MlflowClient(store)
    run = stored(client)["sweep"].info.run_id
    got = client.download_artifacts(run, "speedups.csv", str(tmp_path))
    assert "faster" in Path(got).read_text()
    assert not (made.root / "speedups.csv").exists()


CLOSED = {  # for minutes MLflow would try to open such a file, and say nothing
    "sqlite:////dev/null/m.db": "/dev/null: is no folder",
    "sqlite:////dev": "/dev: is no file that can be written",
}


@pytest.mark.parametrize("uri", ["nowhere://x", *CLOSED])
def test_a_store_that_mlflow_refuses_is_named(sweep, uri):
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    words = ("export", reported(sweep).root, "--to", "mlflow", "--store", uri)
    done = mptexp(*words, cwd=sweep.root.parent)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    said = f"--store {uri}: {CLOSED[uri]}; allowed: " if uri in CLOSED else f"{uri}: "
    assert done.stderr.startswith(f"error {said}")


# --- TensorBoard ----------------------------------------------------------------------------------


def read(folder):
    sys.modules.setdefault(trackers.NO_FRAMEWORK, ModuleType("notf"))  # reads faster without
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    made = reader.EventAccumulator(str(folder))
    made.Reload()
    return made


def test_tensorboard_reads_every_run_back(runs, sweep):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    written = told(sweep, "--to", "tensorboard")
    assert written["store"] == "logs/mine"
    folders = {f.name.split("-")[-1]: f for f in (sweep.root.parent / "logs/mine").iterdir()}
    assert folders.keys() == set(written["written"]) == set(runs)
    fresh = trackers.exported(sweep, sweep_tables.load(sweep))
    for run in fresh:
        events = read(folders[run.run_id])
        tags = set(events.Tags()["tensors"])
        assert {f"run/{name}" for name in run.metrics} < tags
        for name, value in run.metrics.items():
            (only,) = events.Tensors(f"run/{name}")
            assert only.tensor_proto.float_val[0] == pytest.approx(value, rel=1e-6)
        about = events.SummaryMetadata("run/wall_s")
        assert about.summary_description == COLUMNS["wall_s"].meaning
        assert about.plugin_data.plugin_name == "scalars"
        status = events.Tensors("mptexp/status")[0].tensor_proto.string_val[0]
        assert status.decode() == run.tags["status"]
    (full,) = [run for run in fresh if len(run.epochs) == 3]
    steps = read(folders[full.run_id]).Tensors("epoch/val_accuracy")
    assert [(e.step, e.wall_time - full.began_s) for e in steps] == [(1, 1), (2, 2), (3, 3)]


def test_tensorboards_table_of_parameters_has_what_varies(runs, sweep, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.plugins.hparams import plugin_data_pb2

    trackers.export(sweep, "tensorboard", str(tmp_path))
    run = next(iter(runs.values()))
    (folder,) = tmp_path.glob(f"*{run.run_id}")
    content = read(folder).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    shown = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert shown["policy"].string_value == run.parameters["policy"]
    assert {*shown} == {"policy", "batch_size", "block"}


def test_tensorboard_has_one_file_per_run_without_the_hosts_name(sweep, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    words = (sweep, "tensorboard", str(tmp_path))
    assert len(trackers.export(*words).written) == 4
    assert trackers.export(*words).present == 4
    run_id = min(path.parent.name for path in sweep.runs.glob("*/record.json"))
    measured_again(sweep, run_id, 55.0)
    assert trackers.export(*words).written == [run_id]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 8  # of each run its events, and of which sweep they are
    assert not [path for path in files if socket.gethostname() in path.name]


def test_a_sweep_that_grew_takes_the_place_of_what_it_was(tmp_path):
    # Nine runs of six, three of them superseded: folders are named by what varies.
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    made = written_sweep(tmp_path / "mine", "GPU", 1.0)
    later = tmp_path / "later"
    for run_id in [r["run_id"] for r in sweep_tables.load(made).records][1:]:
        path = made.record(run_id).parent
        later.mkdir(exist_ok=True)
        path.rename(later / run_id)
    logs = tmp_path / "logs"
    assert len(trackers.export(made, "tensorboard", str(logs)).written) == 1
    for path in later.iterdir():
        path.rename(made.runs / path.name)
    trackers.export(made, "tensorboard", str(logs))
    assert len([*logs.iterdir()]) == len([*made.runs.iterdir()]) == 6


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_another_sweep_of_the_same_name_is_not_written_over(tmp_path, tracker):
    # Monday's runs were deleted, and Tuesday's called the same.
    pytest.importorskip(tracker, reason=f"{tracker} is not installed")
    days = [written_sweep(tmp_path / d / "mine", "GPU", s) for d, s in (("a", 1.0), ("b", 1.1))]
    for number, made in enumerate(days, 1):
        reported(made).mark(seed=number)
    logs = tmp_path / "logs"
    store = str(logs) if tracker == "tensorboard" else f"sqlite:///{tmp_path}/mlflow.db"
    assert len(trackers.export(days[0], tracker, store).written) == 6
    with pytest.raises(ParamsError, match="holds another sweep with the same runs"):
        trackers.export(days[1], tracker, store)
    assert trackers.export(days[0], tracker, store).present == 6


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
@pytest.mark.parametrize("is_known", [True, False])
def test_nor_are_runs_of_plain_loops_of_another_sweep_of_the_name(tmp_path, tracker, is_known):
    # Of two projects' folders `mine` the second deleted the runs of the first.
    pytest.importorskip(tracker, reason=f"{tracker} is not installed")
    days = [written_sweep(tmp_path / d / "mine", "GPU", s, runs=1) for d, s in (("a", 1), ("b", 2))]
    for made in map(reported, days):
        if not is_known:
            continue
        run_id = min(path.name for path in made.runs.iterdir())
        digits = made.superseded_as(run_id, made.record(run_id).read_bytes()).name[-8:]
        made.measured.write_text(f"{run_id} {digits}\n")
    store = str(tmp_path / "logs") if tracker == "tensorboard" else f"sqlite:///{tmp_path}/m.db"
    assert len(trackers.export(days[0], tracker, store).written) == 2
    said = "holds another sweep" if is_known else "nothing says that it is of this sweep"
    with pytest.raises(ParamsError, match=said):
        trackers.export(days[1], tracker, store)
    assert trackers.export(days[0], tracker, store).present == 2


# --- what both share ------------------------------------------------------------------------------


def test_a_tracker_that_is_not_installed_is_named_with_what_installs_it(sweep, monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    for name in TRACKERS:
        with pytest.raises(ParamsError, match=f"{name} is not installed: .*pip install .*{name}"):
            trackers.export(sweep, name)


def test_a_folder_of_a_trackers_name_and_a_store_without_one(tmp_path):
    written_sweep(tmp_path / "q", "GPU", 1.0, runs=1)
    done = mptexp("export", "q", "--to", "./mlflow", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "mlflow/draft.md").exists()
    done = mptexp("export", "q", "--to", "article", "--store", "x", cwd=tmp_path)
    assert (done.returncode, (tmp_path / "article").exists()) == (2, False)
    assert "--store x: is for --to mlflow and --to tensorboard" in done.stderr


def test_no_file_leads_out_and_no_name_leaves_the_folder(tmp_path):
    made = written_sweep(tmp_path / "theirs", "GPU", 1.0, runs=1)
    record = min(made.runs.glob("*/record.json"))
    content = json.loads(record.read_text())
    content["parameters"]["model"] = "../../../x:y"
    (tmp_path / "secret").write_text("secret")
    (record.parent / "notebook.ipynb").symlink_to(tmp_path / "secret")
    for run in trackers.exported(made, sweep_tables.load(made)):
        assert not [file for file in run.files if file.is_symlink()]
    assert "/" not in trackers.NO_NAME.sub("_", "../../x")


def test_a_directory_without_records_is_named(tmp_path):
    for name in TRACKERS:
        pytest.importorskip(name, reason=f"{name} is not installed")
        with pytest.raises(ParamsError, match="holds no record of a run"):
            trackers.export(SweepDir(tmp_path), name)


def test_a_run_is_exported_anew_where_later_runs_show_that_it_is_not_valid(tmp_path):
    # The lie: a run measured again in another call, its partner stood in the tracker without
    # "measured apart".
    sweep = written_sweep(tmp_path / "mine", "GPU", 1.0, runs=2)
    before = {r.run_id: r for r in trackers.exported(sweep, sweep_tables.load(sweep))}
    run_id, made = next((i, store.read_record(sweep.record(i))) for i in before)
    store.write_record(sweep.record(run_id), made | {"invocation": "another"})
    after = {r.run_id: r for r in trackers.exported(sweep, sweep_tables.load(sweep))}
    apart = {i for i, run in after.items() if "measured apart" in run.tags.get("flags", "")}
    assert apart
    assert {i for i in before if before[i].digest != after[i].digest} == apart | {run_id}
