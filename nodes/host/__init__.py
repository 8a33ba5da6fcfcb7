"""The only door to ComfyUI's own modules (comfy.*, folder_paths, server). Nothing is imported here."""
