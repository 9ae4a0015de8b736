// SPDX-License-Identifier: Apache-2.0
// What a worker says of its progress, as the launcher reads it.
#include <cstring>
#include <fstream>
#include <sys/stat.h>

#include <muster/progress.h>

#include "rendezvous/base/progress_page.h"
#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;

namespace {

ProgressPage page_in(const std::string& path) {
  const auto bytes = read_file(path);
  REQUIRE_OK(bytes);
  REQUIRE(bytes->size() == sizeof(ProgressPage));
  ProgressPage page;
  std::memcpy(&page, bytes->data(), sizeof page);
  REQUIRE(std::string_view(page.magic.data(), page.magic.size()) == kProgressMagic);
  return page;
}

/// A file in memory, which is mapped.
struct MappedFile {
  MappedFile() { REQUIRE(::mkdtemp(folder) != nullptr); }
  ~MappedFile() { std::filesystem::remove_all(folder); }
  char folder[32] = "/dev/shm/progress-test-XXXXXX";
  [[nodiscard]] std::string path() const { return std::string(folder) + "/progress"; }
};

}  // namespace

TEST_CASE("each word is in the file at once") {
  const MappedFile file;
  Progress progress(file.path().c_str());
  REQUIRE(page_in(file.path()).moves == 0);
  REQUIRE(page_in(file.path()).paused == 1);
  progress.begin_epoch(2, 15000);
  progress.begin_step(140);
  progress.enter("all_reduce");
  ProgressPage page = page_in(file.path());
  REQUIRE(page.moves == 3);
  REQUIRE((page.epoch == 2 && page.step == 140 && page.steps == 15000 && page.paused == 0));
  REQUIRE(std::string(page.phase.data()) == "all_reduce");
  progress.say("shard 3 of 9\nand more");
  page = page_in(file.path());
  REQUIRE(std::string(page.text.data()) == "shard 3 of 9");
  REQUIRE((page.text_version % 2 == 0 && page.moves == 4));
  progress.begin_step(141);
  page = page_in(file.path());
  REQUIRE(page.text[0] == '\0');
  REQUIRE(page.phase[0] == '\0');
  progress.set_metrics(0.5, 1200);
  progress.begin_epoch(3);
  page = page_in(file.path());
  REQUIRE((page.loss == 0.5 && page.samples_per_second == 1200));
  progress.pause("checkpoint");
  REQUIRE(page_in(file.path()).paused == 1);
  progress.enter("forward");
  REQUIRE(page_in(file.path()).paused == 0);
}

TEST_CASE("several objects write to the same place, and the last word of each is that it is through") {
  const MappedFile file;
  {
    Progress first(file.path().c_str());
    first.begin_step(7);
    Progress second(file.path().c_str());
    REQUIRE(page_in(file.path()).step == 7);
    second.begin_step(8);
    REQUIRE(page_in(file.path()).moves == 2);
  }
  REQUIRE(page_in(file.path()).paused == 1);
  REQUIRE(page_in(file.path()).step == 8);
}

TEST_CASE("a longest phase and a very long text fit") {
  const MappedFile file;
  Progress progress(file.path().c_str());
  progress.enter("sixteen letters.");
  progress.say(std::string(10'000, 'x'));
  const ProgressPage page = page_in(file.path());
  REQUIRE(std::string(page.phase.data(), page.phase.size()) == "sixteen letters.");
  REQUIRE(std::string(page.text.data()) == std::string(400, 'x'));
}

TEST_CASE("on a disk it is written, what is not a step at once") {
  const test::TemporaryDirectory folder;  // a disk or memory: the file says the same
  const std::string path = folder.path() + "/progress";
  Progress progress(path.c_str());
  progress.begin_epoch(1, 10);
  REQUIRE(page_in(path).steps == 10);
  progress.say("evaluation");
  REQUIRE(std::string(page_in(path).text.data()) == "evaluation");
}

TEST_CASE("where nothing can be written words go nowhere") {
  const test::TemporaryDirectory folder;
  REQUIRE(::mkfifo((folder.path() + "/pipe").c_str(), 0600) == 0);
  for (const std::string& path : {std::string(), folder.path(), folder.path() + "/not/there",
                                  folder.path() + "/pipe", std::string("/dev/null")}) {
    INFO(path);
    Progress progress(path.c_str());
    progress.begin_epoch(1);
    progress.begin_step(1);
    progress.enter("forward");
    progress.say("x");
    progress.pause("x");
  }
  Progress(nullptr).say("x");
  REQUIRE(folder.entries() == std::vector<std::string>{"pipe"});
}

TEST_CASE("one that is moved from says nothing more") {
  const MappedFile file;
  Progress first(file.path().c_str());
  first.begin_step(3);
  Progress second(std::move(first));
  second.begin_step(4);
  REQUIRE(page_in(file.path()).moves == 2);
  second = Progress(nullptr);
  REQUIRE(page_in(file.path()).paused == 1);
}
