"""A worker's progress on the node that waits for it: its queue, its load, its steps, and how long the parts took."""

from __future__ import annotations

import pytest
from h3te_tests.cache_host import encode
from h3te_tests.comfy_host import picture
from h3te_tests.page import page  # noqa: F401 (fixture)
from h3te_tests.remote_host import (  # noqa: F401 (fixtures)
    comfy,
    demo_file,
    demo_told,
    fake_worker,
    load,
    load_local,
    serve,
    text_encoders,
    user,
)

STEPS = [(0, 0, "waiting, 2 before you"), (0, 0, ""), (1, 4, "loading weights"), (4, 4, "loading weights")]
STEPS += [(n, 5, f"vision block {n} of 2") for n in (1, 2)] + [(n + 2, 5, f"layer {n} of 3") for n in (1, 2, 3)]


@pytest.fixture
def told_steps(monkeypatch):
    """told_steps(steps): the worker is asked as ever, and says these of the job."""
    from h3te.encoder.parallel.remote import client

    real = client.RemoteWorker.encode

    def install(steps):
        def encode(self, request, width, progress=None):
            for step in steps:
                progress(*step)
            return real(self, request, width)

        monkeypatch.setattr(client.RemoteWorker, "encode", encode)

    return install


def test_what_the_worker_says_is_on_the_node_and_on_one_bar(page, load, serve, told_steps):  # noqa: F811
    worker = serve()
    clip = load(worker).args[0]
    told_steps(STEPS)
    encode(clip, "a fox", picture(1), expect="miss")
    at = f" at {worker.at}"
    assert page.lines[1:-1] == [
        f"waiting, 2 before you{at}",
        f"loading weights: 1 of 4{at}",
        f"loading weights: 4 of 4{at}",
        *[f"{what}{at}" for _, _, what in STEPS[4:]],
    ]
    assert page.lines[-1].startswith("encoded in 0.")
    assert page.only_bar()[-1] == (200, 200)


def test_without_a_load_the_bar_is_the_steps_of_the_pass(page, load, serve, told_steps):  # noqa: F811
    clip = load(serve()).args[0]
    told_steps(STEPS[4:])
    encode(clip, "a fox", picture(1), expect="miss")
    assert page.only_bar() == [(n, 5) for n in range(1, 6)]


@pytest.mark.parametrize(
    ("steps", "pictures", "parts"),
    [
        (STEPS, [picture(1)], {"load", "vision", "decoder"}),
        (STEPS[6:], [], {"decoder"}),
        ([], [], {"decoder"}),  # too quick to be seen: all of it is the decoder's
        ([], [picture(1)], set()),  # how it is divided is not known
    ],
)
def test_times_of_the_parts_add_up_to_what_the_worker_computed(load, serve, told_steps, steps, pictures, parts):  # noqa: F811
    clip = load(serve()).args[0]
    told_steps(steps)
    encode(clip, "a fox", *pictures, expect="miss")
    seconds = clip.run.seconds
    assert set(seconds) == parts
    computed = sum(took for stage, took in seconds.items() if stage != "load")
    assert computed == pytest.approx(clip.run.computed if parts else 0)
    assert clip.run.computed == 0.5


def test_prompts_that_are_jobs_of_their_own_are_numbered(page, load, serve, told_steps):  # noqa: F811
    from h3te.nodes.host.any_clip import Ask, encode_all

    clip = load(serve()).args[0]
    told_steps(STEPS[6:])
    encode_all([Ask(clip, text, {}) for text in ("a fox", "an owl")], "node")
    assert sum(line.startswith("prompt 2 of 2, layer ") for line in page.lines) == 3
    assert page.only_bar()[-1] == (1000, 1000)
