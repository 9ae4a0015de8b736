// SPDX-License-Identifier: Apache-2.0
// What nodes tell each other by way of the coordinator: their parts of the job's report, and of hangs.
#include <utility>

#include <boost/asio/post.hpp>

#include "launcher/join/elastic_rendezvous.h"

namespace muster::launcher {

namespace asio = boost::asio;

void ElasticRendezvous::send_report(int, std::string part) {
  if (assigned_) client_->report(assigned_->generation, std::move(part));
}

void ElasticRendezvous::gather_reports(int, PartCame came) {
  part_came_ = std::move(came);
  asio::post(io_, [this, alive = alive_] {
    if (*alive) hand_over_parts();
  });
}

void ElasticRendezvous::hand_over_parts() {
  if (!part_came_) return;
  for (control::Report& part : std::exchange(parts_, {}))
    if (assigned_ && part.generation == assigned_->generation)
      part_came_(part.group_rank, std::move(part.payload));
}

void ElasticRendezvous::say_hang(int, control::Hang word) {
  if (!assigned_ || !client_) return;
  word.generation = assigned_->generation;
  client_->send_hang(word);
}

void ElasticRendezvous::hear_hangs(int, HangHeard heard) {
  hang_heard_ = std::move(heard);
}

}  // namespace muster::launcher
