#include "core/artifact/fingerprint.h"

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/crypto/sha256.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

// True is a positive number to Python, and part of some recorded fingerprints.
bool IsPositive(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  return value.is_number() && value.get<double>() > 0;
}

bool IsStated(const Json& value) {
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return value.is_number() && value.get<double>() != 0;
}

absl::Status WantIds(const Json& vocab, absl::string_view what) {
  if (!vocab.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": expected an object of token -> id"));
  }
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer()) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, "[\"", token.substr(0, 40), "\"]: expected an integer id, got ", id.type_name()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> CanonicalSignature(const Json& signature, absl::string_view path) {
  if (!signature.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected an object, got ", signature.type_name()));
  }
  KVB_RETURN_IF_ERROR(
      base::RefuseUnknownKeys(signature,
                              {"model_id", "revision", "tokenizer_hash", "num_layers",
                               "num_kv_heads", "head_dim", "attention_kind", "architecture"},
                              path));
  Json full = {{"attention_kind", "dense"}, {"architecture", "unknown"}};
  full.update(signature);
  for (const char* key : {"model_id", "revision", "tokenizer_hash"}) {
    if (!IsStated(full.value(key, Json()))) {
      return absl::InvalidArgumentError(absl::StrCat(path, ".", key, ": expected a value"));
    }
  }
  for (const char* key : {"num_layers", "num_kv_heads", "head_dim"}) {
    if (!IsPositive(full.value(key, Json()))) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".", key, ": expected a positive number"));
    }
  }
  return base::CanonicalJson(full);
}

absl::StatusOr<std::string> SignatureFingerprint(const Json& signature, absl::string_view path) {
  KVB_ASSIGN_OR_RETURN(const std::string canonical, CanonicalSignature(signature, path));
  return crypto::Sha256Hex(canonical);
}

absl::StatusOr<std::string> CanonicalTokenizer(const Json& vocab, const Json& special_tokens_map,
                                               const Json& added_vocab) {
  KVB_RETURN_IF_ERROR(WantIds(vocab, "vocab"));
  KVB_RETURN_IF_ERROR(WantIds(added_vocab, "added_vocab"));
  // Objects iterate in byte order of their UTF-8 keys, which is code point order.
  Json entries = Json::array();
  for (const auto& [token, id] : vocab.items()) entries.push_back({token, id});
  Json added = Json::array();
  for (const auto& [token, id] : added_vocab.items()) added.push_back({token, id.dump()});
  const Json payload = {{"vocab", std::move(entries)},
                        {"special_tokens_map", special_tokens_map},
                        {"added_tokens", std::move(added)}};
  return payload.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace kvbridge::artifact
