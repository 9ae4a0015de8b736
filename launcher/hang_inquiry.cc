// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang_inquiry.h"

#include <algorithm>
#include <utility>

namespace muster::launcher {
namespace {

void add(std::vector<int>& to, const std::vector<int>& ranks) {
  to.insert(to.end(), ranks.begin(), ranks.end());
  std::sort(to.begin(), to.end());
  to.erase(std::unique(to.begin(), to.end()), to.end());
}

}  // namespace

HangInquiry::Orders HangInquiry::seen(int node, Instant now) {
  // Its word that the last one was over may have been lost.
  const bool again = phase_ == Phase::kTold && hanging_.contains(node);
  if (phase_ != Phase::kNone && !again) {
    hanging_.insert(node);
    return {.known = phase_ == Phase::kTold};
  }
  phase_ = Phase::kAsking;
  ++number_;
  hanging_ = {node};
  parts_.clear();
  moved_.clear();
  ended_.clear();
  began_ = now;
  deadline_ = now + kPatience;
  return {.ask = true};
}

HangInquiry::Orders HangInquiry::part(int node, int number, HangPart part) {
  if (phase_ != Phase::kAsking || number != number_ || node < 0 || node >= nodes_) return {};
  if (part.hanging)
    hanging_.insert(node);
  else
    hanging_.erase(node);
  add(moved_, part.moved);
  add(ended_, part.ended);
  parts_.insert_or_assign(node, std::move(part));
  return static_cast<int>(parts_.size()) == nodes_ ? settle() : Orders{};
}

HangInquiry::Orders HangInquiry::over(int node, const std::vector<int>& moved,
                                      const std::vector<int>& ended) {
  if (phase_ == Phase::kNone || hanging_.erase(node) == 0) return {};
  add(moved_, moved);
  add(ended_, ended);
  if (phase_ != Phase::kTold || !hanging_.empty()) return {};
  phase_ = Phase::kNone;
  return {.over = true};
}

HangInquiry::Orders HangInquiry::tick(Instant now) {
  return deadline_ && now >= *deadline_ ? settle() : Orders{};
}

HangInquiry::Orders HangInquiry::settle() {
  deadline_.reset();
  // Who does not answer does not go on either, as far as anybody knows; but nobody would say that it does.
  std::erase_if(hanging_, [this](int node) { return !parts_.contains(node); });
  phase_ = hanging_.empty() ? Phase::kNone : Phase::kTold;
  return {.publish = true, .over = hanging_.empty()};
}

void HangInquiry::forget() {
  phase_ = Phase::kNone;
  hanging_.clear();
  deadline_.reset();
}

}  // namespace muster::launcher
