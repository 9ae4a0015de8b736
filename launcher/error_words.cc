// SPDX-License-Identifier: Apache-2.0
#include "launcher/error_words.h"

#include <algorithm>
#include <cstdint>

namespace muster::launcher {
namespace {

/// What loggers and other languages put before their errors; says nothing of the kind.
constexpr std::array<std::string_view, 8> kAnyError = {
    "Error: ", "ERROR: ",       "Exception: ",   "[FATAL]",
    "panic: ", "fatal error: ", "out of memory", "Aborted (core dumped)",
};

/// Which pairs of bytes to look for: one of each of the words above, the one that ordinary text has least.
/// A line without any of them has none of the words, which is most lines.
class Pairs {
 public:
  explicit constexpr Pairs(bool any_error) {
    for (const ErrorWords& one : kErrorWords) add(one.text);
    for (const ErrorWords& sign : kErrorSigns) add(sign.text);
    for (const std::string_view text :
         {words::kTraceback, words::kFrame, words::kTerminate, words::kTerminating, words::kAssertion,
          words::kWatchdog, words::kNcclWarning})
      add(text);
    if (any_error)
      for (const std::string_view text : kAnyError) add(text);
  }
  [[nodiscard]] bool any_in(std::string_view text) const {
    for (std::size_t i = 1; i < text.size(); ++i)
      if (const std::size_t at = index(text[i - 1], text[i]); (wanted_[at / 64] >> (at % 64) & 1) != 0)
        return true;
    return false;
  }

 private:
  static constexpr std::size_t index(char a, char b) {
    return static_cast<std::size_t>(static_cast<unsigned char>(a)) << 8 | static_cast<unsigned char>(b);
  }
  static constexpr int frequency(char c) {
    if (std::string_view(" etaoinsrhld:.0123").find(c) != std::string_view::npos) return 5;
    return c >= 'a' && c <= 'z' ? 3 : 1;
  }
  constexpr void add(std::string_view text) {
    std::size_t best = 1;
    const auto cost = [text](std::size_t i) { return frequency(text[i - 1]) * frequency(text[i]); };
    for (std::size_t i = 2; i < text.size(); ++i)
      if (cost(i) < cost(best)) best = i;
    const std::size_t at = index(text[best - 1], text[best]);
    wanted_[at / 64] |= std::uint64_t{1} << (at % 64);
  }

  std::array<std::uint64_t, 1024> wanted_{};  // a bit per pair
};
constexpr Pairs kPairs(false);
constexpr Pairs kMorePairs(true);

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

CauseClass class_of_words(std::string_view text, CauseClass otherwise) {
  for (const ErrorWords& one : kErrorWords)
    if (contains(text, one.text)) return one.kind;
  return otherwise;
}

bool may_hold_error_words(std::string_view text) {
  return kPairs.any_in(text);
}

bool looks_like_error(std::string_view line) {
  if (!kMorePairs.any_in(line)) return false;
  const auto holds = [line](std::string_view text) { return contains(line, text); };
  if (std::any_of(kAnyError.begin(), kAnyError.end(), holds)) return true;
  if (std::any_of(kErrorSigns.begin(), kErrorSigns.end(),
                  [&](const ErrorWords& sign) { return holds(sign.text); }))
    return true;
  for (const std::string_view mark : {words::kTraceback, words::kTerminate, words::kTerminating,
                                      words::kAssertion, words::kWatchdog, words::kNcclWarning})
    if (holds(mark)) return true;
  const CauseClass kind = class_of_words(line, CauseClass::kNone);
  return kind != CauseClass::kNone && kind != CauseClass::kNetwork && kind != CauseClass::kPeerGone;
}

}  // namespace muster::launcher
