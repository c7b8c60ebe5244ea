"""Prepares a sweep's data and tries its models before any Jupyter kernel starts.

`python -m mptexp.training.prepare FOLDER` is the sweep's child process: it reads from
FOLDER/runs.json one run for each dataset and model, and leaves a sentence in FOLDER/error.txt where
something is wrong, else what is known of their identity in FOLDER/identities.json. With `--look`
behind FOLDER it prepares nothing: whoever plans is told of a mistake in seconds.
"""

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from mptexp.spec.names import MODELS
from mptexp.spec.run import Run
from mptexp.training import identity, precision
from mptexp.training.data import datasets
from mptexp.training.data.sources import DataError


def prepare(run: Run) -> dict[str, Any]:
    """Prepares the run's images, and builds the model once where the user may be mistaken in it.

    Returns:
        What is known of its identity.

    Raises:
        sources.DataError, models.ModelError: where one of them cannot be used.
    """
    images = datasets.load(run)
    known = identity.beforehand(run) | {"data": images.content}
    for note in images.notes:
        print(f"{run.dataset}: {note}", flush=True)
    _try_model(run, images.shape, len(images.classes))
    if run.model not in MODELS and importlib.util.find_spec(run.backend):
        known["model_source"] = identity.model_source(run.model)
    return known


def look(run: Run) -> None:
    """Looks at the run's data and builds the model as `prepare` does, but prepares no images.

    Raises:
        sources.DataError, models.ModelError: where one of them cannot be used.
    """
    seen = datasets.at_a_glance(run)
    if seen:
        _try_model(run, *seen)


def _try_model(run: Run, shape: tuple[int, int, int], classes: int) -> None:
    """Builds a model that is the user's own, or has layers that they name.

    Their own under a mixed policy, which shows whether its last layer is in float32. Its values are
    looked at as they are without emulated formats, which it is then asked to take.
    """
    if not run.names_own or not importlib.util.find_spec(run.backend):
        return
    os.environ["KERAS_BACKEND"] = run.backend
    precision.load(run.backend)
    import keras

    from mptexp.training import models, user_model

    keras.config.set_dtype_policy("mixed_bfloat16")
    plain = run.model_copy(update={"propagation": "policy", "weight_format": "policy"})
    model = models.build(plain, shape, classes)
    if run.model not in MODELS:
        user_model.check_values(plain, model)
    if plain != run:
        models.build(run, shape, classes)


def main() -> None:
    """Prepares what the folder named on the command line asks for."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is begun is put away
    folder = Path(sys.argv[1])
    try:
        asked = json.loads((folder / "runs.json").read_text())
        verb = look if sys.argv[2:] == ["--look"] else prepare
        known = [verb(Run(**parameters)) for parameters in asked]
        (folder / "identities.json").write_text(json.dumps(known))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (DataError, ValueError) as error:
        (folder / "error.txt").write_text(str(error), encoding="utf-8", errors="backslashreplace")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
