// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/error_words.h"

#include <algorithm>
#include <cstdint>

namespace muster::launcher {
namespace {

/// What loggers and other languages put before their errors; says nothing of the kind.
constexpr std::array<std::string_view, 8> kAnyError = {
    "Error: ", "ERROR: ",       "Exception: ",   "[FATAL]",
    "panic: ", "fatal error: ", "out of memory", "Aborted (core dumped)",
};

/// What to look for at every third byte: of each of the words above three runs of four bytes that follow each
/// other, those that ordinary text has least. Text without any of them has none of the words, as most has.
class Runs {
 public:
  explicit constexpr Runs(bool any_error) {
    for (const ErrorWords& one : kErrorWords) add(one.text);
    for (const ErrorWords& sign : kErrorSigns) add(sign.text);
    for (const std::string_view text :
         {words::kTraceback, words::kFrame, words::kTerminate, words::kTerminating, words::kAssertion,
          words::kWatchdog, words::kNcclWarning})
      add(text);
    if (any_error)
      for (const std::string_view text : kAnyError) add(text);
  }
  /// Where the first one is; the text's size: nowhere.
  [[nodiscard]] std::size_t first_in(std::string_view text) const {
    for (std::size_t at = 0; at + kLength <= text.size(); at += kInRow)
      if (const std::uint32_t bit = index(text.data() + at); (wanted_[bit / 64] >> (bit % 64) & 1) != 0)
        return at;
    return text.size();
  }

 private:
  static constexpr std::size_t kLength = 4, kInRow = 3;
  static constexpr std::uint32_t index(const char* bytes) {
    std::uint32_t run = 0;
    for (std::size_t i = 0; i < kLength; ++i)
      run |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    return run * 0x9E3779B1U >> 16;
  }
  static constexpr std::array<int, 256> kFrequencies = [] {
    std::array<int, 256> out{};
    for (int& frequency : out) frequency = 1;
    for (std::size_t c = 'a'; c <= 'z'; ++c) out[c] = 3;
    for (const char c : std::string_view(" etaoinsrhld:.0123")) out[static_cast<unsigned char>(c)] = 5;
    return out;
  }();
  constexpr void add(std::string_view text) {
    if (text.size() < kLength + kInRow - 1) throw text;  // is not compiled: it would not be found
    std::size_t best = 0;
    for (int i = 0, least = 0; static_cast<std::size_t>(i) + kLength + kInRow - 1 <= text.size(); ++i) {
      int cost = 1;
      for (const char c : text.substr(static_cast<std::size_t>(i), kLength + kInRow - 1))
        cost *= kFrequencies[static_cast<unsigned char>(c)];
      if (i > 0 && cost >= least) continue;
      least = cost;
      best = static_cast<std::size_t>(i);
    }
    for (std::size_t i = best; i < best + kInRow; ++i) {
      const std::uint32_t bit = index(text.data() + i);
      wanted_[bit / 64] |= std::uint64_t{1} << (bit % 64);
    }
  }

  std::array<std::uint64_t, 1024> wanted_{};  // a bit per hash
};
constexpr Runs kRuns(false);
constexpr Runs kMoreRuns(true);

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

CauseClass class_of_words(std::string_view text, CauseClass otherwise) {
  for (const ErrorWords& one : kErrorWords)
    if (contains(text, one.text)) return one.kind;
  return otherwise;
}

std::size_t first_error_words(std::string_view text) {
  return kRuns.first_in(text);
}

bool looks_like_error(std::string_view line) {
  if (kMoreRuns.first_in(line) == line.size()) return false;
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
