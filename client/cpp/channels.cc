#include "client/cpp/channels.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "grpc/grpc.h"
#include "grpcpp/channel.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/client_interceptor.h"
#include "proto/kvbridge/v1/chunk_codec.h"
#include "proto/kvbridge/v1/metadata_text.h"

namespace kvbridge::client {
namespace {

constexpr int kMaxChannels = 64;
// A server that does not even answer a ping while a call runs, hung or cut off, is noticed after
// both: calls need no deadline for that.
constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 10'000;

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
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  args.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, wire::kReadBytes);
  return args;
}

// Adds the caller's token to each call of a channel.
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(std::string token) : token_(std::move(token)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Hook = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Hook::PRE_SEND_INITIAL_METADATA)) {
      if (wire::IsMetadataText(token_)) {
        methods->GetSendInitialMetadata()->emplace("authorization",
                                                   absl::StrCat("Bearer ", token_));
      }
    }
    methods->Proceed();
  }

 private:
  const std::string token_;
};

class TokenInterceptors final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptors(std::function<std::string()> token) : token_(std::move(token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo* /*info*/) override {
    return new TokenInterceptor(token_());  // gRPC's, from here on
  }

 private:
  const std::function<std::string()> token_;
};

std::shared_ptr<grpc::Channel> Connect(const Channels::Options& options) {
  grpc::ChannelArguments args = ArgumentsFor(options);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.tls.has_value()) {
    const TlsOptions& tls = *options.tls;
    credentials = grpc::SslCredentials({.pem_root_certs = tls.server_ca,
                                        .pem_private_key = tls.client_key,
                                        .pem_cert_chain = tls.client_cert});
    if (!tls.server_name.empty()) args.SetSslTargetNameOverride(tls.server_name);
  }
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (options.token) interceptors.push_back(std::make_unique<TokenInterceptors>(options.token));
  return grpc::experimental::CreateCustomChannelWithInterceptors(options.target, credentials, args,
                                                                 std::move(interceptors));
}

// gRPC ends with its last object, and then waits for a thread that may sleep in epoll for ten
// seconds (1.51): so long a program would take to close its only client. Held until the process
// ends.
void KeepGrpc() { [[maybe_unused]] static const bool kKept = (grpc_init(), true); }

}  // namespace

bool IsSameHost(absl::string_view target) {
  for (const absl::string_view scheme : {"dns:", "ipv4:", "ipv6:"}) {
    if (absl::StartsWith(target, scheme)) target.remove_prefix(scheme.size());
  }
  while (absl::StartsWith(target, "/")) target.remove_prefix(1);
  for (const absl::string_view local :
       {"unix:", "unix-abstract:", "127.", "localhost:", "[::1]:"}) {
    if (absl::StartsWith(target, local)) return true;
  }
  return false;
}

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
  if (options.token && !options.tls.has_value() && !IsSameHost(options.target)) {
    return absl::InvalidArgumentError("token: expected tls for another host, got none");
  }
  KeepGrpc();
  auto channels = std::make_unique<Channels>();
  const int count = absl::StartsWith(options.target, "unix:") ? 1 : options.count;
  for (int i = 0; i < count; ++i) {
    channels->channels_.push_back(Connect(options));
  }
  return channels;
}

}  // namespace kvbridge::client
