// SPDX-License-Identifier: Apache-2.0
// Progress: tells the launcher how far this worker is: "epoch 2 step 140/15000 all_reduce". Its report of a
// failure shows the last word, and where nothing is said for too long it takes the worker for one that hangs
// (muster --hang-timeout). The trainer reports for itself; a loop of one's own makes an object of this. Costs
// 11 ns per step with five phases: stores into memory that the launcher reads when it wants to know, no
// system call. Several objects of a process write to the same place, each from one thread. Without a
// launcher, or where its file cannot be written, what is said goes nowhere: nothing here fails.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

namespace muster {

class Progress {
 public:
  /// What a step is doing: a name of at most 16 bytes, for example "all_reduce". A longer one does not
  /// compile.
  class Phase {
   public:
    consteval Phase(const char* name) {  // NOLINT(google-explicit-constructor): a literal
      for (int i = 0; name[i] != '\0'; ++i) text_.at(static_cast<std::size_t>(i)) = name[i];
    }

   private:
    friend class Progress;
    std::array<char, 16> text_{};
  };

  /// The file that MUSTER_PROGRESS_FILE names.
  Progress();
  /// Another file, made if it is not there. Mapped where it lies in memory (as the launcher's do). A file
  /// system on a disk could hold up a store into mapped memory: there it is written, at most once a second
  /// and when something other than a step is said.
  explicit Progress(const char* path);
  /// The last word stays, and nothing more is expected: as pause().
  ~Progress();
  Progress(Progress&&) noexcept;
  Progress& operator=(Progress&&) noexcept;

  /// An epoch begins (counted from 1), with so many steps; 0: not known.
  void begin_epoch(std::int64_t epoch, std::int64_t steps = 0);
  /// A step begins, counted from 1 in the epoch, or in the run.
  void begin_step(std::int64_t step);
  /// Within a step, or instead of one.
  void enter(Phase phase);
  /// For who watches the job: the loss (of all ranks) and this rank's speed. They stay until others come.
  void set_metrics(double loss, double samples_per_second);
  /// Words of one's own; the first line of at most 400 bytes. Takes the place of epoch and step until the
  /// next begin_epoch() or begin_step().
  void say(std::string_view text);
  /// What comes takes as long as it takes (a checkpoint, an export): no hang is seen in it, until the next
  /// word of another kind.
  void pause(Phase phase);

 private:
  class Page;
  std::unique_ptr<Page> page_;  // nullptr: nowhere
};

}  // namespace muster
