"""The weights of a DFlash drafter: found, checked by name, count and shape, and only then read (dflash.md 1.5)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ModelError, UnsupportedError
from ..files import read_object
from .config import DFlashConfig

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_LFS_MAGIC = b"version https://git-lfs"
_FLOATS = ("F64", "F32", "F16", "BF16")

# Tensors that only other drafters of the family have.
_DIALECTS = (
    (r"candidate_selector\.|attention_conv\.|mlp_conv\.", "DFlash2"),
    (r"gru|markov|confidence", "Domino or DSpark"),
    (r"^(t2d|d2t)$|verifier_", "speculators"),
    (r"encoder\.|midlayer\.", "Muse assistant"),
    (r"mask_embedding|sinks?$|attention_sink", "own mask embedding or attention sinks"),
    (r"embed_tokens|lm_head", "own embedding or head"),
)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies and what it looks like; its data are not read."""

    shape: tuple[int, ...]
    dtype: str
    """As safetensors spells it: F32, BF16, ..."""
    file: Path
    stored_name: str
    """Its name in the file, with the prefix that some converters add."""


def read_header(folder: Path) -> dict[str, TensorInfo]:
    """Names and shapes of all tensors of a folder, in one file or sharded, a leading `model.` taken off.

    Raises ModelError for missing, empty, cut or pointer files and for names that occur twice.
    """
    header: dict[str, TensorInfo] = {}
    for file in _weight_files(folder):
        _check_file(file)
        try:
            with safe_open(file, framework="pt") as weights:
                for stored in weights.keys():  # noqa: SIM118  (not a dict)
                    part = weights.get_slice(stored)
                    name = stored.removeprefix("model.")
                    if name in header:
                        raise ModelError(f"{file}: tensor {name} occurs twice: expected each name once")
                    header[name] = TensorInfo(tuple(part.get_shape()), part.get_dtype(), file, stored)
        except SafetensorError as error:
            raise ModelError(f"{file}: not a whole safetensors file: {error}") from error
    return header


def count_taps(config: DFlashConfig, header: Mapping[str, TensorInfo]) -> int:
    """K, the tapped layers by the width of `fc.weight` (h, K * h); ModelError when it is missing or no multiple."""
    fc = header.get("fc.weight")
    h = config.hidden_size
    if fc is None:
        return _missing(config, header, ["fc.weight"])
    if len(fc.shape) != 2 or fc.shape[0] != h or fc.shape[1] % h or not fc.shape[1]:
        raise ModelError(f"{fc.file}: fc.weight has shape {list(fc.shape)}: expected [{h}, taps * {h}]")
    return fc.shape[1] // h


def expected_shapes(config: DFlashConfig, num_taps: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint and its shape: 11 L + 3 of them, with biases 15 L + 3."""
    h, inter, hd = config.hidden_size, config.intermediate_size, config.head_dim
    width_q, width_kv = config.num_heads * hd, config.num_kv_heads * hd
    projections = {"q_proj": (width_q, h), "k_proj": (width_kv, h), "v_proj": (width_kv, h), "o_proj": (h, width_q)}
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (h, num_taps * h)}
    shapes |= {"hidden_norm.weight": (h,), "norm.weight": (h,)}
    for layer in range(config.num_layers):
        at = f"layers.{layer}."
        shapes |= {f"{at}input_layernorm.weight": (h,), f"{at}post_attention_layernorm.weight": (h,)}
        shapes |= {f"{at}self_attn.q_norm.weight": (hd,), f"{at}self_attn.k_norm.weight": (hd,)}
        shapes |= {f"{at}mlp.gate_proj.weight": (inter, h), f"{at}mlp.up_proj.weight": (inter, h)}
        shapes[f"{at}mlp.down_proj.weight"] = (h, inter)
        for name, shape in projections.items():
            shapes[f"{at}self_attn.{name}.weight"] = shape
            if config.attention_bias:
                shapes[f"{at}self_attn.{name}.bias"] = shape[:1]
    return shapes


def check_tensors(config: DFlashConfig, header: Mapping[str, TensorInfo]) -> None:
    """Compare a header with its config before anything is read; the layers must be known.

    Raises ModelError that names missing, left-over or misshapen tensors (with both shapes), UnsupportedError for
    tensors of other drafters and for stored types that are not floating point.
    """
    expected = expected_shapes(config, len(config.target_layer_ids or ()))
    for name, info in header.items():
        if name not in expected:
            _refuse_dialect(name, info)
    missing = [name for name in expected if name not in header]
    if missing:
        _missing(config, header, missing)
    for name, shape in expected.items():
        info = header[name]
        if info.shape != shape:
            raise ModelError(
                f"{info.file}: {name} has shape {list(info.shape)}: expected {list(shape)} by {config.where}"
            )
        if info.dtype not in _FLOATS:
            raise UnsupportedError(f"{info.file}: {name} is {info.dtype}: expected one of {', '.join(_FLOATS)}")
    left_over = [name for name in header if name not in expected]
    if left_over:
        raise ModelError(
            f"{header[left_over[0]].file}: {_list(left_over)} left over: expected the {len(expected)} tensors of "
            f"{config.num_layers} layers, attention_bias {str(config.attention_bias).lower()}"
        )


def load_tensors(header: Mapping[str, TensorInfo], dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """Read the tensors of a checked header, cast to `dtype` on `device`. Raises ModelError for NaN or infinity."""
    tensors: dict[str, torch.Tensor] = {}
    for file in {info.file for info in header.values()}:
        with safe_open(file, framework="pt") as weights:
            for name, info in header.items():
                if info.file == file:
                    tensor = weights.get_tensor(info.stored_name).to(device=device, dtype=dtype)
                    if not torch.isfinite(tensor).all():
                        raise ModelError(f"{file}: tensor {info.stored_name} holds numbers that are not finite")
                    tensors[name] = tensor
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if (folder / _WEIGHTS).exists():
        return [folder / _WEIGHTS]
    if not index.exists():
        raise ModelError(f"drafter {folder}: no weights: expected {_WEIGHTS} or {_INDEX}")
    shards = read_object(index, lambda line: ModelError(f"drafter {folder}: {line}")).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ModelError(f"{index}: expected a JSON object with a weight_map of file names")
    for name in shards.values():
        if Path(name).name != name:
            raise ModelError(f"{index}: names {name!r}: expected a file in the same folder")
    return [folder / name for name in sorted({*shards.values()})]


def _check_file(file: Path) -> None:
    if file.is_dir():
        raise ModelError(f"{file}: a folder: expected the weights of the drafter")
    if not file.is_file():
        raise ModelError(f"{file}: no such file, though {_INDEX} names it")
    with file.open("rb") as opened:
        start = opened.read(len(_LFS_MAGIC))
    if not start:
        raise ModelError(f"{file}: empty file: expected the weights of the drafter")
    if start == _LFS_MAGIC:
        raise ModelError(f"{file}: a Git LFS pointer, not the weights: fetch it with `git lfs pull`")


def _refuse_dialect(name: str, info: TensorInfo) -> None:
    for pattern, dialect in _DIALECTS:
        if re.search(pattern, name):
            raise UnsupportedError(
                f"{info.file}: tensor {name} {list(info.shape)} belongs to another kind of drafter ({dialect}): "
                "expected DFlashDraftModel"
            )


def _missing(config: DFlashConfig, header: Mapping[str, TensorInfo], names: list[str]) -> int:
    file = next((str(info.file) for info in header.values()), "the weights")
    raise ModelError(f"{file}: {_list(names)} missing: {config.where} promises {config.num_layers} layers")


def _list(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {', '.join(names[:4])}{more}"
