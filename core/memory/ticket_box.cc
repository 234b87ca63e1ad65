#include "core/memory/ticket_box.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/crypto/token.h"

namespace kvbridge::memory {

absl::StatusOr<std::string> TicketBox::Put(absl::string_view session_id, Way way, UniqueFd& fd,
                                           absl::Time expires) {
  const auto mine = std::count_if(waiting_.begin(), waiting_.end(), [&](const auto& entry) {
    return entry.second.session_id == session_id;
  });
  if (static_cast<size_t>(mine) >= kMostOfSession || waiting_.size() >= kMost) {
    return absl::ResourceExhaustedError(
        absl::StrCat("descriptors: expected at most ", kMostOfSession, " of a session and ", kMost,
                     " in all to wait for their tickets, got one more"));
  }
  KVB_ASSIGN_OR_RETURN(std::string ticket, crypto::RandomHex(16));
  waiting_.emplace(ticket, Waiting{std::string(session_id), way, std::move(fd), expires});
  return ticket;
}

absl::StatusOr<UniqueFd> TicketBox::Take(absl::string_view session_id, Way way,
                                         absl::string_view ticket, absl::Time now) {
  const auto it = waiting_.find(ticket);
  if (it == waiting_.end() || it->second.session_id != session_id || it->second.way != way ||
      it->second.expires <= now) {
    return absl::NotFoundError("ticket: not found");
  }
  UniqueFd fd = std::move(it->second.fd);
  waiting_.erase(it);
  return fd;
}

template <typename Predicate>
std::vector<UniqueFd> TicketBox::DropIf(const Predicate& predicate) {
  std::vector<UniqueFd> dropped;
  absl::erase_if(waiting_, [&](auto& entry) {
    if (!predicate(entry.second)) return false;
    dropped.push_back(std::move(entry.second.fd));
    return true;
  });
  return dropped;
}

std::vector<UniqueFd> TicketBox::DropExpired(absl::Time now) {
  return DropIf([now](const Waiting& waiting) { return waiting.expires <= now; });
}

std::vector<UniqueFd> TicketBox::DropSession(absl::string_view session_id) {
  return DropIf([session_id](const Waiting& waiting) { return waiting.session_id == session_id; });
}

}  // namespace kvbridge::memory
