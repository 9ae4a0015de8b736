// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/error_watch.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

/// What loggers and other languages put before their errors; says nothing of the kind.
constexpr std::array<std::string_view, 8> kAnyError = {
    "Error: ", "ERROR: ",       "Exception: ",   "[FATAL]",
    "panic: ", "fatal error: ", "out of memory", "Aborted (core dumped)",
};

/// Beside the words of errors: how reports of them begin.
constexpr std::array kMarks = {words::kTraceback, words::kTerminate, words::kTerminating,
                               words::kAssertion, words::kWatchdog,  words::kNcclWarning};

/// What to look for at every third byte: of each of the words above three runs of four bytes that follow each
/// other, those that ordinary text has least. Text without any of them has none of the words, as most has.
class Runs {
 public:
  explicit constexpr Runs(bool any_error) {
    for (const ErrorWords& one : kErrorWords) add(one.text);
    for (const ErrorWords& sign : kErrorSigns) add(sign.text);
    for (const std::string_view text : kMarks) add(text);
    add(words::kFrame);
    if (any_error)
      for (const std::string_view text : kAnyError) add(text);
  }
  [[nodiscard]] bool any_in(std::string_view text) const {
    for (std::size_t at = 0; at + kLength <= text.size(); at += kInRow)
      if (const std::uint32_t bit = index(text.data() + at); (wanted_[bit / 64] >> (bit % 64) & 1) != 0)
        return true;
    return false;
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

/// PyTorch puts "[rank3]: " before each line of a traceback, Python a frame before those of an exception
/// group.
std::string_view without_margin(std::string_view text) {
  if (const auto end = text.find("]:"); text.starts_with("[rank") && end <= 12) {
    text.remove_prefix(end + 2);
    if (text.starts_with(' ')) text.remove_prefix(1);
  }
  for (const std::string_view frame : {"  + Exception Group ", "  | "})
    if (text.starts_with(frame)) text.remove_prefix(frame.size());
  return text;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// `File "train.py", line 12, in main` -> train.py:12
std::string python_place(std::string_view text) {
  constexpr std::string_view kLine = "\", line ";
  const auto begin = text.find('"');
  const auto end = text.find(kLine, begin == std::string_view::npos ? text.size() : begin + 1);
  if (end == std::string_view::npos) return {};
  const std::string_view file = text.substr(begin + 1, end - begin - 1);
  std::string_view number = text.substr(end + kLine.size());
  number = number.substr(0, number.find_first_not_of("0123456789"));
  if (!is_number(number)) return {};
  return std::string(file) + ":" + std::string(number);
}

/// `prog: loss.cc:12: void f(): Assertion ...` -> loss.cc:12
std::string c_place(std::string_view text) {
  for (auto colon = text.find(':'); colon != std::string_view::npos; colon = text.find(':', colon + 1)) {
    const std::string_view rest = text.substr(colon + 1);
    const std::string_view number = rest.substr(0, rest.find(':'));
    if (!is_number(number)) continue;
    std::string_view file = text.substr(0, colon);
    if (const auto blank = file.rfind(' '); blank != std::string_view::npos) file.remove_prefix(blank + 1);
    return std::string(file) + ":" + std::string(number);
  }
  return {};
}

/// `ValueError: boom`, `torch.cuda.OutOfMemoryError: ...`, `KeyboardInterrupt`
bool is_exception_line(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 && name[0] != '.' &&
         std::ranges::all_of(name, [](char c) {
           const auto byte = static_cast<unsigned char>(c);  // from 0x80 on: of a name in UTF-8
           return byte >= 0x80 || std::isalnum(byte) != 0 || c == '_' || c == '.' || c == '<' || c == '>';
         });
}

}  // namespace

CauseClass class_of_words(std::string_view text, CauseClass otherwise) {
  for (const ErrorWords& one : kErrorWords)
    if (contains(text, one.text)) return one.kind;
  return otherwise;
}

bool looks_like_error(std::string_view line) {
  if (!kMoreRuns.any_in(line)) return false;
  const auto holds = [line](std::string_view text) { return contains(line, text); };
  if (std::ranges::any_of(kAnyError, holds)) return true;
  if (std::ranges::any_of(kMarks, holds)) return true;
  if (std::ranges::any_of(kErrorSigns, holds, &ErrorWords::text)) return true;
  const CauseClass kind = class_of_words(line, CauseClass::kNone);
  return kind != CauseClass::kNone && kind != CauseClass::kNetwork && kind != CauseClass::kPeerGone;
}

void ErrorWatch::feed(std::string_view bytes) {
  splitter_.feed(bytes, [this](std::string_view text) { line(text); });
}

void ErrorWatch::finish() {
  splitter_.finish([this](std::string_view text) { line(text); });
}

void ErrorWatch::line(std::string_view raw) {
  const bool coloured = raw.find('\x1b') != std::string_view::npos;
  if (!in_traceback_ && !what_may_follow_ && !coloured && !kRuns.any_in(raw)) return;
  std::string clean;
  if (coloured) {
    clean = one_line(raw);
    raw = clean;
  }
  const std::string_view text = without_margin(raw);
  if (text.empty()) return;
  if (python(text) || cpp(text)) return;
  plain(text);
}

bool ErrorWatch::python(std::string_view text) {
  if (text.starts_with(words::kTraceback)) {
    in_traceback_ = true;
    where_.clear();
    return true;
  }
  if (text.starts_with(words::kFrame)) {
    in_traceback_ = true;  // a SyntaxError has no other beginning
    if (std::string place = python_place(text); !place.empty()) where_ = std::move(place);
    return true;
  }
  if (!in_traceback_ || text[0] == ' ') return in_traceback_;
  in_traceback_ = false;
  if (!is_exception_line(text)) return false;
  keep(Weight::kTraceback, {class_of_words(text, CauseClass::kException), one_clean_line(text), where_});
  return true;
}

bool ErrorWatch::cpp(std::string_view text) {
  constexpr std::string_view kWhat = "what():";
  const bool what_may_follow = what_may_follow_;
  what_may_follow_ = false;
  if (const auto at = text.find(words::kThrown); at != std::string_view::npos) {
    std::string_view type = text.substr(at + words::kThrown.size());
    type = type.substr(0, type.rfind('\''));
    what_may_follow_ = weight_ < Weight::kError;
    keep(Weight::kError, {class_of_words(type, CauseClass::kException), one_clean_line(type)});
    return true;
  }
  if (what_may_follow && contains(text, kWhat)) {
    const std::string_view message = text.substr(text.find(kWhat) + kWhat.size());
    found_->kind = class_of_words(message, found_->kind);
    found_->text = one_clean_line(found_->text + ": " + one_clean_line(message));
    return true;
  }
  if (contains(text, words::kTerminate) || contains(text, words::kTerminating)) {
    keep(Weight::kError, {class_of_words(text, CauseClass::kException), one_clean_line(text)});
    return true;
  }
  if (contains(text, words::kAssertion) && contains(text, "failed")) {
    // The one of a kernel names the block and the thread.
    const CauseClass kind = contains(text, "thread: [") ? CauseClass::kGpuFault : CauseClass::kAssertion;
    keep(Weight::kError, {kind, one_clean_line(text), c_place(text)});
    return true;
  }
  return false;
}

void ErrorWatch::plain(std::string_view text) {
  if (weight_ >= Weight::kError) return;
  // Of a module that a program does without Python only warns.
  const bool warns = contains(text, "Warning: ");
  for (const ErrorWords& sign : kErrorSigns)
    if (contains(text, sign.text) && !(warns && sign.kind == CauseClass::kException))
      return keep(Weight::kError, {sign.kind, one_clean_line(text),
                                   sign.kind == CauseClass::kSanitizer ? c_place(text) : std::string()});
  const CauseClass kind = class_of_words(text, CauseClass::kNone);
  if (kind == CauseClass::kGpuMemory || kind == CauseClass::kGpuFault ||
      kind == CauseClass::kGpuUnavailable || kind == CauseClass::kHostMemory ||
      contains(text, words::kWatchdog))
    return keep(Weight::kError, {kind, one_clean_line(text)});
  if (kind != CauseClass::kNone || contains(text, words::kNcclWarning))
    keep(Weight::kWarning, {kind == CauseClass::kNone ? CauseClass::kNetwork : kind, one_clean_line(text)});
}

void ErrorWatch::keep(Weight weight, Cause cause) {
  const bool later_traceback = weight == Weight::kTraceback && weight_ == weight;
  // A traceback is no more of an error than any other: the first of them stays.
  const bool heavier = weight_ < Weight::kError && weight > weight_;
  if (!heavier && !later_traceback) return;
  weight_ = weight;
  found_ = std::move(cause);
}

}  // namespace muster::launcher
