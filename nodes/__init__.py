"""ComfyUI nodes of the pack; `extension.py` is the table of contents. Nothing is imported here."""
