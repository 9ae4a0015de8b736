// SPDX-License-Identifier: Apache-2.0
#include "launcher/progress/progress_sample.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/text/line_splitter.h"
#include "rendezvous/base/progress_page.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {
namespace {

static_assert(sizeof(ProgressPage) == kProgressBytes);
constexpr std::size_t kLongestName = 10;  // "iteration" and a colon

template <std::size_t N>
std::string_view up_to_zero(const std::array<char, N>& field) {
  const auto end = std::ranges::find(field, '\0');
  return {field.data(), static_cast<std::size_t>(end - field.begin())};
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// What begins with a number behind one of the names: "step 140", "step=140", "Step: [140/900]". Empty: none.
std::string_view number_text_after(std::string_view text, std::initializer_list<std::string_view> names) {
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
    if (std::ranges::find(names, word) == names.end()) continue;
    while (end < text.size() && std::string_view(" =:[(#").find(text[end]) != std::string_view::npos) ++end;
    if (end < text.size() && is_digit(text[end])) return text.substr(end);
  }
  return {};
}

template <class Number>
std::optional<Number> number_in_front(std::string_view text) {
  Number number{};
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc{}) return std::nullopt;
  return number;
}

std::string_view step_text(std::string_view text) {
  return number_text_after(text, {"step", "steps", "iter", "iteration", "batch", "it"});
}

std::uint64_t mark_of(const struct stat& info) {
  const auto nanoseconds = static_cast<std::uint64_t>(info.st_mtim.tv_sec) * 1'000'000'000 +
                           static_cast<std::uint64_t>(info.st_mtim.tv_nsec);
  return nanoseconds * 31 + static_cast<std::uint64_t>(info.st_size) +
         static_cast<std::uint64_t>(info.st_ino);
}

}  // namespace

ProgressSample parse_progress(std::string_view bytes) {
  ProgressSample out;
  if (bytes.size() < sizeof(ProgressPage) || !bytes.starts_with(kProgressMagic)) {
    out.text = one_clean_line(bytes.substr(0, kProgressBytes));
    const std::string_view phase = phase_in(out.text);
    if (std::ranges::all_of(phase, [](char c) { return is_letter(c) || c == '_' || c == ' '; }))
      out.phase = phase;
    out.figures = figures_in(out.text);
    return out;
  }
  ProgressPage page;
  std::memcpy(&page, bytes.data(), sizeof page);
  out.is_page = true;
  out.mark = page.moves;
  out.paused = page.paused != 0;
  out.warmed_up = page.step >= 3 || (page.epoch >= 2 && page.step >= 1);
  std::string text;
  const auto add = [&text](const std::string& part) {
    if (!text.empty()) text += ' ';
    text += part;
  };
  // While it is being written: the old text is gone, the new one not yet there.
  const std::string_view own = page.text_version % 2 == 0 ? up_to_zero(page.text) : std::string_view();
  if (!own.empty()) {
    add(std::string(own));
  } else {
    if (page.epoch >= 0) add(fmt::format("epoch {}", page.epoch));
    if (page.step > 0)
      add(page.steps > 0 ? fmt::format("step {}/{}", page.step, page.steps)
                         : fmt::format("step {}", page.step));
  }
  if (const auto phase = up_to_zero(page.phase); !phase.empty()) {
    out.phase = one_clean_line(phase);
    add(std::string(phase));
  }
  out.text = one_clean_line(text);
  if (std::isfinite(page.loss) && std::isfinite(page.samples_per_second) && page.samples_per_second > 0)
    out.figures = {page.loss, page.samples_per_second};
  else
    out.figures = figures_in(out.text);
  return out;
}

std::optional<Position> position_in(std::string_view text) {
  const auto epoch = number_in_front<std::int64_t>(number_text_after(text, {"epoch", "ep"}));
  const auto step = number_in_front<std::int64_t>(step_text(text));
  if (!epoch && !step) return std::nullopt;
  return Position{epoch.value_or(0), step.value_or(0)};
}

std::optional<std::int64_t> steps_in(std::string_view text) {
  text = step_text(text);
  text.remove_prefix(std::min(text.find_first_not_of("0123456789"), text.size()));
  if (!text.starts_with('/')) return std::nullopt;
  return number_in_front<std::int64_t>(text.substr(1));
}

TrainingFigures figures_in(std::string_view text) {
  TrainingFigures out;
  out.loss = number_in_front<double>(number_text_after(text, {"loss"}));
  for (auto at = text.find("/s"); at != std::string_view::npos; at = text.find("/s", at + 2)) {
    std::size_t unit = at;
    while (unit > 0 && is_letter(text[unit - 1])) --unit;
    if (unit == at || (at + 2 < text.size() && is_letter(text[at + 2]))) continue;  // "0.5/step"
    const std::string_view behind = text.substr(std::min(text.find_first_not_of(" =:", at + 2), text.size()));
    out.throughput = number_in_front<double>(behind);
    if (out.throughput) break;
    std::string_view before = text.substr(0, unit);  // "512 images/s"
    while (before.ends_with(' ')) before.remove_suffix(1);
    const auto begin = before.find_last_not_of("0123456789.");
    out.throughput =
        number_in_front<double>(begin == std::string_view::npos ? before : before.substr(begin + 1));
    if (out.throughput) break;
  }
  return out;
}

std::string_view phase_in(std::string_view text) {
  const auto last_digit = std::find_if(text.rbegin(), text.rend(), is_digit);
  if (last_digit == text.rend()) return {};
  text.remove_prefix(static_cast<std::size_t>(text.rend() - last_digit));
  if (!text.starts_with(' ')) return {};
  return text.substr(1);
}

std::optional<FileStart> read_start(const std::string& path, std::size_t max_bytes) {
  // O_NONBLOCK: the worker may have made a pipe of it.
  const UniqueFd file(path.empty() ? -1 : ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  FileStart out{std::string(max_bytes, '\0'), mark_of(info)};
  const ssize_t n = retry_eintr([&] { return ::pread(file.get(), out.bytes.data(), max_bytes, 0); });
  out.bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return out;
}

std::optional<ProgressSample> read_progress(const std::string& path) {
  const auto start = read_start(path, kProgressBytes);
  if (!start || start->bytes.empty()) return std::nullopt;
  ProgressSample out = parse_progress(start->bytes);
  if (!out.is_page) out.mark = start->mark;
  if (out.mark == 0) return std::nullopt;
  return out;
}

}  // namespace muster::launcher
