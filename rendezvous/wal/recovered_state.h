// SPDX-License-Identifier: Apache-2.0
// RecoveredState: the store, the jobs and the hosted stores that the records of a log describe. A value that
// is moved into the servers that go on with it. No I/O; one thread.
#pragma once

#include "rendezvous/store/store_core.h"
#include "rendezvous/wal/journal.h"

namespace muster {

struct RecoveredState {
  StoreCore store;
  JobRecords jobs;
  SavedStores hosted;

  void apply(const journal::LogRecord& record) {
    if (const auto* change = std::get_if<StoreChange>(&record))
      store.apply(*change);
    else if (const auto* job = std::get_if<JobChange>(&record))
      muster::apply(*job, jobs);
    else
      muster::apply(std::get<HostedChange>(record), hosted);
  }
  [[nodiscard]] journal::LogSink sink() {
    return [this](const journal::LogRecord& record) { apply(record); };
  }
  void describe(const journal::LogSink& to) const {
    store.describe(to);
    for (const auto& [name, record] : jobs) to(JobChange(JobRecorded{name, record}));
    for (const auto& [instance, saved] : hosted) muster::describe(saved, instance, to);
  }
};

}  // namespace muster
