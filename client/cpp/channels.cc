#include "client/cpp/channels.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "proto/kvbridge/v1/chunk_codec.h"

namespace kvbridge::client {
namespace {

constexpr int kMaxChannels = 64;

grpc::ChannelArguments ArgumentsFor(const Channels::Options& options) {
  grpc::ChannelArguments args;
  const auto timeout_ms = static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(options.connect_timeout), 1, 3'600'000));
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, timeout_ms);  // also bounds one attempt
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // Retries are this library's: it knows what was accepted.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  args.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, wire::kReadBytes);
  return args;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Channels>> Channels::Create(const Options& options) {
  if (options.target.empty()) {
    return absl::InvalidArgumentError(
        "target: expected \"host:port\" or \"unix:/path.sock\", got nothing");
  }
  if (options.count < 1 || options.count > kMaxChannels) {
    return absl::InvalidArgumentError(
        absl::StrCat("channels: expected 1 to ", kMaxChannels, ", got ", options.count));
  }
  if (options.connect_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("connect_timeout: expected more than 0, got ",
                                                   absl::FormatDuration(options.connect_timeout)));
  }
  auto channels = std::make_unique<Channels>();
  const int count = absl::StartsWith(options.target, "unix:") ? 1 : options.count;
  for (int i = 0; i < count; ++i) {
    channels->channels_.push_back(grpc::CreateCustomChannel(
        options.target, grpc::InsecureChannelCredentials(), ArgumentsFor(options)));
  }
  return channels;
}

}  // namespace kvbridge::client
