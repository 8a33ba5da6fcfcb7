"""What oneDNN takes for matrix products on a CPU in bf16: code for each product of another shape, which it keeps, and
scratch while one runs.

Contract: `product_bytes(calls, tokens, split, products)`; `HERE` is what this processor does. Measured with torch 2.13
on one and two threads, 51 to 8064 rows, at the real width: a processor with AMX tiles keeps 1.4 to 3.0 MB a product of
the decoder and 0.7 to 2.3 MB of the vision tower where others keep 0.54 to 0.73 MB, and lays out its rows anew, in
every thread, where others take a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

FEW_ROWS = 64  # no more than that, and the code is shorter
TEXT_PRODUCTS, VISION_PRODUCTS = 6, 7  # of different shapes, for each number of rows
MOST_PRODUCTS = 1024  # oneDNN drops the least lately used then


@dataclass(frozen=True)
class Products:
    """Bytes of code of one product: of few rows, of the decoder, of the vision tower. scratch: bytes in each thread,
    and for each row of the longest."""

    few: int = 640_000
    text: int = 640_000
    vision: int = 640_000
    scratch: int = 0
    scratch_row: int = 0


PLAIN, TILES = Products(), Products(750_000, 2_500_000, 1_500_000, 600_000, 2_500)


def products_here() -> Products:
    """Of this processor; those with AMX where torch does not say."""
    told = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return TILES if told is None or told() else PLAIN


HERE = products_here()


def product_bytes(calls: Collection[int], tokens: Collection[int], split: bool, products: Products) -> int:
    """calls: patches of each call of the vision tower; tokens: rows of each request. split: the longest is multiplied
    in blocks of columns, a shape of its own."""
    text, vision = set(tokens), set(calls)
    short = TEXT_PRODUCTS * sum(rows <= FEW_ROWS for rows in text)
    each = [products.few] * short + [products.text] * (TEXT_PRODUCTS * len(text) - short + split)
    each += [products.vision] * (VISION_PRODUCTS * len(vision))
    scratch = products.scratch + products.scratch_row * max([*tokens, *calls], default=0)
    return sum(sorted(each, reverse=True)[:MOST_PRODUCTS]) + torch.get_num_threads() * scratch
