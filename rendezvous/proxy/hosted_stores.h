// SPDX-License-Identifier: Apache-2.0
// HostedStores: the workers' stores at a coordinator, one for each running generation of a job, whose clients
// are channels of the agents' connections (control.h, StoreAttach). Here, not on the first node: the agents
// have a connection to here already, which is authenticated, and which is one hop; the first node would take
// a second one from each agent, with a listener and a proof of its own. Pure: messages in, next() gives the
// messages out. Owned by a ControlServer; one thread. A store ends with its generation, and with the process
// unless there is a recorder: then the owner lets no message out before what was recorded is on the disk, and
// the next process goes on with what restore() is told. Where workers come back to a process that has not
// their store, take_lost() says so. Failure: a request that the store refuses
// closes its channel, with the reason; text from receive() is what an agent did that the protocol does not
// know.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/coordinator/jobs.h"
#include "rendezvous/protocol/control.h"
#include "rendezvous/proxy/hosted_record.h"
#include "rendezvous/proxy/store_stream.h"
#include "rendezvous/store/session.h"

namespace muster {

struct HostedStoresOptions {
  SessionLimits limits;  ///< limits.store.job bounds each store
  /// Of a channel, each way: sent and not consumed. One channel gets this much in a round trip.
  std::size_t window_bytes = std::size_t{256} << 10;
  std::size_t max_channels = 65536;  ///< of an agent: its workers' connections
  /// Unfinished requests and unread answers of all channels; the one that goes beyond is closed.
  std::size_t max_buffered_bytes = std::size_t{4} << 30;
};

/// The longest piece of a value between two other messages: 64 KiB are 50 us at 10 Gbit/s.
inline constexpr std::size_t kStoreChunkBytes = 65536;

class HostedStores {
 public:
  /// `first_instance`: random, not 0.
  HostedStores(const HostedStoresOptions& options, std::uint64_t first_instance);
  ~HostedStores();

  /// A message about the store. `member`: what the agent is a member of now, for StoreAttach.
  [[nodiscard]] std::string receive(ConnectionId from, const std::optional<Membership>& member,
                                    const control::Message& message);
  /// A member whose workers had a store that is not here: it is answered by the end of their generation.
  [[nodiscard]] std::optional<Membership> take_lost() { return std::exchange(lost_, std::nullopt); }
  /// Who asked for the store of a generation that is over, as may not be known to others yet. Once.
  [[nodiscard]] std::unordered_map<ConnectionId, control::StoreRefused> take_refused() {
    return std::exchange(refused_, {});
  }

  /// Every later change is told; before there is a store. `incarnation`: random, not 0.
  void record_to(HostedRecorder* recorder, std::uint64_t incarnation);
  /// A store of a former process, whose agents have not come back yet.
  void restore(std::uint64_t instance, SavedStore saved);
  /// Tells what there is to keep.
  void describe(HostedRecorder& to) const;

  /// Its channels stay until the generation is over, for when the agent comes back.
  void disconnected(ConnectionId id);
  /// The job has no running generation any more: its store is forgotten.
  void over(std::string_view job);

  /// Connections that may have something to be sent since the last call.
  [[nodiscard]] std::vector<ConnectionId> take_ready();
  /// Nothing was asked of next() though there was room: take_ready() names it again.
  void remember(ConnectionId id) { ready_.push_back(id); }
  /// The next message for the connection; false: none. Channels take turns.
  [[nodiscard]] bool next(ConnectionId to, control::Message& message);

  [[nodiscard]] std::size_t num_stores() const { return stores_.size(); }
  [[nodiscard]] std::size_t num_channels() const { return num_channels_; }
  /// See HostedStoresOptions::max_buffered_bytes.
  [[nodiscard]] std::size_t num_buffered_bytes() const { return num_buffered_; }
  /// nullptr: none.
  [[nodiscard]] const StoreCore* find(std::string_view job) const;

 private:
  struct Channel;
  struct Mount;
  struct Store;

  void attach(ConnectionId from, const std::optional<Membership>& member, const control::StoreAttach& attach);
  [[nodiscard]] std::string open(Mount& mount, const control::StoreOpen& open);
  [[nodiscard]] std::string bytes(Mount& mount, const control::StoreBytes& bytes);
  void run(Channel& channel, std::string_view input);
  [[nodiscard]] bool close_largest(Channel& running);
  void deliver(Store& store);
  void make_ready(Channel& channel);
  void say(Mount& mount, control::Message message);
  void close(Channel& channel, std::string reason);
  void remove(Mount& mount, std::uint32_t number);
  Channel& create(Mount& mount, std::uint32_t number, std::uint64_t position);
  [[nodiscard]] bool refuse_surplus(Mount& mount, std::uint32_t number);
  [[nodiscard]] std::uint64_t tell_done(Channel& channel) const;
  [[nodiscard]] bool credit_is_due(const Channel& channel) const;
  void count(Channel& channel);
  void detach(Mount& mount);

  // Across processes.
  void record(Store& store);
  [[nodiscard]] std::string begin_anew(Mount& mount, const control::StoreOpen& open);
  void left_barrier(const Channel& channel);
  void forget(Mount& mount, std::uint32_t number);
  void forget_unnamed(Mount& mount);

  HostedStoresOptions options_;
  std::uint64_t next_instance_;
  HostedRecorder* recorder_ = nullptr;
  std::uint64_t incarnation_ = 0;                                      // 0: there is no recorder
  std::map<std::string, std::unique_ptr<Store>, std::less<>> stores_;  // by job
  std::unordered_map<ConnectionId, Mount*> mounts_;
  std::unordered_map<ConnectionId, control::StoreRefused> refused_;
  std::optional<Membership> lost_;
  std::vector<ConnectionId> ready_;
  Effects effects_;
  std::size_t num_channels_ = 0;
  std::size_t num_buffered_ = 0;
};

}  // namespace muster
