import numpy as np
import pandas as pd

from mptexp.analysis import points


def test_policies_are_ranked_as_the_design_lists_them():
    table = pd.DataFrame({"policy": ["mixed_bfloat16", "float32", "mixed_float16"]})
    order = table.sort_values("policy", key=points.rank).policy.tolist()
    assert order == ["float32", "mixed_float16", "mixed_bfloat16"]


def test_settings_are_ordered_by_their_numbers():
    settings = pd.Series(["loss_scale dynamic", "loss_scale 128", "loss_scale 8"], name="setting")
    order = settings.sort_values(key=points.rank).tolist()
    assert order == ["loss_scale 8", "loss_scale 128", "loss_scale dynamic"]


def test_values_of_a_point_are_aligned_by_block():
    runs = pd.DataFrame(
        {
            "model": "m",
            "policy": ["float32", "float16", "float32"],
            "default_policy": "float32",
            "block": [0, 1, 1],
            "step_s": [1.0, 2.0, 3.0],
        }
    )
    ((_, default, values),) = points.by_block(runs, "step_s", ["model"])
    assert (default, points.baselines(default, values)) == ("float32", ["float32"])
    assert values["float32"].tolist() == [1, 3]
    assert np.isnan(values["float16"][0])
    assert values["float16"][1] == 2
