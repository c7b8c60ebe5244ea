"""What only the plain loop in PyTorch does; it beside Keras is in test_loop.py."""

import shutil

import pytest

pytest.importorskip("torch", reason="torch is not installed; pip install torch")


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("window", [2, 3, 5])
def test_same_pads_more_behind(size, stride, window):
    import torch

    from mptexp.training.frontends.native_torch import Same

    padded = Same((window, window), (stride, stride), (1, 1))(torch.ones(1, 1, size, size))
    places = (padded.shape[-1] - window) // stride + 1
    assert places == -(-size // stride)
    before = int((padded[0, 0].sum(0) == 0).int().argmin())
    behind = padded.shape[-1] - size - before
    assert behind - before in (0, 1)


def test_torch_compile_is_jit_on(side_by_side):
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    asked = {"backend": "torch", "jit": "on", "epochs": 1, "max_steps": 7, "image_size": 8}
    (said,) = side_by_side(asked, {"model": "mlp", "width": 0.02})
    assert said["settings"]["jit"] is True
    assert said["gradients"] < 1e-5
    assert said["updates"] < 5e-3
    (said,) = side_by_side(asked | {"phase": "inference"}, {"model": "mlp", "width": 0.02})
    assert said["settings"]["jit"] is True
    assert said["in_a_row"] < 1e-5


def test_compiling_without_a_compiler_is_refused(monkeypatch):
    from mptexp.spec.run import Run
    from mptexp.training.backends import torch

    assert torch.unsupported(Run(jit="on"), "cpu", "channels_last") == "" or not shutil.which("g++")
    monkeypatch.setenv("CXX", "/nowhere/g++")
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", (None, "/nowhere/g++"))
    said = torch.unsupported(Run(jit="on"), "cpu", "channels_last")
    assert "torch.compile under PyTorch, which needs a C++ compiler" in said
