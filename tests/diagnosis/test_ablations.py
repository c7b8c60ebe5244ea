from mptexp.diagnosis import ablations
from mptexp.spec.run import Run

BASELINE = Run(gpu_model="GPU", policy="tensorfloat32", batch_size=32)
CANDIDATE = BASELINE.model_copy(update={"policy": "mixed_bfloat16"})


def test_strict_float32_changes_the_baseline_alone():
    changed, same = ablations.STRICT.variants(BASELINE, CANDIDATE)
    assert changed.policy == "float32"
    assert same == CANDIDATE


def test_a_layer_in_float32_changes_the_candidate_alone():
    ablation = ablations.in_float32("conv", "float32", 0.2)
    same, changed = ablation.variants(BASELINE, CANDIDATE)
    assert same == BASELINE
    assert changed.float32_layers == "conv"
    assert (ablation.name, ablation.share) == ("conv in float32", 0.2)
    # Two changes at once, once: what was in float32 before went back to 16 bits.
    kept = CANDIDATE.model_copy(update={"float32_layers": "head"})
    assert ablation.variants(BASELINE, kept)[1].float32_layers == "head,conv"


def test_a_batch_is_doubled_and_the_rest_is_set():
    assert [r.batch_size for r in ablations.BATCH.variants(BASELINE, CANDIDATE)] == [64, 64]
    variants = ablations.EXECUTION.variants(BASELINE, CANDIDATE)
    assert [run.steps_per_execution for run in variants] == [16, 16]
