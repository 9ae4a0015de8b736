// SPDX-License-Identifier: Apache-2.0
// Our FileStore on the command line, for tests beside PyTorch's.
// Usage: file_store_tool PATH WORLD_SIZE OPERATION...  with set K V, get K, add K N, repeat_add K N TIMES,
// delete K, compare_set K EXPECTED DESIRED, count. Prints each answer on a line; exit code 1 with the error's
// text.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <muster/file_store.h>

namespace {

using muster::Result;

Result<std::string> operate(muster::Store& store, const std::vector<std::string>& args, std::size_t& at) {
  const auto next = [&] { return at < args.size() ? args[at++] : std::string(); };
  const std::string operation = next();
  const std::string key = operation == "count" ? "" : next();
  if (operation == "set") {
    MUSTER_OK(store.set(key, next()));
    return "ok";
  }
  if (operation == "get") return store.get(key, std::chrono::seconds(30));
  if (operation == "compare_set") {
    const std::string expected = next();
    return store.compare_set(key, expected, next());
  }
  if (operation == "delete") {
    MUSTER_TRY(const bool existed, store.delete_key(key));
    return existed ? "true" : "false";
  }
  std::int64_t value = 0;
  if (operation == "count") {
    MUSTER_TRY(value, store.num_keys());
  } else if (operation == "add" || operation == "repeat_add") {
    const std::int64_t delta = std::atoll(next().c_str());
    const int times = operation == "add" ? 1 : std::atoi(next().c_str());
    for (int i = 0; i < times; ++i) {
      MUSTER_TRY(value, store.add(key, delta));
    }
  } else {
    return muster::fail(muster::ErrorCode::kInvalidArgument, "no operation '" + operation + "'");
  }
  return std::to_string(value);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() < 3) return 2;
  auto store = muster::open_file_store(args[0], std::atoll(args[1].c_str()));
  if (!store) {
    std::fprintf(stderr, "%s\n", store.error().message.c_str());
    return 1;
  }
  for (std::size_t at = 2; at < args.size();) {
    const auto answer = operate(**store, args, at);
    if (!answer) {
      std::fprintf(stderr, "%s\n", answer.error().message.c_str());
      return 1;
    }
    std::printf("%s\n", answer->c_str());
    std::fflush(stdout);
  }
  return 0;
}
