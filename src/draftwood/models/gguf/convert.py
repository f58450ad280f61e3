"""From a GGUF file to a float32 model and its tokenizer, by transformers, with all that the file says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelError
from ..source import Notify
from . import accounting, tokenizer

GGUF_EXTRA = "pip install 'draftwood[gguf]'"
_FREQUENCIES = "rope_freqs.weight"
_EXPERTS = re.compile(r"blk\.\d+\.ffn_(gate|up|down|gate_up)_exps\.(weight|bias)")
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What all published models with such frequencies were trained with; the factor is read off the file."""


def convert(path: Path, notify: Notify) -> tuple[Any, Any]:
    """(model, tokenizer): weights as transformers unpacks them, in float32 on the CPU.

    Raises ModelError for what transformers cannot convert, and for keys or tensors that it would leave out although
    they change the text.
    """
    try:
        return _convert(path, notify)
    except ImportError as error:
        raise ModelError(f"model {str(path)!r}: reading GGUF needs the extra gguf; run: {GGUF_EXTRA}") from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"model {str(path)!r}: transformers cannot convert it: {reason}") from error


def _convert(path: Path, notify: Notify) -> tuple[Any, Any]:
    import torch
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    reader = GGUFReader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    tokenizer.check_kind(path, metadata)
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    config = AutoConfig.from_pretrained(**where)
    accounting.account(path, metadata, config, notify)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if _FREQUENCIES in tensors:
        _set_frequencies(path, np.array(tensors[_FREQUENCIES].data, np.float64), config)
    rebuilt = AutoTokenizer.from_pretrained(**where)
    tokenizer.complete(rebuilt, metadata)
    model, info = AutoModelForCausalLM.from_pretrained(
        **where,
        config=config,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        output_loading_info=True,
    )
    # transformers would fill them with random numbers.
    if info["missing_keys"]:
        raise ModelError(f"model {str(path)!r}: weights are missing: {', '.join(sorted(info['missing_keys']))}")
    _check_all_used(path, tensors, metadata, model)
    # The weights are plain float32 now, but transformers still takes the model for a quantized one and would
    # refuse to save it.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model, rebuilt


def _check_all_used(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, Any], model: Any) -> None:
    """Raise ModelError for tensors that went nowhere: the converter skips without a word what it has no place for."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    processor = TENSOR_PROCESSORS.get(metadata["general.architecture"], TensorProcessor)(config=model.config.to_dict())
    used = {*get_gguf_hf_weights_map(model, processor), _FREQUENCIES}
    left = [name for name in tensors if name not in used and not _EXPERTS.fullmatch(name)]
    if left:
        raise ModelError(
            f"model {str(path)!r}: {len(left)} tensors have no place in transformers' {type(model).__name__}, the "
            f"first is {left[0]}: the text might change without them; use the model's safetensors checkpoint instead"
        )


def _set_frequencies(path: Path, divisors: np.ndarray, config: Any) -> None:
    """Honour a table by which the frequencies of the rotation are divided: Llama 3's scaling, written out.

    The parameters behind it are not in the file: those of the published models are tried, and must give the table.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if (divisors == 1.0).all():
        return
    plain = dict(config.rope_parameters)
    config.rope_parameters = {**plain, **_LLAMA3, "rope_type": "llama3", "factor": float(divisors.max())}
    scaled = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].double().numpy()
    exponents = np.arange(len(scaled)) / len(scaled)
    if divisors.shape != scaled.shape or not np.allclose(
        plain["rope_theta"] ** -exponents / scaled, divisors, rtol=1e-4
    ):
        raise ModelError(
            f"model {str(path)!r}: tensor {_FREQUENCIES} is not the scaling of Llama 3 (low 1, high 4, 8192 "
            "positions); use the model's safetensors checkpoint instead"
        )
