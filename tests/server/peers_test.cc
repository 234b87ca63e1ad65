#include "server/peers.h"

#include "gtest/gtest.h"

namespace kvbridge::server {
namespace {

std::unique_ptr<Peers> Make(bool allow_plaintext_off_host) {
  v1::Config config;
  config.mutable_ucx()->set_allow_plaintext_off_host(allow_plaintext_off_host);
  return *Peers::Create(config);
}

TEST(PeersTest, FramesLeaveThisHostInPlaintextOnlyWhenAllowed) {
  for (const char* elsewhere : {"10.0.0.1:5", "[fe80::1]:5", "edge.example.org:5"}) {
    EXPECT_FALSE(Make(false)->MayPush(elsewhere, /*peer_is_local=*/false)) << elsewhere;
    EXPECT_TRUE(Make(true)->MayPush(elsewhere, /*peer_is_local=*/false)) << elsewhere;
  }
}

TEST(PeersTest, APeerElsewhereCannotNameAPortOfThisHost) {
  for (const char* here : {"127.0.0.1:5", "127.8.8.8:5", "localhost:5", "[::1]:5"}) {
    EXPECT_TRUE(Make(false)->MayPush(here, /*peer_is_local=*/true)) << here;
    EXPECT_FALSE(Make(true)->MayPush(here, /*peer_is_local=*/false)) << here;
  }
}

TEST(PeersTest, WhatIsNoAddressIsNotPushedTo) {
  for (const char* text : {"", ":5", "10.0.0.1", "unix:/run/x.sock", "%5B::1%5D:5"}) {
    EXPECT_FALSE(Make(true)->MayPush(text, /*peer_is_local=*/true)) << text;
  }
}

}  // namespace
}  // namespace kvbridge::server
