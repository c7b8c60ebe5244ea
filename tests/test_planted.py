"""Planted causes at real scale on this CPU: the verdict names them first, and their share.

A planted share is measured without the ledger: 1 - (step without the cause) / (step with it).
"""

import io

import numpy as np
import pytest
from conftest import mptexp
from PIL import Image

from mptexp import analysis, diagnose, store
from mptexp.spec import Run

NOTEBOOK = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
# %% tags=["parameters"]
{parameters}
# %%
import dataclasses, io, time
import numpy as np
from PIL import Image
from mptexp.spec import Run
run = Run.read(globals())
from mptexp import precision
where = precision.use(run)
from mptexp import data, models, train
images = data.load(run)

class Planted:
    def __init__(self, pictures):
        self.pictures, self.shape = pictures, pictures.shape
    def __len__(self):
        return len(self.pictures)
    def __getitem__(self, chosen):
        {plant}

if {planted}:
    images = dataclasses.replace(images, train_x=Planted(images.train_x))
network = models.build(run, images.shape, len(images.classes))
train.save(train.fit(run, network, images, where))
"""

# Convolutions at which 16 bits help on a CPU that has them, and nothing else of weight.
MODELS = """\
import keras
from keras import layers

def _net(shape, classes, held=None, wide=0):
    x = pictures = layers.Input(shape)
    for i in range(3):
        dtype = "float32" if held == i else None
        x = layers.Conv2D(96, 5, padding="same", activation="relu", name=f"conv{i}", dtype=dtype)(x)
        x = layers.MaxPooling2D()(x) if i < 2 else x
    x = layers.GlobalAveragePooling2D()(x)
    for _ in range(wide):
        x = layers.Dense(2600, activation="relu")(x)
    x = layers.Dense(classes)(x)
    return keras.Model(pictures, layers.Activation("softmax", dtype="float32")(x))

def plain(shape, classes):
    return _net(shape, classes)

def held(shape, classes):
    return _net(shape, classes, held=1)

def wide(shape, classes):
    return _net(shape, classes, wide=3)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted_models.py").write_text(MODELS)
    return folder


def diagnosed(place, name, matrix, defaults, plant="", options=("--traces-only",)):
    """Diagnoses a sweep whose notebook holds a planted cause; median steps by policy, verdicts."""
    lines = [f"{key} = {field.default!r}" for key, field in Run.model_fields.items()]
    notebook = NOTEBOOK.format(
        parameters="\n".join(lines), plant=plant or "pass", planted=bool(plant)
    )
    (place / f"{name}.py").write_text(notebook)
    usual = {"image_size": 32, "batch_size": 32, "epochs": 9, "max_steps": 60, "jit": "off"}
    settings = usual | {"model": "planted_models:plain"} | defaults
    text = f"notebook: {name}.py\ndefaults: {settings}\nmatrix: {matrix}\n"
    (place / f"{name}.yaml").write_text(text.replace("'", ""))
    done = mptexp("diagnose", f"{name}.yaml", "--no-report", *options, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    directory = store.SweepDir(place / "reports" / name)
    tables = analysis.load(directory)
    assert (tables.results.status == "ok").all(), tables.results.error
    steps = tables.ok.set_index("policy").step_s
    return steps, diagnose.verdicts(directory, tables)


BOTH = {"policy": ["float32", "mixed_bfloat16"]}


@pytest.fixture(scope="module")
def plain(place):
    """Nothing planted."""
    return diagnosed(place, "nothing", BOTH, {})


def report(name, found, planted):
    first = found.causes[0]
    print(f"\nPLANTED {name} | {first.name} | {planted:.3f} | {first.share:.3f}")
    return first


def test_with_nothing_planted_it_accuses_nothing(plain):
    _, (found,) = plain
    assert not found.accused, found.causes
    assert found.unexplained < 0.03


def test_a_pipeline_that_sleeps(place, plain):
    sleeping = "time.sleep(0.3); return self.pictures[chosen]"
    steps, (found,) = diagnosed(place, "sleeping", BOTH, {"max_steps": 30}, sleeping)
    planted = 1 - plain[0].mixed_bfloat16 / steps.mixed_bfloat16
    first = report("a pipeline that sleeps", found, planted)
    assert first.name == "input"
    assert first.share == pytest.approx(planted, abs=0.1)
