"""Client of kvbridged, which turns one LLM's KV cache into a sibling model's.

`Client` speaks to the server; `kvbridge.hf` hands transformers caches over (extra "hf"); `model_spec` derives
from a config.json what both sides must know about a model.
"""

from kvbridge.cache_file import CacheFile, read_cache, write_cache
from kvbridge.client import CancelToken, Client
from kvbridge.digests import chat_template_digest, token_ids_digest, tokenizer_digest
from kvbridge.model_spec import model_spec
from kvbridge.result import RpcFailed, TransferCancelled, TransferFallback, TransferResult

__version__ = "0.1.0"

__all__ = [
    "CacheFile",
    "CancelToken",
    "Client",
    "RpcFailed",
    "TransferCancelled",
    "TransferFallback",
    "TransferResult",
    "chat_template_digest",
    "model_spec",
    "read_cache",
    "token_ids_digest",
    "tokenizer_digest",
    "write_cache",
]
