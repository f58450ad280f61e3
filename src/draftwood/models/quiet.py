"""Silence of the libraries under a command line."""

from __future__ import annotations

import warnings


def quiet_libraries() -> None:
    """Turn off progress bars, advice and warnings of transformers and the hub client; Draftwood's own stay.

    For a command line only: it changes settings of the whole process.
    """
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging

    warnings.simplefilter("ignore")
    warnings.filterwarnings("default", module=r"draftwood\.")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
