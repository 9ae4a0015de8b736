// SPDX-License-Identifier: Apache-2.0
// SavedState: what a state log tells when it is replayed, as the store and the jobs it describes. A value
// that is moved into the server that goes on with it. No I/O; one thread.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "rendezvous/journal.h"
#include "rendezvous/store_core.h"

namespace muster {

class SavedState final : public journal::Recorder {
 public:
  void set(std::string_view key, std::string_view value) override { store.set(key, value, none_); }
  void append(std::string_view key, std::string_view bytes) override { store.append(key, bytes, none_); }
  void erase(std::string_view key) override { store.delete_key(key, none_); }
  void push(std::string_view queue, std::string_view element) override {
    store.queue_push(queue, element, none_);
  }
  void pop(std::string_view queue) override { store.queue_pop(queue); }
  void job(std::string_view name, const JobRecord& record) override {
    jobs.insert_or_assign(std::string(name), record);
  }
  void job_finished(std::string_view name, const membership::NodeId& node) override {
    if (const auto found = jobs.find(name); found != jobs.end()) found->second.finished.push_back(node);
  }
  void job_left(std::string_view name, const membership::NodeId& node) override {
    if (const auto found = jobs.find(name); found != jobs.end()) found->second.gone.push_back(node);
  }
  void job_forgotten(std::string_view name) override {
    if (const auto found = jobs.find(name); found != jobs.end()) jobs.erase(found);
  }

  StoreCore store;
  std::map<std::string, JobRecord, std::less<>> jobs;

 private:
  Effects none_;  // nobody waits yet
};

}  // namespace muster
