"""What is said of the layers that must stay in float32."""

from mptexp.analysis.layer_search import BLOCKS, Needed, Trial
from mptexp.analysis.short_trainings import NATS, SHARE
from mptexp.report.text import wording


def answer(needed: Needed, steps: int) -> list[str]:
    """The layers first, then the losses that it rests on, and the rule."""
    return [_opening(needed), *_losses(needed), _rule(steps)]


def _opening(needed: Needed) -> str:
    policy, count = needed.policy, len(needed.layers)
    if not count:
        return f"In {policy} no layer must stay in float32."
    if count == needed.of:
        what = "its one layer" if count == 1 else f"all {count} layers"
        return f"{policy} keeps up with float32 only with {what} in float32: use float32."
    named = wording.listed(list(needed.layers))
    sure = "it cannot" if count == 1 else "none of them can"
    return (
        f"{policy} keeps up with float32 once {count} of {wording.count(needed.of, 'layer')} "
        f"{'stays' if count == 1 else 'stay'} in float32: {named}; {sure} be left out."
    )


def _losses(needed: Needed) -> list[str]:
    """The training losses: in float32, without any layer kept in it, with those that are needed."""
    alone = needed.trials[0]
    words = [f"float32 {needed.float32_loss:.3g}", f"{needed.policy} {_loss(alone)}"]
    kept = [trial for trial in needed.trials if set(trial.layers) == set(needed.layers)]
    if needed.layers and kept:
        words.append(f"with these layers in float32 {_loss(kept[-1])}")
    tried = wording.count(len(needed.trials), "choice of layers was", "choices of layers were")
    return [f"Training loss, the mean of {BLOCKS} seeds: {', '.join(words)}.", f"{tried} tried."]


def _loss(trial: Trial) -> str:
    return "diverged" if trial.loss is None else f"{trial.loss:.3g}"


def _rule(steps: int) -> str:
    return (
        f"As good as float32 counts a loss at most {wording.share(SHARE)} or {NATS:g} above its "
        f"own after {steps} steps, with each of {BLOCKS} seeds."
    )
