// Early return on absl::Status errors. Names are prefixed: several libraries define the short ones.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define KVB_RETURN_IF_ERROR(expr)                             \
  do {                                                        \
    if (absl::Status kvb_status = (expr); !kvb_status.ok()) { \
      return kvb_status;                                      \
    }                                                         \
  } while (false)

#define KVB_STATUS_CONCAT_INNER_(a, b) a##b
#define KVB_STATUS_CONCAT_(a, b) KVB_STATUS_CONCAT_INNER_(a, b)

#define KVB_ASSIGN_OR_RETURN(lhs, expr) \
  KVB_ASSIGN_OR_RETURN_IMPL_(KVB_STATUS_CONCAT_(kvb_status_or_, __LINE__), lhs, expr)

#define KVB_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                               \
  if (!var.ok()) return std::move(var).status();   \
  lhs = std::move(var).value()
