// SPDX-License-Identifier: Apache-2.0
// SafePointWatch: learns, by inotify, that a worker has made the file that MUSTER_SAFE_POINT_FILE names: a
// checkpoint is written, and nodes that wait may join now. Once the agent knows that nobody does, pass()
// removes the files, by which workers see that they may go on. Owned by an attempt; one loop. Failure: said
// once; nodes that wait then join at their deadline or at a restart.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class SafePointWatch {
 public:
  /// `files`: of the workers; their directories are there. `announced` comes on the loop, each time.
  SafePointWatch(boost::asio::io_context& io, std::vector<std::string> files, std::function<void()> announced,
                 const Log& log);

  /// The generation goes on.
  void pass();

 private:
  void wait();
  [[nodiscard]] bool drain();

  std::vector<std::string> files_;
  std::function<void()> announced_;
  boost::asio::posix::stream_descriptor events_;
  std::map<std::pair<int, std::string>, std::string> names_;  // watch and name in it -> file
  Lifetime lifetime_;
};

}  // namespace muster::launcher
