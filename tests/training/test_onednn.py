"""The limit on oneDNN's instructions, in processes of their own, and its log."""

import json
import os

import pytest
from forked import python

from mptexp.host.devices import CPU_ISAS, cpuinfo
from mptexp.spec.run import Run
from mptexp.training import capability, onednn
from mptexp.training.backends import tensorflow

HAS = {name: flag in cpuinfo("flags", "Features").split() for name, flag in CPU_ISAS.items()}

BY_DEFAULT = bool({"avx512_vnni", "avx_vnni"} & set(cpuinfo("flags").split()))
x86 = pytest.mark.skipif(not HAS["avx2"], reason="this CPU has no AVX2")

ISA = """
import os, sys
from mptexp.training import precision
from mptexp.spec.run import Run
run = Run(width=0.1, image_size=16, cpu_isa=sys.argv[1])
where = precision.use(run)
import numpy as np
from mptexp.training import models
model = models.build(run, (16, 16, 1), 10)
precision.compile_model(model, run)
model.fit(np.zeros((4, 16, 16, 1), np.uint8), np.zeros(4), verbose=0)
"""


CARD = """
import json
from mptexp.training import environment
known = environment.diagnosis("tensorflow")
print(json.dumps({name: known[name] for name in ("onednn", "advice")}))
"""


def kernels(isa):
    """What oneDNN says of a step under this limit: its instructions, its convolutions' code."""
    # In a process that starts anew, where the run itself turns oneDNN on.
    told = python(ISA, isa, ONEDNN_VERBOSE="1", ANEW="1").stdout.splitlines()
    says = [line.split("isa:")[1] for line in told if "info,cpu,isa:" in line]
    convolutions = [line.split(",") for line in told if ",exec,cpu,convolution," in line]
    return says, {words[words.index("convolution") + 1] for words in convolutions}


@x86
def test_the_limit_of_the_cpus_instructions_is_in_force():
    says, used = kernels("sse41")
    assert says == ["Intel SSE4.1"]
    assert used
    assert not [name for name in used if "avx" in name]
    says, used = kernels("avx2")
    assert says == ["Intel AVX2"]
    assert [name for name in used if "avx2" in name]
    assert not [name for name in used if "avx512" in name]


@x86
@pytest.mark.parametrize("isa", ["sse41", "avx512_core" if HAS["avx512_core"] else "avx2"])
def test_the_limit_is_read_back(ask, isa):
    policy = "mixed_bfloat16" if isa == "avx512_core" else "mixed_float16"
    said = ask({"cpu_isa": isa, "policy": policy}, ANEW="1")
    assert said["cpu_isa"] == isa
    assert said["emulated"] is True


@x86
def test_a_limit_on_what_was_imported_without_onednn_is_refused():
    # Its own child process would have read the limit back, though nothing here heeds it.
    program = f"import tensorflow\n{ISA}"
    said = python(program, "avx2", ANEW="1").stderr
    if BY_DEFAULT:
        assert "Unsupported" not in said
    else:
        assert "Unsupported: cpu_isa avx2 limits oneDNN, which TensorFlow was imported with" in said


@pytest.mark.parametrize("switch", ["0", "1"])
def test_whether_onednn_computes_is_known_and_said(switch):
    card = json.loads(python(CARD, TF_ENABLE_ONEDNN_OPTS=switch).stdout.splitlines()[-1])
    assert card["onednn"] is (switch == "1")
    assert (tensorflow.WITHOUT_ONEDNN in card["advice"]) is (switch == "0")


def test_a_limit_that_the_cpu_has_not_is_unsupported(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(onednn, "cpuinfo", lambda *names: "sse4_1 avx avx2")
    with pytest.raises(capability.Unsupported, match="avx512_core is asked for, but this CPU"):
        onednn.limit(Run(cpu_isa="avx512_core"))
    assert "ONEDNN_MAX_CPU_ISA" not in os.environ


def test_onednns_log_becomes_rows_per_step():
    lines = [
        "onednn_verbose,v1,info,cpu,isa:Intel AVX-512",
        "onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core_bf16,"
        "forward_training,src:bf16::blocked:acdb::f0 wei:bf16:a:blocked:Adcb16a::f0 "
        "dst:bf16::blocked:acdb::f0,,alg:convolution_direct,mb32,1.5",
        "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:ab::f0 "
        "dst:bf16::blocked:ba::f0,,,32x32,0.5",
        "onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef,src_f32::blocked:ab:f0 "
        "wei_f32::blocked:ab:f0 dst_f32::blocked:ab:f0,,,32x10:10x128,0.25",
        "something else",
    ]
    found = onednn.primitives(lines, steps=2)
    assert [row["primitive"] for row in found] == ["convolution", "reorder", "gemm_api"]
    assert found[0]["implementation"] == "brg_conv_fwd:avx512_core_bf16"
    assert [row["dtype"] for row in found] == ["bf16", "f32, bf16", "f32"]
    assert found[0]["seconds"] == pytest.approx(0.75e-3)
    assert found[1]["count"] == 0.5


def test_reference_code_is_told_by_its_name_in_the_log():
    def line(kind, implementation, way):
        types = "src:f16::blocked:acdb::f0 wei:f16:a:blocked:abcd::f0 dst:f16::blocked:acdb::f0"
        return f"onednn_verbose,v1,primitive,exec,cpu,{kind},{implementation},{way},{types},,,mb4,9"

    log = [
        line("convolution", "brg_conv_fwd:avx10_1_512", "forward_training"),
        line("convolution", "ref:any", "backward_weights"),
        line("convolution", "ref:any", "forward_inference"),
        line("matmul", "ref:any", "undef"),
        line("matmul", "brg_matmul:avx10_1_512", "undef"),
        line("reorder", "ref:any", "undef"),  # neither a convolution nor a product
        line("softmax", "prefer:any", "forward_training"),
    ]
    met = onednn._by_reference(log)
    known = ["convolution forward", "convolution backward_weights", "matmul"]
    assert [name for name in onednn.CODE if name in met] == known


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_this_cpu_has_no_kernels_for_is_found_and_kept(dtype, monkeypatch, tmp_path):
    # A CPU with AVX512_FP16 took 9.3 s for what takes float32 0.02 s, and nothing said why.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked, shown = onednn._log, list[str]()

    def log(*words):  # what the process said, to be read once more here
        lines, whole = asked(*words)
        shown.extend(lines)
        return lines, whole

    monkeypatch.setattr(onednn, "_log", log)
    found = onednn.reference.__wrapped__("tensorflow", dtype)
    weights = [row for row in shown if ",backward_weights," in row]
    assert weights or dtype == "float16"  # which oneDNN may not take at all
    by_reference = any(",convolution,ref:any," in row for row in weights)
    assert ("convolution backward_weights" in found) is by_reference
    assert dtype == "float16" or not found
    file = next((tmp_path / "mptexp" / "onednn").glob("*.json"))
    monkeypatch.setattr(onednn, "_log", lambda *asked: ([], True))
    assert onednn.reference.__wrapped__("tensorflow", dtype) == found
    file.write_text("[3")
    assert onednn.reference.__wrapped__("tensorflow", dtype) == {}


@pytest.mark.parametrize("ends", ["os.kill(os.getpid(), 9)", "time.sleep(60)"])
def test_what_a_process_that_was_ended_did_not_say_is_not_kept(ends, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tensorflow, "ONEDNN_PROGRAM", f"import os, time; {ends}")
    monkeypatch.setattr(onednn, "LONGEST_S", 3)
    assert onednn.reference.__wrapped__("tensorflow", "float16") == {}
    assert not [*tmp_path.rglob("*.json")]


def test_where_xla_compiles_all_onednn_is_not_asked():
    assert onednn.reference("jax", "float16") == {}
