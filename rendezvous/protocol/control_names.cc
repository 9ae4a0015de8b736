// SPDX-License-Identifier: Apache-2.0
// What the messages are called, and which of them are about the workers' store.
#include <array>
#include <string_view>
#include <type_traits>
#include <variant>

#include "rendezvous/protocol/control.h"

namespace muster::control {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<Message>> kNames = {
    "Start",        "Challenge",     "Proof",           "Welcome",    "Refused",        "Join",
    "Ready",        "Heartbeat",     "Assignment",      "Waiting",    "GenerationOver", "Closed",
    "WorkerFailed", "Finished",      "SafePoint",       "Report",     "Leave",          "Stop",
    "StoreAttach",  "StoreAttached", "StoreRefused",    "StoreOpen",  "StoreRequest",   "StoreAnswer",
    "StoreClose",   "Clock",         "SafePointPassed", "Hang",       "Remark",         "Inquire",
    "JobState",     "NodeState",     "StoreJobState",   "InquiryOver"};

}  // namespace

std::string_view name_of(const Message& message) {
  return kNames[message.index()];
}

bool is_about_store(const Message& message) {
  static_assert(std::is_same_v<std::variant_alternative_t<18, Message>, StoreAttach>);
  static_assert(std::is_same_v<std::variant_alternative_t<24, Message>, StoreClose>);
  return message.index() >= 18 && message.index() <= 24;
}

}  // namespace muster::control
