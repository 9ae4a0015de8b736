// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ranks.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <poll.h>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::testing {
namespace {

struct Child {
  pid_t pid = -1;
  UniqueFd pipe;
};

Child start(int rank, const std::function<std::string(int)>& body) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  Child child;
  child.pipe.reset(ends[0]);
  child.pid = ::fork();
  if (child.pid < 0) throw std::runtime_error("fork failed");
  if (child.pid == 0) {
    ::close(child.pipe.release());
    std::string text;
    try {
      text = body(rank);
    } catch (const std::exception& error) {
      text = std::string("exception: ") + error.what();
    }
    (void)write_all(ends[1], text);
    ::_exit(0);
  }
  ::close(ends[1]);
  return child;
}

}  // namespace

std::vector<RankOutcome> run_ranks(const RankOptions& options, const std::function<std::string(int)>& body) {
  const Instant deadline = SteadyClock::now() + options.deadline;
  std::vector<Child> children;
  for (int rank = 0; rank < options.world_size; ++rank) children.push_back(start(rank, body));
  std::vector<RankOutcome> outcomes(children.size());
  const auto open_ranks = [&] {
    std::vector<pollfd> entries;
    for (std::size_t i = 0; i < children.size(); ++i) {
      const bool wanted = children[i].pipe && static_cast<int>(i) != options.stuck_rank;
      entries.push_back({wanted ? children[i].pipe.get() : -1, POLLIN, 0});
    }
    return entries;
  };
  while (true) {
    std::vector<pollfd> entries = open_ranks();
    bool any = false;
    for (const pollfd& entry : entries) any = any || entry.fd >= 0;
    const Millis left = time_left(deadline, SteadyClock::now());
    if (!any || left.count() == 0) break;
    (void)::poll(entries.data(), entries.size(), static_cast<int>(left.count()));
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].fd < 0 || entries[i].revents == 0) continue;
      char block[4096];
      const ssize_t n = retry_eintr([&] { return ::read(entries[i].fd, block, sizeof block); });
      if (n > 0) outcomes[i].text.append(block, static_cast<std::size_t>(n));
      if (n > 0) continue;
      outcomes[i].ended = true;
      children[i].pipe.reset();
    }
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (!outcomes[i].ended) ::kill(children[i].pid, SIGKILL);
    (void)retry_eintr([&] { return ::waitpid(children[i].pid, &outcomes[i].status, 0); });
  }
  return outcomes;
}

TemporaryDirectory::TemporaryDirectory() {
  path_ = (std::filesystem::temp_directory_path() / "muster_test_XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace muster::testing
