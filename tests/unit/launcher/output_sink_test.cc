// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/output_sink.h"

#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "rendezvous/base/unique_fd.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;

TEST_CASE("what a reader does not take in time is counted") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  const auto room = static_cast<std::size_t>(::fcntl(writer.get(), F_GETPIPE_SZ));
  boost::asio::io_context io(1);
  OutputSink sink(io, writer.get());
  sink.write(std::string(room + 1000, 'x'));
  REQUIRE(sink.flush(Millis(0)) == 1000);

  std::string taken(room, '\0');
  REQUIRE(::read(reader.get(), taken.data(), room) == static_cast<ssize_t>(room));
  REQUIRE(sink.flush(Millis(0)) == 0);
}

TEST_CASE("a reader that takes something within each while gets everything") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  const auto room = static_cast<std::size_t>(::fcntl(writer.get(), F_GETPIPE_SZ));
  boost::asio::io_context io(1);
  OutputSink sink(io, writer.get());
  sink.write(std::string(room * 8, 'x'));
  std::thread slow([&] {  // a while of the writer's is over between two reads, but not between two rounds
    std::string taken(room, '\0');
    for (std::size_t size = 0; size < room * 8;) {
      pollfd nothing{-1, 0, 0};
      ::poll(&nothing, 1, 150);
      const ssize_t n = ::read(reader.get(), taken.data(), room);
      if (n <= 0) break;
      size += static_cast<std::size_t>(n);
    }
  });
  const std::size_t left = sink.flush(Millis(1000));
  slow.join();
  REQUIRE(left == 0);
}

TEST_CASE("a stream that cannot be opened anew does not block the loop, and loses nothing") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  const auto room = static_cast<std::size_t>(::fcntl(writer.get(), F_GETPIPE_SZ));
  // As after sudo -u: somebody else's pipe.
  REQUIRE(::fchmod(writer.get(), 0) == 0);
  const bool root = ::geteuid() == 0;
  if (root) REQUIRE(::seteuid(65534) == 0);
  boost::asio::io_context io(1);
  OutputSink sink(io, writer.get());
  if (root) REQUIRE(::seteuid(0) == 0);

  const std::string text = std::string(room, 'x') + std::string(OutputSink::kBackpressureBytes, 'y');
  sink.write(text);  // nobody reads
  REQUIRE(sink.backpressure());
  bool resumed = false;
  sink.when_writable([&] { resumed = true; });
  REQUIRE(sink.flush(Millis(50)) > 0);
  sink.write("the end");
  std::string taken;
  std::string block(64 * 1024, '\0');
  while (taken.size() < text.size() + 7) {
    io.run_one_for(Millis(1));
    pollfd more{reader.get(), POLLIN, 0};
    if (::poll(&more, 1, 1) == 0) continue;
    const ssize_t n = ::read(reader.get(), block.data(), block.size());
    REQUIRE(n > 0);
    taken.append(block, 0, static_cast<std::size_t>(n));
  }
  REQUIRE(taken == text + "the end");
  REQUIRE(sink.flush(std::chrono::seconds(20)) == 0);
  io.poll();
  REQUIRE((resumed && !sink.backpressure()));
}

TEST_CASE("that a disk is full is said once") {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full);
  boost::asio::io_context io(1);
  OutputSink sink(io, full.get());
  std::vector<int> said;
  sink.when_failing([&](int error) { said.push_back(error); });
  sink.write("first\n");
  sink.write("second\n");
  REQUIRE(said == std::vector{ENOSPC});
  REQUIRE(sink.flush(Millis(0)) == 0);
}

TEST_CASE("a reader that has gone is no failure to tell of") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd writer(ends[1]);
  ::close(ends[0]);
  ::signal(SIGPIPE, SIG_IGN);
  boost::asio::io_context io(1);
  OutputSink sink(io, writer.get());
  bool said = false;
  sink.when_failing([&](int) { said = true; });
  sink.write("first\n");
  REQUIRE_FALSE(said);
}

TEST_CASE("whole lines do not begin within a line that is not ended") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  boost::asio::io_context io(1);
  OutputSink sink(io, writer.get());
  sink.write_lines("a\n");
  sink.write("b");
  sink.write({});
  sink.write_lines("c\n");
  sink.write_lines("d\n");
  std::string taken(64, '\0');
  taken.resize(static_cast<std::size_t>(::read(reader.get(), taken.data(), taken.size())));
  REQUIRE(taken == "a\nb\nc\nd\n");
}
