// SPDX-License-Identifier: Apache-2.0
// Writes the seeds of fuzz_journal: a whole log, and the records of a frame. Usage: journal_seeds <folder>
#include <cstdio>
#include <fstream>
#include <string>

#include "rendezvous/wal/journal.h"

namespace {

bool write(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.good();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace muster;
  if (argc != 2) {
    std::fprintf(stderr, "usage: journal_seeds <folder>\n");
    return 2;
  }
  JobRecord job;
  job.settings.max_nodes = 2;
  job.phase = membership::Phase::kRunning;
  job.world = {0,
               4,
               {{{1, 2}, "n1", "m1", "r", 0, 2, 0, 0, 4}, {{3, 4}, "n2", "m2", "r", {}, 2, 2, 2, 4}},
               {"10.0.0.4"},
               4711};
  job.excluded = {{"m9", Millis(10)}};
  job.known = {{5, 6}};
  job.gone = {{5, 6}};
  std::string log = journal::file_header(7);
  std::string records;
  for (int round = 0; round < 2; ++round) {
    journal::Encoder encoder;
    using Kind = StoreChange::Kind;
    for (const StoreChange& change : {StoreChange{Kind::kSet, "/k", "value"},
                                      {Kind::kAppend, "/k", "more"},
                                      {Kind::kPush, "/q", "1"},
                                      {Kind::kPush, "/q", "2"},
                                      {Kind::kPop, "/q"},
                                      {Kind::kErase, "/n"}})
      encoder.add(change);
    for (const JobChange& change : {JobChange(JobRecorded{"a", job}), JobChange(MemberFinished{"a", {1, 2}}),
                                    JobChange(NodeGone{"a", {3, 4}}),
                                    JobChange(ProgressMade{"a", {{{0, 7}, 1, {{0, {0, 7}}}}, {0, 9}, {}}}),
                                    JobChange(JobForgotten{"b"})})
      encoder.add(change);
    for (const HostedChange& change :
         {HostedChange(HostedBegan{99, "a", 0}), HostedChange(HostedChanged{99, {Kind::kSet, "/k", "v"}}),
          HostedChange(HostedChanged{99, {Kind::kPush, "/q", "1"}}),
          HostedChange(HostedDone{99, {{1, 2}, 1}, {40, "answer", {}}}),
          HostedChange(HostedDone{99, {{3, 4}, 1}, {30, "", "/barrier"}}),
          HostedChange(HostedGone{99, {{1, 2}, 2}}), HostedChange(HostedEnded{98})})
      encoder.add(change);
    const std::string frame(encoder.seal(7, log.size()));
    log += frame;
    records += frame.substr(journal::kFrameHeaderBytes);
    job.phase = membership::Phase::kClosed;
  }
  const std::string folder = argv[1];
  const bool good = write(folder + "/log", std::string("\x00\x80", 2) + log) &&
                    write(folder + "/one_frame", std::string("\x01\x40", 2) + records) &&
                    write(folder + "/two_frames", std::string("\x03\x08", 2) + records);
  if (!good) std::fprintf(stderr, "journal_seeds: cannot write to %s\n", argv[1]);
  return good ? 0 : 1;
}
