// SPDX-License-Identifier: Apache-2.0
#include "tests/support/store_script.h"

#include <stdexcept>
#include <utility>

namespace muster::test {

using wire::Op;

void encode(const ScriptedRequest& request, std::string& out) {
  const std::vector<std::string>& words = request.words;
  switch (request.op) {
    case Op::kCheck:
    case Op::kMultiGet:
    case Op::kMultiSet: {
      const std::vector<std::string_view> items(words.begin(), words.end());
      return wire::encode({.op = request.op, .items = items}, out);
    }
    default: {
      const auto word = [&](std::size_t i) { return words.size() > i ? std::string_view(words[i]) : ""; };
      return wire::encode(
          {.op = request.op, .key = word(0), .value = word(1), .desired = word(2), .number = request.number},
          out);
    }
  }
}

namespace {

std::string bytes(std::string_view value) {
  std::string out;
  wire::put_bytes(out, value);
  return out;
}

std::string number(std::int64_t value) {
  std::string out;
  wire::put_i64(out, value);
  return out;
}

// An absent key counts as 0.
std::int64_t add(std::map<std::string, std::string>& keys, const std::string& key, std::int64_t delta) {
  const auto found = keys.find(key);
  const std::int64_t sum = (found == keys.end() ? 0 : std::stoll(found->second)) + delta;
  keys[key] = std::to_string(sum);
  return sum;
}

}  // namespace

std::string apply(const ScriptedRequest& request, StoreContents& contents) {
  auto& keys = contents.keys;
  const std::vector<std::string>& words = request.words;
  const auto value_of = [&](const std::string& key) {
    return keys.contains(key) ? keys[key] : std::string();
  };
  switch (request.op) {
    case Op::kSet:
      keys[words[0]] = words[1];
      return {};
    case Op::kCompareSet: {
      const bool there = keys.contains(words[0]);
      if (there ? keys[words[0]] == words[1] : words[1].empty()) keys[words[0]] = words[2];
      return bytes(keys.contains(words[0]) ? keys[words[0]] : words[1]);
    }
    case Op::kGet:
      return bytes(value_of(words[0]));
    case Op::kAdd:
      return number(add(keys, words[0], request.number));
    case Op::kBarrier:  // of one: it opens as it counts
      add(keys, words[0], 1);
      return std::string(1, wire::kStopWaiting);
    case Op::kDeleteKey:
      return number(static_cast<std::int64_t>(keys.erase(words[0])));
    case Op::kAppend:
      keys[words[0]] += words[1];
      return {};
    case Op::kMultiGet: {
      std::string out;
      for (const std::string& key : words) out += bytes(value_of(key));
      return out;
    }
    case Op::kMultiSet:
      for (std::size_t i = 0; i + 1 < words.size(); i += 2) keys[words[i]] = words[i + 1];
      return {};
    case Op::kQueuePush:
      contents.queues[words[0]].push_back(words[1]);
      return {};
    case Op::kQueuePop: {
      const auto found = contents.queues.find(words[0]);
      if (found == contents.queues.end()) return number(0);
      std::string out =
          number(static_cast<std::int64_t>(found->second.size())) + bytes(found->second.front());
      found->second.pop_front();
      if (found->second.empty()) contents.queues.erase(found);
      return out;
    }
    default:
      throw std::logic_error("the model does not know " + std::string(op_info(request.op).name));
  }
}

std::vector<ScriptedRequest> StoreScript::write(int count, std::mt19937& random, std::size_t longest) {
  const auto below = [&](std::size_t bound) { return random() % bound; };
  const auto key = [&] { return prefix_ + "k" + std::to_string(below(5)); };
  const auto counter = [&] { return prefix_ + "n" + std::to_string(below(3)); };
  const auto queue = [&] { return queues()[below(2)]; };
  // Mostly short, so that values meet again; every byte may occur.
  const auto value = [&] {
    const std::size_t kind = below(8);
    if (kind < 4) return std::to_string(below(3));
    std::string out(kind < 7 ? below(40) : below(longest + 1), '\0');
    for (char& c : out) c = static_cast<char>(random());
    return out;
  };
  std::vector<ScriptedRequest> out;
  while (static_cast<int>(out.size()) < count) {
    switch (below(13)) {
      case 0:
        out.push_back({Op::kSet, {key(), value()}});
        break;
      case 1:
        // Of the values that come again some are what is there.
        out.push_back({Op::kCompareSet, {key(), below(2) ? std::to_string(below(3)) : "", value()}});
        break;
      case 2:
        // Never below 0, where a barrier of one would not open.
        out.push_back({Op::kAdd, {counter()}, static_cast<std::int64_t>(below(1000))});
        break;
      case 3:
        out.push_back({Op::kDeleteKey, {below(4) ? key() : counter()}});
        break;
      case 4:
        out.push_back({Op::kAppend, {key(), value()}});
        break;
      case 5: {
        ScriptedRequest all{Op::kMultiSet, {}};
        for (std::size_t i = 0; i < 5; ++i) {
          all.words.push_back(prefix_ + "k" + std::to_string(i));
          all.words.push_back(value());
        }
        out.push_back(std::move(all));
        break;
      }
      case 6:
      case 7:
        out.push_back({Op::kQueuePush, {queue(), value()}});
        break;
      case 8:
      case 9:
        out.push_back({Op::kQueuePop, {queue()}});
        break;
      case 10:
        out.push_back({Op::kBarrier, {counter()}, 1});
        break;
      case 11:
        out.push_back({Op::kMultiGet, {key(), counter(), progress()}});
        break;
      default:
        out.push_back({Op::kAdd, {progress()}, 1});
        break;
    }
  }
  return out;
}

}  // namespace muster::test
