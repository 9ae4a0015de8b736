// SPDX-License-Identifier: Apache-2.0
// The stores that need no server: FileStore, HashStore, PrefixStore. One set of rules, checked on each.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sys/wait.h>
#include <thread>

#include <muster/file_store.h>
#include <muster/prefix_store.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/client/file_record.h"
#include "rendezvous/store/counter.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace std::chrono_literals;
using namespace std::string_literals;

namespace {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "muster_store_XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  std::string file(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::shared_ptr<Store> open_shared(const std::string& path, std::int64_t world_size = -1) {
  auto store = open_file_store(path, world_size);
  REQUIRE_OK(store);
  return std::shared_ptr<Store>(std::move(*store));
}

/// Every kind of store, each fresh.
void for_each_store(const std::function<void(const std::shared_ptr<Store>&)>& body) {
  const TemporaryDirectory directory;
  SECTION("file store") {
    body(open_shared(directory.file("store")));
  }
  SECTION("hash store") {
    body(make_hash_store());
  }
  SECTION("prefix over file store") {
    body(make_prefix_store("a", open_shared(directory.file("store"))));
  }
  SECTION("prefix over prefix over hash store") {
    body(make_prefix_store("b", make_prefix_store("a", make_hash_store())));
  }
}

const std::string kCaptured =
    "\x02\0\0\0/k\x01\0\0\0v"
    "\x02\0\0\0/n\x01\0\0\0"
    "5"
    "\x02\0\0\0/n\x01\0\0\0"
    "4"
    "\x03\0\0\0-/k\0\0\0\0"
    "\x02\0\0\0/c\x01\0\0\0x"
    "\x04\0\0\0/p/z\x01\0\0\0"
    "1"s;

}  // namespace

TEST_CASE("a file store writes the bytes that PyTorch writes") {
  const TemporaryDirectory directory;
  const auto store = open_shared(directory.file("store"));
  REQUIRE_OK(store->set("k", "v"));
  REQUIRE(store->add("n", 5) == 5);
  REQUIRE(store->add("n", -1) == 4);
  REQUIRE(store->delete_key("k") == true);
  REQUIRE(store->compare_set("c", "", "x") == "x"s);
  REQUIRE_OK(make_prefix_store("p", store)->set("z", "1"));
  REQUIRE(read_file(directory.file("store")) == "\x09\0\0\0refcount/\x01\0\0\0001"s + kCaptured);
}

TEST_CASE("a file store reads the bytes that PyTorch 1.13 writes") {
  const TemporaryDirectory directory;
  std::ofstream(directory.file("store"), std::ios::binary) << kCaptured;
  const auto store = open_shared(directory.file("store"));
  REQUIRE(store->get("n") == "4"s);
  REQUIRE(store->get("c") == "x"s);
  REQUIRE(make_prefix_store("p", store)->get("z") == "1"s);
  const std::string keys[] = {"k"};
  REQUIRE(store->check(keys) == false);
  REQUIRE(store->num_keys() == 3);
}

TEST_CASE("records cut anywhere are replayed up to the last whole one") {
  for (std::size_t cut = 0; cut <= kCaptured.size(); ++cut) {
    FileRecordMap map;
    const auto first = replay_file_records(std::string_view(kCaptured).substr(0, cut), map);
    REQUIRE(first.has_value());
    REQUIRE(*first <= cut);
    const auto second = replay_file_records(std::string_view(kCaptured).substr(*first), map);
    REQUIRE(second.has_value());
    REQUIRE(*first + *second == kCaptured.size());
    REQUIRE(map == FileRecordMap{{"/n", "4"}, {"/c", "x"}, {"/p/z", "1"}});
  }
}

TEST_CASE("a file that is not a store's is reported and left as it was") {
  const TemporaryDirectory directory;
  const std::string elf = "\x7f"s + "ELF and then something";
  std::ofstream(directory.file("store"), std::ios::binary) << elf;
  const auto result = open_file_store(directory.file("store"), 1);
  REQUIRE_FALSE(result);
  REQUIRE(result.error().code == ErrorCode::kCorrupt);
  REQUIRE(read_file(directory.file("store")) == elf);
}

TEST_CASE("a record that was not finished is named with its place") {
  const TemporaryDirectory directory;
  std::ofstream(directory.file("store"), std::ios::binary) << kCaptured.substr(0, kCaptured.size() - 1);
  const auto result = open_file_store(directory.file("store"));
  REQUIRE_FALSE(result);
  REQUIRE_THAT(result.error().message, Catch::Contains("ends within a record at byte 55"));
}

TEST_CASE("a store in a directory that does not exist cannot be opened") {
  const auto result = open_file_store("/nonexistent/directory/store");
  REQUIRE_FALSE(result);
  REQUIRE(result.error().code == ErrorCode::kNotFound);
  REQUIRE_THAT(result.error().message, Catch::Contains("existing directory"));
}

TEST_CASE("the last of the expected users deletes the file, others leave it") {
  const TemporaryDirectory directory;
  auto first = open_shared(directory.file("store"), 2);
  auto second = open_shared(directory.file("store"), 2);
  REQUIRE_OK(first->set("k", "v"));
  first.reset();
  REQUIRE(second->get("k") == "v"s);
  REQUIRE(second->num_keys() == 1);
  second.reset();
  REQUIRE_FALSE(std::filesystem::exists(directory.file("store")));
}

TEST_CASE("a file that somebody still uses is not deleted, however many have used it") {
  const TemporaryDirectory directory;
  auto first = open_shared(directory.file("store"), 2), second = open_shared(directory.file("store"), 2),
       again = open_shared(directory.file("store"), 2);
  REQUIRE_OK(first->set("k", "v"));
  first.reset();
  second.reset();
  REQUIRE(again->get("k") == "v"s);
  again.reset();
  REQUIRE_FALSE(std::filesystem::exists(directory.file("store")));
}

TEST_CASE("a file store notices that its file was deleted and made anew") {
  const TemporaryDirectory directory;
  const auto store = open_shared(directory.file("store"));
  REQUIRE_OK(store->set("k", "v"));
  std::filesystem::rename(directory.file("store"), directory.file("old"));
  std::ofstream(directory.file("store")) << "";
  const auto result = store->set("k", "w");
  REQUIRE_FALSE(result);
  REQUIRE(result.error().code == ErrorCode::kPeerGone);
}

TEST_CASE("values are bytes of any kind and length") {
  for_each_store([](const std::shared_ptr<Store>& store) {
    const std::string binary = "\0\xff/-\n"s + std::string(300000, 'x');
    REQUIRE_OK(store->set("k\0y"s, binary));
    REQUIRE(store->get("k\0y"s) == binary);
    REQUIRE_OK(store->set("empty", ""));
    REQUIRE(store->get("empty") == ""s);
    const std::string keys[] = {"empty", "k\0y"s};
    REQUIRE(store->check(keys) == true);
    REQUIRE(store->check({}) == true);
    REQUIRE_OK(store->wait({}, 0ms));
  });
}

TEST_CASE("append, multi_set and multi_get keep order and content") {
  for_each_store([](const std::shared_ptr<Store>& store) {
    REQUIRE_OK(store->append("log", "a"));
    REQUIRE_OK(store->append("log", "b"));
    const std::pair<std::string, std::string> pairs[] = {{"x", "1"}, {"y", "2"}};
    REQUIRE_OK(store->multi_set(pairs));
    const std::string keys[] = {"y", "log", "x"};
    REQUIRE(store->multi_get(keys) == std::vector<std::string>{"2", "ab", "1"});
    REQUIRE(store->num_keys() == 3);
    REQUIRE(store->delete_key("x") == true);
    REQUIRE(store->delete_key("x") == false);
    REQUIRE(store->num_keys() == 2);
  });
}

TEST_CASE("compare_set answers as PyTorch's stores do in all four cases") {
  for_each_store([](const std::shared_ptr<Store>& store) {
    REQUIRE(store->compare_set("k", "other", "new") == "other"s);  // absent: the caller's own expectation
    REQUIRE(store->compare_set("k", "", "first") == "first"s);
    REQUIRE(store->compare_set("k", "wrong", "second") == "first"s);
    REQUIRE(store->compare_set("k", "first", "second") == "second"s);
    REQUIRE(store->get("k") == "second"s);
    REQUIRE_OK(store->set("empty", ""));
    REQUIRE(store->compare_set("empty", "", "x") == "x"s);
  });
}

TEST_CASE("counters are decimal text, read as stoll reads") {
  for_each_store([](const std::shared_ptr<Store>& store) {
    REQUIRE(store->add("n", 0) == 0);
    REQUIRE(store->get("n") == "0"s);
    REQUIRE(store->add("n", -7) == -7);
    REQUIRE_OK(store->set("n", "  +12abc"));
    REQUIRE(store->add("n", 1) == 13);
    REQUIRE_OK(store->set("n", "none"));
    const auto refused = store->add("n", 1);
    REQUIRE_FALSE(refused);
    REQUIRE(refused.error().code == ErrorCode::kInvalidArgument);
    REQUIRE(store->get("n") == "none"s);  // a caller's mistake does not break the store
    REQUIRE_OK(store->set("n", "9223372036854775807"));
    REQUIRE_FALSE(store->add("n", 1));
  });
}

TEST_CASE("a wait for a key that does not come ends at its timeout and names it") {
  for_each_store([](const std::shared_ptr<Store>& store) {
    REQUIRE_OK(store->set("here", "1"));
    const std::string keys[] = {"here", "absent"};
    const auto result = store->wait(keys, 20ms);
    REQUIRE_FALSE(result);
    REQUIRE(result.error().code == ErrorCode::kTimeout);
    REQUIRE_THAT(result.error().message, Catch::Contains("absent"));
    store->set_timeout(1ms);
    REQUIRE(store->get("absent").error().code == ErrorCode::kTimeout);
  });
}

TEST_CASE("every way to create a key wakes a thread that waits for it") {
  const std::vector<std::function<void(Store&)>> ways = {
      [](Store& s) { REQUIRE_OK(s.set("k", "1")); },
      [](Store& s) { REQUIRE_OK(s.add("k", 1)); },
      [](Store& s) { REQUIRE_OK(s.append("k", "1")); },
      [](Store& s) { REQUIRE_OK(s.compare_set("k", "", "1")); },
      [](Store& s) {
        const std::pair<std::string, std::string> pairs[] = {{"k", "1"}};
        REQUIRE_OK(s.multi_set(pairs));
      },
  };
  for_each_store([&](const std::shared_ptr<Store>& store) {
    std::chrono::milliseconds timeout = 30s;
    for (const auto& create : ways) {
      Result<std::string> seen = ""s;
      std::thread waiter([&] { seen = store->get("k", std::exchange(timeout, timeout.max())); });
      create(*store);
      waiter.join();
      REQUIRE(seen == "1"s);
      REQUIRE(store->delete_key("k") == true);
    }
  });
}

TEST_CASE("additions by several processes through one file are all counted") {
  const TemporaryDirectory directory;
  constexpr int kProcesses = 4;
  constexpr int kAdditions = 50;
  const auto inherited = open_shared(directory.file("store"));
  pid_t children[kProcesses];
  for (pid_t& child : children) {
    child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      auto own = open_file_store(directory.file("store"));
      bool good = own.has_value();
      for (int i = 0; good && i < kAdditions; ++i)
        good = (i % 2 == 0 ? **own : *inherited).add("n", 1).has_value();
      ::_exit(good ? 0 : 1);
    }
  }
  for (const pid_t child : children) {
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
  }
  REQUIRE(inherited->add("n", 0) == kProcesses * kAdditions);
}
