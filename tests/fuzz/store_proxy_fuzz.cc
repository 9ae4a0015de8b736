// SPDX-License-Identifier: Apache-2.0
// Two workers of one node send arbitrary bytes: however these and the messages to the coordinator are cut up,
// wherever the connection to it breaks and comes back, and wherever the coordinator is killed and comes back
// with its state log, each gets the same answers and leaves the same store behind; a single worker gets what
// a store without a proxy would answer; and nothing is left of those that have gone.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/proxy/hosted_stores.h"
#include "rendezvous/proxy/request_forwarder.h"
#include "rendezvous/store/session.h"
#include "rendezvous/wal/journal.h"
#include "tests/support/log_records.h"

namespace {

using namespace muster;
using Random = std::minstd_rand;

void check(bool holds) {
  if (!holds) std::abort();
}

// Who breaks the protocol while it waits may be closed before the answer has come; and for that reason,
// though the store refused the wait for another.
template <class Said>
bool agree(const Said& a, const Said& b) {
  if (a.closed.empty() != b.closed.empty() || a.waits != b.waits) return false;
  return a.closed.empty() ? a.out == b.out : a.out.starts_with(b.out) || b.out.starts_with(a.out);
}

SessionLimits limits() {
  SessionLimits out;
  out.wire.max_request_bytes = 1 << 16;
  out.store = {.max_keys = 6, .max_bytes = 4000, .max_waits = 5};
  // What a byte of an old client means may depend on when the next one comes: not here.
  out.legacy = wire::Generation::kTorch21;
  return out;
}

struct Said {
  std::string out;
  std::string closed;
  bool waits = false;         // at the end; there may be more behind it
  std::size_t num_bytes = 0;  // in the store afterwards
};

Said direct(std::string_view bytes) {
  StoreCore core;
  std::optional<Session> session(std::in_place, 1, core, limits());
  Said said;
  if (session->receive(bytes, said.out) == Session::State::kClose) {
    said.closed = session->close_reason();
    session.reset();
  }
  said.num_bytes = core.num_bytes();
  return said;
}

// A node with its workers, and the coordinator.
class Node {
 public:
  Node() : forwarder_(3, limits().wire, limits().legacy) {
    start_coordinator();
    connect();
  }

  RequestForwarder::Number open() {
    run({});
    said_.resize(said_.size() + 1);
    return forwarder_.open();
  }

  /// All of it, in pieces of random length where there is a generator; with it connections break too.
  void say(RequestForwarder::Number id, std::string_view bytes, Random* random) {
    std::string input;
    int stuck = 0;
    while ((!bytes.empty() || !input.empty()) && said_[id - 1].closed.empty()) {
      const std::size_t size =
          random == nullptr ? bytes.size() : std::min<std::size_t>(bytes.size(), 1 + (*random)() % 60);
      input += bytes.substr(0, size);
      bytes.remove_prefix(size);
      std::string_view rest = input;
      const auto state = forwarder_.receive(id, rest);
      stuck = rest.size() == input.size() && size == 0 ? stuck + 1 : 0;
      input = std::string(rest);
      if (state == RequestForwarder::State::kClose) close(id);
      run(random);
      if (stuck == 3) break;
    }
    run(random);
    const StoreCore* core = stores_->find("job");
    said_[id - 1].waits = said_[id - 1].closed.empty() && core != nullptr && core->num_waiting() > 0;
  }

  void close(RequestForwarder::Number id) {
    if (gone_.contains(id)) return;
    gone_.insert(id);
    said_[id - 1].closed = forwarder_.reason(id).empty() ? "end" : forwarder_.reason(id);
    forwarder_.close(id);
  }

  // Until nothing moves.
  void run(Random* random) {
    bool more = true;
    while (more) {
      more = false;
      control::Message message;
      if (random != nullptr && (*random)() % 16 == 0) {
        forwarder_.disconnected();
        if ((*random)() % 2 == 0)
          start_coordinator();
        else
          stores_->disconnected(1);
        connect();
      }
      if (forwarder_.next(message)) {
        check(stores_->receive(1, NodeAssignment{"job", {1, 1}, 3}, message).empty());
        check(!stores_->take_lost());
        more = true;
      }
      // Nothing is said before what was recorded is on the disk.
      if (random == nullptr || (*random)() % 3 != 0) commit();
      const int turns = random == nullptr ? 1 : !records_.empty() ? 0 : static_cast<int>((*random)() % 3);
      for (int i = 0; i < turns && stores_->next(1, message); ++i) {
        check(forwarder_.receive(message).has_value());
        more = true;
      }
      if (turns == 0) more = true;
      for (const auto id : forwarder_.take_ready()) {
        const std::string bytes(forwarder_.answers(id));
        said_[id - 1].out += bytes;
        forwarder_.consumed(id, bytes.size());
        if (!forwarder_.reason(id).empty()) close(id);
        more = true;
      }
    }
  }

  [[nodiscard]] Said said(RequestForwarder::Number id) const {
    Said out = said_[id - 1];
    if (const StoreCore* core = stores_->find("job")) out.num_bytes = core->num_bytes();
    return out;
  }
  void end() {
    for (RequestForwarder::Number id = 1; id <= said_.size(); ++id) close(id);
    run({});
    check(forwarder_.num_connections() == 0);
    check(stores_->num_connections() == 0 && stores_->num_buffered_bytes() == 0);
    check(stores_->find("job")->num_waits() == 0 && stores_->find("job")->num_waiting() == 0);
    commit();
    const RecoveredState kept = saved();
    check(kept.hosted.size() == 1 && kept.hosted.begin()->second.connections.empty());
    check(kept.hosted.begin()->second.core.num_bytes() == stores_->find("job")->num_bytes());
  }

 private:
  static HostedStoresOptions options() {
    HostedStoresOptions out;
    out.limits = limits();
    return out;
  }
  void connect() { forwarder_.connected(); }
  void commit() {
    if (!records_.empty()) log_ += records_.seal(7, log_.size());
    records_.clear();
  }
  [[nodiscard]] RecoveredState saved() const {
    RecoveredState out;
    check(journal::replay(log_, out.sink()).end == journal::Replayed::End::kClean);
    return out;
  }
  // Of the former one is left what is in the log.
  void start_coordinator() {
    records_.clear();
    RecoveredState former = saved();
    stores_.emplace(options(), instance_ += 1000);
    stores_->record_to(test::into(records_));
    for (auto& [instance, store] : former.hosted) stores_->restore(instance, std::move(store));
  }

  journal::Encoder records_;
  std::string log_ = journal::file_header(7);
  std::uint64_t instance_ = 7;
  std::optional<HostedStores> stores_;
  RequestForwarder forwarder_;
  std::vector<Said> said_;
  std::set<RequestForwarder::Number> gone_;
};

Said alone(std::string_view bytes, Random* random) {
  Node node;
  const auto id = node.open();
  node.say(id, bytes, random);
  const Said out = node.said(id);
  node.end();
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 20'000) return 0;
  // A modern client: what an old one means by a new request while it waits depends on when it sends it.
  std::string text;
  wire::encode({.op = wire::Op::kValidate, .number = wire::kMagic}, text);
  const std::string_view hello = text;
  if (!std::string_view(reinterpret_cast<const char*>(data), size).starts_with(hello))
    text.append(reinterpret_cast<const char*>(data), size);
  else
    text.assign(reinterpret_cast<const char*>(data), size);
  const std::string_view all = text;
  const Said whole = alone(all, nullptr);
  Random random(static_cast<unsigned>(size) + 1);
  for (int i = 0; i < 2; ++i) {
    const Said cut = alone(all, &random);
    check(agree(cut, whole) && cut.num_bytes == whole.num_bytes);
  }
  const Said plain = direct(all);
  // What a worker sends while it waits is done afterwards; a store without a proxy does it meanwhile.
  if (!whole.waits) check(agree(whole, plain));

  // Together: the second one comes when the first has said its part.
  const std::size_t half = all.size() / 2;
  Node node;
  const auto first = node.open();
  const auto second = node.open();
  node.say(first, all.substr(0, half), &random);
  node.say(second, all.substr(half), &random);
  node.end();
  return 0;
}
