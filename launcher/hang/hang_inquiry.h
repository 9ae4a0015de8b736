// SPDX-License-Identifier: Apache-2.0
// HangInquiry: how the first node of a world looks into a hang. A node says that its workers hang; all are
// asked what theirs are doing; when all have answered or their time is over, there is one report, whoever
// else saw it meanwhile. Then the hang goes on until none of its nodes hangs any more, and a node that sees
// one meanwhile belongs to it. Words may be lost: a node that hangs says so again and again, one that has not
// for long does not hang any more, and who then hangs without having been in the report gets one. Pure: words
// of nodes and times in, orders out. Owned by the HangMonitor of the first node.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "launcher/hang/hang_part.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

class HangInquiry {
 public:
  /// A node's tools have 60 s for its stacks.
  static constexpr std::chrono::seconds kPatience{75};
  /// How often a node says that it still hangs.
  static constexpr std::chrono::seconds kRenewal{30};
  /// A node that has not said so for this long does not. While stacks are read it says nothing.
  static constexpr std::chrono::seconds kForget{150};
  /// Who came to a hang after its report, and hangs for this much longer than all that were in it, is asked.
  static constexpr std::chrono::seconds kLonger{60};

  struct Orders {
    bool ask = false;      // all nodes for their part of hang number()
    bool known = false;    // tell the nodes that this hang is known
    bool publish = false;  // all parts that will come are here
    bool over = false;     // nobody hangs any more
    bool faded = false;    // nobody is known to: the word of it was lost

    friend bool operator==(const Orders&, const Orders&) = default;
  };

  explicit HangInquiry(int nodes) : nodes_(nodes) {}

  /// Workers of that node hang; `number`: still, in that hang. 0: they have begun to.
  Orders seen(int node, int number, Instant now);
  Orders part(int node, int number, HangPart part, Instant now);
  /// Those of its ranks that go on, and those that have ended.
  Orders over(int node, const std::vector<int>& moved, const std::vector<int>& ended, Instant now);
  /// To be called at deadline().
  Orders tick(Instant now);
  [[nodiscard]] std::optional<Instant> deadline() const { return deadline_; }
  /// The silence is counted anew by everybody: nothing of this hang is to come.
  void forget();

  /// Of the present or last hang, from 1.
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] bool hanging() const { return !hanging_.empty(); }
  [[nodiscard]] Instant began() const { return began_; }
  [[nodiscard]] const std::map<int, HangPart>& parts() const { return parts_; }
  [[nodiscard]] const std::vector<int>& moved() const { return moved_; }
  [[nodiscard]] const std::vector<int>& ended() const { return ended_; }

 private:
  enum class Phase { kNone, kAsking, kTold };

  Orders begin(Instant now);
  [[nodiscard]] Orders settle(Instant now);
  void hangs(int node, Instant now);
  void plan(Instant now);

  int nodes_;
  Phase phase_ = Phase::kNone;
  int number_ = 0;
  std::map<int, Instant> hanging_;  // node, and when it said so last; the first node's own word is never lost
  std::set<int> reported_;          // those of them that were in the report
  std::optional<Instant> alone_since_;  // hang those that were not
  std::map<int, HangPart> parts_;
  std::vector<int> moved_, ended_;  // ranks
  Instant began_{};
  std::optional<Instant> deadline_;
};

}  // namespace muster::launcher
