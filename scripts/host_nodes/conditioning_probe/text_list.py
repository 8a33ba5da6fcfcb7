"""A node for the demo and the tests: one text a line, as a list of ComfyUI, with a name for each."""


class TextList:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"texts": ("STRING", {"multiline": True}), "prefix": ("STRING", {"default": "text_"})}}

    RETURN_TYPES = ("STRING", "STRING")
    RETURN_NAMES = ("texts", "names")
    OUTPUT_IS_LIST = (True, True)
    FUNCTION = "split"
    CATEGORY = "testing"

    def split(self, texts, prefix):
        lines = texts.splitlines()
        return lines, [f"{prefix}{i}" for i in range(len(lines))]
