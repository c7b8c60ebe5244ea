import statistics

import pytest

from mptexp.traces import step_bounds


def test_marks_are_steps_from_start_to_start():
    made = step_bounds.marked([(100, 150), (0, 90), (200, 290)], [(0, 290)], "marks")
    assert made.intervals == ((0, 100), (100, 200), (200, 290))
    assert made.between == (0, 290)
    assert made.seconds() == pytest.approx((100e-6, 100e-6, 90e-6))


def test_a_mark_within_another_is_no_step_of_its_own():
    assert step_bounds.marked([(0, 100), (10, 20), (100, 200)], [], "marks").intervals == (
        (0, 100), (100, 200),
    )  # fmt: skip


def test_a_step_whose_host_runs_ahead_ends_when_the_device_has_done_its_work():
    device = [(10, 40), (40, 90), (90.5, 120), (300, 310)]
    assert step_bounds.marked([(0, 50)], device, "marks").between == (0, 120)
    assert step_bounds.marked([(0, 118)], device, "marks").between == (0, 118)  # as any step does


def test_where_the_host_is_far_ahead_a_step_is_what_the_device_ran_of_it():
    marks = [(0, 10), (10, 20), (20, 30)]
    ran = [(2, (5, 60)), (8, (60, 65)), (12, (65, 125)), (22, (125, 190))]
    made = step_bounds.marked(marks, [interval for _, interval in ran], "marks", ran)
    assert made.intervals == ((5, 65), (65, 125), (125, 190))
    assert made.how == "marks, as the device ran them"
    assert (made.launched, made.unusual) == ((0, 30), 0)
    # A device that ran nothing of a mark, or ran them in another order, has no such steps.
    assert step_bounds.marked(marks, [], "marks", ran[:2]).between == (0, 30)
    swapped = [(2, (65, 70)), (12, (5, 60)), (22, (125, 190))]
    assert step_bounds.marked(marks, [], "marks", swapped).how == "marks"


@pytest.mark.parametrize("number", [1, 2, 3, 10])
def test_a_device_that_is_behind_its_host_has_each_step_s_work_in_that_step(number):
    # The lie: of two steps of 38 ms, 22 of work and 16 of waiting, "a step of 40.4 ms", with 17.6
    # of waiting: the first lacked what ran before the recording, the last one's end was added.
    marks = [(38 * n, 38 * n + 38) for n in range(number)]
    launched = [(38 * n + 20, (38 * n + 20, 38 * n + 42)) for n in range(number)]
    made = step_bounds.marked(marks, [ran for _, ran in launched], "marks", launched)
    assert made.seconds() == pytest.approx([38e-6] * number)
    assert made.intervals[0] == (4, 42)
    assert made.on_host == tuple(marks)
    work = [step_bounds.took_within([ran for _, ran in launched], *s) for s in made.intervals]
    assert work == [22] * number
    # Whose work begins at once was idle before: of it nothing is cut off.
    first = [(1, (1, 30)), (20, (30, 42)), *launched[1:]]
    begun = step_bounds.marked(marks, [], "marks", first)
    assert begun.intervals[0] == (1, 42)


def test_a_host_that_reads_a_loss_now_and_then_has_steps_as_long_as_the_device_s():
    # The lies: "a step of 6.81 ms (the median is 0.156 ms)", "1 step left out, as a single
    # evaluation", of steps that all take 10; with a wait of 6 of 15 ms "a step of 12.3 ms".
    marks = [(0, 5), (5, 6), (6, 24), (24, 25), (25, 44), (44, 45)]
    launched = [(begin, (10 * n, 10 * n + 10)) for n, (begin, _) in enumerate(marks)]
    made = step_bounds.marked(marks, [], "marks", launched)
    assert made.seconds() == pytest.approx([10e-6] * 6)
    assert made.unusual == 0
    waiting = [(15 * n, 15 * n + 15) for n in range(2)]
    behind = [(15 * n + 8, (15 * n + 8, 15 * n + 17)) for n in range(2)]
    made = step_bounds.marked(waiting, [], "marks", behind)
    assert made.seconds() == pytest.approx([15e-6, 15e-6])


def test_a_step_begins_with_the_copy_of_its_batch():
    # The lie: the first of two steps began at its first kernel; 5 ms of copying were cut off.
    marks, launched = [(0, 12), (12, 24)], [(6, (6, 18)), (18, (18, 30))]
    copies = [(0, (0, 5)), (12, (12, 13))]
    assert step_bounds.marked(marks, [], "marks", launched).between[0] == 6
    assert step_bounds.marked(marks, [], "marks", launched, copies=copies).between[0] == 0


def test_a_device_that_goes_on_is_told_from_one_that_works_again_after_the_steps():
    # The lie: "a step of 0.1 ms", of a host that had launched six of 3.85 ms.
    steps = step_bounds.adjoining([(0, 10), (10, 20)], "marks")
    behind, again = [(5, 18), (18, 200), (200, 400)], [(5, 20), (100, 900)]
    assert step_bounds.outrun(steps, behind)
    assert step_bounds.goes_on(steps, behind)
    assert step_bounds.outrun(steps, again)
    assert not step_bounds.goes_on(steps, again)


def test_what_begins_within_a_step_and_is_none_of_it_ends_it():
    steps = step_bounds.adjoining([(0, 10), (10, 20), (20, 30)], "marks")
    made = step_bounds.until(steps, [33, 12, 15, 10])
    assert made.intervals == ((0, 10), (10, 12), (20, 30))
    assert step_bounds.until(steps, []) == steps


def test_a_step_left_out_is_left_out_on_the_host_too():
    marks = [(0, 10), (10, 20), (20, 30), (30, 40)]
    ran = [(0, (5, 400)), (10, (400, 460)), (20, (460, 520)), (30, (520, 580))]
    made = step_bounds.marked(marks, [], "marks", ran)
    assert (made.warm_up, made.between, made.launched) == (1, (400, 580), (10, 40))


def test_first_steps_that_take_much_longer_are_left_out():
    slow = [(0, 1000), (1000, 1100), (1100, 1210), (1210, 1305)]
    made = step_bounds.marked(slow, [], "marks")
    assert made.warm_up == 1
    assert made.intervals[0] == (1000, 1100)
    assert step_bounds.marked([(0, 250), (250, 350), (350, 450)], [], "marks").warm_up == 0


def kernels(pattern, length=10):
    return [((i * length, i * length + length - 1), kind) for i, kind in enumerate(pattern)]


def test_steps_are_what_repeats():
    made = step_bounds.repeated(kernels("ecccdo" * 5))
    assert [start for start, _ in made.intervals] == [0, 59, 119, 179, 239]
    assert made.between == (0, 299)


def test_a_step_that_repeats_begins_with_its_first_operation_also_where_that_runs_twice_in_it():
    step = [("conv", 0, 10), ("conv", 20, 30), ("dense", 40, 60), ("update", 60, 95)]
    work = [((n * 100 + b, n * 100 + e), kind) for n in range(3) for kind, b, e in step]
    made = step_bounds.repeated(work)
    assert made.intervals == ((0, 95), (95, 195), (195, 295))
    # The wait before the first one, as long as those before the others, if the trace holds it.
    assert step_bounds.repeated(work, first=-50).intervals[0] == (-5, 95)
    assert step_bounds.repeated(work, first=-2).intervals[0] == (-2, 95)


def test_layers_that_are_alike_are_no_steps():
    once = "e" + "abcd" * 12 + "lmno"
    assert step_bounds.repeated(kernels(once)) is None
    assert len(step_bounds.repeated(kernels(once * 3)).intervals) == 3
    # The lie: "160 steps" of 1.36 ms in five passes of a model of 32 layers, 43 ms each, as its
    # layers are of many kinds of kernels.
    once = "ef" + "abcdhijklmno" * 32 + "p"
    assert len(step_bounds.repeated(kernels(once * 5)).intervals) == 5
    # The lie: "120 steps" of five, as one kernel had run once before them, and two of 120, as one
    # of a log had run twice.
    assert len(step_bounds.repeated(kernels("i" + once * 5)).intervals) == 5
    assert len(step_bounds.repeated(kernels(("abcdefgh" * 60 + "x") * 2)).intervals) == 120


def test_an_evaluation_between_steps_moves_none_of_them():
    # The lie: "a step of 172 ms (the mean; the median is 125)", of trainings of 120 ms and
    # evaluations: every third forward pass began one.
    made = step_bounds.repeated(kernels(("fgbo" * 5 + "fg" * 10) * 2))
    assert len(made.intervals) == 10
    assert statistics.median(made.seconds()) == pytest.approx(40e-6)


def test_work_before_the_steps_does_not_hide_them():
    made = step_bounds.repeated(kernels("i" + "abcdefgh" * 4))
    assert len(made.intervals) == 4
    assert made.between[0] == 10


def test_what_repeats_nothing_is_one_step():
    assert step_bounds.repeated(kernels("abcdef")) is None
    assert step_bounds.repeated([]) is None
    assert step_bounds.whole(3, 9).between == (3, 9)


def test_a_later_step_that_takes_much_longer_is_left_out():
    marks = [(0, 100), (100, 200), (200, 900), (900, 1000)]
    made = step_bounds.marked(marks, [], "marks")
    assert (made.unusual, made.warm_up) == (1, 0)
    assert made.intervals == ((0, 100), (100, 200), (900, 1000))
    assert made.gaps == ((200, 900),)


def test_what_follows_the_function_of_a_step_is_cut_off():
    whole = step_bounds.adjoining([(0, 100), (100, 200)], "the Steps line")
    calls, busy = [(5, 40), (105, 130)], [(10, 50), (110, 160)]
    made = step_bounds.ending_with(whole, calls, busy)
    assert made.intervals == ((0, 50), (100, 160))
    assert made.after_s == pytest.approx(45e-6)
    assert step_bounds.ending_with(whole, calls[:1], busy) == whole  # the second has no call
    assert step_bounds.ending_with(whole, [(5, 99), (105, 199)], []) == whole  # little follows


def test_steps_without_a_backward_pass_are_no_steps_of_training_however_many():
    # The lie: more short evaluations than steps of training, which looked like their warm-up.
    marks = [(0, 100), (100, 200), (200, 300)] + [(300 + 30 * n, 330 + 30 * n) for n in range(5)]
    made = step_bounds.marked(marks, [], "marks", trained=[150, 50, 260])
    assert (made.untrained, made.warm_up, made.unusual, made.found) == (5, 0, 0, 8)
    assert made.intervals == ((0, 100), (100, 200), (200, 300))
    for trained in ([], [999]):  # nothing tells which they are
        assert step_bounds.marked(marks, [], "marks", trained=trained).untrained == 0
    # Where the device ran them later, the host's marks say which they are.
    ran = [(5, (10, 400)), (15, (400, 800)), (25, (800, 1300))]
    late = step_bounds.marked([(0, 10), (10, 20), (20, 30)], [], "marks", ran, trained=[5, 25])
    assert (late.intervals, late.untrained) == (((10, 400), (800, 1300)), 1)
    assert late.launched == (0, 30)


def test_two_marks_at_one_instant_are_no_step_without_time():
    made = step_bounds.marked([(0, 0), (0, 0), (0, 100), (100, 200)], [], "marks")
    assert made.intervals == ((0, 100), (100, 200))
    assert step_bounds.marked([(5, 5)], [], "marks").intervals == ((5, 5),)


def test_marks_that_are_shorter_than_their_steps_do_not_say_when_the_last_one_ends():
    marks = [(0, 20), (100, 120), (200, 220)]
    made = step_bounds.marked(marks, [], "ranges", whole=False)
    assert made.intervals == ((0, 100), (100, 200))
    assert made.how == "ranges, from one to the next"
    assert step_bounds.marked(marks[:1], [], "ranges", whole=False).intervals == ((0, 20),)
    filled = [(0, 99), (100, 199), (200, 290)]
    assert len(step_bounds.marked(filled, [], "ranges", whole=False).intervals) == 3
    # The lie: "a step of 16 ms" of six of 19, of ranges around the optimizer whose host was ahead:
    # the device had run the optimizer alone of the last one.
    around = [(10 * n, 10 * n + 2) for n in range(6)]
    optimizer = [(10 * n, (1000 * n + 900, 1000 * n + 1000)) for n in range(6)]
    passes = [(10 * n + 5, (1000 * n + 1000, 1000 * n + 1900)) for n in range(5)]
    made = step_bounds.marked(around, [], "ranges", [*optimizer, *passes], whole=False)
    assert [round(1e6 * seconds) for seconds in made.seconds()] == 5 * [1000]
    assert (made.launched, made.how) == ((0, 50), "ranges, as the device ran them")


def ahead(syncs, steps_=20, launching=6, device=10):
    """Marks of a host that launches faster than the device works, and waits in some steps."""
    at, free, marks, ran = 0, 0, [], []
    for step in range(1, steps_ + 1):
        begin = max(free, at + 1)
        free = begin + device
        ran.append((at + 0.5, (begin, free)))
        end = free if step in syncs else at + launching
        marks.append((at, end))
        at = end
    return marks, ran


def test_a_step_that_waits_for_those_before_it_is_not_left_out_as_unusual():
    # The lie: "18 steps, 6 ms; 2 left out, as an evaluation would be", of 10 ms on the device.
    marks, ran = ahead({10, 20})
    made = step_bounds.marked(marks, [interval for _, interval in ran], "marks", ran)
    assert made.how == "marks, as the device ran them"
    assert len(made.intervals) == 20
    assert made.seconds()[3] == pytest.approx(10e-6)
    # A step that is long for what it launches itself, such as a checkpoint, is left out.
    marks = [(0, 10), (10, 20), (20, 80), (80, 90)]
    own = [(1, (2, 9)), (11, (12, 19)), (21, (22, 30)), (81, (82, 89))]
    made = step_bounds.marked(marks, [interval for _, interval in own], "marks", own)
    assert (made.how, made.unusual) == ("marks", 1)


def test_a_range_at_the_end_of_another_is_no_step_of_its_own():
    # `iteration` with a range around optimizer.step() in it: twice as many steps, once.
    marks = [(0, 100), (90, 99), (100, 200), (190, 199)]
    assert step_bounds.marked(marks, [], "marks").intervals == ((0, 100), (100, 200))


def test_long_steps_that_recur_or_wait_for_a_batch_are_steps():
    # The lie: every fourth batch is awaited for 360 ms; "matrix work 99 % of a step of 40.3 ms",
    # "3 steps left out, as an evaluation would be", of a training that waits for 69 % of its time.
    every = [400 if n % 4 == 3 else 40 for n in range(12)]
    ends = [sum(every[: n + 1]) for n in range(12)]
    marks = [(end - length, end) for end, length in zip(ends, every, strict=True)]
    made = step_bounds.marked(marks, [], "marks")
    assert (len(made.intervals), made.unusual, made.left) == (12, 0, ())
    later = marks[3:]  # begins with one
    waits = [(begin + 10, end - 30) for begin, end in later if end - begin > 100]
    assert len(step_bounds.marked(later, [], "marks", waited=waits).intervals) == 9
    # One that is as long as later ones is no warm-up, though nothing says why they are.
    assert step_bounds.marked(later, [], "marks").warm_up == 0
    assert step_bounds.marked(later[:5], [], "marks").found == 5
    waited = [(120, 480)]
    once = marks[:7]
    assert step_bounds.marked(once, [], "marks", waited=waited).unusual == 0
    assert step_bounds.marked(once, [], "marks", waited=[(120, 200)]).left == ((120, 520),)


def test_a_step_of_the_optimizer_is_held_against_others_of_its_kind():
    # The lies: the only step of four micro-batches in which the optimizer steps "left out as
    # warm-up", or "as a single evaluation, checkpoint or compilation in it would be".
    def made(*lengths, updated):
        ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
        marks = [(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        return step_bounds.marked(marks, [], "marks", updated=[marks[n][0] for n in updated])

    once = made(10, 10, 10, 82, 10, updated=[3])
    assert (len(once.intervals), once.warm_up, once.unusual) == (5, 0, 0)
    first = made(82, 10, 10, 10, 82, updated=[0, 4])
    assert (len(first.intervals), first.warm_up, first.unusual) == (5, 0, 0)
    # One that takes long beside its like, or that has no optimizer's step, is left out as ever.
    assert made(900, 10, 10, 10, 82, updated=[0, 4]).warm_up == 1
    assert made(900, 10, 10, 10, 82, updated=[4]).warm_up == 1
    assert made(10, 82, 10, 900, 10, 82, updated=[1, 5]).unusual == 1
