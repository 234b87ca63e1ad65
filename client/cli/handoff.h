// Whatever maps caches for a command: an artifact in this process, or a route of a server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"

#include "client/cli/local_models.h"
#include "client/cli/output.h"
#include "client/cli/server_access.h"
#include "client/cli/transfer_report.h"
#include "core/artifact/cache_file.h"
#include "core/model/model_spec.h"

namespace kvbridge::cli {

// Which it is.
struct HandoffFlags {
  std::string artifact;  // either this: in process
  ConfigFlags configs;
  bool allow_unproven = false;
  ServerAccess server;  // or these: by a server
  std::string route;
  std::string peer;            // of the server; empty = it maps itself
  std::string target_spec;     // ModelSpec as JSON; empty = the route's, as the server states it
  std::string plane = "auto";  // "auto", "region", "inline"
};

// What one transfer is asked with.
struct HandoffRequest {
  std::string request_id;  // empty = a random one
  int64_t prompt_tokens = 0;
  int32_t native_tail = 0;
  std::optional<double> max_latency_seconds;
  double deadline_seconds = 300;
  int32_t hops = 0;
  std::string traceparent;  // W3C, of the caller's span; for servers. Empty = none
};

// Thread contract: one thread.
class Handoff {
 public:
  virtual ~Handoff() = default;

  virtual const model::ModelSpec& source() const = 0;
  virtual const model::ModelSpec& target() const = 0;
  // "cpu-amx", ...: what computes.
  virtual std::string backend() const = 0;

  // Maps `source` into `answer`, which AnswerFor made. A fallback is an answer; CANCELLED after
  // `stop`.
  virtual absl::StatusOr<TransferReport> Run(const HandoffRequest& request,
                                             const artifact::CacheFile& source,
                                             const artifact::CacheFile& answer,
                                             const std::stop_token& stop) = 0;
};

// Loads the artifact, or asks the server for its route; shows progress. `most_tokens` of a cache
// will be mapped at once.
absl::StatusOr<std::unique_ptr<Handoff>> OpenHandoff(const HandoffFlags& flags, int64_t most_tokens,
                                                     const Output& output);
absl::StatusOr<std::unique_ptr<Handoff>> OpenLocalHandoff(const HandoffFlags& flags,
                                                          int64_t most_tokens,
                                                          const Output& output);
absl::StatusOr<std::unique_ptr<Handoff>> OpenRemoteHandoff(const HandoffFlags& flags);

// A cache of a model with room for `tokens` tokens at positions 0, 1, ..., every element zero, FP8
// scales 1. `bytes`, where asked for, is its memory.
artifact::CacheFile NewCache(const model::ModelSpec& spec, int64_t tokens,
                             std::span<std::byte>* bytes = nullptr);
// The answer's memory: the target's geometry, the source's tokens.
artifact::CacheFile AnswerFor(const model::ModelSpec& target, const artifact::CacheFile& source);

// The request's id, or a random one: samples are drawn by it, and calls that share one would all be
// drawn, or none.
std::string IdOf(const HandoffRequest& request);

}  // namespace kvbridge::cli
