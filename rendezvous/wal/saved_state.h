// SPDX-License-Identifier: Apache-2.0
// SavedState: what a state log tells when it is replayed, as the store, the jobs and the hosted stores it
// describes. A value that is moved into the servers that go on with it. No I/O; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "rendezvous/proxy/hosted_record.h"
#include "rendezvous/store/store_core.h"
#include "rendezvous/wal/journal.h"

namespace muster {

/// A StoreCore that becomes what it is told.
class ToldStore final : public StoreRecorder {
 public:
  explicit ToldStore(StoreCore& core) : core_(core) {}

  void set(std::string_view key, std::string_view value) override { core_.set(key, value, none_); }
  void append(std::string_view key, std::string_view bytes) override { core_.append(key, bytes, none_); }
  void erase(std::string_view key) override { core_.delete_key(key, none_); }
  void push(std::string_view queue, std::string_view element) override {
    core_.queue_push(queue, element, none_);
  }
  void pop(std::string_view queue) override { core_.queue_pop(queue); }

 private:
  StoreCore& core_;
  Effects none_;  // nobody waits yet
};

class SavedState final : public journal::Recorder {
 public:
  void set(std::string_view key, std::string_view value) override { ToldStore(store).set(key, value); }
  void append(std::string_view key, std::string_view bytes) override { ToldStore(store).append(key, bytes); }
  void erase(std::string_view key) override { ToldStore(store).erase(key); }
  void push(std::string_view queue, std::string_view element) override {
    ToldStore(store).push(queue, element);
  }
  void pop(std::string_view queue) override { ToldStore(store).pop(queue); }
  void job(std::string_view name, const JobRecord& record) override {
    jobs.insert_or_assign(std::string(name), record);
  }
  void job_finished(std::string_view name, const membership::NodeId& node) override {
    if (const auto found = jobs.find(name); found != jobs.end()) found->second.finished.push_back(node);
  }
  void job_progress(std::string_view name, const JobProgress& progress) override {
    if (const auto found = jobs.find(name); found != jobs.end()) found->second.progress = progress;
  }
  void job_left(std::string_view name, const membership::NodeId& node) override {
    if (const auto found = jobs.find(name); found != jobs.end()) found->second.has_gone(node);
  }
  void job_forgotten(std::string_view name) override {
    if (const auto found = jobs.find(name); found != jobs.end()) jobs.erase(found);
  }

  void hosted_began(std::string_view job, std::int64_t generation, std::uint64_t instance) override {
    SavedStore& fresh = hosted[instance] = SavedStore();
    fresh.job = job;
    fresh.generation = generation;
  }
  void hosted_ended(std::uint64_t instance) override { hosted.erase(instance); }
  void hosted_changed(std::uint64_t instance, const StoreChange& change) override {
    if (const auto found = hosted.find(instance); found != hosted.end())
      ToldStore(found->second.core).apply(change);
  }
  void hosted_done(std::uint64_t instance, const ChannelName& name, const ChannelMark& mark) override {
    if (const auto found = hosted.find(instance); found != hosted.end())
      found->second.marks.insert_or_assign(name, mark);
  }
  void hosted_gone(std::uint64_t instance, const ChannelName& name) override {
    if (const auto found = hosted.find(instance); found != hosted.end()) found->second.marks.erase(name);
  }

  /// Tells all of it.
  void describe(journal::Recorder& to) const {
    store.describe(to);
    for (const auto& [name, record] : jobs) to.job(name, record);
    for (const auto& [instance, saved] : hosted) muster::describe(saved, instance, to);
  }

  StoreCore store;
  std::map<std::string, JobRecord, std::less<>> jobs;
  std::map<std::uint64_t, SavedStore> hosted;  ///< by instance
};

}  // namespace muster
