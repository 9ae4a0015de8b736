// SPDX-License-Identifier: Apache-2.0
// StoreRelay: the workers of one node as the clients of a store that the coordinator hosts (HostedStores).
// It takes their bytes apart, answers what needs nobody else, and carries the rest over the agent's one
// connection, a channel for each worker. Pure: bytes in, bytes and messages out. Owned by a net::StoreProxy;
// one thread.
// Order: a worker's requests are executed in the order in which it made them, and answered likewise: after a
// request that has an answer the next one waits for it. Waits: of the workers that wait for the same keys one
// waits at the coordinator and the others with it. What comes for the last of these keys wakes all of them,
// an element of a queue only the first; a name that is known to be a queue is waited for by each on its own.
// What a worker sends while it waits, but for CANCEL_WAIT, is done when the wait is over.
// (A worker that joins a wait whose answer is on its way gets that answer, though it asked later.)
// A coordinator that was killed and has the store from its state log goes on with it: what a worker asked for
// is kept until it is answered, or said to be done where it has no answer, and said again to that process as
// far as it does not know it.
// Failure: a worker that breaks the protocol is closed with a reason; an error of receive(Message) is the
// coordinator's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <muster/result.h>

#include "rendezvous/protocol/control.h"
#include "rendezvous/proxy/store_stream.h"
#include "rendezvous/store/wire.h"
#include "rendezvous/store/wire_decoder.h"

namespace muster {

struct StoreRelayOptions {
  wire::Limits wire;
  wire::Generation legacy = wire::Generation::kLegacy;
};

class StoreRelay {
 public:
  /// A worker's connection; also the number of its channel, never used twice.
  using WorkerId = std::uint32_t;

  /// The workers of `generation`.
  StoreRelay(std::int64_t generation, const StoreRelayOptions& options);
  ~StoreRelay();

  // Towards the workers.

  [[nodiscard]] WorkerId open();
  enum class State {
    kNeedInput,  ///< every byte was taken
    kPaused,     ///< call again with the rest when the worker is in take_touched()
    kUndecided,  ///< as kNeedInput; call settle() if the worker stays silent for a moment
    kClose,      ///< close the connection: reason()
  };
  [[nodiscard]] State receive(WorkerId worker, std::string_view& input);
  [[nodiscard]] State settle(WorkerId worker);
  /// Bytes for the worker. consumed() when its socket took them.
  [[nodiscard]] std::string_view answers(WorkerId worker) const;
  void consumed(WorkerId worker, std::size_t size);
  /// The worker has gone. What it asked for before is still done.
  void close(WorkerId worker);
  /// Workers that have answers, may send on, or are to be closed (reason() is not empty), since the last
  /// call.
  [[nodiscard]] std::vector<WorkerId> take_touched();
  [[nodiscard]] const std::string& reason(WorkerId worker) const;
  /// Held for a worker: unfinished request, what is not sent or not acknowledged, unread answers.
  [[nodiscard]] std::size_t num_buffered_bytes(WorkerId worker) const;
  [[nodiscard]] bool between_requests(WorkerId worker) const;

  // Towards the coordinator.

  /// A connection to it is there, or is there again.
  void connected();
  void disconnected();
  [[nodiscard]] Result<void> receive(const control::Message& message);
  /// The next message to send; false: none. Workers take turns.
  [[nodiscard]] bool next(control::Message& message);
  /// The store is there: workers can be started.
  [[nodiscard]] bool attached() const { return instance_ != 0; }

  /// Waits that the coordinator knows of, and workers that wait with another one.
  [[nodiscard]] std::size_t num_waits() const { return waits_.size(); }
  [[nodiscard]] std::size_t num_joined() const { return num_joined_; }
  [[nodiscard]] std::size_t num_workers() const { return workers_.size(); }

 private:
  struct Worker;
  /// Workers that wait for the same keys: the first does it for all.
  struct Wait {
    WorkerId owner = 0;
    std::vector<WorkerId> joined;
  };

  [[nodiscard]] Worker& at(WorkerId worker) { return *workers_.at(worker); }
  bool take(Worker& worker, const wire::Request& request);
  void wait(Worker& worker, const wire::Request& request);
  void cancel_wait(Worker& worker);
  void stop_sharing(Worker& worker);
  void send(Worker& worker, const wire::Request& request);
  void ask(Worker& worker, std::string_view request);
  void answered(Worker& worker, std::string_view bytes, bool whole);
  void woken(Worker& worker, bool by_element);
  void wait_alone(Worker& worker);
  void release_followers(Worker& worker);
  [[nodiscard]] bool names_a_queue(const wire::Request& request) const;
  void remember_queue(std::string_view name);
  void put(Worker& worker, char byte);
  void touch(Worker& worker);
  void make_ready(Worker& worker);
  void remove(WorkerId worker);
  void give_up();
  [[nodiscard]] bool begin_anew(Worker& worker, std::uint64_t place);
  void settle_until(Worker& worker, std::uint64_t done);
  [[nodiscard]] bool awaits_last_word(Worker& worker);

  std::int64_t generation_;
  StoreRelayOptions options_;
  std::size_t window_ = 0;
  std::uint64_t instance_ = 0;
  std::uint64_t incarnation_ = 0;  // of the store; 0: it ends with the coordinator's process
  bool connected_ = false;         // attached on the present connection
  bool attaching_ = false;         // asked for, and not answered yet
  bool given_up_ = false;
  std::unordered_map<WorkerId, std::unique_ptr<Worker>> workers_;
  WorkerId next_worker_ = 1;
  std::unordered_map<std::string, Wait> waits_;  // by the bytes of the request
  std::size_t num_joined_ = 0;
  std::unordered_set<std::string> queues_;  // names that are known to be queues
  std::vector<WorkerId> touched_;
  std::deque<control::Message> urgent_;
  std::deque<WorkerId> turns_;  // with something to send
};

}  // namespace muster
