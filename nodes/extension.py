"""Table of contents: the nodes that this pack adds to ComfyUI, in menu order."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io


class H3TEExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        from .checkpoint_doctor import CheckpointDoctor
        from .clear_caches import ClearCaches
        from .encode_keyframes import EncodeKeyframes
        from .encode_references import EncodeReferences
        from .encoder_options import EncoderOptionsNode
        from .keyframe import KeyframeNode
        from .load_conditioning import LoadConditioning
        from .load_text_encoder import LoadTextEncoder
        from .reference_audio import ReferenceAudio
        from .reference_image import ReferenceImage
        from .reference_video import ReferenceVideo
        from .save_conditioning import SaveConditioning
        from .show_presentation import ShowPresentation

        encode = [EncodeReferences, ReferenceImage, ReferenceVideo, ReferenceAudio, EncodeKeyframes, KeyframeNode]
        shown = [ShowPresentation]
        kept = [SaveConditioning, LoadConditioning, ClearCaches]
        return [LoadTextEncoder, *encode, *shown, *kept, EncoderOptionsNode, CheckpointDoctor]
