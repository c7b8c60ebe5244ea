"""Text as sequences of tokens, and what is said of a text that cannot be used."""

import json

import numpy as np
import pytest

from mptexp.spec.run import Run
from mptexp.training.data import batches, datasets, texts
from mptexp.training.data.sources import DataError, cache_dir

MODEL = {"model": "gpt"}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("MPTEXP_DATA_DIR", str(tmp_path / "cache"))


def load(dataset="hamlet", **parameters):
    return datasets.load(Run(dataset=str(dataset), **MODEL | parameters))


def test_what_follows_each_token_is_its_label_and_nothing_is_in_both_parts():
    text = load(sequence_length=32)
    everything = (datasets.DIGITS.parent / "hamlet.txt").read_bytes()
    assert len(everything) == 173_942
    assert text.shape == (32,)
    assert text.train_x[:].dtype == np.int32
    assert bytes(text.train_x[:].ravel().tolist()) == everything[: 32 * len(text.train_x)]
    assert bytes(text.train_y[0].tolist()) == everything[1:33]
    first = len(everything) - round(0.2 * len(everything) + 0.5)
    assert bytes(text.val_x[0].tolist()) == everything[first : first + 32]
    picked = text.train_y[np.array([[3, 1], [0, 2]])]
    assert picked.shape == (2, 2, 32)
    assert np.array_equal(picked[0, 1], text.train_y[1])


def test_a_text_is_prepared_once_and_named_by_its_content(tmp_path, capsys):
    path = tmp_path / "mine.txt"
    path.write_text("Ein Text für alle. " * 50, encoding="utf-8")
    one = load(f"text:{path}")
    assert "preparing 950 characters of text:" in capsys.readouterr().out
    assert load(f"text:{path}", seed=4, policy="bfloat16").content == one.content
    assert capsys.readouterr().out == ""
    assert load(f"text:{path}", sequence_length=64).content != one.content
    path.write_text("Ein Text für alle! " * 50, encoding="utf-8")
    assert load(f"text:{path}").content != one.content


def test_tokens_that_were_damaged_are_made_again(capsys):
    before = load()
    (folder,) = {path.parent for path in cache_dir().rglob("meta.json")}
    (folder / "train.u2").write_bytes(b"nothing")
    again = load()
    assert "is damaged; it is made again" in capsys.readouterr().out
    assert np.array_equal(again.train_x[:], before.train_x[:])
    assert json.loads((folder / "meta.json").read_text())["classes"] == list(before.classes)


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    for name, content in {
        "b.txt": "bb" * 90,
        "a/x.md": "aa" * 90,
        ".c.txt": "c",
        "d.png": "d",
    }.items():
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / name).write_text(content)
    text = load(f"text:{tmp_path / 't'}", sequence_length=8)
    assert bytes(text.train_x[:].ravel().tolist()).decode().startswith("a" * 180 + "\n" + "b" * 90)
    assert text.notes == ("left out as no texts by their names: d.png",)


def test_copies_of_what_is_trained_on_are_found_wherever_they_begin(tmp_path):
    # The lie: 0 of 543, of a play and its copy.
    play = (datasets.DIGITS.parent / "hamlet.txt").read_text()
    for number in (1, 2):
        (tmp_path / f"{number}.txt").write_text(play)
    text = load(f"text:{tmp_path}", sequence_length=100)
    n = len(text.val_x)
    assert batches.seen_in_training(text) == (n, n)
    said = batches.notes(text, Run(dataset=f"text:{tmp_path}", **MODEL))
    assert said == (f"{n} of {n} validation sequences are trained on too",)
    short = load(f"text:{tmp_path}", sequence_length=8)
    assert batches.seen_in_training(short)[0] > 0.99 * len(short.val_x)


@pytest.mark.parametrize("length", [1, 2, 7, 16])
def test_sequences_are_searched_for_as_text_is(monkeypatch, length):
    """Beside Python's own search, the tokens searched a few at a time."""
    monkeypatch.setattr(texts, "SEARCHED", 5)
    monkeypatch.setattr(texts, "LEAST", 1)
    tokens = np.random.default_rng(0).integers(0, 2, (2, 200)).astype(texts.TOKEN)
    trained, held = (texts.Windows(part, length) for part in tokens)
    whole = bytes(tokens[0].tolist())
    assert texts.seen(trained, held) == sum(bytes(x.tolist()) in whole for x in held[:])


def test_what_is_left_out_of_a_folder_is_said(tmp_path):
    # The lie: half of the text was not read, without a word.
    for place in ("elsewhere", "t", "t/.drafts"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.txt").write_text("a" * 200)
    (tmp_path / "t/linked").symlink_to(tmp_path / "elsewhere")
    text = load(f"text:{tmp_path / 't'}", sequence_length=8)
    assert len(text.train_x.tokens) == 160
    left_out = {"left out as hidden folders: .drafts", "left out as links to folders: linked"}
    assert set(text.notes) == left_out
    (tmp_path / "t/later.txt").symlink_to("/not/here.txt")
    with pytest.raises(DataError, match=r"later.txt: No such file or directory"):
        load(f"text:{tmp_path / 't'}")


def test_every_policy_gets_the_same_batches():
    text = load(sequence_length=32)
    runs = [
        Run(dataset="hamlet", **MODEL, sequence_length=32, policy=p) for p in ("float32", "float16")
    ]
    assert len({batches.order_digest(text, run) for run in runs}) == 1
    assert len({batches.fingerprint(text, run) for run in runs}) == 1
    for length in (8, 32):  # by itself a line or a name recurs
        text = load(sequence_length=length)
        assert batches.seen_in_training(text) == (0, len(text.val_x))


def test_byte_pairs_write_the_text_in_fewer_tokens_that_give_it_back():
    pytest.importorskip("tokenizers", reason="tokenizers is not installed; pip install tokenizers")
    text = load(tokenizer="bpe", vocabulary=512, sequence_length=32)
    assert len(text.classes) == 512
    assert len(text.train_x) < 0.7 * len(load(sequence_length=32).train_x)
    written = "".join(text.classes[token] for token in text.train_x[0])
    assert written.replace("Ġ", " ").replace("Ċ", "\n").startswith("HAMLET, PRINCE OF DENMARK\n")
    assert text.content == load(tokenizer="bpe", vocabulary=512, sequence_length=32).content
    with pytest.raises(DataError, match=r"vocabulary 65,536 was asked for, but its text gives \d"):
        load(tokenizer="bpe", vocabulary=65_536)


def test_a_text_without_any_byte_pair_is_not_told_of_a_vocabulary_that_is_refused(tmp_path):
    pytest.importorskip("tokenizers", reason="tokenizers is not installed; pip install tokenizers")
    (tmp_path / "mine.txt").write_bytes(b"")
    with pytest.raises(DataError, match="allowed: tokenizer bytes, or a longer text"):
        load(f"text:{tmp_path / 'mine.txt'}", tokenizer="bpe")


@pytest.mark.parametrize(
    ("content", "parameters", "message"),
    [
        (b"", {}, "has 0 tokens to train on, .* allowed: a longer text$"),
        (b"abc", {}, "has 2 tokens to train on, too few for a sequence of 128"),
        (b"a" * 400, {"sequence_length": 100}, "has 80 tokens to validate with, too few"),
        (b"abc\xff\xfe", {}, r"mine.txt is not UTF-8: byte 0xff at 3; convert it"),
        (None, {}, r"does not exist; give a file or a folder"),
    ],
    ids=["empty", "short", "short to validate", "not UTF-8", "absent"],
)
def test_a_text_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path, content, parameters, message
):
    if content is not None:
        (tmp_path / "mine.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(f"text:{tmp_path / 'mine.txt'}", **parameters)


def test_a_name_that_no_file_can_have_is_of_none():
    with pytest.raises(DataError, match=r"does not exist; give a file or a folder$"):
        load(f"text:{'a' * 300}")


def test_a_folder_without_text_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no text \(\.txt, \.text, \.md, \.rst\)"):
        load(f"text:{tmp_path}")
