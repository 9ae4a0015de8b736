// SPDX-License-Identifier: Apache-2.0
// Records of a state log, in few words.
#pragma once

#include <string_view>
#include <utility>

#include "rendezvous/wal/journal.h"

namespace muster::test {

inline journal::LogRecord set(std::string_view key, std::string_view value) {
  return StoreChange{StoreChange::Kind::kSet, key, value};
}
inline journal::LogRecord append(std::string_view key, std::string_view bytes) {
  return StoreChange{StoreChange::Kind::kAppend, key, bytes};
}
inline journal::LogRecord erase(std::string_view key) {
  return StoreChange{StoreChange::Kind::kErase, key};
}
inline journal::LogRecord push(std::string_view queue, std::string_view element) {
  return StoreChange{StoreChange::Kind::kPush, queue, element};
}
inline journal::LogRecord pop(std::string_view queue) {
  return StoreChange{StoreChange::Kind::kPop, queue};
}
/// A change of a job or of a hosted store.
template <class Change>
journal::LogRecord of(Change change) {
  if constexpr (std::is_constructible_v<JobChange, Change>)
    return JobChange(std::move(change));
  else
    return HostedChange(std::move(change));
}
inline journal::LogSink into(journal::Encoder& encoder) {
  return [&encoder](const journal::LogRecord& record) { encoder.add(record); };
}

}  // namespace muster::test
