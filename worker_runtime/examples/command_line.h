// SPDX-License-Identifier: Apache-2.0
// What the example programs share of their command lines.
#pragma once

#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <muster/result.h>
#include <muster/trainer.h>
#include <muster/worker.h>

/// A number from `least` to `most`, which nan is not, though CLI::Range lets it pass.
inline CLI::Validator between(double least, double most) {
  const auto test = [least, most](std::string& text) {
    double value = 0;
    const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return fits ? std::string()
                : text + " is not a number from " + CLI::detail::to_string(least) + " to " +
                      CLI::detail::to_string(most);
  };
  return {test, CLI::Range(least, most).get_description()};
}

/// Where the ranks meet and what they train on.
inline void add_worker_options(CLI::App& app, muster::WorkerOptions& worker) {
  app.add_option("--init-method,--dist-url", worker.init_method,
                 "env://, tcp://HOST:PORT?rank=R&world_size=W, file:///PATH?...");
  app.add_option("--backend,--dist-backend", worker.backend, "auto, shm, tcp, nccl or gloo");
  app.add_option("--local-rank,--local_rank", worker.local_rank, "place on this node; -1: found out");
  app.add_option("--device,--gpu", worker.device,
                 "auto, cpu, cuda, or the GPUs of this node's ranks, as 0,3");
  app.add_option("--gpu-memory-fraction", worker.compute.memory_fraction, "what arenas take at most");
  app.final_callback([&worker] {
    if (const auto known = worker.check(); !known) throw CLI::ValidationError(known.error().message);
  });
}

/// What training has come to, or an error if that is no number.
inline muster::Result<muster::Metrics> finite(muster::Result<muster::Metrics> metrics) {
  if (metrics && !std::isfinite(metrics->loss_sum))
    return muster::fail(muster::ErrorCode::kFailed,
                        "the training loss is no longer finite; try a lower --lr");
  return metrics;
}

/// main() of a program, whose exit code is that of `program`, or that of its error, after a line that tells
/// of it.
template <class Program>
int run_program(CLI::App& app, int argc, char** argv, const Program& program) {
  const auto complain = [&app](std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), text.c_str());
  };
  try {
    // CLI11 would take the next argument for the value that an empty shell variable did not give.
    for (const std::string argument : std::span(argv, static_cast<std::size_t>(argc)))
      if (argument.starts_with("--") && argument.find('=') + 1 == argument.size())
        throw CLI::ArgumentMismatch(argument + " has no value");
    for (CLI::Option* const option : app.get_options())
      option->check([](const std::string& value) {
        return value.starts_with("--") ? "it is followed by " + value + " instead of a value" : std::string();
      });
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return std::fputs(app.help().c_str(), stdout), 0;
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> unknown = app.remaining();
    complain((unknown.empty() ? error.what() : "unknown argument " + unknown.front()) + "; see " +
             app.get_name() + " --help");
    return 2;
  }
  const muster::Result<int> done = program();
  if (done) return *done;
  complain(done.error().message);
  return done.error().code == muster::ErrorCode::kInvalidArgument ? 2 : 1;
}
