"""Records and notebooks of somebody who means harm, and how the pages made of them are built."""

import json
from html.parser import HTMLParser
from itertools import product

from builders import record
from hypothesis import strategies as st
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from mptexp.records import store
from mptexp.records.store import SweepDir

PIECES = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</td></table><b>", "<!--", "-->",
    "<svg/onload=alert(1)>", "&lt;b&gt;", "&#106;avascript:", "javascript:alert(1)", '"', "'",
    "[x](javascript:alert(1))", "![x](http://evil.example/x.png)", "[x]: http://evil.example",
    "<http://evil.example>", "http://evil.example/", "www.evil.example", "`code`", "**b**", "*i*",
    "__b__", "_i_", "~~s~~", "$x$", "$$", "\\", "\\[", "|", "# h", "- li", "> q", "\n", "\n\n",
    "\r", "\t", "\0", "\x1b]0;owned\x07", "\x1b[31m", "\x9b2J", "\u202e", "\u2028",
    "$(touch owned)", "`touch owned`", "; touch owned", "{{ 1 + 1 }}", "{% raw %}", "%s", "{0}",
    "../..", "/etc/passwd", "__import__('os')", "\N{SNOWMAN}", "模型", "😀", ":bomb:", "[bold red]",
    "[/]", "[link=http://x]",
]  # fmt: skip


# What JSON in UTF-8 can hold; half a character is refused where a record is read.
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), min_size=1, max_size=6)


TEXT = TEXT.map("".join).filter(str.strip)


class Shape(HTMLParser):
    """Elements with the names of their attributes, what they link to or load, and the text."""

    def __init__(self):
        super().__init__()
        self.found, self.text, self.images = [], [], []

    def handle_starttag(self, tag, attributes):
        led = [v for n, v in attributes if n in ("href", "src") and not v.startswith("#")]
        self.images += [v for v in led if v.startswith("data:")]
        led = ["data:" if v.startswith("data:") else v for v in led]
        self.found.append((tag, sorted(name for name, _ in attributes), led))

    def handle_data(self, data):
        self.text.append(data)


def shape(page):
    found = Shape()
    found.feed(page)
    return found


def markdown(text):
    return MarkdownWithMath(renderer=IPythonRenderer(escape=False)).render(text)


def sweep_of(text, root, sizes=(32,)):
    """A sweep in which everything that is free text in a record is `text`."""
    place = SweepDir(root / "sweep")
    card = dict.fromkeys(("device", "driver", "cuda", "cudnn", "cpu", "os", "python"), text)
    card |= {"capability": [8, 0], "cores": 2, "instruction_sets": [text], "memory_bytes": 2**30}
    card |= {"packages": {"mptexp": text, text: text}, "variables": {text: text}, "commit": text}
    for policy, step_s in (("float32", 0.2), ("mixed_float16", 0.1)):
        for block, size in product(range(3), sizes):
            made = record(policy, block, step_s, batch_size=size)
            names = {"gpu_model": text, "dataset": text, "model": text, "float32_layers": text}
            made["parameters"] |= names
            made["timing"]["ended_by"] = made["in_force"]["default_policy"] = text
            made |= {"marks": [text, f"measured while {text}"], "environment": card | {"x": text}}
            made |= {"readings": {"utilization_frac": 0.5}, text: text}
            made |= {"identity": made["identity"] | {"device": text, "cpu": text}}
            made["history"][0][text] = text
            store.write_record(place.record(made["run_id"]), made)
    failed = record("bfloat16") | {"status": "failed", "error": text}
    store.write_record(place.record(failed["run_id"]), failed)
    place.params.write_text("# Question: Is it?\nmatrix: {}\n")
    return place


HARMFUL = {
    "text/html": "<table><tr><td onclick='owned()'>a table</td></tr></table>"
    "<script>owned()</script><img src=x onerror='owned()'><iframe src='javascript:owned()'>"
    "</iframe><a href='java\tscript:owned()'>x</a><style>@import url(http://evil.example)</style>"
    "<meta http-equiv=refresh content='0;url=http://evil.example'></main></body>"
    "<form action=http://evil.example>",
    "text/plain": "plain",
}


def notebook(path):
    """An executed notebook from somebody who means harm."""
    outputs = [
        {"output_type": "display_data", "metadata": {}, "data": data}
        for data in (
            HARMFUL,
            {"text/html": "<scr<style></style>ipt>owned()</scr<style></style>ipt>"},
            {"application/javascript": "owned()"},
            {"image/svg+xml": "<svg onload='owned()'><script>owned()</script></svg>"},
            {"text/markdown": "[x](javascript:owned()) <script>owned()</script>"},
            {"image/png": 'AAAA" onerror="owned()'},
            {"text/latex": "<script>owned()</script>"},
        )
    ]
    outputs.append({"output_type": "stream", "name": "stdout", "text": "<script>owned()</script>"})
    trace = ["\x1b[31m<script>owned()</script>"]
    outputs.append({"output_type": "error", "ename": "<b>", "evalue": "<b>", "traceback": trace})
    code = {"cell_type": "code", "id": "a", "execution_count": 1, "outputs": outputs}
    code |= {"source": "'<script>owned()</script>'", "metadata": {"alt": '"><script>owned()'}}
    source = "# Fine\n\n<script>owned()</script> [x](javascript:owned()) ![x](attachment:x)"
    text = {"cell_type": "markdown", "id": "b", "metadata": {}, "source": source}
    text["attachments"] = {"x": {'image/png" onerror="owned()': "AAAA"}}
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [text, code]}
    path.write_text(json.dumps(whole))
