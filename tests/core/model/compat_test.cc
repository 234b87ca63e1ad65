#include "core/model/compat.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "core/rope/inv_freq.h"

namespace kvbridge::model {
namespace {

const std::string kDigestA(64, 'a'), kDigestB(64, 'b');

ModelSpec Sound() {
  ModelSpec spec;
  spec.identity = {.family = "qwen3",
                   .model_id = "Qwen/Qwen3-14B",
                   .revision = "40c069824f4251a91eefaf281ebe4c544efd3e18",
                   .tokenizer_sha256 = kDigestA,
                   .chat_template_sha256 = kDigestA};
  spec.geometry.layers = 3;
  spec.geometry.kv_heads = 4;
  spec.geometry.head_dim = 8;
  spec.rope.params = *rope::MakeRopeParams(1e6, 8, Pairing::kHalf, rope::DefaultScaling{});
  spec.rope.max_position = 40960;
  return spec;
}

template <typename Change>
ModelSpec Changed(Change change) {
  ModelSpec spec = Sound();
  change(spec);
  return spec;
}

void ExpectMismatch(const std::optional<Mismatch>& found, MismatchKind kind,
                    const std::string& text) {
  ASSERT_TRUE(found.has_value()) << "accepted; expected: " << text;
  EXPECT_EQ(found->kind, kind) << found->ToString();
  EXPECT_EQ(found->ToString(), text);
}

// The claim differs from a sound artifact by `change`.
template <typename Change>
std::optional<Mismatch> Claim(Change change) {
  return FindMismatch(Sound(), Changed(change), "source");
}

TEST(CompatTest, EqualSpecsAreAccepted) {
  EXPECT_EQ(FindDefect(Sound(), "source"), std::nullopt);
  EXPECT_EQ(FindMismatch(Sound(), Sound(), "source"), std::nullopt);
  EXPECT_EQ(FindPairMismatch(Sound(), Sound()), std::nullopt);
}

TEST(CompatTest, FieldsThatMayDifferDoNotReject) {
  EXPECT_EQ(Claim([](ModelSpec& s) { s.geometry.dtype = tensor::DType::kF8E4M3; }), std::nullopt);
  EXPECT_EQ(Claim([](ModelSpec& s) { s.rope.max_position = 131072; }), std::nullopt);
  EXPECT_EQ(Claim([](ModelSpec& s) { s.geometry.head_order = {0, 1, 2, 3}; }), std::nullopt);
  EXPECT_EQ(Claim([](ModelSpec& s) { s.geometry.attention.assign(3, AttentionKind::kFull); }),
            std::nullopt);
}

TEST(CompatTest, SameNameOtherRevisionIsRejected) {
  ExpectMismatch(Claim([](ModelSpec& s) { s.identity.revision = "0123abcd"; }),
                 MismatchKind::kIdentity,
                 "source.identity.revision: expected 40c069824f4251a91eefaf281ebe4c544efd3e18, "
                 "got 0123abcd");
}

TEST(CompatTest, MissingIdentityIsRejected) {
  ExpectMismatch(
      Claim([](ModelSpec& s) { s.identity.revision.clear(); }), MismatchKind::kIdentity,
      "source.identity.revision: expected a commit or digest of the weights, got nothing");
  ExpectMismatch(
      Claim([](ModelSpec& s) { s.identity.tokenizer_sha256.clear(); }), MismatchKind::kIdentity,
      "source.identity.tokenizer_sha256: expected a SHA-256 of 64 lower-case hex digits, "
      "got nothing");
  ExpectMismatch(Claim([](ModelSpec& s) { s.identity.family.clear(); }), MismatchKind::kIdentity,
                 "source.identity.family: expected a model family, got nothing");
  ExpectMismatch(Claim([](ModelSpec& s) { s.identity.model_id.clear(); }), MismatchKind::kIdentity,
                 "source.identity.model_id: expected a model id, got nothing");
}

TEST(CompatTest, ArtifactThatDoesNotSayWhatItWasFittedForIsRejected) {
  const auto artifact = Changed([](ModelSpec& s) { s.identity.revision.clear(); });
  ExpectMismatch(FindMismatch(artifact, Sound(), "source"), MismatchKind::kIdentity,
                 "artifact.source.identity.revision: expected a commit or digest of the weights, "
                 "got nothing");
  // Not even when both leave it out.
  EXPECT_TRUE(FindMismatch(artifact, artifact, "source").has_value());
}

TEST(CompatTest, BranchNameIsNoRevision) {
  for (const char* name : {"main", "master", "HEAD", "latest"}) {
    const auto spec = Changed([&](ModelSpec& s) { s.identity.revision = name; });
    EXPECT_TRUE(FindMismatch(spec, spec, "source").has_value()) << name;
  }
}

TEST(CompatTest, OtherTokenizerOrModelIsRejected) {
  ExpectMismatch(Claim([](ModelSpec& s) { s.identity.tokenizer_sha256 = kDigestB; }),
                 MismatchKind::kIdentity,
                 "source.identity.tokenizer_sha256: expected " + kDigestA + ", got " + kDigestB);
  EXPECT_TRUE(Claim([](ModelSpec& s) { s.identity.family = "qwen2"; }).has_value());
  EXPECT_TRUE(Claim([](ModelSpec& s) { s.identity.model_id = "other/name"; }).has_value());
}

TEST(CompatTest, ChatTemplateIsComparedWhereTheArtifactStatesOne) {
  EXPECT_TRUE(Claim([](ModelSpec& s) { s.identity.chat_template_sha256 = kDigestB; }).has_value());
  EXPECT_TRUE(Claim([](ModelSpec& s) { s.identity.chat_template_sha256.clear(); }).has_value());
  const auto silent = Changed([](ModelSpec& s) { s.identity.chat_template_sha256.clear(); });
  EXPECT_EQ(FindMismatch(silent, Sound(), "source"), std::nullopt);
}

TEST(CompatTest, AnyAdapterIsUnsupportedEvenTheSameOnBothSides) {
  for (const std::string& digest : {kDigestA, kDigestB}) {
    const auto adapted = Changed([&](ModelSpec& s) { s.identity.adapter_digest = digest; });
    ExpectMismatch(FindMismatch(adapted, adapted, "source"), MismatchKind::kUnsupported,
                   "source.identity.adapter_digest: expected no adapter, got " + digest);
  }
}

TEST(CompatTest, OtherImagesBehindTheSamePlaceholdersAreRejected) {
  const auto a = Changed([](ModelSpec& s) { s.identity.modality_digest = kDigestA; });
  const auto b = Changed([](ModelSpec& s) { s.identity.modality_digest = kDigestB; });
  ExpectMismatch(FindPairMismatch(a, b), MismatchKind::kIdentity,
                 "target.identity.modality_digest: expected " + kDigestA + ", got " + kDigestB);
  EXPECT_TRUE(FindPairMismatch(a, Sound()).has_value());
  EXPECT_TRUE(FindMismatch(Sound(), a, "source").has_value()) << "fitted on text only";
  EXPECT_EQ(FindPairMismatch(a, a), std::nullopt);
}

TEST(CompatTest, ShortenedDigestsAreRejected) {
  const auto truncated = Changed([](ModelSpec& s) { s.identity.modality_digest = "abcd"; });
  ExpectMismatch(FindPairMismatch(truncated, truncated), MismatchKind::kIdentity,
                 "source.identity.modality_digest: expected a SHA-256 of 64 lower-case hex digits, "
                 "got abcd");
  EXPECT_TRUE(
      Claim([](ModelSpec& s) { s.identity.tokenizer_sha256 = std::string(64, 'A'); }).has_value());
}

TEST(CompatTest, OtherShapeIsRejectedByName) {
  ExpectMismatch(Claim([](ModelSpec& s) { s.geometry.kv_heads = 8; }), MismatchKind::kShape,
                 "source.geometry.kv_heads: expected 4, got 8");
  ExpectMismatch(Claim([](ModelSpec& s) { s.geometry.layers = 4; }), MismatchKind::kShape,
                 "source.geometry.layers: expected 3, got 4");
  ExpectMismatch(Claim([](ModelSpec& s) { s.geometry.head_dim = 16; }), MismatchKind::kShape,
                 "source.geometry.head_dim: expected 8, got 16");
}

TEST(CompatTest, ShardsAreMappedOnlyOneToOne) {
  ExpectMismatch(Claim([](ModelSpec& s) { s.geometry.tp_degree = 2; }), MismatchKind::kShape,
                 "source.geometry.tp_degree: expected 1, got 2");
  const auto rank = [](int32_t r) {
    return Changed([&](ModelSpec& s) {
      s.geometry.tp_degree = 2;
      s.geometry.tp_rank = r;
    });
  };
  EXPECT_EQ(FindPairMismatch(rank(1), rank(1)), std::nullopt);
  ExpectMismatch(FindPairMismatch(rank(0), rank(1)), MismatchKind::kShape,
                 "target.geometry.tp_rank: expected 0, got 1");
  const auto tp4 = Changed([](ModelSpec& s) { s.geometry.tp_degree = 4; });
  ExpectMismatch(FindPairMismatch(rank(0), tp4), MismatchKind::kShape,
                 "target.geometry.tp_degree: expected 2, got 4");
}

TEST(CompatTest, OtherHeadOrderIsRejected) {
  ExpectMismatch(Claim([](ModelSpec& s) {
                   s.geometry.head_order = {0, 2, 1, 3};
                 }),
                 MismatchKind::kShape,
                 "source.geometry.head_order: expected identity, got [0,2,1,3]");
  const auto swapped = Changed([](ModelSpec& s) { s.geometry.head_order = {0, 2, 1, 3}; });
  EXPECT_EQ(FindPairMismatch(swapped, swapped), std::nullopt);
  ExpectMismatch(FindPairMismatch(Sound(), swapped), MismatchKind::kShape,
                 "target.geometry.head_order: expected identity, got [0,2,1,3]");
}

TEST(CompatTest, ImpossibleGeometryIsADefect) {
  const auto defect = [](auto change) { return FindDefect(Changed(change), "target"); };
  ExpectMismatch(defect([](ModelSpec& s) { s.geometry.layers = 0; }), MismatchKind::kShape,
                 "target.geometry.layers: expected a count above 0, got 0");
  ExpectMismatch(defect([](ModelSpec& s) { s.geometry.tp_rank = 1; }), MismatchKind::kShape,
                 "target.geometry.tp_rank: expected 0 to tp_degree - 1 = 0, got 1");
  ExpectMismatch(defect([](ModelSpec& s) {
                   s.geometry.head_order = {0, 0, 1, 2};
                 }),
                 MismatchKind::kShape,
                 "target.geometry.head_order: expected a permutation of 4 heads, got [0,0,1,2]");
  ExpectMismatch(defect([](ModelSpec& s) {
                   s.geometry.head_order = {0, 1};
                 }),
                 MismatchKind::kShape,
                 "target.geometry.head_order: expected a permutation of 4 heads, got [0,1]");
  ExpectMismatch(defect([](ModelSpec& s) { s.geometry.attention.resize(2); }), MismatchKind::kShape,
                 "target.geometry.attention: expected 3 entries, or none, got 2");
}

TEST(CompatTest, LayersThatAreNotFullAttentionAreUnsupportedByName) {
  const std::pair<AttentionKind, const char*> kinds[] = {{AttentionKind::kSliding, "sliding"},
                                                         {AttentionKind::kMla, "mla"},
                                                         {AttentionKind::kSsm, "ssm"},
                                                         {AttentionKind::kSharedKv, "shared_kv"},
                                                         {AttentionKind::kUnknown, "unknown"}};
  for (const auto& [kind, name] : kinds) {
    const auto spec = Changed([kind = kind](ModelSpec& s) {
      s.geometry.attention.assign(3, AttentionKind::kFull);
      s.geometry.attention[1] = kind;
    });
    ExpectMismatch(FindMismatch(spec, spec, "source"), MismatchKind::kUnsupported,
                   std::string("source.geometry.attention[1]: expected full, got ") + name);
  }
}

TEST(CompatTest, FrequenciesThatWentThroughFloatAreAccepted) {
  EXPECT_EQ(Claim([](ModelSpec& s) {
              for (double& f : s.rope.params.inv_freq) f = static_cast<float>(f);
              s.rope.params.attention_factor = static_cast<float>(1.0);
            }),
            std::nullopt);
  ExpectMismatch(Claim([](ModelSpec& s) { s.rope.params.inv_freq[0] *= 1.00001; }),
                 MismatchKind::kRope, "source.rope.params.inv_freq[0]: expected 1, got 1.00001");
}

TEST(CompatTest, OtherRotationIsRejectedByName) {
  ExpectMismatch(Claim([](ModelSpec& s) { s.rope.params.pairing = Pairing::kInterleaved; }),
                 MismatchKind::kRope, "source.rope.params.pairing: expected half, got interleaved");
  ExpectMismatch(Claim([](ModelSpec& s) { s.rope.params.attention_factor = 1.139; }),
                 MismatchKind::kRope, "source.rope.params.attention_factor: expected 1, got 1.139");
  ExpectMismatch(Claim([](ModelSpec& s) {
                   s.rope.params =
                       *rope::MakeRopeParams(1e6, 4, Pairing::kHalf, rope::DefaultScaling{});
                 }),
                 MismatchKind::kRope, "source.rope.params.rotary_dim: expected 8, got 4");
}

TEST(CompatTest, LayerOverridesAreComparedByWhatALayerUses) {
  EXPECT_EQ(Claim([](ModelSpec& s) { s.rope.layer_overrides[1] = s.rope.params; }), std::nullopt);
  ExpectMismatch(Claim([](ModelSpec& s) { s.rope.layer_overrides[1] = RopeParams{}; }),
                 MismatchKind::kRope,
                 "source.rope.layer_overrides[1].rotary_dim: expected 8, got 0");
  ExpectMismatch(Claim([](ModelSpec& s) { s.rope.layer_overrides[3] = RopeParams{}; }),
                 MismatchKind::kRope, "source.rope.layer_overrides: expected layers 0 to 2, got 3");
}

TEST(CompatTest, InvalidRotaryParametersAreADefect) {
  ExpectMismatch(
      Claim([](ModelSpec& s) { s.rope.params.inv_freq[1] = NAN; }), MismatchKind::kRope,
      "source.rope.params.inv_freq[1]: expected radians per position in (0, 2 pi), got nan");
}

TEST(CompatTest, PairMayDifferInEverythingThatTheMapChanges) {
  const auto target = Changed([](ModelSpec& s) {
    s.identity.model_id = "Qwen/Qwen3-32B";
    s.identity.revision = "9216db5781bf21249d130ec9da846c4624c16137";
    s.geometry.layers = 5;
    s.geometry.kv_heads = 2;
    s.geometry.head_dim = 16;
    s.geometry.dtype = tensor::DType::kF16;
    s.rope.params = *rope::MakeRopeParams(1e4, 16, Pairing::kInterleaved, rope::LinearScaling{2});
  });
  EXPECT_EQ(FindPairMismatch(Sound(), target), std::nullopt);
}

TEST(CompatTest, PairWithOtherTokenizersIsRejected) {
  const auto target = Changed([](ModelSpec& s) { s.identity.tokenizer_sha256 = kDigestB; });
  ExpectMismatch(FindPairMismatch(Sound(), target), MismatchKind::kIdentity,
                 "target.identity.tokenizer_sha256: expected " + kDigestA + ", got " + kDigestB);
}

TEST(CompatTest, DefectsOfEitherSideOfAPairAreNamedBySide) {
  const auto bad = Changed([](ModelSpec& s) { s.identity.adapter_digest = kDigestA; });
  EXPECT_EQ(FindPairMismatch(bad, Sound())->field, "source.identity.adapter_digest");
  EXPECT_EQ(FindPairMismatch(Sound(), bad)->field, "target.identity.adapter_digest");
}

TEST(CompatTest, ClaimedStringsAreShownShortAndPrintable) {
  const auto found =
      Claim([](ModelSpec& s) { s.identity.model_id = "a\n" + std::string(4096, 'x'); });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->got, "a\\n" + std::string(94, 'x'));
}

TEST(CompatTest, AttentionKindsHaveNames) {
  EXPECT_EQ(Name(AttentionKind::kFull), "full");
  EXPECT_EQ(Name(AttentionKind::kSharedKv), "shared_kv");
  EXPECT_EQ(Name(AttentionKind::kUnknown), "unknown");
}

}  // namespace
}  // namespace kvbridge::model
