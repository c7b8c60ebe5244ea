from mptexp.diagnosis import kernel_arithmetic


def test_onednns_account_by_instructions():
    primitives = [
        {"primitive": "convolution", "implementation": "brg_conv_fwd:avx512_core_bf16",
         "dtype": "bf16", "seconds": 2e-3, "count": 3.0},
        {"primitive": "convolution", "implementation": "jit:avx512_core_bf16",
         "dtype": "bf16", "seconds": 1e-3, "count": 1.0},
        {"primitive": "reorder", "implementation": "jit:uni",
         "dtype": "f32, bf16", "seconds": 1e-3, "count": 2.0},
    ]  # fmt: skip
    table = kernel_arithmetic.instructions({"profile": {"primitives": primitives}})
    assert table.instructions.tolist() == ["avx512_core_bf16", "uni"]
    assert table.share.tolist() == [0.75, 0.25]
    assert kernel_arithmetic.instructions({"profile": {}}).empty
    assert kernel_arithmetic.instructions({}).empty


def test_reference_code_is_no_instruction_set():
    names = ["ref:any", "jit:uni"]
    rows = [
        {"primitive": "convolution", "implementation": n, "dtype": "f16", "seconds": 1, "count": 1}
        for n in names
    ]
    table = kernel_arithmetic.instructions({"profile": {"primitives": rows}})
    assert sorted(table.instructions) == [kernel_arithmetic.REFERENCE, "uni"]
