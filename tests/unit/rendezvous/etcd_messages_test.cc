// SPDX-License-Identifier: Apache-2.0
// The bytes here are what etcd 3.4.23 sent and took.
#include "rendezvous/etcd/messages.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::etcd;
using namespace std::chrono_literals;

namespace {

const std::string kHead =
    R"({"header":{"cluster_id":"324952591200643719","member_id":"3319814642761637952","revision":"2","raft_term":"2"})";
const std::string kEntry =
    R"({"key":"L20vai9jb29yZGluYXRvcg==","create_revision":"1","mod_revision":"2","version":"1","value":"aGk=","lease":"2324035521453954055"})";
const KeyValue kKeyValue{"/m/j/coordinator", "hi", 2, 2324035521453954055};

}  // namespace

TEST_CASE("a transaction is written as etcd's gateway wants it") {
  REQUIRE(
      commit({put("/m/j/coordinator", "hi", 7), get("a", "b"), erase("c")},
             {{"/m/j/coordinator", 0}, {"s", 4}})
          .body ==
      R"({"compare":[{"key":"L20vai9jb29yZGluYXRvcg==","mod_revision":"0","result":"EQUAL","target":"MOD"},)"
      R"({"key":"cw==","mod_revision":"4","result":"EQUAL","target":"MOD"}],)"
      R"("success":[{"request_put":{"key":"L20vai9jb29yZGluYXRvcg==","lease":"7","value":"aGk="}},)"
      R"({"request_range":{"key":"YQ==","range_end":"Yg=="}},{"request_delete_range":{"key":"Yw=="}}]})");
  REQUIRE(watch_request("a", "b", 3) ==
          R"({"create_request":{"key":"YQ==","range_end":"Yg==","start_revision":"3"}})");
  REQUIRE(grant(10).body == R"({"TTL":"10"})");
  REQUIRE(revoke(-5).body == R"({"ID":"-5"})");
}

TEST_CASE("answers of etcd are understood") {
  REQUIRE(grant(1).parse(kHead + R"(,"ID":"2324035521453954053","TTL":"10"})").value() ==
          Lease{2324035521453954053, 10s});
  REQUIRE(keep_alive(1).parse(R"({"result":)" + kHead + R"(,"ID":"1","TTL":"10"}})").value() == 10s);
  // A lease it does not know: the zero is left out.
  REQUIRE(keep_alive(1).parse(R"({"result":)" + kHead + R"(,"ID":"12345"}})").value() == 0s);
  const auto won =
      commit({}).parse(kHead +
                       R"(,"succeeded":true,"responses":[{"response_put":{"header":{"revision":"2"}}},)"
                       R"({"response_range":{"header":{"revision":"2"},"kvs":[)" +
                       kEntry + R"(],"count":"1"}},{"response_range":{"header":{"revision":"2"}}}]})");
  REQUIRE(won.value() == TxnResponse{2, true, {{kKeyValue}, {}}});
  REQUIRE(commit({}).parse(kHead + "}").value() == TxnResponse{2, false, {}});
}

TEST_CASE("what is no answer of etcd's is an error that shows it") {
  for (const std::string& body : std::vector<std::string>{
           "", "hello", "[]", "{}", R"({"header":{}})", R"({"header":{"revision":"x"}})",
           kHead + R"(,"responses":{}})", kHead + R"(,"responses":[1]})",
           kHead + R"(,"responses":[{"response_range":{"kvs":[{"key":"a"}]}}]})",
           kHead + R"(,"responses":[{"response_range":{"kvs":[{"key":"a=b="}]}}]})",
           kHead + R"(,"responses":[{"response_range":{"kvs":7}}]})", std::string(100000, '[')}) {
    const auto parsed = commit({}).parse(body);
    REQUIRE_FALSE(parsed);
    REQUIRE(parsed.error().code == ErrorCode::kProtocol);
    REQUIRE(parsed.error().message.size() < 400);
  }
  REQUIRE_FALSE(grant(1).parse(kHead + "}"));
  REQUIRE_FALSE(keep_alive(1).parse("{}"));
}

TEST_CASE("a refusal says what to do about it") {
  const auto of = [](int status, const std::string& text) {
    return error_of_response(status, R"({"error":"etcdserver: )" + text + R"(","message":"etcdserver: )" +
                                         text + R"(","code":3})");
  };
  REQUIRE(of(404, "requested lease not found").code == ErrorCode::kNotFound);
  REQUIRE(of(400, "request is too large").code == ErrorCode::kInvalidArgument);
  REQUIRE(of(429, "mvcc: database space exceeded").code == ErrorCode::kExhausted);
  REQUIRE(of(503, "no leader").code == ErrorCode::kPeerGone);
  for (const char* text : {"user name is empty", "invalid auth token", "permission denied"}) {
    REQUIRE(of(400, text).code == ErrorCode::kMismatch);
    REQUIRE_THAT(of(400, text).message, Catch::Contains("does not log in"));
  }
  REQUIRE(error_of_response(404, "Not Found").code == ErrorCode::kProtocol);
  REQUIRE_THAT(error_of_response(404, "Not Found").message, Catch::Contains("speaks HTTP"));
  REQUIRE(error_of_response(502, "<html>Bad Gateway</html>").code == ErrorCode::kPeerGone);
}

TEST_CASE("a watch tells what changed, and why it ends") {
  WatchStream stream(10000);
  REQUIRE(stream.receive(R"({"result":)" + kHead + R"(,"created":true}})" + "\n").value() ==
          std::vector<WatchUpdate>{{true, {}}});
  REQUIRE(stream.receive(R"({"result":)" + kHead + R"(,"events":[{"kv":)" + kEntry + "}]}}").value().empty());
  REQUIRE(stream.receive("\n").value() == std::vector<WatchUpdate>{{false, {{false, kKeyValue}}}});
  REQUIRE(stream
              .receive(R"({"result":)" + kHead +
                       R"(,"events":[{"type":"DELETE","kv":{"key":"YQ==","mod_revision":"3"}}]}})" + "\n")
              .value() == std::vector<WatchUpdate>{{false, {{true, {"a", "", 3, 0}}}}});
  WatchStream compacted(10000);
  const auto ended =
      compacted.receive(R"({"result":)" + kHead +
                        R"(,"canceled":true,"compact_revision":"9","cancel_reason":"compacted"}})" + "\n");
  REQUIRE_FALSE(ended);
  REQUIRE_THAT(ended.error().message, Catch::Contains("compacted"));
  WatchStream stopped(10000);
  REQUIRE(stopped
              .receive(R"({"error":{"grpc_code":14,"http_code":503,"message":"transport is closing"}})"
                       "\n")
              .error()
              .code == ErrorCode::kPeerGone);
  WatchStream endless(100);
  REQUIRE(endless.receive(std::string(101, 'x')).error().code == ErrorCode::kProtocol);
}
