"""Loading, encoding, showing, saving: no connection, no name looked up, no program started. `remote` alone asks."""

from __future__ import annotations

import socket
import urllib.request

import pytest
import torch
from h3te_tests.audited import NETWORK, PROGRAMS, UNPICKLING, Forbidden, forbidden
from h3te_tests.comfy_host import StandInVAE, comfy, picture  # noqa: F401 (fixture)
from h3te_tests.conditioning_files import assert_same, folders  # noqa: F401 (fixture)
from h3te_tests.demo_host import demo_file, place, text_encoders  # noqa: F401 (fixtures)

SIZE = {"width": 256, "height": 192, "length": 22}


@pytest.fixture
def temp(comfy, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(comfy.folder_paths, "temp_directory", str(tmp_path / "temp"))


@pytest.mark.parametrize("act", [
    lambda: socket.create_connection(("127.0.0.1", 9), timeout=1), lambda: socket.getaddrinfo("localhost", 80),
    lambda: urllib.request.urlopen("http://127.0.0.1:9/", timeout=1), lambda: socket.create_server(("127.0.0.1", 0)),
], ids=["connect", "look up", "urlopen", "serve"])  # fmt: skip
def test_what_is_blocked_is_blocked(act):
    with pytest.raises(Forbidden), forbidden(*NETWORK):
        act()


@pytest.mark.usefixtures("temp")
def test_nothing_is_asked_from_loading_to_the_saved_file(text_encoders, demo_file, folders):  # noqa: F811
    place(demo_file, text_encoders / "h3.safetensors")
    with forbidden(*NETWORK, *PROGRAMS, *UNPICKLING):
        from h3te.nodes.encode_keyframes import EncodeKeyframes
        from h3te.nodes.encode_references import EncodeReferences
        from h3te.nodes.load_conditioning import LoadConditioning
        from h3te.nodes.load_text_encoder import LoadTextEncoder
        from h3te.nodes.save_conditioning import SaveConditioning
        from h3te.nodes.show_presentation import ShowPresentation

        for node in (LoadTextEncoder, EncodeReferences, LoadConditioning, SaveConditioning, ShowPresentation):
            node.define_schema()
        assert LoadTextEncoder.validate_inputs(text_encoder="h3.safetensors") is True
        clip = LoadTextEncoder.execute(text_encoder="h3.safetensors").args[0]
        seen = {"ref_image_0": picture(1)}
        EncodeReferences.execute(clip=clip, prompt="<Picture 1>", ref_images=seen, preview_only=True, **SIZE)
        made = EncodeReferences.execute(clip=clip, prompt="<Picture 1>", ref_images=seen, vae=StandInVAE(), **SIZE)
        EncodeKeyframes.execute(clip=clip, vae=None, prompt="a fox", first_frame=picture(2), **SIZE)
        ShowPresentation.execute(prompt="a fox https://example.org/a.png", ref_images=seen, **SIZE)
        conditioning = made.args[0][0]  # of the one prompt
        file = SaveConditioning.execute(conditioning).args[1]
        loaded = LoadConditioning.execute(file=file)
    assert torch.isfinite(conditioning[0][0]).all()
    assert_same(loaded.args[0][0][0], conditioning[0][0])


@pytest.mark.parametrize("value", [
    "https://example.org/h3.safetensors", "//server/share/h3.safetensors", "\\\\server\\share\\text_encoder\\",
    "hf://org/model/", "file:///etc/", "//server/share/",
])  # fmt: skip
def test_address_as_a_name_of_a_file_is_only_a_name(text_encoders, folders, value):  # noqa: F811
    from h3te.nodes.host import conditioning_list, paths

    with forbidden(*NETWORK, *PROGRAMS):
        for resolve in (paths.resolve, paths.resolve_vision, conditioning_list.resolve):
            with pytest.raises(ValueError, match=r"expected .* got"):
                resolve(value)


def test_remote_alone_asks_others(text_encoders, demo_file):  # noqa: F811
    """And is stopped here, so that the test above can fail."""
    from h3te.nodes.encoder_options import EncoderOptionsNode
    from h3te.nodes.load_text_encoder import LoadTextEncoder

    options = EncoderOptionsNode.execute(remote="127.0.0.1:9").args[0]
    with pytest.raises(RuntimeError, match="expected a worker that answers, got none"):
        LoadTextEncoder.execute(text_encoder="(remote: as the options say)", options=options)
