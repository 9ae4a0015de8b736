// SPDX-License-Identifier: Apache-2.0
#include "launcher/output_sink.h"

#include <fcntl.h>
#include <string>
#include <unistd.h>

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
  REQUIRE(sink.flush(SteadyClock::now()) == 1000);

  std::string taken(room, '\0');
  REQUIRE(::read(reader.get(), taken.data(), room) == static_cast<ssize_t>(room));
  REQUIRE(sink.flush(SteadyClock::now()) == 0);
}
