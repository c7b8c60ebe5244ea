"""What only PyTorch does, where it needs none; trainings under it are in test_measured_run.py."""

import os
from types import SimpleNamespace

import pytest

from mptexp.spec.run import Run
from mptexp.traces import kineto
from mptexp.training import capability
from mptexp.training.backends import torch


def test_one_device_and_one_step_at_a_time():
    for parameters, reason in (
        ({"replicas": 2}, "Keras shares no batch among devices under PyTorch"),
        ({"steps_per_execution": 4}, "PyTorch in Keras has only 1"),
    ):
        assert reason in torch.unsupported(Run(**parameters), "cpu", "channels_last")
    assert torch.unsupported(Run(), "cpu", "channels_last") == ""
    assert torch.replicas() == torch.copies(None) == torch.device_count("gpu") == 1


def test_a_device_whose_launches_would_be_timed_is_refused(monkeypatch):
    # The lie: 4 µs a step "on the CPU", of steps of 5 ms on Apple's GPU. There is none here.
    without = SimpleNamespace(is_available=lambda: False)
    apple = SimpleNamespace(is_available=lambda: True)
    known = SimpleNamespace(cuda=without, backends=SimpleNamespace(mps=apple), xpu=without)
    monkeypatch.setattr(torch, "torch", known)
    monkeypatch.delenv("KERAS_TORCH_DEVICE", raising=False)
    with pytest.raises(capability.Unsupported, match="PyTorch's mps is neither a CPU nor"):
        torch.gpu()
    monkeypatch.setenv("KERAS_TORCH_DEVICE", "cpu")
    assert torch.gpu() is None


def test_without_an_nvidia_driver_it_takes_the_cpu(monkeypatch):
    monkeypatch.setenv("KERAS_TORCH_DEVICE", "")
    monkeypatch.delenv("KERAS_TORCH_DEVICE")
    monkeypatch.setattr(capability, "driver", lambda: "580.1")
    torch.prepare_environment(Run())
    assert "KERAS_TORCH_DEVICE" not in os.environ
    monkeypatch.setattr(capability, "driver", lambda: None)
    torch.prepare_environment(Run())
    assert os.environ["KERAS_TORCH_DEVICE"] == "cpu"


def test_its_profiler_shows_layers_only_while_it_runs(tmp_path):
    framework = pytest.importorskip("torch", reason="torch is not installed; pip install torch")
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "torch":
        pytest.skip("torch is not installed as the backend of this process")
    before = keras.layers.Layer.__call__
    torch.start_trace(tmp_path)
    with torch.step_marker(1):
        keras.layers.Dense(2, name="mine")(framework.ones(1, 3))
        assert list(torch.traced_input([1])) == [1]
    torch.stop_trace()
    assert keras.layers.Layer.__call__ is before
    text = (tmp_path / kineto.OWN_FILE).read_text()
    assert "ProfilerStep#1" in text
    assert "nn.Module: mine" in text
    assert kineto.OWN_INPUT in text


def test_gradients_of_outputs_and_weights():
    framework = pytest.importorskip("torch", reason="torch is not installed; pip install torch")

    def forward(trained, tap):
        y = tap("layer", trained[0] * 3)
        unused = tap("unused", framework.ones(2))  # not of the weights: no gradient at all
        return (y**2).sum() + 0 * tap("aside", trained[0] * 1).sum() + 0 * unused.sum()

    loss, outputs, gradients = torch.differentiated(forward, [framework.tensor([2.0])])
    assert float(loss) == 36.0
    assert [name for name, _ in outputs] == ["layer", "unused", "aside"]
    known = [g if g is None else g.tolist() for g in gradients]
    assert known == [[12.0], None, [0.0], [36.0]]


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_batch_normalization_in_one_operation(channels_first, dtype, close):
    framework = pytest.importorskip("torch", reason="torch is not installed; pip install torch")
    dtype, shape = getattr(framework, dtype), (1, 3, 1, 1) if channels_first else (1, 1, 1, 3)
    axes = tuple(k for k in range(4) if shape[k] == 1)
    x = framework.randn(8, 3, 5, 4) if channels_first else framework.randn(8, 5, 4, 3)
    x = (3 * x + 1).to(dtype)
    scale, offset = framework.tensor([1.0, 2.0, 0.5]), framework.tensor([0.0, 1.0, -1.0])
    wide = x.float()
    mean, variance = wide.mean(axes), wide.var(axes, correction=0)

    def normalized(mean, variance):
        deviation = (variance + 0.1).rsqrt().view(shape)
        return (wide - mean.view(shape)) * deviation * scale.view(shape) + offset.view(shape)

    y, *batch = torch.fused_batch_norm(x, scale, offset, [], 0.1, channels_first)
    assert y.dtype == dtype
    assert y.shape == x.shape
    assert (y.float() - normalized(mean, variance)).abs().max() < 5 * close
    n = x.numel() / 3
    for own, expected in zip(batch, (mean, variance * n / (n - 1)), strict=True):
        assert own.tolist() == pytest.approx(expected.tolist(), rel=close)
    known = framework.tensor([1.0, 0.0, 2.0]), framework.tensor([4.0, 9.0, 16.0])
    y, *kept = torch.fused_batch_norm(x, scale, offset, known, 0.1, channels_first)
    assert (y.float() - normalized(*known)).abs().max() < 5 * close
    assert [value.tolist() for value in kept] == [[1.0, 0.0, 2.0], [4.0, 9.0, 16.0]]
