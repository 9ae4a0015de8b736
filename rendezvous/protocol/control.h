// SPDX-License-Identifier: Apache-2.0
// Control: what agents and the coordinator say to each other, and its bytes. Sans-IO. A connection begins
// with a preamble from each side, whose first byte 0xAB begins no TCPStore request of any version, so that
// one port serves both. Then frames: u32 length and a message as archive.h writes it: u8 type, fields. The
// length is capped before anything is stored. Failure: the first error is kept; the connection has to be
// closed. A Decoder belongs to one connection; one thread.
//
//   agent                        coordinator
//   preamble, Start{job, nonce}  ->
//                                <-  preamble, Challenge{nonce} or Refused
//   Proof{mac}, Join             ->
//                                <-  Welcome{mac}, then Waiting, Assignment, GenerationOver, Closed, Report,
//                                Clock, SafePointPassed, Hang, Status, Notice, StopWorkers
//   Ready, Heartbeat, StopWorkers, WorkerFailed, Finished, SafePoint, Report, Leave, Stop, Clock, Hang,
//   Status ->
//
// The workers' store may be the coordinator's (--store-proxy). Each worker's connection then has a number,
// and so has each of its requests, from 1. The coordinator runs them in their order and answers them in their
// order; it keeps the answer to the last change until the agent has it. Over a new connection the agent names
// the workers' connections and sends again what it was not answered: a change is made once, reads and waits
// are repeated.
//   StoreAttach, StoreOpen*, StoreRequest*, StoreClose ->
//                                <-  StoreAttached or StoreRefused, StoreAnswer*, StoreClose
// Who only looks in says Query instead of Join; its Start names no job, or the one it asks for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/base/fieldwise.h"
#include "rendezvous/protocol/world.h"

namespace muster::control {

using fieldwise::operator==;

inline constexpr char kFirstByte = '\xAB';
inline constexpr std::string_view kMagic = "\xABmuster";
inline constexpr std::uint8_t kProtocolVersion = 7;
/// Magic, lowest and highest version: the agent's range; in the coordinator's answer both are its choice, or
/// 0 when it has none in common with the agent.
inline constexpr std::size_t kPreambleBytes = 9;

using Nonce = std::array<std::uint8_t, 32>;
using Mac = std::array<std::uint8_t, 32>;

// Numbers on the wire are the positions in Message below, from 1.

struct Start {
  std::string job;
  std::string host;  ///< for people, before anything is proven
  Nonce nonce{};
};
struct Challenge {
  bool has_secret = false;  ///< the coordinator asks for a proof, and gives one
  Nonce nonce{};
};
struct Proof {
  Mac mac{};
};
struct Welcome {
  Mac mac{};
  std::uint32_t heartbeat_ms = 5000;  ///< how often the agent has to send one
  std::string software;               ///< of the coordinator: "muster 0.1.0"
  /// An agent whose connection breaks finds its place kept for so long: a coordinator with a state log comes
  /// back.
  std::uint32_t reconnect_ms = 0;
};
/// The connection is closed after it.
struct Refused {
  enum class Reason : std::uint8_t {
    kVersion,
    kAuthentication,
    kSettings,
    kLimit,
    kOver,
    kLost,
    kProtocol,
    kStopping,
    kBusy,  ///< the former job of this name is being left; worth another try
    kLast = kBusy
  };
  Reason reason = Reason::kProtocol;
  std::string text;
};
struct Join {
  membership::Request request;
  membership::Settings settings;
  std::optional<std::int64_t> resume;  ///< whose workers run here, or the last one's, between two
  std::string software;
  /// How long the agent has been running. One that is older than the end of a job is not of the next job of
  /// that name. A span, since hosts' clocks are not compared.
  Millis age{0};
};
/// The workers of `generation` are gone; ready for the next.
struct Ready {
  std::int64_t generation = 0;
  std::uint16_t master_port = 0;
  StepProgress reached = {};  ///< by them
};
/// Answered by another: each side notices that the other is frozen.
struct Heartbeat {};
/// A new world, and this node's place in it.
struct Assignment {
  std::int64_t generation = 0;
  std::int32_t restarts_used = 0;
  std::int32_t group_rank = 0;
  std::int32_t group_world_size = 1;
  std::int32_t base_rank = 0;
  std::int32_t ranks = 1;
  std::int32_t world_size = 1;
  std::int32_t role_base_rank = 0;
  std::int32_t role_world_size = 1;
  std::vector<std::string> master_addresses;  ///< of the first node, best first
  std::uint16_t master_port = 0;
  std::string master_host;  ///< its name for people
  /// To the first node alone, which has to find its way to the others as they do to it: of one of them, as
  /// the three above. Port 0: nobody listens there.
  std::vector<std::string> peer_addresses = {};
  std::uint16_t peer_port = 0;
  std::string peer_host = {};
};
struct Waiting {
  std::int32_t present = 0;
  std::int32_t min_nodes = 0;
  std::int32_t max_nodes = 0;
  bool outside = false;  ///< a world runs without this node
  std::string text;
  /// Of the first node of the world that runs, as in Assignment: this node has to reach it in order to take a
  /// place. None: there is nothing to reach.
  std::vector<std::string> master_addresses;
  std::uint16_t master_port = 0;
  std::string master_host;
  /// Until the job's gathering is given up; 0: not known, or never.
  Millis rest{0};
};
/// Stop the workers of `generation`, then say Ready.
struct GenerationOver {
  std::int64_t generation = 0;
  std::int32_t restarts_used = 0;
  membership::Cause cause;
};
/// The job is over: stop the workers.
struct Closed {
  membership::Cause cause;
};
struct WorkerFailed {
  std::int64_t generation = 0;
  std::int32_t rank = -1;
  std::int32_t exit_code = 0;
  bool may_restart = true;        ///< false: an exit code that is not to be retried
  bool machine_at_fault = false;  ///< the machine is to cool down
  std::string text;
  StepProgress reached = {};  ///< by the workers of this node
};
struct Finished {
  std::int64_t generation = 0;
};
struct SafePoint {
  std::int64_t generation = 0;
};
/// A node's part of the job's report: to the coordinator, and on to the first node of the world.
struct Report {
  std::int64_t generation = 0;
  std::string host;
  std::int32_t group_rank = -1;
  std::string payload;
};
struct Leave {
  std::string reason;
};
/// Ends the job for everybody; with `or_leave` only this node leaves, where the others can go on without it.
struct Stop {
  std::int32_t exit_code = 0;
  std::string reason;
  bool or_leave = false;
};

/// The workers of `generation` want their store. Sent again on each connection.
struct StoreAttach {
  std::int64_t generation = 0;
  /// The store of StoreAttached; 0: not known yet. One that is gone: GenerationOver.
  std::uint64_t instance = 0;
  std::uint32_t num_connections =
      0;  ///< so many StoreOpen follow, and the workers' other connections are gone
};
struct StoreAttached {
  std::int64_t generation = 0;
  std::uint64_t instance = 0;  ///< random: no other store has it
};
struct StoreRefused {
  std::int64_t generation = 0;
  std::string text;
};
/// A worker's connection, which is new, or one that the agent had before this connection of its own.
struct StoreOpen {
  std::uint32_t connection = 0;  ///< numbered upwards
  std::uint64_t acked = 0;       ///< requests up to here are done and answered; the next one comes first
};
/// A request of a worker, as wire.h's kRelayed, or a piece of it.
struct StoreRequest {
  std::uint32_t connection = 0;
  std::uint64_t number = 0;
  std::uint64_t acked = 0;  ///< as in StoreOpen
  bool more = false;        ///< another piece follows
  std::string bytes;
};
/// The answer to a request, or a piece of it. All requests before it are done, and so is it, with the last
/// piece. No bytes: it has none.
struct StoreAnswer {
  std::uint32_t connection = 0;
  std::uint64_t number = 0;
  bool more = false;
  std::string bytes;
};
/// Both ways. The agent: the worker is gone, and all that it asked for is done; or it knows that the
/// connection is closed. The coordinator: it has closed the connection, with the reason where it is the
/// worker's fault.
struct StoreClose {
  std::uint32_t connection = 0;
  std::string reason;
};

/// Wall clocks as in clock_offset.h, in nanoseconds since the epoch. Asked by an agent that wants to compare
/// them, answered at once.
struct Clock {
  std::int64_t asked = 0;
  std::int64_t received = 0;  ///< 0 in the question, as the next
  std::int64_t answered = 0;
};

/// The answer to SafePoint where the generation goes on: nobody waits to join.
struct SafePointPassed {
  std::int64_t generation = 0;
};

/// What the nodes of a world tell each other about workers that hang. To the first node, or from it to all
/// others; the coordinator only forwards it, and where the first node is away it is lost.
struct Hang {
  enum class Kind : std::uint8_t {
    kDetected,         ///< to the first node: workers here are stalled
    kSnapshot,         ///< to the first node: what the workers here are doing
    kOver,             ///< to the first node: no worker here is stalled any more
    kRequestSnapshot,  ///< to all: send a snapshot of your workers
    kVerdict,          ///< to all: the report is written, and what follows
    kAlreadyReported,  ///< to all: a hang that was detected since belongs to this one
    kLast = kAlreadyReported
  };
  std::int64_t generation = 0;
  Kind kind = Kind::kDetected;
  std::int32_t number = 0;  ///< of the hang; 0: not known yet
  std::string host;         ///< of the sender, as the next
  std::int32_t group_rank = -1;
  std::string payload;

  [[nodiscard]] bool to_all() const { return kind >= Kind::kRequestSnapshot; }
};

/// What the nodes of a world tell each other while somebody looks at the job's status page, which the first
/// node serves. Forwarded as Hang is, and may be lost as that.
struct Status {
  enum class Kind : std::uint8_t {
    kNode,           ///< to the first node: what the node's workers and GPUs are doing
    kLog,            ///< to the first node: the end of a worker's log, or the node's metrics
    kRequestStatus,  ///< to all: send kNode once a second for `lease`
    kRequestLog,     ///< to all: whoever has what `payload` names, a rank or metrics, sends kLog
    kLast = kRequestLog
  };
  std::int64_t generation = 0;
  Kind kind = Kind::kNode;
  Millis lease{0};
  std::string host;  ///< of the sender, as the next
  std::int32_t group_rank = -1;
  std::string payload;

  [[nodiscard]] bool to_all() const { return kind >= Kind::kRequestStatus; }
};

/// What a node's own user should know: it takes part, but not as he may think.
struct Notice {
  std::string text;
};

/// A worker of the sender failed: the workers of `generation` are to be stopped now. WorkerFailed follows
/// when the sender knows why. The coordinator passes it on to the other members.
struct StopWorkers {
  std::int64_t generation = 0;
  std::int32_t group_rank = -1;  ///< of the sender
};

// Who only looks in (musterctl jobs) joins nothing and changes nothing: one question at a time. An answer has
// kMaxQueryEntries of jobs and of nodes at most; QueryEnd says how many there are and where to go on. Texts
// are as agents gave them, cut short, and not to be shown to a terminal as they are.
//   Query  ->
//            <-  JobState*, NodeState*, QueryEnd

inline constexpr std::size_t kMaxQueryEntries = 1000;
inline constexpr std::size_t kMaxQueryText = 1024;  ///< bytes of each text in an answer

struct Query {
  std::string job;                ///< this one, with its nodes; empty: all that the asker may see
  std::string after;              ///< of the jobs those behind this name; empty: from the first
  std::uint64_t from_number = 0;  ///< of the nodes those from this number on
};

struct JobState {
  enum class Phase : std::uint8_t {
    kGathering,   ///< no world has run yet
    kRestarting,  ///< between two
    kRunning,
    kEnded,
    kLast = kEnded
  };
  std::string job;
  Phase phase = Phase::kGathering;
  std::int64_t generation = -1;  ///< that runs or ran last; -1: none yet
  std::int32_t restarts_used = 0;
  std::int32_t max_restarts = 0;
  std::int32_t num_present = 0;  ///< nodes that are connected and fit
  std::int32_t num_outside = 0;  ///< of these: without a place in the world that runs
  std::int32_t num_unhealthy = 0;
  std::int32_t num_away = 0;  ///< nodes whose connection broke and who may come back
  std::int32_t min_nodes = 0;
  std::int32_t max_nodes = 0;
  std::int32_t spares = 0;
  std::int32_t num_members = 0;  ///< of the world that runs or ran last, as the next
  std::int32_t world_size = 0;
  std::int64_t age_ms = 0;         ///< since this process knows the job
  std::int64_t forgotten_ms = -1;  ///< until it is forgotten; -1: that is not due
  std::int64_t epoch = -1;         ///< the furthest that the nodes have told of, as the next; -1: none
  std::int64_t step = -1;
  std::int32_t exit_code = 0;  ///< once ended
  std::string text;            ///< what it waits for, or how it ended
  std::string first_host;      ///< of the first node, as the next two: where its workers' store is
  std::string first_address;
  std::uint16_t first_port = 0;      ///< 0: the store is the coordinator's
  std::string first_status_address;  ///< HOST:PORT of the first node's status page; empty: none
};

struct NodeState {
  enum class State : std::uint8_t {
    kMember,    ///< runs workers
    kFinished,  ///< its workers succeeded
    kStopping,  ///< is stopping its workers, or pauses before a restart
    kWaiting,   ///< for a world, or a place in it
    kAway,      ///< its connection broke, it may come back
    kUnhealthy,
    kGone,  ///< a member of the last world that is not here any more
    kLast = kGone
  };
  std::uint64_t number = 0;  ///< in the order in which they came
  std::string host;
  State state = State::kMember;
  std::int32_t group_rank = -1;  ///< in the world that runs or ran last; -1: none
  std::int32_t base_rank = -1;   ///< its first worker's rank there
  std::int32_t ranks = 0;        ///< workers
  std::int32_t order = -1;       ///< the place that it asked for; -1: any
  std::string role;
  std::int64_t heard_ms = -1;  ///< since its last word; -1: not known
  std::string address;         ///< by which it reached the coordinator; else the best that it offered
  std::string text;            ///< why it is not a member, or is none that works
  std::string status_address;  ///< HOST:PORT of its /metrics; empty: none
};

struct QueryEnd {
  std::uint64_t num_jobs = 0;   ///< that the asker may see, however many were asked for, as the next
  std::uint64_t num_nodes = 0;  ///< of the job that was asked for
  bool more = false;            ///< jobs or nodes: ask again with the next two
  std::string after;
  std::uint64_t from_number = 0;
  std::string software;  ///< of the coordinator
  std::string problem;   ///< why it acknowledges nothing at present
};

using Message =
    std::variant<Start, Challenge, Proof, Welcome, Refused, Join, Ready, Heartbeat, Assignment, Waiting,
                 GenerationOver, Closed, WorkerFailed, Finished, SafePoint, Report, Leave, Stop, StoreAttach,
                 StoreAttached, StoreRefused, StoreOpen, StoreRequest, StoreAnswer, StoreClose, Clock,
                 SafePointPassed, Hang, Notice, Query, JobState, NodeState, QueryEnd, StopWorkers, Status>;

/// Of the workers' store, whoever says it: its name begins with Store.
[[nodiscard]] bool is_about_store(const Message& message);

/// Nothing if this may be the name of a job, else why not. It appears in logs and on terminals.
[[nodiscard]] std::string defect_of_job(std::string_view name);
inline constexpr std::size_t kMaxJobBytes = 255;

/// The name of a job that was given none, as torchrun's. Different jobs may bear it.
inline constexpr std::string_view kDefaultJob = "none";

/// "Join", for logs and errors.
[[nodiscard]] std::string_view name_of(const Message& message);

struct Preamble {
  std::uint8_t lowest = kProtocolVersion;
  std::uint8_t highest = kProtocolVersion;
};
/// What both sides speak; 0: nothing.
[[nodiscard]] std::uint8_t choose_version(const Preamble& offered);

void encode(const Preamble& preamble, std::string& out);
void encode(const Message& message, std::string& out);

inline constexpr std::size_t kMaxFrameBytes = std::size_t{1} << 20;
/// Before the other side has proven anything.
inline constexpr std::size_t kMaxHandshakeFrameBytes = 4096;
inline constexpr std::size_t kMaxList = 64;  ///< elements

class Decoder {
 public:
  enum class Step {
    kPreamble,  ///< see preamble(); once
    kMessage,
    kNeedMore,
    kError,  ///< see error()
  };

  explicit Decoder(std::size_t max_frame_bytes = kMaxFrameBytes) : max_frame_bytes_(max_frame_bytes) {}

  /// Decodes one thing from the front of `input` and advances it; an incomplete one is kept here.
  [[nodiscard]] Step next(std::string_view& input, Message& message);

  /// From the next frame on.
  void set_max_frame_bytes(std::size_t bytes) { max_frame_bytes_ = bytes; }
  [[nodiscard]] const Preamble& preamble() const { return preamble_; }
  /// Kept here of a frame that is not whole.
  [[nodiscard]] std::size_t num_pending_bytes() const { return pending_.size(); }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  Step reject(std::string text);

  std::size_t max_frame_bytes_;
  bool preamble_done_ = false;
  Preamble preamble_;
  std::string pending_;
  std::string error_;
};

}  // namespace muster::control
