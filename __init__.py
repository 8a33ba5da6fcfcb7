"""MiniMax H3 Text Encoder (H3TE), a ComfyUI node pack.

ComfyUI imports this file from a folder of any name and awaits `comfy_entrypoint()`. Nothing is imported at module
scope: ComfyUI's start-up, pytest and the Manager's scanner all read it. A NODE_CLASS_MAPPINGS here would hide the
entry point.
"""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    from .nodes.extension import H3TEExtension

    return H3TEExtension()
