// SPDX-License-Identifier: Apache-2.0
// Status and Result: how the outside world (files, devices, bad input) reports failure.
// A message says what failed, where, and what to do next. Engine misuse throws instead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace nanhunt {

enum class StatusCode : std::uint8_t {
  kOk = 0,
  kUsage = 1,        // the caller asked for something that does not exist
  kNotFound = 2,     // no such file or folder, or nothing recorded in it
  kUnreadable = 3,   // exists, but is not a trace or cannot be decoded at all
  kUnsupported = 4,  // a trace of a version this build does not read
  kDamaged = 5,      // partly readable; what was good was delivered
  kWriteFailed = 6,  // output could not be written (folder, permission, disk full)
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status ok() { return {}; }

  bool is_ok() const { return code_ == StatusCode::kOk; }
  explicit operator bool() const { return is_ok(); }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// Either a value or a failed Status. value() on a failure is a broken invariant and terminates.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}            // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}    // NOLINT(google-explicit-constructor)

  bool is_ok() const { return value_.has_value(); }
  explicit operator bool() const { return is_ok(); }
  const Status& status() const { return status_; }
  T& value() & { return value_.value(); }
  const T& value() const& { return value_.value(); }
  T&& value() && { return std::move(value_).value(); }
  T* operator->() { return &value_.value(); }
  const T* operator->() const { return &value_.value(); }
  T& operator*() & { return value_.value(); }
  const T& operator*() const& { return value_.value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace nanhunt
