// SPDX-License-Identifier: Apache-2.0
// Our TcpStore on the command line, for tests beside PyTorch's servers.
// Usage: tcp_store_tool PORT patient|brief OPERATION...   brief: connects for 2 s at most
// An operation is a word and its arguments:
//   set K V | get K | compare_set K EXPECTED DESIRED | add K N | check K | wait K MILLISECONDS | delete K |
//   count append K V | multi_set K V K V | multi_get K K | push K V | pop K | try_pop K | length K | list |
//   barrier K N clone                          from here on a second connection
// Prints the outcome of each on a line: its value, or "error: CODE". A connection that cannot be had is exit
// code 1 with the text on standard error.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <muster/tcp_store.h>

namespace {

using muster::Result;
using Arguments = std::vector<std::string>;

std::string text(const std::string& value) {
  return value;
}
std::string text(bool value) {
  return value ? "true" : "false";
}
std::string text(std::int64_t value) {
  return std::to_string(value);
}
std::string text(std::vector<std::string> values) {
  std::string out;
  for (const std::string& value : values) out += value + ",";
  return out;
}

template <class T>
std::string outcome(const Result<T>& result) {
  if (!result) return "error: " + std::string(to_string(result.error().code));
  if constexpr (std::is_void_v<T>)
    return "ok";
  else
    return text(*result);
}

struct Operation {
  std::size_t num_arguments;
  std::string (*run)(muster::TcpStore& store, const Arguments& a);
};

const std::map<std::string, Operation>& operations() {
  using S = muster::TcpStore;
  using A = const Arguments;
  static const std::map<std::string, Operation> table = {
      {"set", {2, [](S& s, A& a) { return outcome(s.set(a[0], a[1])); }}},
      {"get", {1, [](S& s, A& a) { return outcome(s.get(a[0])); }}},
      {"compare_set", {3, [](S& s, A& a) { return outcome(s.compare_set(a[0], a[1], a[2])); }}},
      {"add", {2, [](S& s, A& a) { return outcome(s.add(a[0], std::atoll(a[1].c_str()))); }}},
      {"check", {1, [](S& s, A& a) { return outcome(s.check(a)); }}},
      {"wait",
       {2,
        [](S& s, A& a) {
          const std::string keys[] = {a[0]};
          return outcome(s.wait(keys, muster::Store::Timeout(std::atoll(a[1].c_str()))));
        }}},
      {"delete", {1, [](S& s, A& a) { return outcome(s.delete_key(a[0])); }}},
      {"count", {0, [](S& s, A&) { return outcome(s.num_keys()); }}},
      {"append", {2, [](S& s, A& a) { return outcome(s.append(a[0], a[1])); }}},
      {"multi_set",
       {4,
        [](S& s, A& a) {
          const std::pair<std::string, std::string> pairs[] = {{a[0], a[1]}, {a[2], a[3]}};
          return outcome(s.multi_set(pairs));
        }}},
      {"multi_get", {2, [](S& s, A& a) { return outcome(s.multi_get(a)); }}},
      {"push", {2, [](S& s, A& a) { return outcome(s.queue_push(a[0], a[1])); }}},
      {"pop", {1, [](S& s, A& a) { return outcome(s.queue_pop(a[0])); }}},
      {"try_pop", {1, [](S& s, A& a) { return outcome(s.queue_pop(a[0], false)); }}},
      {"length", {1, [](S& s, A& a) { return outcome(s.queue_len(a[0])); }}},
      {"list",
       {0,
        [](S& s, A&) {
          auto keys = s.list_keys();
          if (keys) std::sort(keys->begin(), keys->end());
          return outcome(keys);
        }}},
      {"barrier", {2, [](S& s, A& a) { return outcome(s.barrier(a[0], std::atoll(a[1].c_str()))); }}},
  };
  return table;
}

int complain(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments args(argv + 1, argv + argc);
  if (args.size() < 3) return complain("see the head of tcp_store_tool.cc");
  auto store = muster::TcpStore::connect({.host = "127.0.0.1",
                                          .port = static_cast<std::uint16_t>(std::atoi(args[0].c_str())),
                                          .world_size = 2,
                                          .timeout = std::chrono::seconds(args[1] == "brief" ? 2 : 30)});
  if (!store) return complain(store.error().message);
  for (std::size_t at = 2; at < args.size();) {
    const std::string& name = args[at++];
    if (name == "clone") {
      auto copy = (*store)->clone();
      if (!copy) return complain(copy.error().message);
      *store = *std::move(copy);
      continue;
    }
    const auto operation = operations().find(name);
    if (operation == operations().end() || args.size() - at < operation->second.num_arguments)
      return complain("no operation '" + name + "' with its arguments");
    const auto begin = args.begin() + static_cast<std::ptrdiff_t>(at);
    at += operation->second.num_arguments;
    const Arguments own(begin, args.begin() + static_cast<std::ptrdiff_t>(at));
    std::printf("%s\n", operation->second.run(**store, own).c_str());
    std::fflush(stdout);
  }
  return 0;
}
