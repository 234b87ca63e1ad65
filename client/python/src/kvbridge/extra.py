"""torch and transformers, which only the extra "hf" brings: without them ImportError says what to install."""

import inspect
from typing import Any

try:
    import torch
    import transformers
    from transformers import DynamicCache
except ImportError as error:
    raise ImportError(f"{error}; it comes with: pip install 'kvbridge[hf]'") from error

__all__ = ["DynamicCache", "cache_argument", "torch", "transformers"]


def cache_argument(model: Any) -> str:
    """transformers 5 renames forward()'s argument; models that it has not reached yet keep the old name."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
