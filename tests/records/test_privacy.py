import socket
from pathlib import Path

import psutil
import pytest

from mptexp.records import privacy


def test_private_names_are_taken_out():
    where = str(Path.home() / "secret")
    assert privacy.scrub(f"at {where}, in {Path.cwd()}/reports") == "at ~/secret, in ./reports"
    assert privacy.scrub(f"{Path.cwd()}-old") == f"{Path.cwd()}-old"


def test_what_identifies_a_run_is_never_rewritten(monkeypatch):
    monkeypatch.setattr(privacy.socket, "gethostname", lambda: "tensorflow")
    monkeypatch.setattr(privacy.getpass, "getuser", lambda: "train")
    privacy._private_names.cache_clear()
    record = {
        "parameters": {"backend": "tensorflow"},
        "notebook": "train",
        "error": "on tensorflow",
    }
    scrubbed = privacy.scrub(record | {"place": "train@x /home/train/a, train it"})
    privacy._private_names.cache_clear()
    assert scrubbed["parameters"] == {"backend": "tensorflow"}
    assert scrubbed["notebook"] == "train"
    assert scrubbed["error"] == "on <host>"
    assert scrubbed["place"] == "<user>@x /home/<user>/a, train it"


@pytest.fixture
def anew():
    privacy._private_names.cache_clear()
    yield
    privacy._private_names.cache_clear()


def test_no_secret_of_the_environment_is_written(anew, monkeypatch):
    for name, value in {
        "HF_TOKEN": "hf_abcdefgh",
        "AWS_SECRET_ACCESS_KEY": "wJalr+XUt/nFEMI",
        "WANDB_API_KEY": "0123456789abcdef",
        "DB_PASSWORD": "true",  # any word
        "TOKENIZERS_PARALLELISM": "parallelism",
    }.items():
        monkeypatch.setenv(name, value)
    said = "hf_abcdefgh wJalr+XUt/nFEMI 0123456789abcdef true parallelism"
    assert privacy.scrub(said) == "<secret> <secret> <secret> true parallelism"


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("s3://me:pass%20word@host/a b", "s3://<user>@host/a b"),
        ("https://ghp_abc@github.com/a/b@v1", "https://<user>@github.com/a/b@v1"),
        ("https://example.org/a@b and c@d", "https://example.org/a@b and c@d"),
    ],
)
def test_no_password_of_an_address_is_written(said, written):
    assert privacy.scrub(said) == written


def test_no_network_address_of_this_machine_is_written(anew, monkeypatch):
    address = psutil._ntuples.snicaddr
    there = [
        address(socket.AF_INET, "10.1.2.3", None, None, None),
        address(socket.AF_INET6, "fe80::1%eth0", None, None, None),
        address(socket.AF_INET, "127.0.0.1", None, None, None),
        address(17, "02:42:ac:11:00:02", None, None, None),
    ]
    monkeypatch.setattr(privacy.psutil, "net_if_addrs", lambda: {"eth0": there})
    said = "10.1.2.3:6379 10.1.2.34 10.1.2.3.4 fe80::1 127.0.0.1 version 10.1.2.3."
    written = "<address>:6379 10.1.2.34 10.1.2.3.4 <address> 127.0.0.1 version <address>."
    assert privacy.scrub(said) == written


@pytest.mark.parametrize("host", ["adam", "cpu", "AMD", "float32"])
def test_a_host_that_is_named_as_a_word_is_changes_no_data(anew, monkeypatch, host):
    # The lie: "optimizer: <host>" in a published params file, "<host> EPYC (CPU)" as a device.
    monkeypatch.setattr(privacy.socket, "gethostname", lambda: host)
    text = "defaults: {optimizer: adam}\nmatrix: {policy: [float32]}\n"
    assert privacy.published_params(text) == text
    card = {"device": "AMD EPYC (CPU)", "kind": "cpu", "packages": {"adam": "1.0"}}
    assert privacy.scrub({"environment": card}) == {"environment": card}
    said = {"error": f"no route to {host}", "variables": {"A": f"//{host}/a me@{host} {host}:80"}}
    assert privacy.scrub(said) == {
        "error": "no route to <host>",
        "variables": {"A": "//<host>/a me@<host> <host>:80"},
    }


def test_a_params_file_leaves_with_the_last_parts_of_its_paths():
    home = Path.home()
    text = f"""\
notebook: {home}/clients/acme/train.py  # at {home}
defaults: {{dataset: "folder:{home}/clients/acme/faces"}}
matrix: {{policy: [float32]}}
"""
    assert (
        privacy.published_params(text)
        == """\
notebook: train.py  # at ~
defaults: {dataset: "folder:faces"}
matrix: {policy: [float32]}
"""
    )
    kept = "notebook: mine/train.py\nmatrix: {policy: [float32]}\n"
    assert privacy.published_params(kept) == kept
