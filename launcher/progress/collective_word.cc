// SPDX-License-Identifier: Apache-2.0
#include "launcher/progress/collective_word.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/output/error_watch.h"
#include "launcher/progress/runtime_page_reader.h"

namespace muster::launcher {
namespace {

constexpr std::array<std::string_view, 5> kStates = {"none", "begun", "finished", "failed", "gone"};
constexpr std::size_t kMostShown = 3;
constexpr std::string_view kUsualGroup = "default";

template <std::size_t N>
std::string text_in(const std::array<char, N>& field) {
  return one_clean_line(std::string(field.data(), ::strnlen(field.data(), N)));
}

bool is_page(std::string_view bytes) {
  return bytes.size() >= sizeof(RuntimePage) && bytes.starts_with(kRuntimePageMagic);
}

PageSlot slot_of(std::string_view page, std::size_t index) {
  PageSlot out;
  std::memcpy(&out, page.data() + offsetof(RuntimePage, slots) + index * sizeof out, sizeof out);
  return out;
}

/// A number from the file may be none of ours.
bool is_group(const PageSlot& slot) {
  return slot.owner != 0 && slot.version != 0 &&
         static_cast<std::size_t>(slot.operation) < kPageOperations.size() &&
         static_cast<std::size_t>(slot.state) < kStates.size();
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, kUnits.at(unit));
}

std::string_view state_text(PageState state) {
  switch (state) {
    case PageState::kBegun:
      return "begun, not finished";
    case PageState::kFinished:
      return "finished";
    case PageState::kFailed:
      return "failed";
    case PageState::kGone:
      return "finished, its group is gone";
    case PageState::kNone:
      break;
  }
  return "unknown";
}

}  // namespace

std::vector<CollectiveWord> parse_collectives(std::span<const std::string, 3> reads) {
  std::vector<CollectiveWord> out;
  if (!std::all_of(reads.begin(), reads.end(), is_page)) return out;
  for (std::size_t i = 0; i < RuntimePage::kSlots; ++i) {
    const PageSlot slot = slot_of(reads[1], i);
    const std::uint64_t version = slot.version;
    if (version % 2 != 0 || slot_of(reads[0], i).version != version ||
        slot_of(reads[2], i).version != version)
      continue;
    if (!is_group(slot)) continue;
    std::string group = text_in(slot.name);
    if (std::any_of(out.begin(), out.end(), [&](const auto& other) { return other.group == group; }))
      continue;
    CollectiveWord& word = out.emplace_back();
    word.group = std::move(group);
    word.backend = text_in(slot.backend);
    word.world_size = static_cast<int>(slot.world_size);
    word.operation = slot.operation;
    word.state = slot.state;
    word.sequence = slot.sequence;
    word.size_bytes = slot.size_bytes;
    word.root = slot.root;
  }
  return out;
}

std::optional<CollectiveLife> life_in(std::string_view bytes) {
  if (!is_page(bytes)) return std::nullopt;
  CollectiveLife out;
  for (std::size_t i = 0; i < RuntimePage::kSlots; ++i) {
    const PageSlot slot = slot_of(bytes, i);
    if (!is_group(slot) || slot.operation == PageOperation::kNone) continue;
    // The version rises by two with each that begins, the state by one as it ends.
    out.moves += slot.version + static_cast<std::uint64_t>(slot.state);
    out.waits = out.waits || slot.state == PageState::kBegun;
  }
  if (out.moves == 0) return std::nullopt;
  return out;
}

std::string title_of(const CollectiveWord& word) {
  std::string out = word.operation == PageOperation::kNone
                        ? std::string("no collective yet")
                        : fmt::format("{} #{}", name_of(word.operation), word.sequence);
  if (word.size_bytes != 0) out += fmt::format(" of {}", size_text(word.size_bytes));
  if (word.group != kUsualGroup) out += fmt::format(" in group \"{}\"", word.group);
  return out;
}

std::string describe(const CollectiveWord& word) {
  if (word.operation == PageOperation::kNone) return title_of(word);
  return fmt::format("{} ({})", title_of(word), state_text(word.state));
}

std::string describe(std::span<const CollectiveWord> words) {
  std::vector<std::string> begun, others;
  for (const CollectiveWord& word : words)
    (word.state == PageState::kBegun ? begun : others).push_back(describe(word));
  begun.insert(begun.end(), others.begin(), others.end());
  const std::size_t more = begun.size() > kMostShown ? begun.size() - kMostShown : 0;
  begun.resize(begun.size() - more);
  std::string out = fmt::format("{}", fmt::join(begun, "; "));
  if (more > 0) out += fmt::format("; and {} groups more", more);
  return out;
}

std::string_view name_of(PageState state) {
  return kStates.at(static_cast<std::size_t>(state));
}
std::string_view name_of(PageOperation operation) {
  return kPageOperations.at(static_cast<std::size_t>(operation));
}

std::optional<PageState> state_from(std::string_view name) {
  const auto* const found = std::find(kStates.begin(), kStates.end(), name);
  if (found == kStates.end()) return std::nullopt;
  return static_cast<PageState>(found - kStates.begin());
}
std::optional<PageOperation> operation_from(std::string_view name) {
  const auto* const found = std::find(kPageOperations.begin(), kPageOperations.end(), name);
  if (found == kPageOperations.end()) return std::nullopt;
  return static_cast<PageOperation>(found - kPageOperations.begin());
}

std::vector<CollectiveWord> read_collectives(const std::string& progress_file) {
  const RuntimePageReader file(progress_file);
  const std::array<std::string, 3> reads = {file.read(), file.read(), file.read()};
  return parse_collectives(reads);
}

std::optional<CollectiveLife> read_collective_life(const std::string& progress_file) {
  return life_in(RuntimePageReader(progress_file).read());
}

}  // namespace muster::launcher
