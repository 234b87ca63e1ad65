// The Python prototype's fingerprints: SHA-256 over its canonical JSON of a model signature or of a
// tokenizer's contents.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/base/strict_json.h"

namespace kvbridge::artifact {

// Canonical JSON of a signature {model_id, revision, tokenizer_hash, num_layers, num_kv_heads,
// head_dim, attention_kind = "dense", architecture = "unknown"}: defaults filled in, keys sorted,
// no spaces, non-ASCII escaped. The types of values are kept as they came: they are part of the
// bytes. INVALID_ARGUMENT for unknown or missing keys, empty identity fields, counts that are not
// positive.
absl::StatusOr<std::string> CanonicalSignature(const base::Json& signature,
                                               absl::string_view path = "signature");
// SHA-256 of CanonicalSignature, lower-case hex.
absl::StatusOr<std::string> SignatureFingerprint(const base::Json& signature,
                                                 absl::string_view path = "signature");

// Canonical JSON of a tokenizer: {"added_tokens": [[token, "id"]...], "special_tokens_map": {...},
// "vocab": [[token, id]...]}, both lists in code point order of their tokens, non-ASCII as UTF-8.
// `vocab` and `added_vocab` are objects of token -> integer id.
absl::StatusOr<std::string> CanonicalTokenizer(const base::Json& vocab,
                                               const base::Json& special_tokens_map,
                                               const base::Json& added_vocab);

}  // namespace kvbridge::artifact
