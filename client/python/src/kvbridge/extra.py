"""torch and transformers, which only the extra "hf" brings: without them ImportError says what to install."""

try:
    import torch
    import transformers
    from transformers import DynamicCache
except ImportError as error:
    raise ImportError(f"{error}; it comes with: pip install 'kvbridge[hf]'") from error

__all__ = ["DynamicCache", "torch", "transformers"]
