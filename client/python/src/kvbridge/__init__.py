"""Client of kvbridged, which turns one LLM's KV cache into a sibling model's.

`Client` speaks to the server; `kvbridge.hf` hands transformers caches over (extra "hf"); `model_spec` derives
from a config.json what both sides must know about a model.
"""

from kvbridge.attempt import CancelToken
from kvbridge.cache_file import CacheFile, read_cache, write_cache
from kvbridge.client import Client
from kvbridge.digests import chat_template_digest, token_ids_digest, tokenizer_digest
from kvbridge.exposition import prometheus_text
from kvbridge.memory import MemoryUnavailable, SharedMemory
from kvbridge.model_spec import model_spec
from kvbridge.pools import HEADS_FIRST, ONE_PAGE, TOKENS_FIRST, PagedCache, Pool
from kvbridge.prefix import MappedPrefix, longest_common_prefix
from kvbridge.progress import SourceProgress
from kvbridge.region import Region, RegionArena
from kvbridge.result import RpcFailed, TransferCancelled, TransferFallback, TransferResult

__version__ = "0.1.0"

__all__ = [
    "HEADS_FIRST",
    "ONE_PAGE",
    "TOKENS_FIRST",
    "CacheFile",
    "CancelToken",
    "Client",
    "MappedPrefix",
    "MemoryUnavailable",
    "PagedCache",
    "Pool",
    "Region",
    "RegionArena",
    "RpcFailed",
    "SharedMemory",
    "SourceProgress",
    "TransferCancelled",
    "TransferFallback",
    "TransferResult",
    "chat_template_digest",
    "longest_common_prefix",
    "model_spec",
    "prometheus_text",
    "read_cache",
    "token_ids_digest",
    "tokenizer_digest",
    "write_cache",
]
