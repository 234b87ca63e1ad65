// What an edge makes of a peer that breaks the contract: its caller always learns why, and whose
// fault it is.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/held_transfer.h"
#include "tests/integration/region_client.h"
#include "tests/integration/server_harness.h"
#include "tests/support/fake_kvbridge_server.h"

namespace kvbridge::server {
namespace {

using test::Behaviour;

constexpr int64_t kTokens = 40;

class RelayPeerTest : public ::testing::Test {
 protected:
  // `maps`: the edge has the larger cache, and maps itself.
  void Start(test::FakeKvbridgeServer::Options peer, bool maps = false) {
    peer_ = std::make_unique<test::FakeKvbridgeServer>(std::move(peer));
    HarnessOptions options;
    options.map.source.layers = maps ? 6 : 3;
    options.map.target.layers = maps ? 3 : 6;
    options.configure = [this](v1::Config* config) {
      v1::PeerConfig& peer = *config->add_peers();
      peer.set_name("b");
      peer.set_address(peer_->target());
    };
    edge_ = std::make_unique<ServerHarness>(std::move(options));
  }
  v1::TransferHeader Header() const {
    v1::TransferHeader header = edge_->Header(kTokens);
    header.set_peer("b");
    return header;
  }
  v1::Decision Decide() const { return edge_->Call(Header(), {}).decision; }
  static v1::Decision Says(v1::Outcome outcome, v1::Reason reason, const char* detail) {
    v1::Decision decision;
    decision.set_outcome(outcome);
    decision.set_reason(reason);
    decision.set_detail(detail);
    return decision;
  }
  static void Expect(const v1::Decision& got, v1::Reason reason, const char* detail) {
    EXPECT_EQ(got.outcome(), v1::OUTCOME_FALLBACK_REPREFILL);
    EXPECT_EQ(got.reason(), reason);
    EXPECT_EQ(got.detail(), detail);
  }

  std::unique_ptr<test::FakeKvbridgeServer> peer_;
  std::unique_ptr<ServerHarness> edge_;
};

TEST_F(RelayPeerTest, ADecisionWithoutAReasonGetsOne) {
  Start({.behaviour = Behaviour::kRefuse,
         .refusal = Says(v1::OUTCOME_FALLBACK_REPREFILL, v1::REASON_UNSPECIFIED, "")});
  Expect(Decide(), v1::REASON_INTERNAL, "peer b: gave no reason");
}

TEST_F(RelayPeerTest, AnEmptyDecisionIsAFallbackWithItsWords) {
  Start({.behaviour = Behaviour::kRefuse,
         .refusal = Says(v1::OUTCOME_UNSPECIFIED, v1::REASON_UNSPECIFIED, "hm")});
  Expect(Decide(), v1::REASON_INTERNAL, "peer b: gave no reason: hm");
}

TEST_F(RelayPeerTest, AReasonIsPassedOnAsItIs) {
  Start({.behaviour = Behaviour::kRefuse,
         .refusal = Says(v1::OUTCOME_FALLBACK_REPREFILL, v1::REASON_OVERLOAD, "full")});
  Expect(Decide(), v1::REASON_OVERLOAD, "full");
}

TEST_F(RelayPeerTest, AnEndWithoutADecisionIsNotCalledOk) {
  Start({.behaviour = Behaviour::kNoCompleted});
  Expect(Decide(), v1::REASON_TRANSPORT, "peer b: ended the call without a decision");
}

TEST_F(RelayPeerTest, AStatusIsToldInItsWords) {
  Start({.unavailable_calls = 1});
  Expect(Decide(), v1::REASON_TRANSPORT, "peer b: UNAVAILABLE: starting");
}

TEST_F(RelayPeerTest, AppliedBeforeItWasAcceptedIsThePeersFault) {
  Start({.behaviour = Behaviour::kRefuse,
         .refusal = Says(v1::OUTCOME_APPLIED, v1::REASON_UNSPECIFIED, "")});
  Expect(Decide(), v1::REASON_TRANSPORT, "peer b: applied before it was accepted");
}

// The edge has mapped nothing yet: no token was ready.
TEST_F(RelayPeerTest, AppliedBeforeItHadEverythingIsThePeersFault) {
  Start({.behaviour = Behaviour::kAppliedAtOnce}, /*maps=*/true);
  RegionClient client(edge_.get());
  const auto source = client.MakePool(edge_->mapper().source, memory::kEngineLayouts[0], 3, 16,
                                      /*writable=*/false);
  const std::vector<int32_t> pages = {0, 1, 2};
  v1::TransferHeader header = Header();
  source->Locate(pages, header.mutable_source_selection());
  source->Locate(pages, header.mutable_target_selection());  // wherever: the peer is a fake
  const v1::Decision got = HeldTransfer(*edge_, std::move(header)).Decision();
  Expect(got, v1::REASON_TRANSPORT, "the peer: applied before it had everything");
  EXPECT_EQ(got.map_side(), v1::MAP_SIDE_SOURCE);
  EXPECT_EQ(got.covered_tokens(), 0);
  EXPECT_TRUE(edge_->Quiet());
}

}  // namespace
}  // namespace kvbridge::server
