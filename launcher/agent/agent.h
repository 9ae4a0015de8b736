// SPDX-License-Identifier: Apache-2.0
// Agent: this node's part of a job, from the rendezvous to the exit status. It is a machine of three states:
// joining the other nodes, an Attempt under way, leaving. One loop takes one event at a time; each state has
// an answer to each kind of event. Whether to stop, restart or fail is decided by supervision.h and
// restart_policy.h. One loop, one thread: it drives the io_context itself.
#pragma once

#include <optional>
#include <sys/resource.h>

#include <boost/asio/io_context.hpp>

#include "launcher/job/job.h"
#include "launcher/output/log_writer.h"
#include "launcher/output/output_sink.h"
#include "launcher/process/descendants.h"
#include "launcher/process/detach.h"
#include "launcher/process/guardian.h"
#include "launcher/report/gpu_watch.h"
#include "launcher/telemetry/status_exchange.h"
#include "launcher/telemetry/telemetry.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

/// What an agent works with. Everything outlives it.
struct AgentContext {
  boost::asio::io_context& io;
  const Job& job;
  const Environment& environment;
  const Log& log;
  Guardian& guardian;
  WorkerCgroups& cgroups;
  const Descendants& descendants;
  // This process' own streams. What the agent writes to `err` is queued behind the workers' output.
  OutputSink& out;
  OutputSink& err;
  Telemetry& telemetry;
  StatusExchange& status;
  std::optional<rlimit> descriptor_limit;  // that the workers get back
  LogWriter* log_writer = nullptr;         // where log files are rotated
  DetachedJob* entry = nullptr;            // of a detached job
  GpuWatch* gpu_watch = nullptr;           // on nodes with GPUs
};

/// Until the job is over on this node; returns the exit status.
[[nodiscard]] int run_agent(const AgentContext& context);

}  // namespace muster::launcher
