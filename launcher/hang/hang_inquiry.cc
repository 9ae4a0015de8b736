// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/hang_inquiry.h"

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

HangInquiry::Orders HangInquiry::seen(int node, int number, Instant now) {
  const bool still = number > 0 && number == number_;
  if (still && phase_ != Phase::kAsking) {
    // Also of a hang that was taken to be over.
    if (phase_ == Phase::kNone) reported_ = {node};
    phase_ = Phase::kTold;
    hangs(node, now);
    plan(now);
    return {};
  }
  // Its word that the last one was over may have been lost.
  const bool again = phase_ == Phase::kTold && number == 0 && hanging_.contains(node);
  if (phase_ != Phase::kNone && !again) {
    hangs(node, now);
    if (phase_ == Phase::kTold) plan(now);
    return {.known = phase_ == Phase::kTold};
  }
  hanging_.clear();
  hangs(node, now);
  return begin(now);
}

HangInquiry::Orders HangInquiry::begin(Instant now) {
  phase_ = Phase::kAsking;
  ++number_;
  reported_.clear();
  alone_since_.reset();
  parts_.clear();
  moved_.clear();
  ended_.clear();
  began_ = now;
  deadline_ = now + kPatience;
  return {.ask = true};
}

HangInquiry::Orders HangInquiry::part(int node, int number, HangPart part, Instant now) {
  if (phase_ != Phase::kAsking || number != number_ || node < 0 || node >= nodes_) return {};
  if (part.hanging)
    hangs(node, now);
  else
    hanging_.erase(node);
  add(moved_, part.moved);
  add(ended_, part.ended);
  parts_.insert_or_assign(node, std::move(part));
  return static_cast<int>(parts_.size()) == nodes_ ? settle(now) : Orders{};
}

HangInquiry::Orders HangInquiry::over(int node, const std::vector<int>& moved, const std::vector<int>& ended,
                                      Instant now) {
  if (phase_ == Phase::kNone || hanging_.erase(node) == 0) return {};
  add(moved_, moved);
  add(ended_, ended);
  if (phase_ != Phase::kTold) return {};
  if (!hanging_.empty()) {
    plan(now);
    return {};
  }
  forget();
  return {.over = true};
}

HangInquiry::Orders HangInquiry::tick(Instant now) {
  if (!deadline_ || now < *deadline_) return {};
  if (phase_ == Phase::kAsking) return settle(now);
  std::erase_if(hanging_, [&](const auto& each) { return each.first != 0 && now - each.second >= kForget; });
  if (hanging_.empty()) {
    forget();
    return {.faded = true};
  }
  if (alone_since_ && now - *alone_since_ >= kLonger) return begin(now);
  plan(now);
  return {};
}

HangInquiry::Orders HangInquiry::settle(Instant now) {
  deadline_.reset();
  // Who does not answer does not go on either, as far as anybody knows; but nobody would say that it does.
  std::erase_if(hanging_, [this](const auto& each) { return !parts_.contains(each.first); });
  phase_ = hanging_.empty() ? Phase::kNone : Phase::kTold;
  for (const auto& [node, said] : hanging_) reported_.insert(node);
  plan(now);
  return {.publish = true, .over = hanging_.empty()};
}

void HangInquiry::hangs(int node, Instant now) {
  hanging_[node] = now;
}

/// When to look next, while a hang goes on that was told.
void HangInquiry::plan(Instant now) {
  deadline_.reset();
  if (hanging_.empty()) return;
  const bool told = std::any_of(hanging_.begin(), hanging_.end(),
                                [this](const auto& each) { return reported_.contains(each.first); });
  if (told)
    alone_since_.reset();
  else if (!alone_since_)
    alone_since_ = now;
  if (alone_since_) deadline_ = *alone_since_ + kLonger;
  for (const auto& [node, said] : hanging_)
    if (node != 0) deadline_ = std::min(deadline_.value_or(Instant::max()), said + kForget);
}

void HangInquiry::forget() {
  phase_ = Phase::kNone;
  hanging_.clear();
  reported_.clear();
  alone_since_.reset();
  deadline_.reset();
}

}  // namespace muster::launcher
