// SPDX-License-Identifier: Apache-2.0
// ProxiedNodes: nodes with workers, a coordinator with their store, and the connections in between, without
// sockets: messages lie in queues until a test lets them through. The coordinator may have a state log, whose
// disk is a string. For tests.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/proxy/hosted_stores.h"
#include "rendezvous/proxy/request_forwarder.h"
#include "rendezvous/wal/journal.h"
#include "tests/support/catch.h"
#include "tests/support/log_records.h"

namespace muster::test {

// What a worker is answered, as bytes.
inline std::string number(std::int64_t value) {
  std::string out;
  wire::put_i64(out, value);
  return out;
}
inline std::string text(std::string_view value) {
  std::string out;
  wire::put_bytes(out, value);
  return out;
}
inline const std::string kStop(1, wire::kStopWaiting);
inline const std::string kCanceled(1, wire::kWaitCanceled);

inline wire::Request wait_for(const std::vector<std::string_view>& keys) {
  return {.op = wire::Op::kWait, .items = keys};
}

class ProxiedNodes;

class Worker {
 public:
  Worker(ProxiedNodes& nodes, std::size_t node, RequestForwarder::Number id)
      : nodes_(&nodes), node_(node), id_(id) {}

  void feed(std::string_view bytes);
  void send(const wire::Request& request, wire::Generation generation = wire::Generation::kModern) {
    std::string bytes;
    wire::encode(request, bytes, generation);
    feed(bytes);
  }
  /// What it was answered since the last call.
  std::string take();
  void close();
  void stop_reading();
  void read_on();
  /// Why it was closed.
  std::string closed();
  [[nodiscard]] RequestForwarder::Number id() const { return id_; }

 private:
  ProxiedNodes* nodes_;
  std::size_t node_;
  RequestForwarder::Number id_;
};

class ProxiedNodes {
 public:
  enum class Log { kNone, kKept };

  explicit ProxiedNodes(std::size_t count, const HostedStoresOptions& options = {}, Log log = Log::kNone)
      : options_(options), kept_(log == Log::kKept) {
    start_coordinator();
    nodes_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      nodes_[i].forwarder = std::make_unique<RequestForwarder>(generation_);
      link(i);
    }
    run();
  }

  Worker worker(std::size_t node, bool modern = true) {
    Worker out(*this, node, nodes_[node].forwarder->open());
    nodes_[node].workers.resize(std::max<std::size_t>(nodes_[node].workers.size(), out.id() + 1));
    if (modern) out.send({.op = wire::Op::kValidate, .number = wire::kMagic});
    return out;
  }

  /// Until nothing is on its way, or one node's alone.
  void run(std::optional<std::size_t> only = {}) {
    bool more = true;
    for (int i = 0; more && i < 100'000; ++i) {
      more = false;
      for (std::size_t node = 0; node < nodes_.size(); ++node)
        if (!only || *only == node) more |= step(node, 1) > 0;
    }
    REQUIRE_FALSE(more);
  }

  /// So many messages of a node at most, in turns: one there, one back. How many there were.
  int step(std::size_t number, int count) {
    Node& node = nodes_[number];
    int done = 0;
    serve(node);
    while (done < count && node.linked) {
      control::Message message;
      bool any = false;
      if (node.forwarder->next(message)) {
        if (const auto* sent = std::get_if<control::StoreRequest>(&message))
          node.last_sender = sent->connection;
        const std::string broken = stores_->receive(number, member(number), coded(message));
        for (const auto& [to, refused] : stores_->take_refused())
          if (const auto received = nodes_[to].forwarder->receive(refused);
              !received && nodes_[to].error.empty())
            nodes_[to].error = received.error().message;
        if (!broken.empty()) FAIL(broken);
        any = true;
        ++done;
      }
      if (done < count && !records_.empty()) {
        if (!disk_works_) break;
        commit();
      }
      if (done < count && stores_->next(number, message)) {
        if (const auto received = node.forwarder->receive(coded(message)); !received && node.error.empty())
          node.error = received.error().message;
        any = true;
        ++done;
      }
      serve(node);
      if (!any) break;
    }
    return done;
  }

  /// Messages from the node until the worker's first request is among them.
  int sent_before_answer(std::size_t number, const Worker& worker) {
    Node& node = nodes_[number];
    for (int i = 1; i < 100; ++i) {
      (void)step(number, 1);
      if (node.last_sender == worker.id()) return i;
    }
    return 100;
  }

  void break_link(std::size_t number) {
    nodes_[number].linked = false;
    nodes_[number].forwarder->disconnected();
    stores_->disconnected(number);
  }
  void link(std::size_t number) {
    nodes_[number].linked = true;
    nodes_[number].forwarder->connected();
  }
  void restart_coordinator() {
    next_instance_ += 1000;
    start_coordinator();
  }

  // With a state log.
  /// What was recorded is on the disk; where it does not work only this says so.
  void commit() {
    if (!records_.empty()) log_ += records_.seal(7, log_.size());
    records_.clear();
  }
  void disk_works(bool works) { disk_works_ = works; }
  /// Nothing is left of the process but what is on the disk; all connections break.
  void kill_coordinator() {
    records_.clear();
    for (std::size_t i = 0; i < nodes_.size(); ++i) break_link(i);
    restart_coordinator();
  }
  /// What the log tells.
  [[nodiscard]] RecoveredState saved() const {
    RecoveredState out;
    REQUIRE(journal::replay(log_, out.sink()).end == journal::Replayed::End::kClean);
    return out;
  }
  /// The log holds what there is, and nothing else. How long it is.
  std::size_t rewrite_log() {
    commit();
    log_ = journal::file_header(7);
    stores_->describe(test::into(records_));
    commit();
    return log_.size();
  }
  void next_generation() {
    ++generation_;
    stores_->over("job");
  }
  /// The node takes part in the present generation.
  void renew(std::size_t number) {
    nodes_[number] = {};
    nodes_[number].forwarder = std::make_unique<RequestForwarder>(generation_);
    stores_->disconnected(number);
    link(number);
    run();
  }

  [[nodiscard]] RequestForwarder& forwarder(std::size_t node) { return *nodes_[node].forwarder; }
  [[nodiscard]] const HostedStores& stores() const { return *stores_; }
  [[nodiscard]] std::optional<NodeAssignment> take_lost() { return stores_->take_lost(); }
  [[nodiscard]] const StoreCore& store() const { return *stores_->find("job"); }
  [[nodiscard]] const std::string& error(std::size_t node) const { return nodes_[node].error; }

 private:
  friend class Worker;
  struct Peer {
    std::string input;
    std::string output;
    std::string closed;
    bool reads = true;
    bool open = true;
  };
  struct Node {
    std::unique_ptr<RequestForwarder> forwarder;
    std::vector<Peer> workers;  // by id
    bool linked = false;
    std::uint32_t last_sender = 0;
    std::string error;
  };

  void start_coordinator() {
    stores_ = std::make_unique<HostedStores>(options_, next_instance_);
    if (!kept_) return;
    RecoveredState former = saved();
    stores_->record_to(test::into(records_));
    for (auto& [instance, store] : former.hosted) stores_->restore(instance, std::move(store));
  }

  [[nodiscard]] NodeAssignment member(std::size_t node) const { return {"job", {1, node}, generation_}; }

  // As it would be after a wire.
  static control::Message coded(const control::Message& message) {
    std::string bytes;
    control::encode(control::Preamble{}, bytes);
    control::encode(message, bytes);
    control::Decoder decoder;
    std::string_view input = bytes;
    control::Message out;
    REQUIRE(decoder.next(input, out) == control::Decoder::Step::kPreamble);
    REQUIRE(decoder.next(input, out) == control::Decoder::Step::kMessage);
    REQUIRE(out == message);
    return out;
  }

  // What a StoreProxy does.
  static void serve(Node& node) {
    for (auto ready = node.forwarder->take_ready(); !ready.empty(); ready = node.forwarder->take_ready())
      for (const auto id : ready) serve(node, id);
  }
  static void serve(Node& node, RequestForwarder::Number id) {
    Peer& peer = node.workers[id];
    if (!peer.open) return;
    if (peer.reads) {
      const std::string bytes(node.forwarder->answers(id));
      peer.output += bytes;
      if (!bytes.empty()) node.forwarder->consumed(id, bytes.size());
    }
    const std::string input = std::exchange(peer.input, {});
    std::string_view rest = input;
    if (node.forwarder->receive(id, rest) == RequestForwarder::State::kClose) {
      peer.closed = node.forwarder->reason(id);
      peer.open = false;
      node.forwarder->close(id);
      return;
    }
    peer.input = rest;
  }

  HostedStoresOptions options_;
  std::uint64_t next_instance_ = 4711;
  std::int64_t generation_ = 0;
  bool kept_;
  bool disk_works_ = true;
  journal::Encoder records_;
  std::string log_ = journal::file_header(7);
  std::unique_ptr<HostedStores> stores_;
  std::vector<Node> nodes_;
};

inline void Worker::feed(std::string_view bytes) {
  auto& node = nodes_->nodes_[node_];
  node.workers[id_].input += bytes;
  ProxiedNodes::serve(node, id_);
  ProxiedNodes::serve(node);
}
inline std::string Worker::take() {
  return std::exchange(nodes_->nodes_[node_].workers[id_].output, {});
}
inline void Worker::close() {
  nodes_->nodes_[node_].workers[id_].open = false;
  nodes_->nodes_[node_].forwarder->close(id_);
}
inline void Worker::stop_reading() {
  nodes_->nodes_[node_].workers[id_].reads = false;
}
inline void Worker::read_on() {
  auto& node = nodes_->nodes_[node_];
  node.workers[id_].reads = true;
  ProxiedNodes::serve(node, id_);
}
inline std::string Worker::closed() {
  return nodes_->nodes_[node_].workers[id_].closed;
}

}  // namespace muster::test
