// SPDX-License-Identifier: Apache-2.0
#include "launcher/progress/collective_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/progress/progress_sample.h"
#include "launcher/text/line_splitter.h"

namespace muster::launcher {
namespace {

constexpr std::array<std::string_view, 5> kStateNames = {"none", "begun", "finished", "failed", "gone"};
constexpr std::array<std::string_view, 5> kStateTexts = {"unknown", "begun, not finished", "finished",
                                                         "failed", "finished, its group is gone"};
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
         static_cast<std::size_t>(slot.state) < kStateNames.size();
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, kUnits.at(unit));
}

/// Empty: there is none, as of a program without the runtime.
std::string read_page(const std::string& progress_file) {
  if (progress_file.empty()) return {};
  const auto start = read_start(runtime_page_file(progress_file), sizeof(RuntimePage));
  return start ? start->bytes : std::string();
}

}  // namespace

std::vector<CollectiveState> parse_collectives(std::span<const std::string, 3> reads) {
  std::vector<CollectiveState> out;
  if (!std::ranges::all_of(reads, is_page)) return out;
  for (std::size_t i = 0; i < RuntimePage::kSlots; ++i) {
    const PageSlot slot = slot_of(reads[1], i);
    const std::uint64_t version = slot.version;
    if (version % 2 != 0 || slot_of(reads[0], i).version != version ||
        slot_of(reads[2], i).version != version)
      continue;
    if (!is_group(slot)) continue;
    std::string group = text_in(slot.name);
    if (std::ranges::any_of(out, [&](const auto& other) { return other.group == group; })) continue;
    CollectiveState& state = out.emplace_back();
    state.group = std::move(group);
    state.backend = text_in(slot.backend);
    state.world_size = static_cast<int>(slot.world_size);
    state.operation = slot.operation;
    state.state = slot.state;
    state.sequence = slot.sequence;
    state.size_bytes = slot.size_bytes;
    state.root = slot.root;
  }
  return out;
}

std::optional<CollectiveActivity> activity_in(std::string_view bytes) {
  if (!is_page(bytes)) return std::nullopt;
  CollectiveActivity out;
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

std::string title_of(const CollectiveState& state) {
  std::string out = state.operation == PageOperation::kNone
                        ? std::string("no collective yet")
                        : fmt::format("{} #{}", name_of(state.operation), state.sequence);
  if (state.size_bytes != 0) out += fmt::format(" of {}", bytes_text(state.size_bytes));
  if (state.group != kUsualGroup) out += fmt::format(" in group \"{}\"", state.group);
  return out;
}

std::string describe(const CollectiveState& state) {
  if (state.operation == PageOperation::kNone) return title_of(state);
  return fmt::format("{} ({})", title_of(state), kStateTexts.at(static_cast<std::size_t>(state.state)));
}

std::string describe(std::span<const CollectiveState> states) {
  std::vector<std::string> begun, others;
  for (const CollectiveState& state : states)
    (state.state == PageState::kBegun ? begun : others).push_back(describe(state));
  begun.insert(begun.end(), others.begin(), others.end());
  const std::size_t more = begun.size() > kMostShown ? begun.size() - kMostShown : 0;
  begun.resize(begun.size() - more);
  std::string out = fmt::format("{}", fmt::join(begun, "; "));
  if (more > 0) out += fmt::format("; and {} groups more", more);
  return out;
}

std::string_view name_of(PageState state) {
  return kStateNames.at(static_cast<std::size_t>(state));
}
std::string_view name_of(PageOperation operation) {
  return kPageOperations.at(static_cast<std::size_t>(operation));
}

std::vector<CollectiveState> read_collectives(const std::string& progress_file) {
  const std::array reads = {read_page(progress_file), read_page(progress_file), read_page(progress_file)};
  return parse_collectives(reads);
}

std::optional<CollectiveActivity> read_collective_activity(const std::string& progress_file) {
  return activity_in(read_page(progress_file));
}

}  // namespace muster::launcher
