import numpy as np
import pytest
from builders import classified, record

from mptexp.analysis import accuracy, simultaneous_intervals, validation_variance

MARGIN = 0.01


def side(correct, **more):
    return {b: classified(record(block=b), bits, **more) for b, bits in enumerate(correct)}


def test_a_list_of_images_is_read_back_as_it_was_written():
    bits = np.random.default_rng(0).random(37) > 0.5
    assert (validation_variance.correct(classified(record(), bits)) == bits).all()
    assert validation_variance.correct(record()) is None


def test_images_without_a_difference_leave_one_possible():
    same = np.ones((3, 20), bool)
    alike = validation_variance.spread(side(same), side(same), MARGIN)
    assert alike.images == 20
    assert np.sqrt(alike.variance) == pytest.approx(np.sqrt(2 / 21 / 22))


def test_pairs_of_images_say_more_than_two_accuracies():
    left = np.random.default_rng(1).random((3, 500)) > 0.1
    right = left.copy()
    right[:, :5] = ~right[:, :5]
    paired = validation_variance.spread(side(left), side(right), MARGIN)
    apart = validation_variance.spread(side(left), side(right, digest="0123456789ab"), MARGIN)
    assert paired.variance < apart.variance / 4
    # An unpaired interval is that of two proportions.
    assert apart.variance == pytest.approx(2 * 0.1 * 0.9 / 500, rel=0.2)


def test_a_difference_in_every_block_is_one_of_these_images_alone():
    # The same ten images in every block: three blocks say no more of other images than one.
    once = np.zeros((1, 500))
    once[0, :10] = 1
    alone, thrice = (
        validation_variance.of_pairs(np.repeat(once, n, axis=0), MARGIN) for n in (1, 3)
    )
    assert thrice.variance == alone.variance
    # Other images in each block: chance, which three blocks average.
    each = np.zeros((3, 500))
    for block in range(3):
        each[block, 10 * block : 10 * block + 10] = 1
    assert validation_variance.of_pairs(each, MARGIN).variance < 0.6 * alone.variance


def test_a_list_that_is_not_of_its_accuracy_pairs_nothing():
    made = classified(record(), np.arange(500) >= 50)
    made["history"][-1]["val_accuracy"] = 0.904
    assert validation_variance.correct(made) is not None
    made["history"][-1]["val_accuracy"] = 0.95
    assert validation_variance.correct(made) is None
    apart = validation_variance.spread({0: made}, {0: made}, MARGIN)
    assert apart.variance == pytest.approx(2 * 0.05 * 0.95 / 500, rel=0.2)


def test_nothing_known_of_the_images_is_said_to_be_nothing():
    one = record()
    del one["in_force"]["validation_images"]
    assert validation_variance.spread({0: one}, {0: one}, MARGIN).images == 0


def judged(differences, margin=MARGIN):
    """The verdict on one comparison with these differences, of shape (blocks, images)."""
    spread = validation_variance.of_pairs(differences, margin)
    blocks = differences.mean(1)
    more = [(spread.variance, spread.freedom)]
    (half,) = simultaneous_intervals.half_widths([blocks], more=more)
    too_few = spread.images * margin < validation_variance.NONE_AMONG
    return "" if too_few else accuracy.verdict(blocks.mean() - half, blocks.mean() + half, margin)


@pytest.mark.parametrize("blocks", [3, 5, 10])
@pytest.mark.parametrize("images", [20, 400, 1000, 4000])
def test_policies_that_differ_by_a_point_are_seldom_called_equal(images, blocks):
    # The lies: on 20 images and by blocks alone, equal in two sweeps of three; on 1000 by an
    # interval from the images that differ, in 3.3 %. Of all images 1.5 % are classified right by
    # the one policy alone, 0.5 % by the other, alike in each block.
    random, equal, alone = np.random.default_rng(images), 0, 0
    for _ in range(1000):
        kind = random.random(images)
        differences = np.tile((kind < 0.015) * 1.0 - (kind > 0.995), (blocks, 1))
        equal += judged(differences) == "equal"
        alone += abs(differences.mean()) < 0.01
    assert alone > 350
    # Binomial: of a true 2.5 % more than 40 of 1000 come once in a thousand times.
    assert equal <= 40


def test_no_interval_is_narrower_than_at_the_margin():
    # Five images one way and none the other, where ten would be a margin: few differ, so few vary.
    five = np.zeros((3, 1000))
    five[:, :5] = 1
    assert judged(five) == "undecided"
    assert validation_variance.of_pairs(five, MARGIN).variance >= MARGIN * (1 - MARGIN) / 1000
    # Where each block has other images that differ, the mean of three varies a third as much.
    each = np.zeros((3, 1000))
    for block in range(3):
        each[block, 100 * block : 100 * block + 5] = 1
    alone = validation_variance.of_pairs(five, MARGIN)
    assert validation_variance.of_pairs(each, MARGIN).variance < 0.6 * alone.variance


def test_policies_that_do_not_differ_are_called_equal_where_there_are_images_enough():
    random = np.random.default_rng(0)
    draws = [(random.random((2, 5, 5000)) < 0.01) for _ in range(50)]
    assert np.mean([judged(up * 1.0 - down) == "equal" for up, down in draws]) > 0.9


def test_few_sweeps_of_noise_claim_a_difference_of_accuracy():
    random, lying = np.random.default_rng(1), 0
    for _ in range(300):
        points = [
            (random.random((3, 1000)) < 0.02) * 1.0 - (random.random((3, 1000)) < 0.02)
            for _ in range(8)
        ]
        spreads = [validation_variance.of_pairs(point, MARGIN) for point in points]
        more = [(s.variance, s.freedom) for s in spreads]
        blocks = [point.mean(1) for point in points]
        halves = simultaneous_intervals.half_widths(blocks, more=more)
        lying += any(abs(b.mean()) > half for b, half in zip(blocks, halves, strict=True))
    assert lying <= 15
