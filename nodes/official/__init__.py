"""transformers' own Qwen3-VL on the encoder's weights, to compare with; needs no host. `model.py` is the entrance.

Nothing is imported here: transformers is an optional package.
"""
