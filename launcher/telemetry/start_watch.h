// SPDX-License-Identifier: Apache-2.0
// StartWatch: learns, by inotify, how far the workers of the runtime have come in their start, where somebody
// wants to know (--timeline, --events), and tells it once all of this node have made their groups, and once
// all have done their first step; on the first of several nodes also of all nodes together. Workers that do
// not link the runtime say nothing, and nothing is told of them. Owned by an attempt; one loop. Failure: said
// once, and the start is told no further.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "launcher/telemetry/start_timeline.h"
#include "rendezvous/base/log.h"
#include "rendezvous/protocol/control.h"

namespace muster::launcher {

class StartWatch {
 public:
  struct Place {
    int node = 0;  // of the world
    int nodes = 1;
    int base_rank = 0;
    std::string host = {};
  };
  /// `of_all`: of all nodes, not of this one alone.
  using Told = std::function<void(const WorkersStart& start, bool of_all)>;
  /// To the first node.
  using Say = std::function<void(std::string part)>;

  StartWatch(boost::asio::io_context& io, Place place, Told told, Say say, const Log& log);
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

  /// Before the first worker is started. `progress_files`: by local rank; their directories are there.
  void begin(const std::vector<std::string>& progress_files);
  /// On the first node: another one's part.
  void heard(int node, std::string_view part);

  /// Such a part travels as one of a hang that has no number: who knows nothing of it finds no hang in it.
  [[nodiscard]] static control::Hang word();
  [[nodiscard]] static bool is_about_start(const control::Hang& word);

 private:
  static constexpr std::size_t kStages = 2;

  void wait();
  void drain();
  void look(std::size_t local_rank);
  void tell();
  void take(int node, WorkersStart part);

  Place place_;
  Told told_;
  Say say_;
  const Log& log_;
  Instant started_{};
  boost::asio::posix::stream_descriptor events_;
  std::map<std::pair<int, std::string>, std::size_t> names_;  // watch and name in it -> local rank
  std::vector<std::string> files_;                            // for words about progress
  std::vector<std::optional<StartMarks>> marks_;              // by local rank
  std::array<bool, kStages> said_{};
  std::array<std::map<int, WorkersStart>, kStages> parts_;  // by node, on the first one
  std::shared_ptr<bool> alive_;
};

}  // namespace muster::launcher
