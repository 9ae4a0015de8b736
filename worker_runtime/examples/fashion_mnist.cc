// SPDX-License-Identifier: Apache-2.0
// fashion_mnist: the main job. Trains on FashionMNIST with as many ranks as its environment says; alone it is
// one rank.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "worker_runtime/examples/fashion_options.h"
#include "worker_runtime/examples/training_run.h"

namespace {

/// One line on stderr. Of several ranks each says which it is.
int report_error(const muster::Error& error, int exit_code) {
  const char* rank = std::getenv("RANK");
  const char* world = std::getenv("WORLD_SIZE");
  std::string who = "fashion_mnist: ";
  if (rank != nullptr && world != nullptr && std::string(world) != "1")
    who += std::string("rank ") + rank + ": ";
  std::fprintf(stderr, "%s%s\n", who.c_str(), error.message.c_str());
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = fashion::parse_options(argc, argv);
  if (!parsed) return report_error(parsed.error(), 2);
  if (!parsed->help.empty()) {
    std::fputs(parsed->help.c_str(), stdout);
    return 0;
  }
  auto run = fashion::TrainingRun::start(parsed->options);
  if (!run) return report_error(run.error(), 1);
  const auto summary = (*run)->run();
  if (!summary) return report_error(summary.error(), 1);
  if ((*run)->rank() == 0) std::fputs((*run)->report(*summary).c_str(), stdout);
  if (std::fflush(stdout) != 0) return 1;
  if (!summary->preempted) return 0;
  return summary->saved ? muster::kExitPreempted : 128 + SIGTERM;
}
