"""A checkpoint's tensors: in which number type they lie, and whether all of them have found their place."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from ...errors import ModelError, UnsupportedError
from ...files import read_object
from ..source import Notify

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER = "adapter_config.json"
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_FLOAT_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in _FLOATS.values()}
_WHOLE_NUMBERS = ("I64", "I32", "BOOL")
"""Types in which buffers lie, such as masks and counters; matrices in them are packed."""
_MAX_HEADER = 100_000_000

HARMLESS = {
    r".*rotary_emb\.inv_freq": "frequencies that follow from the configuration",
    r".*\.(masked_bias|attn\.bias|attention\.bias)": "the causal mask as a table",
    r".*position_ids": "the numbers 0, 1, 2, ...",
    r".*num_batches_tracked": "a counter of training",
    r"(model\.)?(mtp|nextn)\..*": "layers that draft, which the model's own text does not use",
    r"(model\.)?(vision_tower|visual|vision_model|vision_embed\w*|image_\w+|multi_modal_projector|mm_projector|"
    r"audio_tower|embed_vision|embed_audio)\..*": "the part for pictures or sound, which texts do not reach",
}
"""Patterns of tensors that a model for texts has no place for and needs none, with the reason."""


_DRAFTING = re.compile(r"((?:model\.)?layers\.(\d+)\.)(eh_proj|enorm|hnorm|shared_head)\.")
"""What mixes the last hidden state with the next token, in a further layer that predicts tokens ahead."""


def check_shapes(name: str, mismatched: Iterable[Any]) -> None:
    """Raise ModelError, naming the first, for tensors (name, stored shape, shape of the model) that do not fit."""
    wrong = sorted(mismatched, key=lambda entry: str(entry[0]))
    if wrong:
        tensor, stored, expected = wrong[0][:3]
        raise ModelError(
            f"model {name!r}: {len(wrong)} tensors of the checkpoint have other shapes than config.json says, the "
            f"first is {tensor}: {tuple(stored)} in the file, {tuple(expected)} by config.json"
        )


def stored_dtype(folder: Path, name: str, config_dtype: object, notify: Notify) -> torch.dtype:
    """The number type of a checkpoint: what its configuration says, or what most of its numbers lie in.

    Raises ModelError for files that are missing, cut or pointers, UnsupportedError for float8 and packed weights.
    """
    headers = list(_headers(folder, name))
    counts: Counter[str] = Counter()
    for tensor, info in headers:
        kind, shape = info["dtype"], info["shape"]
        if kind not in _FLOATS and (kind not in _WHOLE_NUMBERS or (len(shape) > 1 and tensor.endswith("weight"))):
            raise UnsupportedError(
                f"model {name!r}: tensor {tensor} is stored as {kind}: float8 and packed weights are not supported; "
                "use "
                "the checkpoint in bfloat16 or a GGUF file"
            )
        counts[kind] += int(torch.Size(shape).numel()) if kind in _FLOATS else 0
    if config_dtype is not None:
        said = str(config_dtype).removeprefix("torch.")
        if said not in _FLOAT_NAMES:
            raise UnsupportedError(
                f"model {name!r}: config.json: dtype {said!r}: expected one of {', '.join(_FLOAT_NAMES)}"
            )
        return _FLOAT_NAMES[said]
    if not counts:
        return torch.float32
    found = [kind for kind, count in counts.most_common() if count]
    dtype = _FLOATS[found[0]]
    if len(found) > 1:
        kinds = ", ".join(str(_FLOATS[kind]).removeprefix("torch.") for kind in found)
        notify(f"model {name!r}: config.json names no dtype and tensors lie in {kinds}: running in the first")
    return dtype


def check_left_over(name: str, unexpected: Iterable[str], num_layers: int) -> None:
    """Raise ModelError, naming the first, for tensors without a place that may carry meaning.

    A layer behind the last is one that drafts only if it holds what drafting needs; else `num_hidden_layers` is wrong.
    """
    unexpected = sorted(unexpected)
    drafting = {found[1] for tensor in unexpected if (found := _DRAFTING.match(tensor)) and int(found[2]) >= num_layers}
    left = []
    for tensor in unexpected:
        drafts = any(tensor.startswith(prefix) for prefix in drafting)
        if not drafts and not any(re.fullmatch(pattern, tensor) for pattern in HARMLESS):
            left.append(tensor)
    if left:
        raise ModelError(
            f"model {name!r}: {len(left)} tensors of the checkpoint have no place in the model, the first is "
            f"{left[0]}: the "
            "text might change without them"
        )


def check_head(name: str, model: Any, notify: Notify) -> None:
    """Tell `notify` of a head of the checkpoint's own where the configuration says that it is the embedding.

    transformers runs the head that is stored; others tie it all the same.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings().weight
    if not model.config.get_text_config(decoder=True).tie_word_embeddings or head is None:
        return
    if head.weight is not embedding and not torch.equal(head.weight, embedding):
        notify(
            f"model {name!r}: config.json: tie_word_embeddings is true, but the checkpoint holds another "
            "lm_head.weight: "
            "it is used, as transformers does"
        )


def _headers(folder: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(tensor, its entry) of every safetensors file of the checkpoint."""
    for file in _files(folder, name):
        with file.open("rb") as data:
            start = data.read(8)
            length = int.from_bytes(start, "little")
            if start.startswith(b"version "):
                raise ModelError(
                    f"model {name!r}: {file.name} is a Git LFS pointer, not the file itself; run git lfs pull"
                )
            try:
                header = json.loads(data.read(length)) if len(start) == 8 and length <= _MAX_HEADER else None
            except ValueError:
                header = None
        if not isinstance(header, dict):
            raise ModelError(f"model {name!r}: {file.name} is not a safetensors file, or cut")
        yield from ((tensor, info) for tensor, info in header.items() if tensor != "__metadata__")


def _files(folder: Path, name: str) -> list[Path]:
    """The weight files. Raises ModelError when one is missing, is no file, or only other formats are there."""
    if (folder / ADAPTER).exists():
        raise UnsupportedError(
            f"model {name!r}: {ADAPTER}: weights to be added to another model (LoRA and the like) are not supported; "
            "merge them into the model first"
        )
    if not (folder / INDEX).exists():
        if (folder / SINGLE).is_dir():
            raise ModelError(f"model {name!r}: {SINGLE} is a folder: expected a file")
        if not (folder / SINGLE).is_file():
            others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
            also = f" (found {others[0]}, a pickle, which is never opened)" if others else ""
            raise ModelError(f"model {name!r}: no {SINGLE} and no {INDEX} in the folder{also}")
        return [folder / SINGLE]
    shards = read_object(folder / INDEX, lambda line: ModelError(f"model {name!r}: {line}")).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise ModelError(f"model {name!r}: {INDEX}: weight_map: expected file names by tensor")
    for shard in sorted({*shards.values()}):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise ModelError(f"model {name!r}: {INDEX} names {shard!r}: no such file in the folder")
    if (folder / SINGLE).exists() and SINGLE not in shards.values():
        raise ModelError(
            f"model {name!r}: both {SINGLE} and {INDEX}, which names other files: which of them is the model is not "
            "said; remove one"
        )
    return [folder / shard for shard in sorted({*shards.values()})]
