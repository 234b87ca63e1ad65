// What a transfer is asked with: the caller's options and views as the header that travels.
#pragma once

#include "absl/status/statusor.h"

#include "client/cpp/cache_view.h"
#include "client/cpp/transfer.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::client {

// All but where the bytes are, if the caller did not say. INVALID_ARGUMENT where options and views
// contradict each other.
absl::StatusOr<v1::TransferHeader> MakeHeader(const TransferOptions& options,
                                              const SourceView& source, const TargetView& target);

// Tokens that any server could cover; its route may cover fewer.
int64_t MostCovered(const v1::TransferHeader& header);

// Where what is new begins: 0 without a prefix, or with one that can't be appended to.
int64_t FirstNewToken(const TransferOptions& options, const v1::TransferHeader& header);

}  // namespace kvbridge::client
