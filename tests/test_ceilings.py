import json

import pytest
from forked import python

PROGRAM = """\
import json, sys
from mptexp.spec import Run
run = Run(**json.loads(sys.argv[1]), policy="mixed_bfloat16", image_size=8, width=0.25)
from mptexp import precision
where = precision.use(run)
from mptexp import ceilings, environment, models
model = models.build(run, (8, 8, 1), 10)
card = environment.card(run.backend)
print(json.dumps([ceilings.measured(run, card), ceilings.layer_seconds(run, model, card),
                  ceilings.low_seconds(run, model, card)]))
"""


def measured(backend, held, **environ):
    done = python(PROGRAM, {"backend": backend, "float32_layers": held}, **environ)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_best_of_the_first_runs_is_kept(backend, tmp_path):
    pytest.importorskip(backend)
    first = measured(backend, "conv2d_1", XDG_CACHE_HOME=str(tmp_path))
    device, layers, low = first
    assert device["dtype"] == "bfloat16"
    assert device["matmul_flops_per_s"] > 1e8
    assert device["copy_bytes_per_s"] > 1e8
    assert set(layers) == {"conv2d", "conv2d_1", "conv2d_2", "dense"}
    assert set(low) == {"conv2d_1"}
    assert all(seconds > 0 for seconds in (*layers.values(), *low.values()))
    kept = sorted((tmp_path / "mptexp/ceilings").iterdir())
    assert len(kept) == 7
    # Three values are enough: none is measured again, and the best of them is taken.
    for path in kept:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"values": [42.0, 43.0, 44.0]}))
    device, layers, low = measured(backend, "conv2d_1", XDG_CACHE_HOME=str(tmp_path))
    assert {*layers.values(), *low.values()} == {42.0}
    assert device["matmul_flops_per_s"] == device["copy_bytes_per_s"] == 44.0
    # One that was disturbed is bettered by the next run.
    for path in kept:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"values": [42.0]}))
    device, layers, low = measured(backend, "conv2d_1", XDG_CACHE_HOME=str(tmp_path))
    assert max(*layers.values(), *low.values()) < 42
    assert device["matmul_flops_per_s"] > 1e8
