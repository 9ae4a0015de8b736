// SPDX-License-Identifier: Apache-2.0
// ElasticRendezvous: the nodes of a job as a coordinator gathers them (rendezvous/coordinator/membership.h):
// any number between MIN and MAX, spares, one restart budget, and the failures of all nodes pushed to each.
// The coordinator is a musterd at the endpoint, or runs in the agent of that machine (CoordinatorSeat), or in
// one that the agents elect (EtcdSeat). The first node of a world serves the workers' store, a fresh one per
// generation, on a port that was bound before it was offered. What is waited for is said when it changes.
// Failure: the end of the job with an exit status and the coordinator's words; a lost coordinator is one too.
// Source: what torch/distributed/elastic/rendezvous/dynamic_rendezvous.py promises.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/job/rendezvous.h"
#include "launcher/join/seat.h"
#include "launcher/network/interfaces.h"
#include "launcher/network/reach_check.h"
#include "rendezvous/agent_client/address_race.h"
#include "rendezvous/agent_client/control_client.h"
#include "rendezvous/base/log.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/proxy/store_proxy.h"
#include "rendezvous/server/server.h"

namespace muster::launcher {

class ElasticRendezvous final : public Rendezvous {
 public:
  ElasticRendezvous(boost::asio::io_context& io, const Job& job, const Log& log);
  ~ElasticRendezvous() override;

  void join(int attempt, Joined joined) override;
  void watch(int attempt, OutcomeKnown known) override;
  void announce(int attempt, const FailureNotice& notice) override;
  void succeeded(int attempt) override;
  void safe_point(std::function<void()> passed) override;
  void reached(const Reached& reached) override { reached_ = reached; }
  void send_report(int attempt, std::string part) override;
  void gather_reports(int attempt, PartCame came) override;
  void say_hang(int attempt, control::Hang word) override;
  void hear_hangs(int attempt, HangHeard heard) override;
  void decline(int attempt, const FailureNotice& notice) override;
  void leave(Millis patience, std::function<void()> left) override;

 private:
  [[nodiscard]] Result<void> open_port();
  void connect(const Result<void>& seat);
  [[nodiscard]] net::ControlClientOptions client_options();
  [[nodiscard]] net::ControlEvents client_events();

  void on_assigned(const control::Assignment& assignment);
  void on_waiting(const control::Waiting& waiting);
  void on_generation_over(const control::GenerationOver& over);
  void on_closed(const control::Closed& closed);
  void on_lost(const Error& error);

  void serve();
  void proxy();
  void on_store(const control::Message& message);
  void fail_generation(std::string text);
  void look_for_first_node();
  void check_reach(const control::Waiting& waiting);
  void on_raced(const Result<net::AddressRace::Winner>& winner);
  void take_part(std::string master_addr, std::string interface);
  void find_way();
  void on_way(const Result<net::AddressRace::Winner>& winner);
  void begin();
  void next_generation();
  void end(const AttemptOutcome& outcome);
  void hand_over_parts();
  void finish_join(Membership membership);
  void fail_join(int exit_code, std::string text);

  void say(std::string text, bool at_once, Instant gives_up = Instant::max());
  void speak();
  void hush();
  void warn_of_strangers();
  [[nodiscard]] bool holds_job() const;
  [[nodiscard]] bool can_be_spared() const;
  void stop_or_leave(const FailureNotice& notice);
  void withdraw(const FailureNotice& notice);
  void good_bye(const std::string& reason, Millis patience);

  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::vector<InterfaceAddress> own_;
  std::vector<std::string> offered_;
  std::unique_ptr<Seat> seat_;
  net::Listener port_;                      // of the store that this node would serve
  std::unique_ptr<net::Server> store_;      // of this generation, where this node is the first
  std::unique_ptr<net::StoreProxy> proxy_;  // of this generation, with --store-proxy
  /// Once known: the address here that reaches the other nodes, and its interface; either may be empty.
  std::optional<InterfaceAddress> way_;
  bool linked_ = false;                         // the coordinator is connected
  std::unique_ptr<net::ControlClient> client_;  // nothing: the seat is not decided yet
  std::unique_ptr<net::AddressRace> race_;
  std::unique_ptr<ReachCheck> reach_;            // while a world runs without this node
  std::optional<control::Assignment> assigned_;  // of the present or last generation
  Joined joined_;                                // while joining
  OutcomeKnown known_;                           // while watching
  std::optional<AttemptOutcome> outcome_;        // came before watch()
  HangHeard hang_heard_;                         // of this attempt
  PartCame part_came_;                           // while reports are gathered
  std::vector<control::Report> parts_;           // came before that
  std::function<void()> safe_point_passed_;      // while the coordinator is asked
  Reached reached_;                              // in the last generation, by the workers here
  bool stopped_here_ = false;                    // this node asked for the end
  bool outside_ = false;                         // a world runs without this node
  bool warned_ = false;
  boost::asio::steady_timer patience_;  // before the first word about waiting
  /// To be said when it is over.
  struct {
    std::string text;
    Instant gives_up = Instant::max();  // the job, if nothing comes between
  } unsaid_;
  bool patient_ = true;
  bool leaving_ = false;
  bool left_ = false;
  std::function<void()> on_left_;
  const Instant born_ = SteadyClock::now();
  std::shared_ptr<bool> alive_;
};

}  // namespace muster::launcher
