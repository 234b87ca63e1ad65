// May this mapper touch this cache? Compares what an artifact was fitted for with what a request or
// a configuration claims, fails closed, and names the first field that stands in the way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

#include "core/model/model_spec.h"

namespace kvbridge::model {

enum class MismatchKind : uint8_t {
  kIdentity,     // another model, or one that does not say who it is
  kShape,        // another cache shape
  kRope,         // keys rotated otherwise
  kUnsupported,  // a kind of cache that no mapper may touch: adapters, sliding windows, MLA, ...
};

struct Mismatch {
  MismatchKind kind = MismatchKind::kIdentity;
  std::string field;  // "source.geometry.head_dim"
  std::string expected;
  std::string got;

  // "source.geometry.head_dim: expected 128, got 64"
  std::string ToString() const;
  friend bool operator==(const Mismatch&, const Mismatch&) = default;
};

// What is wrong with `spec` by itself: identity not stated (family, model id, tokenizer digest, or
// a revision that is missing or only a branch name), a digest that is not a whole SHA-256, an
// adapter, a layer that is not full attention, impossible counts, a head order that is no
// permutation, a RopeSpec that is not sound (rope::FindDefect). nullopt = nothing.
std::optional<Mismatch> FindDefect(const ModelSpec& spec, absl::string_view path);

// `expected` is the artifact's, `claimed` the request's. A defect of either, else the first
// difference.
//
// Compared exactly: all of the identity (the chat template only where the artifact states one),
// layers, kv_heads, head_dim, head order, tp degree and rank, rotary dims and pairings of every
// layer.
//
// Compared within 1e-6 relative: inverse frequencies and attention factors. Engines compute
// frequencies in FP32 and artifacts hold doubles: transformers' are up to 4e-7 from the exact value
// (8e-8 without llama3's blending). Published parameter sets differ from each other by far more.
//
// Not compared: dtype, since every supported one is decoded to FP32, and max_position, which bounds
// the positions of a request (kv::Positions) and says nothing about the rotation.
std::optional<Mismatch> FindMismatch(const ModelSpec& expected, const ModelSpec& claimed,
                                     absl::string_view path);

// Whether one prompt's cache may move from `source` to `target` at all: no defect in either; same
// tokenizer and same image or audio inputs (token ids and placeholders must mean the same); same tp
// degree, rank and head order (shards are mapped one to one). Layer counts, head counts, head dims,
// dtypes and rotations may differ: that is what the map is for.
std::optional<Mismatch> FindPairMismatch(const ModelSpec& source, const ModelSpec& target);

}  // namespace kvbridge::model
