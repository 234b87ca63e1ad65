#include <algorithm>
#include <list>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/crypto/token.h"
#include "core/ucx/connection.h"
#include "core/ucx/frame.h"
#include "core/ucx/inbox_core.h"
#include "core/ucx/node.h"
#include "core/ucx/outbox_core.h"
#include "core/ucx/socket_address.h"
#include "core/ucx/status.h"
#include "core/ucx/worker.h"

namespace kvbridge::ucx {
namespace {

class UcxInbox final : public Inbox {
 public:
  UcxInbox(std::shared_ptr<Worker> worker, std::string token, std::shared_ptr<InboxCore> core)
      : worker_(std::move(worker)), token_(std::move(token)), core_(std::move(core)) {}
  ~UcxInbox() override {
    worker_->Post([core = std::move(core_)] { core->Close(); });
  }

  const std::string& token() const override { return token_; }
  void Read(OnFrame on_frame) override {
    worker_->Post([core = core_, on_frame = std::move(on_frame)] { core->Read(on_frame); });
  }

 private:
  const std::shared_ptr<Worker> worker_;
  const std::string token_;
  std::shared_ptr<InboxCore> core_;
};

class UcxOutbox final : public Outbox {
 public:
  UcxOutbox(std::shared_ptr<Worker> worker, std::shared_ptr<OutboxCore> core)
      : worker_(std::move(worker)), core_(std::move(core)) {}
  ~UcxOutbox() override {
    worker_->Post([core = std::move(core_)] { core->Close(); });
  }

  void Send(std::string head, std::span<const std::byte> payload, OnSent on_sent) override {
    worker_->Post([core = core_, head = std::move(head), payload, on_sent = std::move(on_sent)] {
      core->Send(head, payload, on_sent);
    });
  }

 private:
  const std::shared_ptr<Worker> worker_;
  std::shared_ptr<OutboxCore> core_;
};

class UcxNode final : public Node {
 public:
  UcxNode(const NodeOptions& options, std::shared_ptr<Worker> worker)
      : options_(options), worker_(std::move(worker)) {}
  ~UcxNode() override;

  absl::Status Start();

  const std::string& address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<Inbox>> Expect(const InboxOptions& options,
                                                kv::BufferPool& buffers) override;
  absl::StatusOr<std::unique_ptr<Outbox>> Connect(absl::string_view address,
                                                  absl::string_view token) override;
  NodeCounts counts() const override {
    base::MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  // Accepted, and silent so far.
  struct Stranger {
    std::unique_ptr<Connection> connection;
    absl::Time since;
  };

  absl::Status Listen();
  void Accept(ucp_conn_request_h request);
  ucs_status_t OnMessage(absl::string_view bytes, void* announced, size_t size,
                         const ucp_am_recv_param_t& param);
  // The inbox that a frame on this connection belongs to; null when its token opens none.
  std::shared_ptr<InboxCore> InboxOf(ucp_ep_h endpoint, absl::string_view token);
  void Hangup(ucp_ep_h endpoint, absl::string_view why);
  bool Tick();
  void CloseAll();
  void Count(int64_t NodeCounts::*what, int64_t by = 1) {
    base::MutexLock lock(&mutex_);
    counts_.*what += by;
  }

  const NodeOptions options_;
  const std::shared_ptr<Worker> worker_;
  std::string address_;
  ucp_listener_h listener_ = nullptr;

  // The worker's thread only.
  std::map<std::string, std::shared_ptr<InboxCore>, std::less<>> expected_;  // by token
  std::map<ucp_ep_h, Stranger> strangers_;
  std::map<ucp_ep_h, std::string> bound_;  // to the inbox of this token
  std::list<std::shared_ptr<OutboxCore>> outboxes_;

  mutable base::Mutex mutex_;
  NodeCounts counts_ ABSL_GUARDED_BY(mutex_);
};

// --- set up and take down

absl::Status UcxNode::Start() {
  ucp_am_handler_param_t param = {};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = kFrameMessage;
  param.arg = this;
  param.cb = [](void* self, const void* header, size_t header_bytes, void* announced, size_t size,
                const ucp_am_recv_param_t* recv) {
    const absl::string_view bytes(static_cast<const char*>(header), header_bytes);
    return static_cast<UcxNode*>(self)->OnMessage(bytes, announced, size, *recv);
  };
  KVB_RETURN_IF_ERROR(
      FromUcs(ucp_worker_set_am_recv_handler(worker_->handle(), &param), "ucx: message handler"));
  if (!options_.listen.empty()) KVB_RETURN_IF_ERROR(Listen());
  worker_->Start([this] { return Tick(); });
  return absl::OkStatus();
}

absl::Status UcxNode::Listen() {
  KVB_ASSIGN_OR_RETURN(const SocketAddress address, SocketAddress::Parse(options_.listen));
  ucp_listener_params_t params = {};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {address.get(), address.size()};
  params.conn_handler.arg = this;
  params.conn_handler.cb = [](ucp_conn_request_h request, void* self) {
    auto* node = static_cast<UcxNode*>(self);
    node->worker_->Post([node, request] { node->Accept(request); });
  };
  KVB_RETURN_IF_ERROR(FromUcs(ucp_listener_create(worker_->handle(), &params, &listener_),
                              absl::StrCat("ucx.listen=", options_.listen)));
  ucp_listener_attr_t bound = {};
  bound.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  KVB_RETURN_IF_ERROR(FromUcs(ucp_listener_query(listener_, &bound), "ucx: listener"));
  address_ = SocketAddress(bound.sockaddr).ToString();
  return absl::OkStatus();
}

UcxNode::~UcxNode() {
  worker_->Post([this] { CloseAll(); });
  worker_->Stop();
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
}

void UcxNode::CloseAll() {
  strangers_.clear();
  bound_.clear();
  for (const auto& [token, inbox] : expected_) inbox->Close();
  for (const auto& outbox : outboxes_) outbox->Close();
}

// --- inboxes and outboxes

absl::StatusOr<std::unique_ptr<Inbox>> UcxNode::Expect(const InboxOptions& options,
                                                       kv::BufferPool& pool) {
  KVB_ASSIGN_OR_RETURN(const std::string hex, crypto::RandomHex(kTokenBytes));
  Buffers buffers;
  for (int i = 0; i < options.frames; ++i) {
    KVB_ASSIGN_OR_RETURN(auto buffer, pool.Acquire(options.max_frame_bytes));
    buffers.push_back(std::move(buffer));
  }
  const auto core = std::make_shared<InboxCore>(worker_, std::move(buffers), [this](size_t bytes) {
    Count(&NodeCounts::frames_received);
    Count(&NodeCounts::bytes_received, static_cast<int64_t>(bytes));
  });
  const std::string token = absl::HexStringToBytes(hex);
  worker_->Post([this, token, core] { expected_.emplace(token, core); });
  return std::make_unique<UcxInbox>(worker_, token, core);
}

absl::StatusOr<std::unique_ptr<Outbox>> UcxNode::Connect(absl::string_view address,
                                                         absl::string_view token) {
  KVB_ASSIGN_OR_RETURN(const SocketAddress to, SocketAddress::Parse(address));
  if (token.size() != kTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("ucx token: expected ", kTokenBytes, " bytes, got ", token.size()));
  }
  const auto core =
      std::make_shared<OutboxCore>(worker_.get(), std::string(token), [this](size_t bytes) {
        Count(&NodeCounts::frames_sent);
        Count(&NodeCounts::bytes_sent, static_cast<int64_t>(bytes));
      });
  worker_->Post([this, core, to] {
    outboxes_.push_back(core);
    core->Connect(to);
  });
  return std::make_unique<UcxOutbox>(worker_, core);
}

// --- what comes in

void UcxNode::Accept(ucp_conn_request_h request) {
  if (strangers_.size() + bound_.size() >= static_cast<size_t>(options_.max_connections)) {
    ucp_listener_reject(listener_, request);
    return;
  }
  // Known only once it is made.
  const auto endpoint = std::make_shared<ucp_ep_h>(nullptr);
  auto connection = Connection::Accept(worker_.get(), request, [this, endpoint](absl::Status why) {
    worker_->Post([this, endpoint, why] { Hangup(*endpoint, why.message()); });
  });
  if (!connection.ok()) return;
  *endpoint = (*connection)->endpoint();
  strangers_.emplace(*endpoint, Stranger{*std::move(connection), base::SteadyNow()});
}

ucs_status_t UcxNode::OnMessage(absl::string_view bytes, void* announced, size_t size,
                                const ucp_am_recv_param_t& param) {
  if ((param.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) {
    Count(&NodeCounts::malformed);
    return UCS_OK;
  }
  const ucp_ep_h endpoint = param.reply_ep;
  const bool by_rendezvous = (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const auto header = ParseHeader(bytes);
  const bool well_formed = header.ok() && by_rendezvous;
  const auto inbox = well_formed ? InboxOf(endpoint, header->token) : nullptr;
  if (inbox != nullptr) {
    inbox->Announce(*header, announced, size);
    return UCS_INPROGRESS;
  }
  Count(well_formed ? &NodeCounts::unknown_tokens : &NodeCounts::malformed);
  // In this order: UCX tells the sender of a frame released before that it was taken.
  worker_->Post([this, endpoint, announced = by_rendezvous ? announced : nullptr] {
    Hangup(endpoint, "ucx: a frame was refused");
    if (announced != nullptr) ucp_am_data_release(worker_->handle(), announced);
  });
  return by_rendezvous ? UCS_INPROGRESS : UCS_OK;
}

std::shared_ptr<InboxCore> UcxNode::InboxOf(ucp_ep_h endpoint, absl::string_view token) {
  const auto inbox = expected_.find(token);
  if (inbox == expected_.end()) return nullptr;
  const auto bound = bound_.find(endpoint);
  if (bound != bound_.end()) return bound->second == token ? inbox->second : nullptr;
  const auto stranger = strangers_.find(endpoint);
  if (stranger == strangers_.end() || inbox->second->bound()) return nullptr;
  inbox->second->Bind(std::move(stranger->second.connection));
  strangers_.erase(stranger);
  bound_.emplace(endpoint, token);
  return inbox->second;
}

void UcxNode::Hangup(ucp_ep_h endpoint, absl::string_view why) {
  strangers_.erase(endpoint);
  const auto bound = bound_.find(endpoint);
  if (bound == bound_.end()) return;
  const auto inbox = expected_.find(bound->second);
  bound_.erase(bound);
  if (inbox != expected_.end()) inbox->second->Fail(absl::UnavailableError(why));
}

// Lets go of what is finished, and of whoever has been silent for too long.
bool UcxNode::Tick() {
  const absl::Time now = base::SteadyNow();
  for (const auto& outbox : outboxes_) outbox->CheckTimeout(now, options_.timeout);
  outboxes_.remove_if([](const auto& outbox) { return outbox->finished(); });
  std::erase_if(strangers_,
                [&](const auto& entry) { return now - entry.second.since >= options_.timeout; });
  std::erase_if(expected_, [](const auto& entry) { return entry.second->finished(); });
  std::erase_if(bound_, [this](const auto& entry) {
    const auto inbox = expected_.find(entry.second);
    return inbox == expected_.end() || !inbox->second->connected();
  });
  base::MutexLock lock(&mutex_);
  counts_.connections = static_cast<int64_t>(strangers_.size() + bound_.size());
  return !outboxes_.empty() || !strangers_.empty() || !expected_.empty();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Node>> MakeNode(const NodeOptions& options) {
  KVB_ASSIGN_OR_RETURN(std::shared_ptr<Worker> worker, Worker::Create(options.transports));
  auto node = std::make_unique<UcxNode>(options, std::move(worker));
  KVB_RETURN_IF_ERROR(node->Start());
  return node;
}

}  // namespace kvbridge::ucx
