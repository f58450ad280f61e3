"""From a model's name to a target and its text codec."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..attention import AttentionBackend
from ..errors import ModelError, UsageError
from ..linear import helps, use_few_rows
from .gguf import GgufFolder, open_gguf
from .hf import HFTarget
from .source import ModelSource, Notify, fetch_folder
from .text import TextCodec

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_HALF = (torch.bfloat16, torch.float16)


class LoadedTarget(NamedTuple):
    """A target with its tokenizer."""

    target: HFTarget
    codec: TextCodec


def load_target(
    source: ModelSource,
    *,
    dtype: str,
    device: str,
    backend: AttentionBackend,
    cache_dir: Path,
    notify: Notify,
) -> LoadedTarget:
    """Load the model that `source` names. Raises ModelError, UnsupportedError or UsageError in one line."""
    place = _device(device)
    if dtype != "auto" and dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}: expected auto or one of {', '.join(DTYPES)}")
    if source.kind == "gguf" and source.path is not None:
        opened = open_gguf(source.path, cache_dir=cache_dir, notify=notify)
        end_ids = opened.end_ids
        # Quantised weights have no type of their own; half precision holds them and is quicker where it is native.
        number = _resolve(dtype, torch.bfloat16, place, notify=lambda message: None)
        if isinstance(opened, GgufFolder):
            model, tokenizer = _from_folder(opened.folder, source.name, number)
        else:
            model, tokenizer = opened.model.to(number), opened.tokenizer
    else:
        folder = fetch_folder(source)
        end_ids = ()
        number = _resolve(dtype, _stored_dtype(folder, source.name), place, notify)
        model, tokenizer = _from_folder(folder, source.name, number)
    codec = TextCodec(
        tokenizer,
        name=source.name,
        config=model.config,
        generation_config=model.generation_config,
        file_end_ids=end_ids,
    )
    model = model.to(place)
    if helps(number, place):
        use_few_rows(model)
    return LoadedTarget(HFTarget(model, backend, name=source.name), codec)


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions; without them each product is emulated, many times slower."""
    return any(bool(found) for name, found in torch.cpu.get_capabilities().items() if name.endswith("bf16"))


def _resolve(dtype: str, stored: torch.dtype, device: torch.device, notify: Notify) -> torch.dtype:
    """`auto` keeps the stored type, except half precision on a CPU that can only emulate it."""
    if dtype != "auto":
        return DTYPES[dtype]
    if device.type == "cpu" and stored in _HALF and not cpu_multiplies_bfloat16():
        notify(f"this CPU only emulates {str(stored).removeprefix('torch.')}: running in float32 (--dtype overrides)")
        return torch.float32
    return stored


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device {name!r}: expected cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {name!r}: this torch finds no CUDA device; expected cpu")
    return device


def _stored_dtype(folder: Path, name: str) -> torch.dtype:
    from transformers import AutoConfig

    try:
        stored = AutoConfig.from_pretrained(folder).dtype
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model {name!r}: {_first_line(error)}") from error
    return stored if isinstance(stored, torch.dtype) else torch.float32


def _from_folder(folder: Path, name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"model {name!r}: {_first_line(error)}") from error
    # transformers fills absent tensors with random numbers and goes on.
    if absent := sorted(info["missing_keys"]):
        raise ModelError(f"model {name!r}: {len(absent)} tensors are not in the checkpoint, the first is {absent[0]}")
    return model, tokenizer


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
