"""Notebooks for readers: their images, as published and with sliders."""

import html
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
import urllib.request

import jupytext
import nbformat
import pytest
from support import PATIENCE_S, PROJECT, until, write_images

from mptexp.execution import jupyter_kernel
from mptexp.execution.scratch import scratch_folder
from mptexp.report.pages import rendering, sortable

NOTEBOOK = PROJECT / "notebooks/numerics.py"


def executed(notebook, folder):
    with scratch_folder() as scratch:
        jupyter_kernel.execute(notebook, folder / "done.ipynb", {}, scratch)
    return json.loads((folder / "done.ipynb").read_text())["cells"]


def images(cell):
    shown = [output for output in cell["outputs"] if "image/png" in output.get("data", {})]
    return [output["data"]["image/png"] for output in shown]


def test_the_notebook_shows_its_images_and_is_published_without_sliders(tmp_path):
    cells = [c for c in executed(NOTEBOOK, tmp_path) if c["cell_type"] == "code"]
    drawn = [cell["metadata"].get("alt") for cell in cells if images(cell)]
    assert len(drawn) == len(set(drawn)) == 6
    assert all(drawn)
    assert not [o for cell in cells for o in cell["outputs"] if o.get("name") == "stderr"]
    page = html.unescape(rendering.report_page(tmp_path / "done.ipynb", "Numbers"))
    assert [alt for alt in drawn if f'alt="{alt}"' in page] == drawn
    assert not re.search("VBox|Slider", page.replace(sortable.script(), ""))


MOVE = """\
import gc, ipywidgets
for slider in [found for found in gc.get_objects() if type(found) is ipywidgets.SelectionSlider]:
    slider.index -= 1
"""


def test_sliders_redraw_the_image(tmp_path):
    pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
    book = jupytext.read(NOTEBOOK)
    codes = [cell for cell in book.cells if cell.cell_type == "code"]
    upto = next(i for i, cell in enumerate(codes) if "illustrations.spacing" in cell.source) + 1
    added = [f"display(illustrations.spacing({bits}))" for bits in ("4, 2", "3, 1")] + [MOVE]
    book.cells = codes[:upto] + [nbformat.v4.new_code_cell(source) for source in added]
    jupytext.write(book, tmp_path / "moved.ipynb")
    *_, shown, first, lower, _ = executed(tmp_path / "moved.ipynb", tmp_path)
    assert images(shown) == images(lower) != images(first)


OWN = """\
from keras import Model, layers

def build(shape, classes):
    images = layers.Input(shape)
    x = layers.Dense(classes)(layers.Flatten()(images))
    return Model(images, layers.Activation("softmax", dtype="float32")(x))
"""


def test_the_first_notebook_answers_for_a_model_and_images_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MPTEXP_FORK", "1")
    (tmp_path / "mine.py").write_text(OWN)
    for name in ("a", "b"):
        write_images(tmp_path / "images" / name, 80)
    own = {"model": "mine:build", "dataset": f"folder:{tmp_path}/images", "image_size": 8}
    short = {"batch_size": 8, "epochs": 3, "blocks": 1}
    with scratch_folder() as scratch:
        notebook = PROJECT / "notebooks/start_here.py"
        jupyter_kernel.execute(notebook, tmp_path / "done.ipynb", own | short, scratch)
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    (alt,) = [cell["metadata"].get("alt") for cell in codes if images(cell)]
    assert alt
    page = html.unescape(rendering.report_page(tmp_path / "done.ipynb", "Start"))
    assert page.count("<figure") == 1  # the time breakdown, with a text alternative of its own
    for part in (
        "[2/2] policy",
        "steps are traced",
        "float32 (the default",
        "model: mine:build",
    ):
        assert part in page, part


def test_the_notebook_on_diagnoses_opens_with_a_published_one(tmp_path, monkeypatch):
    monkeypatch.chdir(PROJECT / "notebooks")  # as in JupyterLab
    cells = executed(PROJECT / "notebooks/diagnose.py", tmp_path)
    page = json.dumps(cells)
    assert "mixed_float16" in page
    assert page.count("<figure") >= 2


def test_saving_in_jupyterlab_keeps_outputs_beside_the_script_and_the_script_as_it_is(tmp_path):
    pytest.importorskip("jupyterlab", reason="jupyterlab is not installed")
    from jupyter_server.services.contents.largefilemanager import LargeFileManager
    from jupytext.sync_contentsmanager import build_sync_jupytext_contents_manager_class

    shutil.copytree(PROJECT / "notebooks", tmp_path / "notebooks")
    files = build_sync_jupytext_contents_manager_class(LargeFileManager)(root_dir=str(tmp_path))
    book = files.get("notebooks/start_here.py", type="notebook", content=True)
    number = next(i for i, c in enumerate(book["content"]["cells"]) if c["cell_type"] == "code")
    kept = nbformat.v4.new_output("stream", text="explored")
    book["content"]["cells"][number]["outputs"] = [kept]
    files.save(book, "notebooks/start_here.py")
    script = tmp_path / "notebooks/start_here.py"
    assert script.read_text() == (PROJECT / "notebooks/start_here.py").read_text()
    again = files.get("notebooks/start_here.py", type="notebook", content=True)
    assert again["content"]["cells"][number]["outputs"] == [kept]
    ignored = ["git", "check-ignore", "-q", "notebooks/start_here.ipynb"]
    assert subprocess.run(ignored, cwd=PROJECT).returncode == 0


def test_jupyterlab_opens_every_notebook_as_a_notebook(tmp_path):
    """With the user's own settings left alone: the project's are defaults."""
    pytest.importorskip("jupyterlab", reason="jupyterlab is not installed")
    make = (PROJECT / "Makefile").read_text()
    assert 'JUPYTER_CONFIG_PATH="$(CURDIR)/notebooks/.jupyter' in make
    assert "default_url=/lab/tree/notebooks/start_here.py" in make
    settings = {"JUPYTER_CONFIG_PATH": str(PROJECT / "notebooks/.jupyter")}
    settings |= {n: str(tmp_path / n) for n in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.port=0", "--IdentityProvider.token=x", f"--notebook-dir={PROJECT}"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    lab = subprocess.Popen(command, cwd=PROJECT, env=os.environ | settings, **silent)
    try:
        running = tmp_path / "JUPYTER_RUNTIME_DIR"
        until(lambda: list(running.glob("jpserver-*.json")))
        (file,) = running.glob("jpserver-*.json")
        until(lambda: file.read_text())
        root = json.loads(file.read_text())["url"]
        until(lambda: listens(root))
        viewers = answer(root, "lab/api/settings/@jupyterlab/docmanager-extension:plugin")
        assert viewers["settings"] == {}
        defaults = viewers["schema"]["properties"]["defaultViewers"]["default"]
        assert defaults == {"python": "Jupytext Notebook"}
        news = answer(root, "lab/api/settings/@jupyterlab/apputils-extension:notification")
        assert news["schema"]["properties"]["fetchNews"]["default"] == "false"
        kernels = answer(root, "api/kernelspecs")["kernelspecs"]
        for path in sorted((PROJECT / "notebooks").glob("*.py")):
            book = answer(root, f"api/contents/notebooks/{path.name}?type=notebook")
            assert book["content"]["metadata"]["kernelspec"]["name"] in kernels
            assert len(book["content"]["cells"]) > 5
    finally:
        lab.kill()
        lab.wait()


def listens(root):
    place = urllib.parse.urlsplit(root)
    with socket.socket() as tried:
        return tried.connect_ex((place.hostname, place.port)) == 0


def answer(root, path):
    asked = urllib.request.Request(f"{root}{path}", headers={"Authorization": "token x"})
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as reply:
        return json.load(reply)
