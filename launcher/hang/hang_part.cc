// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/hang_part.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/hang/odd_one_out.h"

namespace muster::launcher {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr std::size_t kMaxRanks = 4096;
constexpr std::size_t kMaxThreads = 256;
constexpr std::size_t kMaxFrames = 64;
constexpr std::size_t kMaxLines = 2000;
constexpr std::size_t kMaxText = 2048;
constexpr std::size_t kMaxName = 64;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// It appears on other people's terminals.
std::string clean(std::string text) {
  text.resize(std::min(text.size(), kMaxText));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

std::string text_in(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found == json.end() ? std::string() : clean(found->get<std::string>());
}

std::vector<std::string> lines_in(const Json& json, const char* name, std::size_t most) {
  std::vector<std::string> out;
  if (const auto found = json.find(name); found != json.end())
    for (const Json& line : *found) {
      if (out.size() == most) break;
      out.push_back(clean(line.get<std::string>()));
    }
  return out;
}

std::vector<int> numbers_in(const Json& json, const char* name) {
  std::vector<int> out;
  if (const auto found = json.find(name); found != json.end())
    for (const Json& number : *found) {
      if (out.size() == kMaxRanks) break;
      out.push_back(number);
    }
  return out;
}

/// A later version may know more operations and states: nothing.
std::optional<CollectiveWord> collective_from(const Json& json) {
  const auto operation = operation_from(text_in(json, "operation"));
  const auto state = state_from(text_in(json, "state"));
  if (!operation || !state) return std::nullopt;
  CollectiveWord out;
  out.group = text_in(json, "group").substr(0, kMaxName);
  out.backend = text_in(json, "backend").substr(0, kMaxName);
  out.world_size = json.value("world_size", 0);
  out.operation = *operation;
  out.state = *state;
  out.sequence = json.value("sequence", std::uint64_t{0});
  out.size_bytes = json.value("bytes", std::uint64_t{0});
  out.root = json.value("root", -1);
  return out;
}

Json to_object(const CollectiveWord& word) {
  Json out{{"group", word.group},           {"backend", word.backend},
           {"world_size", word.world_size}, {"operation", name_of(word.operation)},
           {"sequence", word.sequence},     {"bytes", word.size_bytes},
           {"state", name_of(word.state)}};
  if (word.root >= 0) out["root"] = word.root;
  return out;
}

RankEvidence rank_from(const Json& json) {
  RankEvidence out;
  out.rank = json.at("rank");
  out.local_rank = json.at("local_rank");
  out.pid = json.at("pid");
  out.silent = json.at("silent");
  out.judged = json.value("judged", false);
  out.silence = Millis(json.value("silence_ms", std::int64_t{0}));
  out.ended = text_in(json, "ended");
  out.patience = text_in(json, "patience");
  out.word = text_in(json, "progress");
  out.source = text_in(json, "source");
  out.tool = text_in(json, "tool");
  out.tool_problem = text_in(json, "no_stack");
  out.tool_output = lines_in(json, "tool_output", kMaxLines);
  for (const Json& word : json.value("collectives", Json::array())) {
    if (out.collectives.size() == kMostCollectives) break;
    if (auto read = collective_from(word)) out.collectives.push_back(*std::move(read));
  }
  for (const Json& thread : json.value("threads", Json::array())) {
    if (out.threads.size() == kMaxThreads) break;
    ThreadState& state = out.threads.emplace_back();
    state.id = thread.at("id");
    state.name = text_in(thread, "name");
    const std::string letter = text_in(thread, "state");
    state.state = letter.empty() ? '?' : letter.front();
    state.call = text_in(thread, "call");
    state.wait = text_in(thread, "wait");
    state.kernel_stack = lines_in(thread, "kernel_stack", kMaxFrames);
  }
  for (const Json& stack : json.value("stacks", Json::array())) {
    if (out.stacks.size() == kMaxThreads) break;
    out.stacks.push_back({text_in(stack, "thread"), lines_in(stack, "functions", kMaxFrames)});
  }
  return out;
}

Json whole(const HangPart& part) {
  Json out{{"version", kVersion},
           {"host", part.report.host},
           {"time", part.report.wall_time_s},
           {"silence_ms", part.report.silence.count()},
           {"limit_ms", part.report.limit.count()},
           {"hanging", part.hanging},
           {"action", static_cast<int>(part.action)},
           {"moved", part.moved},
           {"ended", part.ended},
           {"ranks", Json::array()}};
  for (const RankEvidence& rank : part.report.ranks) {
    if (out["ranks"].size() == kMaxRanks) break;
    out["ranks"].push_back(to_object(rank));
  }
  return out;
}

/// Less and less of a rank's evidence; false: there is nothing left to leave out.
bool thin(HangPart& part, int round) {
  for (RankEvidence& rank : part.report.ranks) {
    const auto keep = [](auto& list, std::size_t most) {
      if (list.size() > most) list.resize(most);
    };
    rank.tool_output.clear();
    if (round > 0) keep(rank.threads, 8), keep(rank.stacks, 8);
    if (round > 1) keep(rank.threads, 1), keep(rank.stacks, 1);
    if (round > 2) {
      for (ThreadState& thread : rank.threads) thread.kernel_stack.clear();
      for (ThreadStack& stack : rank.stacks) keep(stack.functions, 12);
    }
    if (round > 3) {
      rank.threads.clear(), rank.stacks.clear();
      // Who waits says more than who does not.
      std::stable_partition(rank.collectives.begin(), rank.collectives.end(),
                            [](const CollectiveWord& word) { return word.state == PageState::kBegun; });
      keep(rank.collectives, 4);
    }
  }
  return round <= 3;
}

template <class Value, class Read>
Result<Value> parsed(std::string_view text, std::string_view what, Read read) {
  const auto refused = [&](std::string_view why) {
    return fail(ErrorCode::kProtocol, fmt::format("{} of a hang is not what muster writes: {}", what, why));
  };
  if (text.size() > 2 * kMaxHangPartBytes) return refused("too long");
  const Json json = Json::parse(text, nullptr, false);
  try {
    if (const int version = json.at("version"); version != kVersion)
      return refused(fmt::format("version {}", version));
    return read(json);
  } catch (const Json::exception& error) {
    return refused(error.what());
  }
}

}  // namespace

Json to_object(const RankEvidence& rank) {
  Json out{{"rank", rank.rank}, {"local_rank", rank.local_rank}, {"pid", rank.pid}, {"silent", rank.silent}};
  if (rank.silent) out["silence_ms"] = rank.silence.count();
  if (rank.judged) out["judged"] = true;
  const auto text = [&out](const char* name, const std::string& value) {
    if (!value.empty()) out[name] = value;
  };
  text("ended", rank.ended);
  text("patience", rank.patience);
  text("progress", rank.word);
  text("source", rank.source);
  text("tool", rank.tool);
  text("no_stack", rank.tool_problem);
  Json collectives = Json::array();
  for (const CollectiveWord& word : rank.collectives) collectives.push_back(to_object(word));
  if (!collectives.empty()) out["collectives"] = std::move(collectives);
  Json threads = Json::array();
  for (const ThreadState& thread : rank.threads) {
    Json entry{{"id", thread.id}, {"name", thread.name}, {"state", std::string(1, thread.state)}};
    if (!thread.call.empty()) entry["call"] = thread.call;
    if (!thread.wait.empty()) entry["wait"] = thread.wait;
    if (!thread.kernel_stack.empty()) entry["kernel_stack"] = thread.kernel_stack;
    threads.push_back(std::move(entry));
  }
  if (!threads.empty()) out["threads"] = std::move(threads);
  Json stacks = Json::array();
  for (const ThreadStack& stack : rank.stacks)
    stacks.push_back({{"thread", stack.title}, {"functions", stack.functions}});
  if (!stacks.empty()) out["stacks"] = std::move(stacks);
  if (!rank.tool_output.empty())
    out["tool_output"] = std::vector<std::string>(
        rank.tool_output.begin(),
        std::next(rank.tool_output.begin(),
                  static_cast<std::ptrdiff_t>(std::min(rank.tool_output.size(), kMaxLines))));
  return out;
}

std::string to_json(const HangPart& part) {
  std::string text = dump(whole(part));
  HangPart thinner = text.size() > kMaxHangPartBytes ? part : HangPart{};
  for (int round = 0; text.size() > kMaxHangPartBytes; ++round) {
    // Thousands of ranks: no more of them than there is room for.
    if (!thin(thinner, round)) thinner.report.ranks.resize(thinner.report.ranks.size() / 2);
    text = dump(whole(thinner));
  }
  return text;
}

Result<HangPart> hang_part_from_json(std::string_view text) {
  return parsed<HangPart>(text, "a node's part", [](const Json& json) {
    HangPart out;
    out.report.host = text_in(json, "host");
    out.report.wall_time_s = json.at("time");
    out.report.silence = Millis(json.at("silence_ms").get<std::int64_t>());
    out.report.limit = Millis(json.at("limit_ms").get<std::int64_t>());
    out.hanging = json.at("hanging");
    out.action = static_cast<OnHang>(std::clamp<int>(json.at("action"), 0, static_cast<int>(OnHang::kStop)));
    out.moved = numbers_in(json, "moved");
    out.ended = numbers_in(json, "ended");
    for (const Json& rank : json.at("ranks")) {
      if (out.report.ranks.size() == kMaxRanks) break;
      out.report.ranks.push_back(rank_from(rank));
    }
    return out;
  });
}

std::string to_json(const HangVerdict& verdict) {
  return dump({{"version", kVersion},
               {"text", verdict.text.substr(0, kMaxText)},
               {"odd_ranks", verdict.odd.ranks},
               {"why", verdict.odd.why.substr(0, kMaxText)},
               {"ends", verdict.ends},
               {"patience", verdict.patience},
               {"rank", verdict.rank},
               {"line", verdict.line.substr(0, kMaxText)}});
}

Result<HangVerdict> hang_verdict_from_json(std::string_view text) {
  return parsed<HangVerdict>(text, "the verdict", [](const Json& json) {
    HangVerdict out;
    out.text = text_in(json, "text");
    out.odd = {numbers_in(json, "odd_ranks"), text_in(json, "why")};
    out.ends = json.at("ends");
    out.patience = json.at("patience");
    out.rank = json.at("rank");
    out.line = text_in(json, "line");
    return out;
  });
}

HangReport merged(const std::map<int, HangPart>& parts, int nodes) {
  HangReport out;
  for (int node = 0; node < nodes; ++node) {
    const auto found = parts.find(node);
    HangNode& entry = out.nodes.emplace_back();
    entry.node = node;
    if (found == parts.end()) continue;
    const HangReport& report = found->second.report;
    entry.host = report.host;
    entry.answered = true;
    if (out.host.empty()) out.host = report.host, out.wall_time_s = report.wall_time_s;
    const bool of_hang = std::any_of(report.ranks.begin(), report.ranks.end(),
                                     [](const RankEvidence& rank) { return rank.silent; });
    if (of_hang && report.silence > out.silence) out.silence = report.silence, out.limit = report.limit;
    for (const RankEvidence& rank : report.ranks) {
      out.ranks.push_back(rank);
      out.ranks.back().node = node;
    }
  }
  out.odd = odd_one_out(out.ranks);
  return out;
}

}  // namespace muster::launcher
