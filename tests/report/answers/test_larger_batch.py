"""What a policy gains where its baseline has no memory: at a larger batch."""

import pytest
from builders import reaching, record, tables

from mptexp.analysis import memory
from mptexp.records.schema import AT_ONCE
from mptexp.report.answers import findings, larger_batch, published_claims
from mptexp.report.first_screen import question

MIXED = "mixed_bfloat16"


def sweep(same=1.0, large=2.0, base="oom", **mixed):
    """float32 at 32 alone, a mixed policy at 32 and 128: images/s over those of float32."""
    rows = []
    for block, noise in enumerate((1.0, 1.01, 0.99)):
        rows += [record(block=block, step_s=0.1), record(MIXED, block, 0.1 / same * noise**9)]
        rows.append(record(MIXED, block, 0.4 / large * noise, batch_size=128, **mixed))
        whole = record(block=block, step_s=0.4, batch_size=128)
        rows.append(whole if base == "ok" else lost(whole, base))
    return tables(rows)


def lost(whole, status):
    kept = ("schema", "run_id", "parameters", "invocation", "boot")
    own = {name: whole[name] for name in kept if name in whole}
    return own | {"status": status, "error": "no room"}


def test_a_gain_that_memory_alone_brings_is_the_answer():
    # The lie: "mixed_bfloat16 is not shown to train faster than float32"; "keep float32".
    made = sweep()
    subject = question.of(made)
    assert subject.title == (
        "mixed_bfloat16 at batch size 128, where float32 runs out of memory, trains 2.00× faster "
        "than float32 at 32 on GPU"
    )
    assert subject.advice.startswith("use **mixed_bfloat16** at batch size 128, where float32 runs")
    first = findings.answer(made)[0]
    assert first.startswith("Inconclusive")
    (row,) = larger_batch.gains(made).to_dict("records")
    assert first.endswith(
        "Each at its best batch size: **mixed_bfloat16** at batch size 128, where float32 "
        f"runs out of memory, trains 2.00× faster [{row['low']:.2f}, {row['high']:.2f}] than "
        "float32 at 32."
    )
    assert subject.bars[-1].label == "mixed_bfloat16, batch size 128 (float32: 32)"
    assert (subject.bars[-1].value, subject.bars[-1].finding) == (row["speedup"], "faster")


def test_what_gains_at_the_same_batch_too_stays_the_title():
    subject = question.of(sweep(same=1.5))
    assert subject.title.startswith("mixed_bfloat16 trains 1.50× faster than float32")
    assert "Each at its best batch size" in subject.sentences[0]
    assert subject.advice.startswith("use **mixed_bfloat16**")


def test_nothing_at_all_at_the_same_batch_is_no_reason_for_silence():
    made = sweep()
    alone = made.results[(made.results.policy == MIXED) & (made.results.batch_size == 32)]
    rows = [r for r in made.records if r["run_id"] not in set(alone.run_id)]
    subject = question.of(tables(rows))
    assert "at batch size 128, where float32 runs out of memory" in subject.title
    assert subject.sentences[0].startswith("Each at its best batch size: ")
    assert [bar.finding for bar in subject.bars] == ["faster"]


@pytest.mark.parametrize(
    "changes", [{"large": 1.0}, {"large": 0.9}, {"base": "failed"}, {"base": "ok"}]
)
def test_without_a_gain_or_a_lack_of_memory_nothing_is_said(changes):
    made = sweep(**changes)
    assert larger_batch.sentence(made) == ""
    assert "memory" not in question.of(made).title


def test_no_gain_counts_of_a_policy_that_loses_accuracy():
    made = sweep()
    rows = [dict(r) for r in made.records]
    for r in rows:
        if r["parameters"]["policy"] == MIXED:
            r["history"] = [epoch | {"val_accuracy": 0.3} for epoch in r["history"]]
    worse = tables(rows)
    assert larger_batch.gains(worse).empty
    assert "keep" in question.of(worse).advice


@pytest.mark.parametrize("status", ["diverged", "oom", "killed"])
def test_no_gain_counts_where_runs_of_the_larger_batch_have_no_result(status):
    # The lie: "use mixed_float16 at batch size 128", where two of five runs of it diverged.
    made = sweep()
    bad = [record(MIXED, block, 0.2, batch_size=128) for block in (3, 4)]
    assert len(larger_batch.gains(made)) == 1
    assert larger_batch.gains(tables([*made.records, *(lost(r, status) for r in bad)])).empty


def test_no_gain_counts_where_the_larger_batch_learns_less():
    made = sweep()
    rows = [
        reaching(r, 0.5)
        if r["parameters"]["policy"] == MIXED and r["parameters"]["batch_size"] == 128
        else r
        for r in made.records
    ]
    assert len(larger_batch.gains(made)) == 1
    assert larger_batch.gains(tables(rows)).empty


def test_records_that_may_not_be_relied_on_show_no_lack_of_memory():
    made = sweep()
    rows = [dict(r) for r in made.records]
    for r in rows:  # edited from `failed`
        if r["status"] == "oom":
            r["changed"] = True
    assert larger_batch.sentence(tables(rows)) == ""


def test_the_default_that_was_not_measured_is_to_be_measured_first():
    # The lie of a gain over strict float32, where TF32 is what a user has.
    rows = [dict(r) for r in sweep().records]
    for r in rows:
        if "in_force" in r:
            r["in_force"] = r["in_force"] | {"default_policy": "tensorfloat32"}
    subject = question.of(tables(rows))
    assert "2.00× faster than strict float32 at 32 on GPU" in subject.title
    assert subject.advice.startswith("measure TF32")
    assert "before you use **mixed_bfloat16**" in subject.advice


def test_each_device_is_named_once():
    rows = []
    for name in ("A100", "T4"):
        for r in sweep(large=2.0 if name == "A100" else 3.0).records:
            own = r | {"parameters": r["parameters"] | {"gpu_model": name}}
            rows.append(own | {"run_id": f"{name}-{r['run_id']}"})
    made = tables(rows)
    assert larger_batch.title(made).count("T4") == 1
    said = larger_batch.sentence(made)
    assert said.index("** on T4 at batch size 128") < said.index("** on A100 at batch size 128")


def another(rows, **parameters):
    """The same runs of another point, at which float32 has room for the larger batch."""
    for block in range(3):
        for policy, size, step_s in ((None, 32, 0.1), (None, 128, 0.4), (MIXED, 128, 0.4)):
            made = record(policy or "float32", block, step_s, batch_size=size)
            made["parameters"] |= parameters
            made["run_id"] = f"{made['run_id']}-{parameters}"
            rows.append(made)
    return rows


@pytest.mark.parametrize(
    ("parameters", "there"), [({"model": "lenet"}, "keydana"), ({"gpu_model": "A100"}, "on GPU")]
)
def test_what_had_no_memory_is_told_from_what_had(parameters, there):
    # The lie: "where float32 runs out of memory", of two networks of which one fits.
    made = tables(another([dict(r) for r in sweep().records], **parameters))
    said = [larger_batch.sentence(made), larger_batch.advice(made), larger_batch.title(made)]
    assert all(there in text for text in said)


def test_a_batch_that_float32_ran_without_xla_is_no_lack_of_memory():
    # The lie: "at batch size 128, where float32 runs out of memory, … than float32 at 128".
    rows = []
    for r in sweep(base="ok", large=2.0).records:
        rows.append(dict(r))
        if r["parameters"]["batch_size"] == 128 and r["parameters"]["policy"] == "float32":
            out = lost(r, "oom") | {"run_id": f"{r['run_id']}-jit"}
            rows.append(out | {"parameters": r["parameters"] | {"jit": "on"}})
    assert larger_batch.sentence(tables(rows)) == ""


def ending(*statuses):
    """The records of `sweep`, of which float32's at the larger batch end so, block by block."""
    rows = []
    for r in sweep(base="ok", large=8.0).records:
        known = r["parameters"]
        at_128 = (known["policy"], known["batch_size"]) == ("float32", 128)
        status = statuses[known["block"]] if at_128 else "ok"
        rows.append(r if status == "ok" else lost(r, status))
    return rows


@pytest.mark.parametrize("statuses", [("oom", "ok", "ok"), ("oom", "diverged", "diverged")])
def test_a_batch_for_which_float32_had_memory_once_fits(statuses):
    # The lie: "at batch size 128, where float32 runs out of memory", of 128 that ran twice.
    made = tables(ending(*statuses))
    assert larger_batch.gains(made).empty
    best = made.best_batches.set_index("policy")
    assert best.largest["float32"] == 128
    assert best.too_large.isna().all()
    said = [
        finding.finding for claim, finding in published_claims.table(made) if "batch" in claim.words
    ]
    assert said
    assert published_claims.CONSISTENT not in said


def on(rows, invocation="one", boot="mine", gib=64):
    """Records of one call on one machine."""
    card = {"device": "GPU", "kind": "gpu", "memory_bytes": gib * 2**30}
    known = {"invocation": invocation, "boot": boot}
    return [r | known | ({"environment": card} if r["status"] == "ok" else {}) for r in rows]


def test_what_ran_out_of_memory_elsewhere_proves_nothing_here():
    # The lie: "where float32 runs out of memory", of a smaller machine whose runs were merged.
    made = ending("oom", "oom", "oom")
    here = [r for r in made if r["status"] == "ok"]
    out = [r for r in made if r["status"] == "oom"]
    assert len(larger_batch.gains(tables([*on(here), *on(out)]))) == 1
    # The call that was stopped and went on is on the same machine.
    assert len(larger_batch.gains(tables([*on(here), *on(out, "two")]))) == 1
    elsewhere = on(out, "two", "another")
    assert larger_batch.gains(tables([*on(here), *elsewhere])).empty
    # Nor is it known where it was, if machines of other memory measured runs, too.
    small = on([r for r in here if r["parameters"]["batch_size"] == 32][:1], "two", "another", 4)
    rest = [r for r in on(here) if r["run_id"] != small[0]["run_id"]]
    assert not memory.is_relied_on(tables([*rest, *small, *elsewhere]))


def test_a_sweep_beside_may_have_had_the_memory_that_a_run_lacked():
    # The lie: "where float32 runs out of memory", which mptexp itself had marked.
    made = [
        r | {"marks": [AT_ONCE]} if r["status"] == "oom" else r for r in ending("oom", "oom", "oom")
    ]
    assert larger_batch.gains(tables(made)).empty


def test_a_policy_that_runs_out_of_memory_itself_is_not_advised():
    # The lie: "2.00× faster than float32, at equal accuracy", "Memory: 50 % less", of survivors.
    rows = []
    for block in range(6):
        rows += [record(block=block, step_s=0.1), record(MIXED, block, 0.05, peak_memory_bytes=1e8)]
    assert "some runs" not in question.of(tables(rows)).title
    survivors = [
        lost(r, "oom") if r["parameters"]["policy"] == MIXED and r["parameters"]["block"] < 3 else r
        for r in rows
    ]
    made = tables(survivors)
    subject = question.of(made)
    assert subject.title.endswith("; some runs ran out of memory")
    assert subject.advice.startswith("keep float32")
    assert memory.ratios(made).empty
