// SPDX-License-Identifier: Apache-2.0
// One session of a modern client, byte by byte, as PyTorch >= 2.2 sends and receives it: the examples of the
// protocol. Replies that another connection causes later are not in here (the absent WAIT, the first
// BARRIER).
#pragma once

#include <string_view>

struct Exchange {
  std::string_view what;
  std::string_view sent;      // hex
  std::string_view received;  // hex
};

inline constexpr Exchange kWorkedSession[] = {
    {"VALIDATE", "00 ce f7 85 3c", ""},
    {"PING, client pid 12345 (0x3039)", "0d 39 30 00 00", "39 30 00 00"},
    {"ADD init/ +1 (worker check-in; the only un-prefixed key)",
     "04 05 00 00 00 00 00 00 00 69 6e 69 74 2f 01 00 00 00 00 00 00 00", "01 00 00 00 00 00 00 00"},
    {"SET k=v", "01 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76", ""},
    {"COMPARE_SET k: expected v, desired w (match)",
     "02 02 00 00 00 00 00 00 00 2f 6b 01 00 00 00 00 00 00 00 76 01 00 00 00 "
     "00 00 00 00 77",
     "01 00 00 00 00 00 00 00 77"},
    {"COMPARE_SET k: expected zz, desired q",
     "02 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 7a 7a 01 00 00 "
     "00 00 00 00 00 71",
     "01 00 00 00 00 00 00 00 77"},
    {"COMPARE_SET nk",
     "02 03 00 00 00 00 00 00 00 2f 6e 6b 02 00 00 00 00 00 00 00 7a 7a 01 00 "
     "00 00 00 00 00 00 71",
     "02 00 00 00 00 00 00 00 7a 7a"},
    {"COMPARE_SET nk (absent): expected empty (stored)",
     "02 03 00 00 00 00 00 00 00 2f 6e 6b 00 00 00 00 00 00 00 00 01 00 00 00 "
     "00 00 00 00 71",
     "01 00 00 00 00 00 00 00 71"},
    {"WAIT [k] (already there)", "06 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b", "00"},
    {"GET k (always preceded by the WAIT above)", "03 02 00 00 00 00 00 00 00 2f 6b",
     "01 00 00 00 00 00 00 00 77"},
    {"ADD a +5 (absent)", "04 02 00 00 00 00 00 00 00 2f 61 05 00 00 00 00 00 00 00",
     "05 00 00 00 00 00 00 00"},
    {"ADD a -7", "04 02 00 00 00 00 00 00 00 2f 61 f9 ff ff ff ff ff ff ff", "fe ff ff ff ff ff ff ff"},
    {"CHECK [k,nope]",
     "05 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 05 00 00 00 00 "
     "00 00 00 2f 6e 6f 70 65",
     "01"},
    {"CHECK [k]", "05 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b", "00"},
    {"WAIT [k,nk]",
     "06 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 03 00 00 00 00 "
     "00 00 00 2f 6e 6b",
     "00"},
    {"WAIT [zzz] (absent)", "06 01 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 2f 7a 7a 7a", ""},
    {"CANCEL_WAIT (sent after the client-side timeout)", "0c", "01"},
    {"GETNUMKEYS (init/,/k,/nk,/a)", "07", "04 00 00 00 00 00 00 00"},
    {"DELETE_KEY a", "08 02 00 00 00 00 00 00 00 2f 61", "01 00 00 00 00 00 00 00"},
    {"DELETE_KEY a again", "08 02 00 00 00 00 00 00 00 2f 61", "00 00 00 00 00 00 00 00"},
    {"APPEND k += xy", "09 02 00 00 00 00 00 00 00 2f 6b 02 00 00 00 00 00 00 00 78 79", ""},
    {"MULTI_GET [k,nk] (preceded by WAIT on the same keys)",
     "0a 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 2f 6b 03 00 00 00 00 "
     "00 00 00 2f 6e 6b",
     "03 00 00 00 00 00 00 00 77 78 79 01 00 00 00 00 00 00 00 71"},
    {"MULTI_SET m1=x, m2= (empty)",
     "0b 02 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 2f 6d 31 01 00 00 00 "
     "00 00 00 00 78 03 00 00 00 00 00 00 00 2f 6d 32 00 00 00 00 00 00 00 00",
     ""},
    {"QUEUE_PUSH q <- 1", "0e 02 00 00 00 00 00 00 00 2f 71 01 00 00 00 00 00 00 00 31", ""},
    {"QUEUE_LEN q", "10 02 00 00 00 00 00 00 00 2f 71", "01 00 00 00 00 00 00 00"},
    {"QUEUE_POP q", "0f 02 00 00 00 00 00 00 00 2f 71", "01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 31"},
    {"QUEUE_POP q (empty)", "0f 02 00 00 00 00 00 00 00 2f 71", "00 00 00 00 00 00 00 00"},
    {"LIST_KEYS (order unspecified)", "11",
     "05 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 69 6e 69 74 2f 02 00 00 "
     "00 00 00 00 00 2f 6b 03 00 00 00 00 00 00 00 2f 6e 6b 03 00 00 00 00 00 "
     "00 00 2f 6d 31 03 00 00 00 00 00 00 00 2f 6d 32"},
    {"BARRIER b, world 2, first caller", "12 02 00 00 00 00 00 00 00 2f 62 02 00 00 00 00 00 00 00", ""},
    {"BARRIER b, world 2, second caller", "12 02 00 00 00 00 00 00 00 2f 62 02 00 00 00 00 00 00 00", "00"},
};
