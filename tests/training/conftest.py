"""What several tests of the training use."""

import json

import pytest
from forked import python


@pytest.fixture
def policy():
    """Sets Keras's dtype policy for one test."""
    import keras

    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy("float32")


PROGRAM = """
import json, sys
from mptexp.training import precision
from mptexp.training.effective_settings import effective
from mptexp.spec.run import Run

def again(run):
    try:
        precision.use(run)
        return ""
    except Exception as error:
        return str(error)

run = Run(**{"width": 0.1, "image_size": 16, **json.loads(sys.argv[1])})
try:
    where = precision.use(run)
    from mptexp.training import models
    model = models.build(run, (16, 16, 1), 10)
    precision.compile_model(model, run)
    said = effective(model, run, where)
    said |= {"optimizer": model.optimizer.get_config()}
    said["again"] = [again(run.model_copy(update=json.loads(text))) for text in sys.argv[2:]]
except Exception as error:
    said = {"error": f"{type(error).__name__}: {error}"}
print(json.dumps(said))
"""


@pytest.fixture
def ask():
    """What a process says of the first parameters, and of a change to each of the others."""

    def asked(*parameters, **environ):
        done = python(PROGRAM, *parameters, **environ)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return asked
