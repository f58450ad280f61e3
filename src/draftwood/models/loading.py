"""From a model's name to a target and its text codec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..attention import AttentionBackend
from ..errors import ModelError, UsageError
from ..linear import helps, use_few_rows
from .chat import ChatSettings
from .checkpoint import check_head, check_left_over, check_shapes, context_limit, read_config, stored_dtype
from .generation import sampling_defaults
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
_DEVICE = re.compile(r"cpu|cuda(:(0|[1-9]\d?))?")
_HALF = (torch.bfloat16, torch.float16)


class LoadedTarget(NamedTuple):
    """A target with its tokenizer."""

    target: HFTarget
    codec: TextCodec
    temperature: float
    """Of requests that name none."""


def load_target(
    source: ModelSource,
    *,
    dtype: str,
    device: str,
    backend: AttentionBackend,
    cache_dir: Path,
    notify: Notify,
    generation_config: str | None = None,
    chat: ChatSettings | None = None,
) -> LoadedTarget:
    """Load the model that `source` names. Raises ModelError, UnsupportedError or UsageError in one line."""
    place = check_settings(dtype, device)
    sampling_defaults(None, generation_config)
    if source.kind == "gguf" and source.path is not None:
        opened = open_gguf(source.path, cache_dir=cache_dir, notify=notify)
        end_ids, own_settings = opened.end_ids, False
        # Quantised weights have no type of their own; half precision holds them and is quicker where it is native.
        number = _resolve(dtype, torch.bfloat16, place, notify=lambda message: None)
        if isinstance(opened, GgufFolder):
            config = read_config(opened.folder, source.name, notify)
            model, tokenizer = _from_folder(opened.folder, source.name, config, number)
        else:
            model, tokenizer = opened.model.to(number), opened.tokenizer
    else:
        folder = fetch_folder(source)
        # Without the file transformers makes one up from the configuration, which then is what names the end ids.
        end_ids, own_settings = (), (folder / "generation_config.json").is_file()
        config = read_config(folder, source.name, notify)
        number = _resolve(dtype, stored_dtype(folder, source.name, config.dtype, notify), place, notify)
        model, tokenizer = _from_folder(folder, source.name, config, number)
        check_head(source.name, model, notify)
    codec = TextCodec(
        tokenizer,
        name=source.name,
        config=model.config,
        generation_config=model.generation_config if own_settings else None,
        file_end_ids=end_ids,
        chat=chat,
    )
    temperature, unheeded = sampling_defaults(model.generation_config, generation_config)
    if unheeded is not None:
        notify(f"model {source.name!r}: {unheeded}")
    model = model.to(place)
    if helps(number, place):
        use_few_rows(model)
    limit = context_limit(model.config.get_text_config(decoder=True), source.name, notify)
    return LoadedTarget(HFTarget(model, backend, name=source.name, context_limit=limit), codec, temperature)


def check_settings(dtype: str, device: str) -> torch.device:
    """The device of that name. Raises UsageError for one that is not here or not supported, and for such a dtype.

    A device that torch knows is not enough: the engine's kernels and copies run on the CPU and on CUDA.
    """
    if not _DEVICE.fullmatch(str(device)):
        raise UsageError(f"device {str(device)!r}: expected cpu, cuda or cuda:N")
    if dtype != "auto" and dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r}: expected auto or one of {', '.join(DTYPES)}")
    place = torch.device(device)
    if place.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise UsageError(f"device {str(device)!r}: this torch finds no CUDA device; expected cpu")
        if place.index is not None and place.index >= count:
            raise UsageError(f"device {str(device)!r}: expected cpu, cuda or cuda:N with N from 0 to {count - 1}")
    return place


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


def _from_folder(folder: Path, name: str, config: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # to be named below
            trust_remote_code=False,
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, trust_remote_code=False)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        ArithmeticError,
        SafetensorError,
    ) as error:
        raise ModelError(f"model {name!r}: {_first_line(error)}") from error
    check_shapes(name, info["mismatched_keys"])
    # transformers fills absent tensors with random numbers and goes on.
    if absent := sorted(info["missing_keys"]):
        raise ModelError(f"model {name!r}: {len(absent)} tensors are not in the checkpoint, the first is {absent[0]}")
    check_left_over(name, info["unexpected_keys"], model.config.get_text_config(decoder=True).num_hidden_layers)
    return model, tokenizer


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
