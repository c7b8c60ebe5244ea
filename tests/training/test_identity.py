"""The identity of a run: what it changes with, and what it does not."""

import json
import sys
from types import ModuleType

import pytest
from forked import python

from mptexp.execution import preparation
from mptexp.spec.run import Run
from mptexp.training import identity

PROGRAM = """
import json, sys
from mptexp import Run, training
run = Run(**json.loads(sys.argv[1]))
device = training.use(run)
images = training.load_images(run)
training.save(training.execute(run, training.build(run, images), images, device))
"""
SMALL = {"image_size": 8, "batch_size": 128, "epochs": 1, "model": "mine:build"}
MINE = """
import keras
from keras import layers
import parts

def build(shape, classes):
    x = entry = keras.Input(shape)
    x = parts.activated(layers.Flatten()(x))
    x = layers.Dense(classes)(x)
    return keras.Model(entry, layers.Activation("softmax", dtype="float32")(x))
"""
PARTS = """
from keras import layers
def activated(x):
    return layers.Activation("{}")(layers.Dense(8)(x))
"""


def write(folder, activation):
    (folder / "mine.py").write_text(MINE)
    (folder / "parts.py").write_text(PARTS.format(activation))


def train(folder, activation="gelu", **environ):
    folder.mkdir(exist_ok=True)
    write(folder, activation)
    said = python(PROGRAM, SMALL, cwd=folder, MPTEXP_RUN_DIR=str(folder / "run"), **environ)
    assert said.returncode == 0, said.stderr
    return json.loads((folder / "run/record.json").read_text())["identity"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return train(tmp_path_factory.mktemp("mine"))


def differing(one, other):
    return [name for name in one if one[name] != other[name]]


def test_the_same_run_elsewhere_has_the_same_identity(first, tmp_path):
    assert differing(first, train(tmp_path / "elsewhere")) == []


def test_what_is_known_beforehand_is_what_the_run_then_says(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")  # a process without modules of these tests
    said = train(tmp_path)
    monkeypatch.chdir(tmp_path)
    (known,) = preparation.identities([Run(**SMALL)])
    assert {"code", "model_source", "data", "versions", "cores", "variables"} <= set(known)
    assert known == {name: said[name] for name in known}
    # The lie that was told: edited while the sweep was stopped. Now it is said before a run.
    write(tmp_path, "relu")
    (edited,) = preparation.identities([Run(**SMALL)])
    assert differing(known, edited) == ["model_source"]


def test_a_module_that_the_users_model_imports_is_part_of_it(first, tmp_path):
    # The lie that was told: the user's model was edited while a sweep was stopped.
    assert differing(first, train(tmp_path / "edited", "relu")) == ["model_source", "network"]


# What a user's function might do under one policy alone, or on some days: fewer layers, layers that
# are not trained, another activation.
CHEATS = {
    "fewer layers": "x = x if mixed else layers.Dense(64)(layers.Dense(64)(x))",
    "frozen": "x = layers.Dense(64, trainable=not mixed)(x)",
    "no gradient": "x = layers.Dense(64)(ops.stop_gradient(y) if mixed else y)",
    "activation": "x = layers.Activation('relu' if mixed else 'gelu')(x)",
    "honest": "x = layers.Activation('relu')(layers.Dropout(0.1)(layers.Dense(64)(x)))",
}
CHEATING = """
import keras
from keras import layers, ops

def build(shape, classes):
    mixed = "bfloat16" in {}
    entry = keras.Input(shape)
    y = x = layers.Dense(64)(layers.Flatten()(entry))
    {}
    x = layers.Dense(classes)(x)
    return keras.Model(entry, layers.Activation("softmax", dtype="float32")(x))
"""


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_model_that_does_other_work_under_one_policy_is_another(tmp_path, cheat):
    (tmp_path / "theirs.py").write_text(
        CHEATING.format("keras.config.dtype_policy().name", CHEATS[cheat])
    )
    known = []
    for policy in ("float32", "mixed_bfloat16"):
        asked = SMALL | {"model": "theirs:build", "policy": policy}
        said = python(PROGRAM, asked, cwd=tmp_path, MPTEXP_RUN_DIR=str(tmp_path / policy))
        assert said.returncode == 0, said.stderr
        known.append(json.loads((tmp_path / policy / "record.json").read_text())["identity"])
    unlike = set(differing(*known)) - {"initial_weights"}
    assert bool(unlike) == (cheat != "honest")
    assert unlike <= {"network", "products_flops"}


def test_variables_that_choose_arithmetic_are_part_of_it(first, tmp_path):
    # Strict is the default: another mode is refused where this processor then rounds to it.
    other = train(tmp_path / "mode", ONEDNN_DEFAULT_FPMATH_MODE="STRICT")
    assert differing(first, other) == ["variables"]
    assert other["variables"]["ONEDNN_DEFAULT_FPMATH_MODE"] == "STRICT"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "MALLOC_ARENA_MAX", "JAX_DISABLE_JIT"])
def test_variables_that_change_speed_or_memory_are_part_of_it(name):
    code = "from mptexp.training import identity; print(identity.variables())"
    said = python(code, **{name: "1" if name != "LD_PRELOAD" else ""})
    assert said.returncode == 0, said.stderr
    assert f"'{name}': " in said.stdout


def test_keras_configuration_is_part_of_it_and_changes_no_arithmetic(first, tmp_path):
    (tmp_path / "keras.json").write_text('{"floatx": "float16", "epsilon": 1e-3}')
    other = train(tmp_path / "config", KERAS_HOME=str(tmp_path))
    assert differing(first, other) == ["keras_config"]
    assert other["keras_config"]["floatx"] == "float16"


@pytest.mark.parametrize("text", ["", "[1]", "not JSON"])
def test_a_configuration_that_cannot_be_read_is_none(tmp_path, monkeypatch, text):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "keras.json").write_text(text)
    assert set(identity.keras_config().values()) == {None}


def test_a_model_of_the_packages_has_no_source():
    assert identity.model_source("lenet") == ""


def test_installed_modules_are_not_the_users(monkeypatch, tmp_path):
    before = identity.model_source("mine:build")
    path = tmp_path / "more.py"
    path.write_text("x = 1")
    monkeypatch.setitem(sys.modules, "more", type("Module", (), {"__file__": str(path)}))
    after = identity.model_source("mine:build")
    assert after != before
    monkeypatch.setitem(sys.modules, "more", type("Module", (), {"__file__": json.__file__}))
    assert identity.model_source("mine:build") == before


def test_an_installed_package_that_holds_the_model_is_part_of_it(monkeypatch, tmp_path):
    # The lie: a model in site-packages was edited between two runs, and nothing said so.
    monkeypatch.setattr(identity, "_installed", lambda: (tmp_path,))
    part = tmp_path / "layers.py"
    part.write_text("N = 1")
    module = type("Module", (), {"__file__": str(part)})
    monkeypatch.setitem(sys.modules, "acme.layers", module)
    before, another = identity.model_source("acme:build"), identity.model_source("mine:build")
    part.write_text("N = 400")
    module.__spec__ = "as another process imports it"
    assert identity.model_source("acme:build") != before
    assert identity.model_source("mine:build") == another


TWICE = """
import json, pathlib, sys
from mptexp import Run, training
from mptexp.training import identity
run = Run(**json.loads(sys.argv[1]))
device = training.use(run)
images = training.load_images(run)
network = training.build(run, images)
before = identity.model_source(run.model)
file = pathlib.Path("parts.py")
file.write_text(file.read_text() + "# edited")
outcome = training.execute(run, network, images, device)
said = [outcome.peak_memory_bytes, identity.model_source(run.model) == before]
try:
    training.build(run, images)
except ValueError as error:
    said.append(str(error))
file.write_text(file.read_text().removesuffix("# edited"))
again = training.execute(run, training.build(run, images), images, device)
print(json.dumps([*said, again.peak_memory_bytes]))
"""


def test_a_second_run_in_a_kernel_says_nothing_of_the_first_ones(tmp_path):
    # The lies: the edited file as the source of a network that the old code had built; and the
    # peak memory of a larger run before it.
    write(tmp_path, "relu")
    done = python(TWICE, SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, as_imported, refused, second = json.loads(done.stdout.splitlines()[-1])
    assert as_imported
    assert "parts.py has changed since this kernel imported it" in refused
    assert refused.endswith("restart the kernel")
    assert first > 2**27
    assert second is None or second > first


def test_a_script_beside_the_model_from_which_it_is_run_is_no_error(tmp_path, monkeypatch):
    # It has no spec, and was taken for read: a KeyError from the first script of one's own.
    script = ModuleType("script")
    script.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text("x = 1\n")
    monkeypatch.setitem(sys.modules, "script", script)
    assert identity.edited("mine:build") == ""
    identity.model_source("mine:build")
    (tmp_path / "script.py").write_text("x = 2\n")
    assert identity.edited("mine:build") == "script.py"
