// SPDX-License-Identifier: Apache-2.0
// What is said to an etcd and what it answers: the v3 API as its JSON gateway speaks it (etcd 3.4 and later),
// keys and values in base64, 64-bit numbers as text. Sans-IO. Called by client.h; one thread.
// Failure: an answer that is not etcd's is kProtocol, and says where it leaves the form.
// Source: etcd's api/etcdserverpb/rpc.proto and the grpc-gateway's rules for JSON and for streams.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/fieldwise.h"

namespace muster::etcd {

using fieldwise::operator==;

/// Of a key or the store, never reused.
using Revision = std::int64_t;
using LeaseId = std::int64_t;

struct KeyValue {
  std::string key;
  std::string value;
  Revision revision = 0;  ///< of its last change (etcd: mod_revision)
  LeaseId lease = 0;      ///< 0: none
};

/// A part of a transaction, as JSON.
using Operation = std::string;
/// All keys from `key` up to `end`; empty: `key` alone.
[[nodiscard]] Operation get(std::string_view key, std::string_view end = {});
[[nodiscard]] Operation put(std::string_view key, std::string_view value, LeaseId lease);
[[nodiscard]] Operation erase(std::string_view key);

/// Under this condition alone a transaction happens: the key was changed last at that revision; 0: it does
/// not exist.
struct Fence {
  std::string key;
  Revision revision = 0;
};

struct Lease {
  LeaseId id = 0;
  Millis ttl{0};
};

struct TxnResponse {
  Revision revision = 0;  ///< of the store, with what the transaction has written
  bool succeeded = false;
  std::vector<std::vector<KeyValue>> found;  ///< of each get(), in order
};

/// A POST to the gateway, and how the body of its answer is read.
template <class T>
struct Call {
  std::string_view path;
  std::string body;
  Result<T> (*parse)(std::string_view body);
};
[[nodiscard]] Call<Lease> grant(std::int64_t ttl_seconds);
/// Answers what is left of the lease; 0: etcd does not know it (any more).
[[nodiscard]] Call<Millis> keep_alive(LeaseId lease);
[[nodiscard]] Call<void> revoke(LeaseId lease);
[[nodiscard]] Call<TxnResponse> commit(const std::vector<Operation>& operations,
                                       const std::vector<Fence>& fences = {});

/// The body of a request to kWatchPath: changes of the keys from `key` up to `end` (empty: of `key`),
/// beginning with those of `from`.
[[nodiscard]] std::string watch_request(std::string_view key, std::string_view end, Revision from);
inline constexpr std::string_view kWatchPath = "/v3/watch";

/// An answer whose HTTP status is not 200. kNotFound: a lease or revision that is gone; kMismatch: this is no
/// etcd with a v3 gateway, or it wants to know who asks; kInvalidArgument: more than it takes at once;
/// kExhausted: it is full; kPeerGone: it cannot answer now, another try may succeed.
[[nodiscard]] Error error_of_response(int status, std::string_view body);

struct WatchUpdate {
  struct Event {
    bool deleted = false;
    KeyValue entry;  ///< of a deletion only its key
  };
  bool created = false;  ///< from now on changes are told
  std::vector<Event> events;
};

/// A watch's answer: JSON objects, one per line, in pieces of any size. An error is final.
class WatchStream {
 public:
  explicit WatchStream(std::size_t max_line_bytes) : max_line_bytes_(max_line_bytes) {}

  [[nodiscard]] Result<std::vector<WatchUpdate>> receive(std::string_view bytes);

 private:
  std::size_t max_line_bytes_;
  std::string input_;
};

}  // namespace muster::etcd
