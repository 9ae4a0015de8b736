// SPDX-License-Identifier: Apache-2.0
#include "launcher/progress/progress_word.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "launcher/output/error_watch.h"
#include "rendezvous/base/progress_page.h"

namespace muster::launcher {
namespace {

static_assert(sizeof(ProgressPage) == kProgressBytes);
constexpr std::size_t kLongestName = 10;  // "iteration" and a colon

template <std::size_t N>
std::string_view up_to_zero(const std::array<char, N>& field) {
  const auto end = std::find(field.begin(), field.end(), '\0');
  return {field.data(), static_cast<std::size_t>(end - field.begin())};
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The number that follows one of the names: "step 140", "step=140", "Step: [140/900]".
std::optional<std::int64_t> number_after(std::string_view text,
                                         std::initializer_list<std::string_view> names) {
  for (std::size_t at = 0; at < text.size();) {
    if (!is_letter(text[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    std::string word;
    for (; end < text.size() && is_letter(text[end]); ++end)
      if (word.size() < kLongestName) word.push_back(static_cast<char>(text[end] | 0x20));
    at = end;
    if (std::find(names.begin(), names.end(), word) == names.end()) continue;
    while (end < text.size() && std::string_view(" =:[(#").find(text[end]) != std::string_view::npos) ++end;
    std::int64_t number = 0;
    if (end < text.size() && is_digit(text[end]) &&
        std::from_chars(text.data() + end, text.data() + text.size(), number).ec == std::errc{})
      return number;
  }
  return std::nullopt;
}

}  // namespace

ProgressWord parse_progress(std::string_view bytes) {
  ProgressWord out;
  if (bytes.size() < sizeof(ProgressPage) || !bytes.starts_with(kProgressMagic)) {
    out.text = one_clean_line(std::string(bytes.substr(0, kProgressBytes)));
    return out;
  }
  ProgressPage page;
  std::memcpy(&page, bytes.data(), sizeof page);
  out.is_page = true;
  out.moves = page.moves;
  out.paused = page.paused != 0;
  out.under_way = page.step >= 3 || (page.epoch >= 2 && page.step >= 1);
  std::string text;
  const auto add = [&text](const std::string& part) {
    if (!text.empty()) text += ' ';
    text += part;
  };
  // While it is being written: the words before it are gone, those after it not yet there.
  const std::string_view own = page.text_version % 2 == 0 ? up_to_zero(page.text) : std::string_view();
  if (!own.empty()) {
    add(std::string(own));
  } else {
    if (page.epoch >= 0) add(fmt::format("epoch {}", page.epoch));
    if (page.step > 0)
      add(page.steps > 0 ? fmt::format("step {}/{}", page.step, page.steps)
                         : fmt::format("step {}", page.step));
  }
  if (const auto phase = up_to_zero(page.phase); !phase.empty()) add(std::string(phase));
  out.text = one_clean_line(text);
  return out;
}

std::optional<Position> position_in(std::string_view text) {
  const auto epoch = number_after(text, {"epoch", "ep"});
  const auto step = number_after(text, {"step", "steps", "iter", "iteration", "batch", "it"});
  if (!epoch && !step) return std::nullopt;
  return Position{epoch.value_or(0), step.value_or(0)};
}

std::string_view phase_in(std::string_view text) {
  const auto last_digit = std::find_if(text.rbegin(), text.rend(), is_digit);
  if (last_digit == text.rend()) return {};
  text.remove_prefix(static_cast<std::size_t>(text.rend() - last_digit));
  if (!text.starts_with(' ')) return {};
  return text.substr(1);
}

}  // namespace muster::launcher
