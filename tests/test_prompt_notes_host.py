"""Notes on a prompt reach ComfyUI's users: in the node's text, and in the log for nodes that have none."""

from __future__ import annotations

import pytest
from h3te_tests.comfy_host import comfy, picture, tiny_clip  # noqa: F401 (fixtures)

SIZE = {"width": 256, "height": 192, "length": 22}
WEIGHTS = "(fox:1.3) (line 1, column 3): MiniMax H3 has no prompt weights; the text is read as it stands."
UNKNOWN = "<Picture 2> (line 1, column 18) names no reference: 1 given, numbered from 1."
PROMPT = "A (fox:1.3) from <Picture 2>"


@pytest.fixture
def nodes(comfy):  # noqa: F811
    from h3te.nodes.encode_keyframes import EncodeKeyframes
    from h3te.nodes.encode_references import EncodeReferences

    return (
        lambda **asked: EncodeReferences.execute(**asked, **SIZE, ref_images={"ref_image_0": picture(1)}),
        lambda **asked: EncodeKeyframes.execute(**asked, **SIZE, first_frame=picture(1)),
    )


def lines(output) -> list[str]:
    return output.ui["text"][0].split("\n")


def test_encode_nodes_show_notes_before_the_summary(nodes, tiny_clip):  # noqa: F811
    for execute in nodes:
        output = execute(clip=tiny_clip, prompt=PROMPT)
        said = lines(output)
        (summary,) = [line for line in said if "tokens in all" in line]
        assert said.index(WEIGHTS) + 1 == said.index(UNKNOWN) < said.index(summary) < said.index(tiny_clip.label)
        assert output.args[2][0].endswith(PROMPT)


def test_encode_nodes_say_nothing_about_a_plain_prompt(nodes, tiny_clip):  # noqa: F811
    for execute in nodes:
        assert not [
            line for line in lines(execute(clip=tiny_clip, prompt="A fox from <Picture 1>")) if "line 1" in line
        ]


def test_many_notes_are_cut_in_the_node_and_complete_in_the_log(nodes, tiny_clip, caplog):  # noqa: F811
    said = lines(nodes[0](clip=tiny_clip, prompt="</d>" * 9))
    assert len([line for line in said if line.startswith("</d>")]) == 5
    assert "4 more about the prompt are in the log" in said
    assert len([r for r in caplog.records if r.getMessage().startswith("prompt: </d>")]) == 9


def test_clip_text_encode_logs_them_once(comfy, tiny_clip, caplog):  # noqa: F811
    for _ in range(2):
        comfy.nodes.CLIPTextEncode().encode(tiny_clip, "CLIPTextEncode of a (fox:1.3)")
    assert [r.getMessage()[:26] for r in caplog.records if "prompt: " in r.getMessage()] == [
        "prompt: (fox:1.3) (line 1,"
    ]
