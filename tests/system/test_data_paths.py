"""Where a user's images lie is in no record, notebook or page; what they are is."""

import json

import pytest
from support import PROJECT, mptexp

from mptexp.errors import ParamsError
from mptexp.records import privacy, store
from mptexp.records.sweep_dir import SweepDir
from mptexp.spec import params, yaml_documents

LOADS = """
# %%
from mptexp.training.data import datasets
import html
images = datasets.load(run)
path = run.dataset.partition(":")[2]
print("read from", run.dataset, repr(path), html.escape(path))
print(path + "/Käse/3.png", len(images.val_x))
"""


@pytest.fixture
def swept(light, tree, tmp_path):
    """A sweep of a notebook that loads images from a folder and speaks of its path."""
    path = light({"dataset": [f"folder:{tree}"], "image_size": [8], "batch_size": [4]})
    (tmp_path / "light.py").write_text((tmp_path / "light.py").read_text() + LOADS)
    done = mptexp("run", path.name, "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return SweepDir(tmp_path / "reports/light")


def test_no_record_and_no_notebook_says_where_data_lie(swept, tree, tmp_path):
    (record,) = store.read_records(swept)[0]
    assert record["parameters"]["dataset"] == f"folder:{tree.name}"
    (folder,) = swept.runs.iterdir()
    for name in ("record.json", "notebook.ipynb"):
        text = (folder / name).read_text()
        assert str(tmp_path) not in json.dumps(json.loads(text), ensure_ascii=False), name
    assert f"{tree.name}/Käse/3.png 6" in text
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert "1 of 1 runs are done already" in done.stdout


def test_what_is_published_agrees_with_its_records(swept, tree, tmp_path):
    done = mptexp("publish", "reports/light", "--to", "site", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    site = SweepDir(tmp_path / "site/light")
    (path,) = swept.runs.glob("*/record.json")
    assert site.record(path.parent.name).read_bytes() == path.read_bytes()
    sweep, _ = params.read(site.params)
    assert [run.run_id("light.py") for run in sweep.runs()] == [path.parent.name]
    for file in (tmp_path / "site").rglob("*"):
        assert file.is_dir() or str(tmp_path).encode() not in file.read_bytes(), file


def test_the_same_folder_elsewhere_is_the_same_sweep(swept, tree, light, tmp_path):
    (tmp_path / "moved").mkdir()
    tree.rename(tmp_path / "moved" / tree.name)
    light({"dataset": [f"folder:moved/{tree.name}"], "image_size": [8], "batch_size": [4]})
    done = mptexp("run", "light.yaml", "--no-report", cwd=tmp_path)
    assert "1 of 1 runs are done already" in done.stdout, done.stderr


def test_two_folders_of_one_name_in_a_sweep_are_refused(light, tmp_path):
    path = light({"dataset": ["folder:/a/x", "folder:/b/x"]})
    with pytest.raises(
        ParamsError, match=r"light.yaml:2: folder:/a/x and folder:/b/x have the same"
    ):
        params.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "# of /home/ada/x\ndefaults: {dataset: folder:/home/ada/secret/x}\n",
        "defaults:\n  dataset: 'folder:/home/ada/secret/x'\n",
        'defaults: {dataset: "folder:/home/ada/secr\\u0065t/x"}\n',
        "matrix: {dataset: [folder:/home/ada/secret/x, idx:~/secret/y, digits]}\n",
        "not: [YAML",
    ],
)
def test_a_published_params_file_has_the_last_part_of_a_path(text):
    made = yaml_documents.published(text)
    assert "secret" not in made
    assert "secr\\u" not in made
    assert ("folder:x" in made) == ("not: [" not in text)


def test_a_record_of_before_keeps_its_id():
    # That every published record reads, test_security.py looks at.
    place = SweepDir(PROJECT / "reports/published/sign-digits-cpu")
    paths = sorted(place.runs.glob("*/record.json"))
    datasets = {store.read_record(path)["parameters"]["dataset"] for path in paths}
    assert datasets == {"folder:sign-language-digits"}


def test_only_the_path_itself_is_shortened():
    value = {"a": ["in /data/my x/c, /data/my x.", "/data/my xy", "/else/data/my x", "data"]}
    shown = {"a": ["in my x/c, my x.", "/data/my xy", "/else/data/my x", "data"]}
    assert privacy.without_path(value, "folder:/data/my x") == shown
    assert privacy.without_path(value, "digits") == value
    assert privacy.without_path("an x", "folder:x") == "an x"
    assert privacy.without_path("in /a\0/x", "folder:/a\0/x") == "in x"
